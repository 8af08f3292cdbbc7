//! The memory that a message takes: a producer may send large headers with small bodies.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

/// The memory of a job that is held besides its body and its headers.
const JOB: usize = 2048;

/// The memory of an entry of a table or an array besides its text: about what the parsed forms of AMQP and of the job
/// take together.
const ENTRY: usize = 160;

/// The least weight of a message, given the length of its body.
pub(super) const fn least(body: u64) -> u64 {
    body.saturating_add(JOB as u64)
}

/// The weight of a message in bytes: its body, its headers as they are in memory, and the job itself.
pub(super) fn weight(body: usize, properties: &BasicProperties) -> u64 {
    let headers = properties.headers().as_ref().map_or(0, table);
    body.saturating_add(headers).saturating_add(JOB) as u64
}

fn table(table: &FieldTable) -> usize {
    table.inner().iter().fold(0, |sum: usize, (key, item)| {
        sum.saturating_add(ENTRY).saturating_add(key.as_str().len()).saturating_add(value(item))
    })
}

/// The parser bounds the depth of the recursion.
fn value(item: &AMQPValue) -> usize {
    match item {
        AMQPValue::LongString(text) => text.as_bytes().len(),
        AMQPValue::ByteArray(bytes) => bytes.as_slice().len(),
        AMQPValue::FieldTable(inner) => table(inner),
        AMQPValue::FieldArray(array) => array
            .as_slice()
            .iter()
            .fold(0, |sum: usize, item| sum.saturating_add(ENTRY).saturating_add(value(item))),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::FieldArray;

    use super::*;

    #[test]
    fn headers_count_at_every_depth() {
        assert_eq!(weight(1000, &BasicProperties::default()), 1000 + JOB as u64);
        let mut inner = FieldTable::default();
        inner.insert("k".into(), AMQPValue::LongString("x".repeat(500).into()));
        let mut headers = FieldTable::default();
        headers.insert("array".into(), AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void; 100])));
        headers.insert("table".into(), AMQPValue::FieldTable(inner));
        let properties = BasicProperties::default().with_headers(headers);
        let expected = JOB + 2 * ENTRY + 10 + 100 * ENTRY + ENTRY + 1 + 500;
        assert_eq!(weight(0, &properties), expected as u64);
    }
}
