//! Converts what lapin delivers into the message that jobs are decoded from. It has no I/O.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, ShortString};

use crate::job::{Content, Message, Value};

/// Converts a delivery; the body is shared, not copied. `malformed` is the guard's mark.
pub(super) fn message(
    routing_key: &str,
    properties: &BasicProperties,
    body: Bytes,
    malformed: Option<String>,
) -> Message {
    let text = |field: &Option<ShortString>| field.as_ref().map(ToString::to_string);
    Message {
        routing_key: routing_key.to_owned(),
        content: Content {
            body,
            content_type: text(properties.content_type()),
            content_encoding: text(properties.content_encoding()),
        },
        message_id: text(properties.message_id()),
        priority: *properties.priority(),
        correlation_id: text(properties.correlation_id()),
        reply_to: text(properties.reply_to()),
        timestamp: *properties.timestamp(),
        headers: headers(properties),
        malformed,
    }
}

fn headers(properties: &BasicProperties) -> Vec<(String, Value)> {
    let Some(table) = properties.headers() else { return Vec::new() };
    table
        .into_iter()
        .filter(|(name, _)| is_ours(name.as_str()))
        .map(|(name, found)| (name.to_string(), value(found)))
        .collect()
}

/// Whether a job is made of headers with this name.
pub(super) fn is_ours(name: &str) -> bool {
    name.starts_with("paced-") || name.starts_with("http-") || matches!(name, "traceparent" | "tracestate")
}

pub(super) fn value(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(v) => Value::Bool(*v),
        AMQPValue::ShortShortInt(v) => Value::Integer((*v).into()),
        AMQPValue::ShortShortUInt(v) => Value::Integer((*v).into()),
        AMQPValue::ShortInt(v) => Value::Integer((*v).into()),
        AMQPValue::ShortUInt(v) => Value::Integer((*v).into()),
        AMQPValue::LongInt(v) => Value::Integer((*v).into()),
        AMQPValue::LongUInt(v) => Value::Integer((*v).into()),
        AMQPValue::LongLongInt(v) => Value::Integer((*v).into()),
        AMQPValue::Float(v) => Value::Float((*v).into()),
        AMQPValue::Double(v) => Value::Float(*v),
        AMQPValue::ShortString(v) => Value::Text(Bytes::copy_from_slice(v.as_str().as_bytes())),
        AMQPValue::LongString(v) => Value::Text(Bytes::copy_from_slice(v.as_bytes())),
        AMQPValue::DecimalValue(_) => Value::Other("decimal"),
        AMQPValue::FieldArray(_) => Value::Other("array"),
        AMQPValue::Timestamp(seconds) => Value::Timestamp(*seconds),
        AMQPValue::FieldTable(_) => Value::Other("table"),
        AMQPValue::ByteArray(_) => Value::Other("bytes"),
        AMQPValue::Void => Value::Other("void"),
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::FieldTable;

    use super::*;

    #[test]
    fn only_the_headers_of_jobs_are_taken_over() {
        let mut table = FieldTable::default();
        for name in ["paced-lane", "http-accept", "traceparent", "tracestate", "x-death", "PACED-lane"] {
            table.insert(name.into(), AMQPValue::Boolean(true));
        }
        let properties = BasicProperties::default().with_headers(table);
        let names: Vec<String> = headers(&properties).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["http-accept", "paced-lane", "traceparent", "tracestate"]);
    }

    #[test]
    fn a_body_is_shared() {
        let body = Bytes::from(vec![7; 1024]);
        let message = message("d", &BasicProperties::default(), body.clone(), None);
        assert_eq!(message.content.body.as_ptr(), body.as_ptr());
    }
}
