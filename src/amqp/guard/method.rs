//! Repairs the short strings in the broker's methods. It has no I/O.

use super::content::escaped;
use super::frame::Reader;

/// A field of a method.
#[derive(Clone, Copy)]
enum Field {
    /// A short string, by its name.
    Short(&'static str),
    /// Octets with any content.
    Octets(usize),
}

/// The arguments of a method up to its last short string; none for a method without short strings.
const fn arguments(class: u16, method: u16) -> &'static [Field] {
    use Field::{Octets, Short};
    match (class, method) {
        // basic.deliver and get-ok: a message is to follow.
        (60, 60) => &[Short("consumer tag"), Octets(9), Short("exchange"), Short("routing key")],
        (60, 71) => &[Octets(9), Short("exchange"), Short("routing key")],
        // basic.return: a message follows here too.
        (60, 50) => &[Octets(2), Short("reply text"), Short("exchange"), Short("routing key")],
        // connection.close, channel.close: RabbitMQ cuts its texts at 255 bytes, within a character too.
        (10, 50) | (20, 40) => &[Octets(2), Short("reply text")],
        // connection.blocked
        (10, 60) => &[Short("reason")],
        // queue.declare-ok
        (50, 11) => &[Short("queue")],
        // basic.consume-ok, cancel, cancel-ok
        (60, 21 | 30 | 31) => &[Short("consumer tag")],
        _ => &[],
    }
}

/// Whether this is basic.deliver of a message that was delivered before.
pub(super) fn is_redelivery(payload: &[u8]) -> bool {
    let mut reader = Reader(payload);
    let is_delivery = (reader.u16(), reader.u16()) == (Some(60), Some(60));
    // The flag is behind the consumer tag and the delivery tag.
    let behind = reader.short().and_then(|_| reader.take(8));
    is_delivery && behind.and_then(|_| reader.u8()).is_some_and(|flag| flag & 1 == 1)
}

/// Replaces each byte that is not UTF-8 in the method's short strings by a question mark; returns what was wrong. A
/// method with other fields than expected is left as it is.
pub(super) fn repair(payload: &mut [u8]) -> Option<String> {
    let mut reader = Reader(payload);
    let (class, method) = (reader.u16()?, reader.u16()?);
    let mut trouble = None;
    let mut at = 4;
    for field in arguments(class, method) {
        match *field {
            Field::Octets(count) => at += count,
            Field::Short(name) => {
                let end = at + 1 + usize::from(*payload.get(at)?);
                let text = payload.get_mut(at + 1..end)?;
                if std::str::from_utf8(text).is_err() {
                    let shown = escaped(text);
                    trouble.get_or_insert_with(|| format!("the {name} is not UTF-8: `{shown}`; send text"));
                    replace(text);
                }
                at = end;
            }
        }
    }
    trouble
}

/// Replaces what is not UTF-8, byte by byte.
fn replace(mut text: &mut [u8]) {
    while let Err(error) = std::str::from_utf8(text) {
        let from = error.valid_up_to();
        let to = error.error_len().map_or(text.len(), |length| from + length);
        text[from..to].fill(b'?');
        text = &mut text[to..];
    }
}
