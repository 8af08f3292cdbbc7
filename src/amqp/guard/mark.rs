//! The mark on a message that the guard has changed.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use super::frame::length;

/// The name of the header that holds the mark. It consists of 128 random bits, is new for each process and never
/// leaves the process, so no producer can send it.
static NAME: LazyLock<String> = LazyLock::new(|| {
    // Keys of the standard library's hash maps come from the system's random numbers.
    let random = RandomState::new();
    format!("guard-{:016x}{:016x}", random.hash_one(0_u8), random.hash_one(1_u8))
});

/// The name of the header that holds the length of a body that is cut, where the properties are kept.
static BODY: LazyLock<String> = LazyLock::new(|| format!("{}-body", *NAME));

/// The longest detail, in bytes.
const MAX_DETAIL: usize = 300;

/// What the guard did to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The message is malformed, and what cannot be parsed is missing. The text says what was wrong.
    Malformed(String),
    /// The body, of this length, is missing, and properties may be.
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
    named(&NAME, b'S', &[&length(detail)[..], detail].concat())
}

/// The mark of a message whose body, of this length, is cut, as an entry of the headers.
pub(super) fn cut(body: u64) -> Vec<u8> {
    named(&NAME, b'l', &i64::try_from(body).unwrap_or(i64::MAX).to_be_bytes())
}

/// The mark of a message whose body, of this length, is cut while its properties are kept, as an entry of the headers.
pub(super) fn body(body: u64) -> Vec<u8> {
    named(&BODY, b'l', &i64::try_from(body).unwrap_or(i64::MAX).to_be_bytes())
}

/// An entry of this name, with a value of this type.
fn named(name: &str, kind: u8, value: &[u8]) -> Vec<u8> {
    // The names have 38 and 43 bytes.
    let name_length = u8::try_from(name.len()).unwrap_or_default();
    [&[name_length][..], name.as_bytes(), &[kind], value].concat()
}

/// Takes the mark off the properties. It says what the guard changed in the message; `None` if it changed nothing.
///
/// It must be called on every delivery of lapin, before anything else reads it: otherwise a body that was cut would
/// count as an empty one. A reader of properties alone calls [`take_body_length`] first.
pub(crate) fn take_mark(properties: &mut BasicProperties) -> Option<Mark> {
    if let Some(body) = take_body_length(properties) {
        return Some(Mark::Cut(body));
    }
    Some(match take(properties, &NAME)? {
        AMQPValue::LongString(detail) => Mark::Malformed(detail.to_string()),
        AMQPValue::LongLongInt(body) => Mark::Cut(u64::try_from(body).unwrap_or_default()),
        _ => Mark::Malformed(String::new()),
    })
}

/// Takes off the mark of a message whose body was cut and whose properties were kept. Returns the length of the body.
pub(crate) fn take_body_length(properties: &mut BasicProperties) -> Option<u64> {
    match take(properties, &BODY)? {
        AMQPValue::LongLongInt(body) => u64::try_from(body).ok(),
        _ => None,
    }
}

/// Takes a header off the properties.
fn take(properties: &mut BasicProperties, name: &str) -> Option<AMQPValue> {
    let mut headers =
        properties.headers().as_ref().filter(|headers| headers.inner().contains_key(name))?.inner().clone();
    let value = headers.remove(name);
    *properties = std::mem::take(properties).with_headers(FieldTable::from(headers));
    value
}
