//! The mark on a message that the guard has changed.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use super::frame::length;

/// The name of the header that holds the mark. It is made anew for each process from 128 random bits and
/// leaves the process nowhere, so that no producer can send it.
static NAME: LazyLock<String> = LazyLock::new(|| {
    // Keys of the standard library's hash maps come from the system's random numbers.
    let random = RandomState::new();
    format!("guard-{:016x}{:016x}", random.hash_one(0_u8), random.hash_one(1_u8))
});

/// The longest detail, in bytes.
const MAX_DETAIL: usize = 300;

/// The mark as an entry of the headers.
pub(super) fn entry(detail: &str) -> Vec<u8> {
    let mut end = detail.len().min(MAX_DETAIL);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    let detail = &detail.as_bytes()[..end];
    let mut entry = Vec::with_capacity(NAME.len() + detail.len() + 6);
    // The name has 38 bytes.
    entry.push(u8::try_from(NAME.len()).unwrap_or_default());
    entry.extend_from_slice(NAME.as_bytes());
    entry.push(b'S');
    entry.extend_from_slice(&length(detail));
    entry.extend_from_slice(detail);
    entry
}

/// Takes the mark off the properties: what was wrong with the message, where the guard has changed it.
///
/// It must be called on every delivery of lapin, before anything else reads it.
pub(crate) fn take_mark(properties: &mut BasicProperties) -> Option<String> {
    let name = NAME.as_str();
    let headers = properties.headers().as_ref()?;
    let detail = match headers.inner().get(name)? {
        AMQPValue::LongString(detail) => detail.to_string(),
        _ => String::new(),
    };
    let mut headers = headers.inner().clone();
    headers.remove(name);
    *properties = std::mem::take(properties).with_headers(FieldTable::from(headers));
    Some(detail)
}
