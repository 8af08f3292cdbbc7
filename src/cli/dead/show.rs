//! One letter whole: for people, or as JSON.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use paced::amqp::{AMQPValue, BasicProperties, FieldTable, Letter};
use paced::job::ndjson::{Rendered, render};
use paced::job::{CostRule, name_costs};
use paced::text::is_unsafe;
use serde_json::{Map, Number, Value, json};

use super::list::{report, when};
use crate::cli::out;

/// The headers that are shown by names of their own.
const REPORT: [&str; 7] = [
    "paced-reason",
    "paced-detail",
    "paced-status",
    "paced-attempts",
    "paced-routing-key",
    "paced-dead-at",
    "paced-response",
];

/// A letter as one object. Its `job` is a line for `paced publish`, with what the job costs by `costs`; without one there is
/// the body in base64.
pub(super) fn json(letter: &Letter, downstream: Option<&str>, costs: &[CostRule]) -> Value {
    let mut shown = json!({
        "report": report(letter),
        "properties": properties(&letter.properties),
        "headers": letter.properties.headers().as_ref().map(table),
        "bytes": letter.message.content.body.len(),
        "job": null,
    });
    let mut message = letter.job();
    name_costs(&mut message, costs, |name| letter.header(name));
    match render(&message) {
        Some(Rendered { mut job, left_out }) => {
            if let Some(downstream) = downstream {
                job.insert("downstream".to_owned(), downstream.into());
            }
            shown["job"] = job.into();
            shown["left_out"] = left_out.into();
        }
        None => shown["body_base64"] = STANDARD.encode(&letter.message.content.body).into(),
    }
    shown
}

/// A letter as lines. The response and the body come last and are indented, so that they cannot look like the other
/// lines.
pub(super) fn text(letter: &Letter) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<18}  {}", out::printable(value));
    };
    for (name, value) in [
        ("reason", &letter.reason),
        ("detail", &letter.detail),
        ("status", &letter.status),
        ("attempts", &letter.attempts),
        ("routing key", &letter.routing_key),
    ] {
        if let Some(value) = value {
            line(name, value);
        }
    }
    if letter.dead_at.is_some() {
        line("dead at (UTC)", &when(letter.dead_at.as_deref()));
    }
    for (name, value) in properties(&letter.properties) {
        line(&name.replace('_', " "), &plain(&value));
    }
    let headers = letter.properties.headers().iter().flatten();
    for (name, value) in headers.filter(|(name, _)| !REPORT.contains(&name.as_str())) {
        line("header", &format!("{name}: {}", plain(&value_of(value))));
    }
    if let Some(response) = &letter.response {
        text.push_str("response\n");
        for line in response.lines() {
            let _ = writeln!(text, "  {}", out::printable(line));
        }
    }
    let body = &letter.message.content.body;
    match std::str::from_utf8(body).ok().filter(|body| is_printable(body)) {
        Some(body_text) => {
            let _ = write!(text, "body ({} bytes)", body.len());
            for line in body_text.split('\n') {
                let _ = write!(text, "\n  {line}");
            }
        }
        None => {
            let _ = write!(text, "body ({} bytes, base64)\n  {}", body.len(), STANDARD.encode(body));
        }
    }
    text
}

/// Whether the text is safe on a terminal: no character in it controls the terminal, except the ends of lines and
/// tabs.
fn is_printable(text: &str) -> bool {
    !text.contains(|c: char| is_unsafe(c) && !matches!(c, '\n' | '\r' | '\t'))
}

/// Text as it is, and anything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The properties that the message has, except its headers.
fn properties(properties: &BasicProperties) -> Map<String, Value> {
    let mut found = Map::new();
    for (name, value) in [
        ("message_id", properties.message_id()),
        ("content_type", properties.content_type()),
        ("content_encoding", properties.content_encoding()),
        ("correlation_id", properties.correlation_id()),
        ("reply_to", properties.reply_to()),
        ("expiration", properties.expiration()),
        ("type", properties.kind()),
        ("user_id", properties.user_id()),
        ("app_id", properties.app_id()),
        ("cluster_id", properties.cluster_id()),
    ] {
        if let Some(value) = value {
            found.insert(name.to_owned(), value.as_str().into());
        }
    }
    for (name, value) in
        [("priority", *properties.priority()), ("delivery_mode", *properties.delivery_mode())]
    {
        if let Some(value) = value {
            found.insert(name.to_owned(), value.into());
        }
    }
    if let Some(timestamp) = properties.timestamp() {
        found.insert("timestamp".to_owned(), (*timestamp).into());
    }
    found
}

fn table(table: &FieldTable) -> Map<String, Value> {
    table.into_iter().map(|(name, value)| (name.to_string(), value_of(value))).collect()
}

