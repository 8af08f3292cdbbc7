//! Reads `retry.answers`: what answers mean.

use std::sync::Arc;
use std::time::Duration;

use figment::value::Value;
use serde_json::json;

use super::document::quote;
use super::key::{Key, keys};
use super::reader::{Found, IN_QUOTES, Reader, Table, inline, integer_of};
use super::value;
use crate::sink::{AnswerRule, BodyMatch, HeaderMatch, Meaning, RuleWait, Statuses, is_pointer};

/// The form of a status, a range or a class.
const STATUSES: &str = "^([2345]xx|[2345][0-9][0-9](-[2345][0-9][0-9])?)$";
/// The form of a JSON pointer.
const POINTERS: &str = "^(/([^~]|~[01])*)?$";

keys! {
    /// What answers mean, if the keys below are not right for them (docs/retries.md, docs/apis.md). The first rule that
    /// matches decides. Its status, header and body must all match, if it has them.
    pub(super) ANSWERS = "answers".reload().example(r#"[
    { status = 403, header = { name = "x-error", equals = "slow_down" }, is = "throttled", wait = "30s" },
    { status = 200, body = { pointer = "/error", in = ["ratelimited", "busy"] }, is = "throttled" },
    { status = [409, "500-504"], is = "retry" },
]"#);
    /// Statuses from 200 to 599, ranges and classes: one, or an array of them.
    STATUS = "status".example("[403, \"5xx\"]");
    /// A field that the answer must have.
    HEADER = "header";
    /// Its name.
    HEADER_NAME = "name".required("say which field, such as name = \"x-error\"").up_to(256, "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
        .example("x-error");
    /// Its value. Unset: any.
    HEADER_EQUALS = "equals".example("slow_down");
    /// A value that its body must have; 64 KiB of the body are read, within the time-out.
    BODY = "body";
    /// The place in the body, as a JSON pointer.
    POINTER = "pointer".required("say which value, such as pointer = \"/error/code\"").matches(POINTERS)
        .example("/error/code");
    /// The value there: a string, a number or a boolean.
    EQUALS = "equals".otherwise("`in`").example("\"rate_limited\"");
    /// The values of which it must be one.
    IN = "in".otherwise("`equals`").example("[\"rate_limited\", 429]");
    /// What it means: the job is done (delivered), all wait (throttled), it is tried again (retry), it is a dead letter
    /// (dead), or paced's credentials may be refused (unauthorized).
    IS = "is".required("say what it means, such as is = \"throttled\"").example("throttled");
    /// throttled, retry: how long to wait: a duration, header:NAME, or body:/POINTER. Unset, or if that is missing or unreadable: the time
    /// in the answer's Retry-After or a similar field.
    WAIT = "wait".matches("^([0-9].*|header:[!#$%&'*+.^_`|~0-9A-Za-z-]+|body:(/([^~]|~[01])*)?)$").example("header:x-wait");
}

/// The rules; none where the key is not given. Their waits are at most `max_pause`.
pub(super) fn answers<'v>(
    reader: &mut Reader<'v>,
    retry: &Table<'v>,
    max_pause: Option<Duration>,
) -> Option<Arc<[AnswerRule]>> {
    let mark = reader.entries.len();
    let Some((array, tables)) = reader.tables(retry, &ANSWERS, schema) else {
        return (!retry.has(ANSWERS.name)).then(Arc::default);
    };
    let (mut rules, mut shown) = (Vec::new(), Vec::new());
    for (at, table) in tables {
        rules.push(rule(reader, &table, &at, max_pause));
        shown.push(inline(reader.entries.split_off(mark)));
    }
    reader.note(retry, &ANSWERS, format!("[{}]", shown.join(", ")), Some(&array));
    rules.into_iter().collect()
}

