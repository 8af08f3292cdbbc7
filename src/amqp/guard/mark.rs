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

/// What the guard did to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The message is malformed, and what cannot be parsed is missing. The text says what was wrong.
    Malformed(String),
    /// The body, of this length, is missing, and so are all properties.
    Cut(u64),
}

impl Mark {
    /// What was wrong with the message, if it is malformed.
    pub(crate) fn malformed(self) -> Option<String> {
        match self {
            Self::Malformed(detail) => Some(detail),
            Self::Cut(_) => None,
        }
    }
}

/// The mark of a malformed message, as an entry of the headers.
pub(super) fn entry(detail: &str) -> Vec<u8> {
    let mut end = detail.len().min(MAX_DETAIL);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    let detail = &detail.as_bytes()[..end];
    named(b'S', &[&length(detail)[..], detail].concat())
}

/// The mark of a message whose body, of this length, is cut, as an entry of the headers.
pub(super) fn cut(body: u64) -> Vec<u8> {
    named(b'l', &i64::try_from(body).unwrap_or(i64::MAX).to_be_bytes())
}

/// An entry of the mark's name, with a value of this type.
fn named(kind: u8, value: &[u8]) -> Vec<u8> {
    // The name has 38 bytes.
    let name_length = u8::try_from(NAME.len()).unwrap_or_default();
    [&[name_length][..], NAME.as_bytes(), &[kind], value].concat()
}

/// Takes the mark off the properties: what the guard did to the message, if it has changed it.
///
/// It must be called on every delivery of lapin, before anything else reads it.
pub(crate) fn take_mark(properties: &mut BasicProperties) -> Option<Mark> {
    let name = NAME.as_str();
    let headers = properties.headers().as_ref()?;
    let mark = match headers.inner().get(name)? {
        AMQPValue::LongString(detail) => Mark::Malformed(detail.to_string()),
        AMQPValue::LongLongInt(body) => Mark::Cut(u64::try_from(*body).unwrap_or_default()),
        _ => Mark::Malformed(String::new()),
    };
    let mut headers = headers.inner().clone();
    headers.remove(name);
    *properties = std::mem::take(properties).with_headers(FieldTable::from(headers));
    Some(mark)
}