/// The value of a header. Nested ones are no deeper than the connection's guard lets pass.
fn value_of(value: &AMQPValue) -> Value {
    let bytes = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    };
    match value {
        AMQPValue::Boolean(v) => (*v).into(),
        AMQPValue::ShortShortInt(v) => (*v).into(),
        AMQPValue::ShortShortUInt(v) => (*v).into(),
        AMQPValue::ShortInt(v) => (*v).into(),
        AMQPValue::ShortUInt(v) => (*v).into(),
        AMQPValue::LongInt(v) => (*v).into(),
        AMQPValue::LongUInt(v) => (*v).into(),
        AMQPValue::LongLongInt(v) => (*v).into(),
        AMQPValue::Timestamp(v) => (*v).into(),
        AMQPValue::Float(v) => Number::from_f64((*v).into()).into(),
        AMQPValue::Double(v) => Number::from_f64(*v).into(),
        AMQPValue::DecimalValue(v) => json!({ "scale": v.scale, "value": v.value }),
        AMQPValue::ShortString(v) => v.as_str().into(),
        AMQPValue::LongString(v) => bytes(v.as_bytes()),
        AMQPValue::ByteArray(v) => json!({ "base64": STANDARD.encode(v.as_slice()) }),
        AMQPValue::FieldArray(v) => v.as_slice().iter().map(value_of).collect(),
        AMQPValue::FieldTable(v) => table(v).into(),
        AMQPValue::Void => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use paced::job::{CostBound, CostSource, MaxCost, Message};

    use super::*;

    fn letter(body: &'static [u8], headers: FieldTable) -> Letter {
        let message = Message {
            message_id: Some("a\u{1b}[2J".to_owned()),
            content: bytes::Bytes::from_static(body).into(),
            headers: vec![("paced-lane".to_owned(), paced::job::Value::Text("acme".into()))],
            ..Message::default()
        };
        let properties = BasicProperties::default()
            .with_message_id("a\u{1b}[2J".into())
            .with_priority(4)
            .with_headers(headers);
        Letter {
            message,
            properties,
            reason: Some("status".to_owned()),
            detail: Some("why\nreason  forged".to_owned()),
            status: Some("422".to_owned()),
            attempts: None,
            routing_key: Some("billing".to_owned()),
            dead_at: Some("1700000000000".to_owned()),
            response: Some("{\r\n\"error\": \"\u{1b}[2J\u{202e}\"\nbody (0 bytes)".to_owned()),
        }
    }

    #[test]
    fn a_letter_is_shown_and_cannot_feign_lines() {
        let mut headers = FieldTable::default();
        headers.insert("mine".into(), AMQPValue::LongInt(7));
        headers.insert("paced-reason".into(), AMQPValue::LongString("status".into()));
        headers.insert("paced-response".into(), AMQPValue::LongString("{".into()));
        let text = text(&letter(b"one\nreason  forged\r\n", headers));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "reason              status",
                "detail              why\\nreason  forged",
                "status              422",
                "routing key         billing",
                "dead at (UTC)       2023-11-14 22:13:20",
                "message id          a\\u{1b}[2J",
                "priority            4",
                "header              mine: 7",
                "response",
                "  {",
                "  \"error\": \"\\u{1b}[2J\\u{202e}\"",
                "  body (0 bytes)",
                "body (20 bytes)",
                "  one",
                "  reason  forged",
                "  ",
            ]
        );
    }

    #[test]
    fn a_body_that_is_no_text_is_encoded() {
        for body in [&b"\xff\x00"[..], b"a\x1b[2J"] {
            let text = text(&letter(body, FieldTable::default()));
            assert!(text.contains("bytes, base64)\n  "), "{text}");
        }
    }

    #[test]
    fn json_has_a_line_for_publish() {
        let mut headers = FieldTable::default();
        headers.insert("paced-lane".into(), AMQPValue::LongString("acme".into()));
        headers.insert("bytes".into(), AMQPValue::LongString(vec![0xff].into()));
        let shown = json(&letter(b"hello", headers.clone()), Some("billing"), &[]);
        let job = &shown["job"];
        assert_eq!(
            (&job["lane"], &job["body"], &job["downstream"]),
            (&"acme".into(), &"hello".into(), &"billing".into())
        );
        assert!(paced::job::ndjson::parse(job.to_string().as_bytes()).is_ok());
        assert_eq!(shown["report"]["status"], 422);
        assert!(shown["report"]["response"].as_str().unwrap().starts_with("{\r\n\"error\""), "{shown}");
        assert_eq!(shown["properties"]["priority"], 4);
        assert_eq!(shown["headers"]["bytes"]["base64"], "/w==");
        let shown = json(&letter(b"\xff", headers), None, &[]);
        assert_eq!((&shown["job"], &shown["body_base64"]), (&Value::Null, &"/w==".into()));
    }

    #[test]
    fn a_line_says_what_the_header_that_a_limit_counts_by_said() {
        let mut headers = FieldTable::default();
        headers.insert("tokens".into(), AMQPValue::LongInt(1500));
        let rule = CostRule {
            limit: "tokens".into(),
            plan: None,
            source: CostSource::Header("tokens".to_owned()),
            default: Some(100),
            max_cost: MaxCost { units: 30_000, bound: CostBound::Given, given: None },
        };
        let shown = json(&letter(b"", headers.clone()), Some("billing"), &[rule]);
        assert_eq!(shown["job"]["costs"], json!({ "tokens": 1500 }));
        assert_eq!(json(&letter(b"", headers), Some("billing"), &[])["job"].get("costs"), None);
    }
}