fn schema() -> serde_json::Value {
    let any = [STATUS, HEADER, BODY].map(|key| json!({ "required": [key.name] }));
    json!({
        "type": "object",
        "description": "What some answers mean.",
        "properties": {},
        "additionalProperties": false,
        "required": [IS.name],
        "anyOf": any,
    })
}

fn rule<'v>(
    reader: &mut Reader<'v>,
    table: &Table<'v>,
    at: &Found<'v>,
    max_pause: Option<Duration>,
) -> Option<AnswerRule> {
    let statuses = statuses(reader, table);
    let header = part(reader, table, &HEADER, header);
    let body = part(reader, table, &BODY, body);
    let is = reader.choice(table, &IS, "no meaning", &Meaning::ALL);
    let wait = reader.parsed(table, &WAIT, wait);
    if table.has(WAIT.name) {
        let wait = wait.as_ref()?;
        if let (RuleWait::Fixed(wait), Some(most)) = (wait, max_pause)
            && *wait > most
        {
            let found = reader.given(table, WAIT.name)?;
            reader.wrong(&found, format!("over max_pause ({most:?}); use at most that, or raise max_pause"));
            return None;
        }
        if let Some(is) = is.filter(|is| !matches!(is, Meaning::Throttled | Meaning::Retry)) {
            let problem = format!("nothing waits where the answer means \"{}\"; leave it out", is.word());
            let found = reader.given(table, WAIT.name)?;
            reader.wrong(&found, problem);
            return None;
        }
    }
    let (statuses, header, body) = (statuses?, header?, body?);
    if statuses.is_none() && header.is_none() && body.is_none() {
        reader.wrong(at, "matches every answer; give it a status, a header or a body");
        return None;
    }
    Some(AnswerRule { statuses, header, body, is: is?, wait })
}

/// A part of a rule that is a table; `Some(None)` where it is not given.
fn part<'v, T>(
    reader: &mut Reader<'v>,
    rule: &Table<'v>,
    key: &Key<'static>,
    read: fn(&mut Reader<'v>, &Table<'v>) -> Option<T>,
) -> Option<Option<T>> {
    let mark = reader.entries.len();
    let table = reader.section(rule, key);
    let part = read(reader, &table);
    let shown = inline(reader.entries.split_off(mark));
    if !rule.has(key.name) {
        return Some(None);
    }
    let found = reader.given(rule, key.name);
    reader.note(rule, key, shown, found.as_ref());
    part.map(Some)
}

fn header<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> Option<HeaderMatch> {
    let name = reader.parsed(table, &HEADER_NAME, value::any_header_name);
    let equals = reader.parsed(table, &HEADER_EQUALS, |text| Ok::<_, String>(text.to_owned()));
    if equals.is_none() && table.has(HEADER_EQUALS.name) {
        return None;
    }
    Some(HeaderMatch { name: name?, equals })
}

fn body<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> Option<BodyMatch> {
    let pointer = reader.parsed(table, &POINTER, pointer);
    let kinds = json!(["string", "number", "boolean"]);
    reader.declare(table, &EQUALS, || json!({ "type": kinds }));
    let convert = |reader: &mut Reader<'v>, item: &Found<'v>| {
        let value = scalar(item.value);
        if value.is_none() {
            reader.wrong_type(item, "a string, a number or a boolean", "\"rate_limited\"");
        }
        value.map(|value| (value.to_string(), value))
    };
    let mut any_of = reader
        .list(table, &IN, "an array of values", || json!({ "type": kinds }), convert)?
        .unwrap_or_default();
    if let Some(found) = reader.find(table, EQUALS.name) {
        let (shown, value) = convert(reader, &found)?;
        reader.note(table, &EQUALS, shown, Some(&found));
        any_of.push(value);
    }
    if any_of.is_empty() && table.is_there() {
        reader.missing(table, EQUALS.name, "say which value, such as equals = \"rate_limited\"");
        return None;
    }
    Some(BodyMatch::new(&pointer?, any_of))
}

