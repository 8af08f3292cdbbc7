//! Converts a job on one line of JSON to the equivalent message: `publish` sends it, `pipe` decodes it at once, so that
//! both share every rule of `decode`.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::nearest::nearest;
use super::{Message, Value, shown};

mod render;

pub use render::{Rendered, render};

/// The keys of a job, as documented.
pub const KEYS: [&str; 13] = [
    "id",
    "downstream",
    "body",
    "lane",
    "plan",
    "method",
    "path",
    "headers",
    "cost",
    "costs",
    "priority",
    "not_before",
    "deadline",
];

/// A line that is a job as far as its JSON goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The downstream that it names.
    pub downstream: Option<String>,
    /// The message that an AMQP producer would have sent.
    pub message: Message,
}

/// The reason why a line is no job. The line itself is not in the text, since it may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line is no JSON.
    #[error("not JSON (column {column}): {detail}; write one JSON object per line")]
    Syntax {
        /// The position: 1-based, in bytes.
        column: usize,
        /// The error of the parser.
        detail: String,
    },
    /// The line is JSON, but no object.
    #[error("not an object; write one such as {{\"body\": \"hello\"}}")]
    NoObject,
    /// No job has such a key.
    #[error("unknown key `{key}`; {hint}")]
    UnknownKey {
        /// The key.
        key: String,
        /// The nearest known key, or all of them.
        hint: String,
    },
    /// A key, or a header in any case, occurs twice.
    #[error("`{0}` is given twice; write it once")]
    Twice(String),
    /// A value has the wrong type or is out of range.
    #[error("`{key}` must be {expected}")]
    Type {
        /// The key; `headers.NAME` for a header.
        key: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A cell that a template needs is empty.
    #[error("`{0}` is empty, and the template needs it")]
    Empty(String),
    /// A row of a table has another number of cells than there are columns.
    #[error("{}; write as many, and quote cells with commas", cells(*.columns, *.found))]
    Cells {
        /// The number of columns.
        columns: usize,
        /// The number of cells.
        found: usize,
    },
}

fn cells(columns: usize, found: usize) -> String {
    let counted = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let verb = if columns == 1 { "is" } else { "are" };
    format!("{} where there {verb} {}", counted(found, "cell"), counted(columns, "column"))
}

/// Parses the job on one line.
///
/// A body that is a string goes as it is; any other JSON goes byte by byte as it stands, as `application/json`. It is
/// [`Content::name_json`](super::Content::name_json) that says so of an object or array. `content-type` and
/// `content-encoding` among the headers are the message's properties of these names. A key that is `null` counts as
/// absent.
///
/// # Errors
/// [`LineError`]: the first thing that is wrong.
pub fn parse(line: &[u8]) -> Result<Line, LineError> {
    if !line.trim_ascii_start().starts_with(b"{") {
        // Distinguishes a syntax error from other JSON: neither is a job.
        return Err(match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
            Ok(_) => LineError::NoObject,
            Err(error) => syntax(&error),
        });
    }
    let mut out = Line::default();
    for (key, raw) in entries(line)? {
        set(&mut out, &key, raw)?;
    }
    Ok(out)
}

fn set(out: &mut Line, key: &str, raw: &RawValue) -> Result<(), LineError> {
    let known = KEYS.contains(&key);
    if known && raw.get() == "null" {
        return Ok(());
    }
    let message = &mut out.message;
    let mut header = |name: &str, value: Value| message.headers.push((name.to_owned(), value));
    match key {
        "id" => message.message_id = Some(string(key, raw)?),
        "downstream" => out.downstream = Some(string(key, raw)?),
        "body" => body(message, raw)?,
        "lane" => header("paced-lane", Value::Text(string(key, raw)?.into())),
        "plan" => header("paced-plan", Value::Text(string(key, raw)?.into())),
        "method" => header("paced-method", Value::Text(string(key, raw)?.into())),
        "path" => header("paced-path", Value::Text(string(key, raw)?.into())),
        "headers" => request_headers(message, raw)?,
        "cost" => header("paced-cost", scalar(key, raw, "a whole number")?),
        "costs" => costs(message, raw)?,
        "priority" => message.priority = Some(priority(raw)?),
        "not_before" => header("paced-not-before", scalar(key, raw, INSTANT)?),
        "deadline" => header("paced-deadline", scalar(key, raw, INSTANT)?),
        _ => return Err(unknown(key)),
    }
    Ok(())
}

const INSTANT: &str = "seconds or milliseconds since 1970, or RFC 3339 text";

fn body(message: &mut Message, raw: &RawValue) -> Result<(), LineError> {
    if raw.get().starts_with('"') {
        message.content.body = Bytes::from(string("body", raw)?);
    } else {
        message.content.body = Bytes::copy_from_slice(raw.get().as_bytes());
        // An object or array is named once all headers are known, and a header `content-type` has precedence.
        if !raw.get().starts_with(['{', '[']) {
            message.content.content_type.get_or_insert_with(|| "application/json".to_owned());
        }
    }
    Ok(())
}

