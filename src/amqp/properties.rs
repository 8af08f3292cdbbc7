//! The AMQP properties of messages that paced itself publishes. It has no I/O.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use crate::job::{Message, Value};

/// The AMQP delivery mode of messages that survive a restart of the broker.
pub(super) const PERSISTENT: u8 = 2;

/// The properties of `message`, which is persistent. Texts of over 255 bytes, which no property holds, are left out;
/// [`decode`](crate::job::decode) refuses such an id before.
pub fn properties(message: &Message) -> BasicProperties {
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    let short = |text: &Option<String>| ShortString::try_new(text.as_deref()?).ok();
    if let Some(value) = short(&message.content.content_type) {
        properties = properties.with_content_type(value);
    }
    if let Some(value) = short(&message.content.content_encoding) {
        properties = properties.with_content_encoding(value);
    }
    if let Some(value) = short(&message.message_id) {
        properties = properties.with_message_id(value);
    }
    if let Some(value) = short(&message.correlation_id) {
        properties = properties.with_correlation_id(value);
    }
    if let Some(value) = short(&message.reply_to) {
        properties = properties.with_reply_to(value);
    }
    if let Some(priority) = message.priority {
        properties = properties.with_priority(priority);
    }
    let headers = message.headers.iter().filter_map(|(name, value)| {
        let name = ShortString::try_new(name.as_str()).ok()?;
        Some((name, header(value)))
    });
    properties.with_headers(FieldTable::from(headers.collect::<BTreeMap<_, _>>()))
}

fn header(value: &Value) -> AMQPValue {
    match value {
        Value::Integer(number) => match i64::try_from(*number) {
            Ok(number) => AMQPValue::LongLongInt(number),
            Err(_) => AMQPValue::LongString(number.to_string().into()),
        },
        Value::Timestamp(seconds) => AMQPValue::Timestamp(*seconds),
        Value::Float(number) => AMQPValue::Double(*number),
        Value::Text(text) => AMQPValue::LongString(text.to_vec().into()),
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Other(_) => AMQPValue::Void,
    }
}