fn pointer(text: &str) -> Result<String, &'static str> {
    if is_pointer(text) {
        Ok(text.to_owned())
    } else {
        Err("no JSON pointer; write one such as \"/error/code\"")
    }
}

fn wait(text: &str) -> Result<RuleWait, String> {
    if let Some(name) = text.strip_prefix("header:") {
        return value::any_header_name(name).map(RuleWait::Header);
    }
    match text.strip_prefix("body:") {
        Some(place) => Ok(RuleWait::Body(pointer(place)?)),
        None => Ok(RuleWait::Fixed(value::within(text, "1ms", "1d", value::duration)?)),
    }
}

/// A scalar as JSON.
fn scalar(value: &Value) -> Option<serde_json::Value> {
    match value {
        Value::String(_, text) => Some(text.as_str().into()),
        Value::Char(_, c) => Some(c.to_string().into()),
        Value::Bool(_, truth) => Some((*truth).into()),
        Value::Num(_, number) => integer_of(number)
            .and_then(|number| i64::try_from(number).ok())
            .map(serde_json::Value::from)
            .or_else(|| number.to_f64().filter(|number| number.is_finite()).map(serde_json::Value::from)),
        _ => None,
    }
}

/// The statuses of a rule; `Some(None)` where it has none.
fn statuses<'v>(reader: &mut Reader<'v>, table: &Table<'v>) -> Option<Option<Statuses>> {
    let one = json!({ "anyOf": [{ "type": "integer", "minimum": 200, "maximum": 599 }, { "type": "string", "pattern": STATUSES }] });
    reader.declare(
        table,
        &STATUS,
        || json!({ "anyOf": [one, { "type": "array", "minItems": 1, "items": one }] }),
    );
    let Some(found) = reader.find(table, STATUS.name) else { return Some(None) };
    let items = match found.value {
        Value::Array(..) => reader.items(&found, "an array of statuses", STATUS.example)?,
        _ => vec![Found { path: found.path.clone(), ..found }],
    };
    let all: Vec<_> = items.iter().map(|item| status(reader, item, 200)).collect();
    let all: Vec<(String, Statuses)> = all.into_iter().collect::<Option<_>>()?;
    if all.is_empty() {
        reader.wrong(&found, "empty; write such as [403, \"5xx\"]");
        return None;
    }
    let shown: Vec<String> = all.iter().map(|(shown, _)| shown.clone()).collect();
    let shown = if matches!(found.value, Value::Array(..)) {
        format!("[{}]", shown.join(", "))
    } else {
        shown.concat()
    };
    reader.note(table, &STATUS, shown, Some(&found));
    Some(Some(all.into_iter().fold(Statuses::NONE, |all, (_, one)| all.and(one))))
}

/// A status, a range or a class, none of it below `least`, and its text in TOML.
pub(super) fn status<'v>(
    reader: &mut Reader<'v>,
    item: &Found<'v>,
    least: u16,
) -> Option<(String, Statuses)> {
    let (text, shown) = match item.value {
        Value::Num(_, number) => {
            let text = integer_of(number).map(|number| number.to_string()).unwrap_or_default();
            (text.clone(), text)
        }
        _ => reader.text(item, IN_QUOTES).map(|text| (text.clone(), quote(&text)))?,
    };
    let statuses = from(&text, least).map_err(|problem| reader.wrong(item, problem)).ok()?;
    Some((shown, statuses))
}

/// Parses statuses, none of them below `least`.
pub(super) fn from(text: &str, least: u16) -> Result<Statuses, String> {
    let statuses: Statuses = text.parse()?;
    match statuses.common(&Statuses::NONE.with(100, least - 1)) {
        Some(status) if least > 200 => Err(format!("{status} is no failure; use statuses from 300 to 599")),
        Some(status) => Err(format!("{status} is no final answer; use statuses from 200 to 599")),
        None => Ok(statuses),
    }
}