fn costs(message: &mut Message, raw: &RawValue) -> Result<(), LineError> {
    if !raw.get().starts_with('{') {
        let expected = "an object of limits and whole numbers";
        return Err(LineError::Type { key: "costs".to_owned(), expected });
    }
    for (limit, raw) in entries(raw.get().as_bytes())? {
        let key = format!("costs.{}", shown(limit.as_bytes(), 60));
        let value = scalar(&key, raw, "a whole number")?;
        message.headers.push((format!("paced-cost-{limit}"), value));
    }
    Ok(())
}

fn request_headers(message: &mut Message, raw: &RawValue) -> Result<(), LineError> {
    if !raw.get().starts_with('{') {
        return Err(LineError::Type { key: "headers".to_owned(), expected: "an object of names and values" });
    }
    let mut names = HashSet::new();
    for (name, raw) in entries(raw.get().as_bytes())? {
        let lower = name.to_ascii_lowercase();
        let key = format!("headers.{}", shown(lower.as_bytes(), 60));
        if !names.insert(lower.clone()) {
            return Err(LineError::Twice(key));
        }
        let value = scalar(&key, raw, "a string or a whole number")?;
        set_request_header(message, &lower, value);
    }
    Ok(())
}

/// Sets headers of the request, by their names in lower case, instead of those that it has of the same names.
pub fn replace_request_headers(message: &mut Message, headers: &[(String, String)]) {
    for (name, value) in headers {
        let is_same =
            |other: &str| other.strip_prefix("http-").is_some_and(|other| other.eq_ignore_ascii_case(name));
        message.headers.retain(|(other, _)| !is_same(other));
        set_request_header(message, name, Value::Text(value.clone().into()));
    }
}

/// Sets a header of the request, whose name is in lower case.
pub fn set_request_header(message: &mut Message, name: &str, value: Value) {
    match (name, &value) {
        ("content-type" | "content-encoding", Value::Text(text)) => {
            let text = String::from_utf8_lossy(text).into_owned();
            let property = if name == "content-type" {
                &mut message.content.content_type
            } else {
                &mut message.content.content_encoding
            };
            *property = Some(text);
        }
        _ => message.headers.push((format!("http-{name}"), value)),
    }
}

/// The values of `priority`.
pub(super) const PRIORITY: &str = "a whole number from 0 to 255";

fn priority(raw: &RawValue) -> Result<u8, LineError> {
    match scalar("priority", raw, PRIORITY)? {
        Value::Integer(number) => u8::try_from(number).ok(),
        _ => None,
    }
    .ok_or_else(|| LineError::Type { key: "priority".to_owned(), expected: PRIORITY })
}

fn string(key: &str, raw: &RawValue) -> Result<String, LineError> {
    serde_json::from_str(raw.get()).map_err(|_| LineError::Type { key: key.to_owned(), expected: "a string" })
}

/// A string or a number, as the header value that an AMQP producer would have sent.
fn scalar(key: &str, raw: &RawValue, expected: &'static str) -> Result<Value, LineError> {
    let wrong = || LineError::Type { key: key.to_owned(), expected };
    if raw.get().starts_with('"') {
        return Ok(Value::Text(string(key, raw)?.into()));
    }
    if let Ok(number) = raw.get().parse::<i128>() {
        return Ok(Value::Integer(number));
    }
    serde_json::from_str::<f64>(raw.get()).map(Value::Float).map_err(|_| wrong())
}

fn unknown(key: &str) -> LineError {
    let hint = match nearest(key, &KEYS) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", KEYS.join(", ")),
    };
    LineError::UnknownKey { key: shown(key.as_bytes(), 60), hint }
}

fn syntax(error: &serde_json::Error) -> LineError {
    // The parser's text ends in " at line 1 column N"; the column is reported separately.
    let text = error.to_string();
    let detail = text.split(" at line ").next().unwrap_or_default();
    LineError::Syntax { column: error.column(), detail: shown(detail.as_bytes(), 120) }
}

type Entries<'a> = Vec<(String, &'a RawValue)>;

/// The keys and raw values of an object, each key once.
fn entries(object: &[u8]) -> Result<Entries<'_>, LineError> {
    let mut parser = serde_json::Deserializer::from_slice(object);
    let entries = parser.deserialize_map(EntriesVisitor).map_err(|error| syntax(&error))?;
    parser.end().map_err(|error| syntax(&error))?;
    let mut keys = HashSet::new();
    if let Some((key, _)) = entries.iter().find(|(key, _)| !keys.insert(key.as_str())) {
        return Err(LineError::Twice(shown(key.as_bytes(), 60)));
    }
    Ok(entries)
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            entries.push((key, map.next_value()?));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests;
