//! Reads numbers and texts from header values of any type.

use std::str;

use super::{Rejection, Value, shown};

/// The longest part of a wrong value that a detail shows, in characters.
const SHOWN: usize = 40;

/// 2^53, above which doubles skip integers.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The UTF-8 text of `value`.
pub(super) fn text<'a>(name: &str, value: &'a Value) -> Result<&'a str, Rejection> {
    match value {
        Value::Text(bytes) => str::from_utf8(bytes)
            .map_err(|_| Rejection::malformed(format!("`{name}` is not UTF-8; send a UTF-8 string"))),
        other => Err(Rejection::malformed(format!("`{name}` is {}; send a string", kind(other)))),
    }
}

/// A whole number: any integer width, a whole double, or either as text.
pub(super) fn integer(name: &str, value: &Value) -> Result<i128, Rejection> {
    let found = match value {
        Value::Integer(number) => Some(*number),
        Value::Float(number) => whole(*number),
        Value::Text(bytes) => str::from_utf8(bytes).ok().and_then(integer_text),
        Value::Timestamp(_) | Value::Bool(_) | Value::Other(_) => None,
    };
    found
        .ok_or_else(|| Rejection::malformed(format!("`{name}` is {}; send a whole number", described(value))))
}

pub(super) fn integer_text(text: &str) -> Option<i128> {
    text.parse().ok().or_else(|| {
        // `inf` and `nan` are numbers to the parser, but not to a producer.
        let number = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
        if number { text.parse().ok().and_then(whole) } else { None }
    })
}

pub(super) fn whole(number: f64) -> Option<i128> {
    #[expect(clippy::cast_possible_truncation, reason = "whole and within 2^53")]
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i128)
}

/// The type of a value, for people.
pub(super) const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a double",
        Value::Text(_) => "a string",
        Value::Timestamp(_) => "a timestamp",
        Value::Bool(_) => "a boolean",
        Value::Other(name) => name,
    }
}

pub(super) fn described(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Timestamp(seconds) => seconds.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Text(bytes) => format!("`{}`", shown(bytes, SHOWN)),
        Value::Bool(value) => value.to_string(),
        Value::Other(_) => kind(value).to_owned(),
    }
}
