//! A TOML text as a tree, with the position of every key and value.

use std::collections::HashMap;

use figment::value::{Dict, Empty, Num, Tag, Value};
use toml::de::{DeArray, DeTable, DeValue};

use crate::text::is_unsafe;

/// A text that was parsed.
pub(super) struct Document {
    /// The tree, as far as it could be parsed.
    pub dict: Dict,
    /// The positions by path, such as `downstreams.billing.limits[0].rate`.
    pub spans: HashMap<String, Span>,
    /// The first syntax error.
    pub broken: Option<Syntax>,
}

/// The positions at which a key and its value begin: line and column, from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub key: (usize, usize),
    /// The position of the value; that of a table is its header, or its key where it has none.
    pub value: (usize, usize),
}

/// A syntax error.
pub(super) struct Syntax {
    pub position: (usize, usize),
    pub problem: String,
}

impl Document {
    pub fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = Lines::new(text);
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut walk = Walk { lines: &lines, spans: HashMap::new() };
        let dict = walk.table("", table.get_ref());
        let spans = walk.spans;
        // An error without a span means that the text ended too early.
        let first = errors.iter().min_by_key(|error| error.span().map_or(text.len(), |span| span.start));
        let broken = first.map(|error| Syntax {
            position: lines.position(error.span().map_or(text.len(), |span| span.start)),
            problem: problem(text, error),
        });
        Self { dict, spans, broken }
    }
}

/// The message of the parser: it never repeats the text, which may be a secret.
fn problem(text: &str, error: &toml::de::Error) -> String {
    let key = error.span().and_then(|span| text.get(span)).unwrap_or_default();
    if error.message() == "duplicate key" {
        return format!("duplicate key `{key}`; keep one");
    }
    let message = error.message().replacen(", expected ", "; expected ", 1);
    if message.contains(';') { message } else { format!("{message}; see https://toml.io") }
}

/// The path of `key` in the table at `parent`.
pub(super) fn join(parent: &str, key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let key = if !key.is_empty() && key.chars().all(bare) { key.to_owned() } else { quote(key) };
    if parent.is_empty() { key } else { format!("{parent}.{key}") }
}

/// The text as a TOML string.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if is_unsafe(c) => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

struct Walk<'a> {
    lines: &'a Lines<'a>,
    spans: HashMap<String, Span>,
}

impl Walk<'_> {
    fn table(&mut self, path: &str, table: &DeTable<'_>) -> Dict {
        let mut dict = Dict::new();
        for (key, value) in table {
            let path = join(path, key.get_ref());
            let span = Span {
                key: self.lines.position(key.span().start),
                value: self.lines.position(value.span().start),
            };
            self.spans.insert(path.clone(), span);
            dict.insert(key.get_ref().to_string(), self.value(&path, value.get_ref()));
        }
        dict
    }

    fn array(&mut self, path: &str, array: &DeArray<'_>) -> Vec<Value> {
        let each = array.iter().enumerate().map(|(index, value)| {
            let path = format!("{path}[{index}]");
            let at = self.lines.position(value.span().start);
            self.spans.insert(path.clone(), Span { key: at, value: at });
            self.value(&path, value.get_ref())
        });
        each.collect()
    }

    fn value(&mut self, path: &str, value: &DeValue<'_>) -> Value {
        let tag = Tag::Default;
        match value {
            DeValue::String(text) => Value::String(tag, text.to_string()),
            // A number that does not fit is beyond the range of every key.
            DeValue::Integer(number) => {
                let number = i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX);
                Value::Num(tag, Num::I128(number))
            }
            DeValue::Float(number) => Value::Num(tag, Num::F64(number.as_str().parse().unwrap_or(f64::NAN))),
            DeValue::Boolean(truth) => Value::Bool(tag, *truth),
            // No key is a date, so the reader reports the wrong type.
            DeValue::Datetime(_) => Value::Empty(tag, Empty::Unit),
            DeValue::Array(array) => Value::Array(tag, self.array(path, array)),
            DeValue::Table(table) => Value::Dict(tag, self.table(path, table)),
        }
    }
}

/// Parses a value given on its own, as `env` and `--set` do: tables and arrays are TOML, or as near to it as a shell
/// allows (`[accept, x-request-id]`); everything else stays a text until the reader knows the type of the key.
pub(super) fn lone_value(text: &str) -> Value {
    if !text.trim_start().starts_with(['[', '{']) {
        return Value::from(text);
    }
    let line = format!("value = {text}");
    let mut document = Document::parse(&line);
    match document.dict.remove("value") {
        Some(value) if document.broken.is_none() && document.dict.is_empty() => value,
        // figment's parser recurses without a bound.
        _ if text.matches(['[', '{']).count() > 80 => Value::from(text),
        // figment's parser takes characters for bytes here, and panics.
        _ if text.contains('\\') && !text.is_ascii() => Value::from(text),
        _ => text.parse().unwrap_or_else(|_| Value::from(text)),
    }
}

/// The segments of a dotted TOML key; `None` if it is no key.
pub(super) fn key_path(key: &str) -> Option<Vec<String>> {
    if key.contains(['\n', '=', '#']) {
        return None;
    }
    let line = format!("{key} = 0");
    let document = Document::parse(&line);
    if document.broken.is_some() {
        return None;
    }
    let mut path = Vec::new();
    let mut dict = &document.dict;
    loop {
        let (segment, value) = dict.first_key_value()?;
        path.push(segment.clone());
        match value {
            Value::Dict(_, inner) => dict = inner,
            _ => return Some(path),
        }
    }
}

/// Converts byte offsets to lines and columns.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { text, starts: std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect() }
    }

    fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let start = self.starts[line - 1];
        let before = self.text.get(start..offset).unwrap_or_default();
        (line, before.chars().count() + 1)
    }
}
