//! Lapin parses all content that passes unchanged, and all content that lapin parses within the bounds passes unchanged.

use amq_protocol::frame::gen_frame;
use amq_protocol::protocol::AMQPClass;

use super::*;

/// True where lapin parses it and it keeps the bounds of the guard.
fn is_good(frame: &[u8]) -> bool {
    let Ok((rest, AMQPFrame::Header(_, header))) = parse_frame(frame) else { return false };
    let table = AMQPValue::FieldTable(header.properties.headers().clone().unwrap_or_default());
    rest.is_empty() && depth(&table) <= MAX_DEPTH && values(&table) - 1 <= MAX_VALUES
}

fn depth(value: &AMQPValue) -> usize {
    match value {
        AMQPValue::FieldTable(table) => 1 + table.into_iter().map(|(_, v)| depth(v)).max().unwrap_or(0),
        AMQPValue::FieldArray(array) => 1 + array.as_slice().iter().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn values(value: &AMQPValue) -> usize {
    1 + match value {
        AMQPValue::FieldTable(table) => table.into_iter().map(|(_, v)| values(v)).sum(),
        AMQPValue::FieldArray(array) => array.as_slice().iter().map(values).sum(),
        _ => 0,
    }
}

/// Compares guard and parser over one frame; true where it passed unchanged.
fn compare(frame: &[u8], seed: u64) -> bool {
    let out = guarded(frame);
    let good = is_good(frame);
    assert_eq!(out == frame, good, "seed {seed}: lapin parses it within the bounds: {good}; {frame:02x?}");
    if !good {
        let Some((size, _, mark)) = parsed(&out) else {
            panic!("seed {seed}: lapin does not parse what the guard made of {frame:02x?}: {out:02x?}")
        };
        assert!(mark.is_some_and(|mark| !mark.is_empty()), "seed {seed}");
        assert_eq!(size.to_be_bytes(), frame[11..19], "seed {seed}: the size of the body");
        assert_eq!(Head::read(&out).map(|head| head.channel), Head::read(frame).map(|head| head.channel));
    }
    good
}

#[test]
fn guard_and_parser_agree_over_generated_content_headers() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..30_000 {
        let frame = generate::header(&mut Rng::with_seed(seed));
        *(if compare(&frame, seed) { &mut good } else { &mut bad }) += 1;
    }
    assert!(good > 20_000 && bad > 3_000, "{good} good, {bad} bad");
}

/// Each bit of a frame that has everything, turned over.
#[test]
fn guard_and_parser_agree_over_flipped_bits() {
    let kinds = b"tbBsUuIiLlfdDSATFxV".iter().map(|kind| match kind {
        b't' | b'b' | b'B' => vec![*kind, 1],
        b's' | b'U' | b'u' => vec![*kind, 1, 2],
        b'I' | b'i' | b'f' => vec![*kind, 1, 2, 3, 4],
        b'D' => vec![*kind, 1, 2, 3, 4, 5],
        b'L' | b'l' | b'd' | b'T' => vec![*kind, 1, 2, 3, 4, 5, 6, 7, 8],
        b'F' => generate::long(b'F', &generate::entry(b"in", b"V")),
        b'A' => generate::long(b'A', b"Vt\x01"),
        b'V' => vec![b'V'],
        _ => generate::long(*kind, b"text"),
    });
    let entries: Vec<u8> =
        kinds.enumerate().flat_map(|(index, value)| generate::entry(&[b'a' + index as u8], &value)).collect();
    let mut properties = [generate::short(b"text/plain"), generate::short(b"gzip")].concat();
    properties.extend_from_slice(&generate::long(b'F', &entries)[1..]);
    properties.extend_from_slice(&[2, 5]);
    for text in ["correlation", "reply", "expiration", "id"] {
        properties.extend_from_slice(&generate::short(text.as_bytes()));
    }
    properties.extend_from_slice(&[0; 8]);
    for text in ["type", "user", "app", "cluster"] {
        properties.extend_from_slice(&generate::short(text.as_bytes()));
    }
    let frame = frame(HEADER, 3, &generate::payload(9, 0xfffc, &properties));
    assert!(compare(&frame, 0), "it is good as it is");
    let mut changed = 0;
    // The body's size and the frame's outline precede the flags.
    for bit in 19 * 8..(frame.len() - 1) * 8 {
        let mut frame = frame.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        changed += u64::from(!compare(&frame, bit as u64));
    }
    assert!(changed > 500, "{changed}");
}

#[test]
fn the_bounds_are_where_they_are_said_to_be() {
    let whole = |payload: &[u8]| compare(&frame(HEADER, 1, payload), 0);
    for kind in [b'A', b'F'] {
        // The headers themselves are the first level.
        assert!(whole(&generate::with_headers(&generate::nested(kind, MAX_DEPTH - 1))));
        assert!(!whole(&generate::with_headers(&generate::nested(kind, MAX_DEPTH))));
    }
    let many = |count| {
        let array = generate::long(b'A', &vec![b'V'; count]);
        generate::with_headers(&generate::entry(b"many", &array))
    };
    assert!(whole(&many(MAX_VALUES - 1)));
    assert!(!whole(&many(MAX_VALUES)));
}

#[test]
fn it_is_lapins_own_parser() {
    // Would not compile with another version than lapin's.
    let header: amq_protocol::protocol::BasicProperties = BasicProperties::default();
    assert_eq!(header, BasicProperties::default());
}

/// The methods of the broker that have texts.
fn methods() -> [AMQPClass; 10] {
    use amq_protocol::protocol::{basic, channel, connection, queue};
    let t = || "a-text".into();
    [
        AMQPClass::Basic(basic::AMQPMethod::Deliver(basic::Deliver {
            consumer_tag: t(),
            delivery_tag: 7,
            redelivered: true,
            exchange: t(),
            routing_key: t(),
        })),
        AMQPClass::Basic(basic::AMQPMethod::GetOk(basic::GetOk {
            delivery_tag: 7,
            redelivered: true,
            exchange: t(),
            routing_key: t(),
            message_count: 3,
        })),
        AMQPClass::Basic(basic::AMQPMethod::Return(basic::Return {
            reply_code: 312,
            reply_text: t(),
            exchange: t(),
            routing_key: t(),
        })),
        AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(basic::ConsumeOk { consumer_tag: t() })),
        AMQPClass::Basic(basic::AMQPMethod::Cancel(basic::Cancel { consumer_tag: t(), nowait: true })),
        AMQPClass::Basic(basic::AMQPMethod::CancelOk(basic::CancelOk { consumer_tag: t() })),
        AMQPClass::Channel(channel::AMQPMethod::Close(channel::Close {
            reply_code: 404,
            reply_text: t(),
            class_id: 60,
            method_id: 20,
        })),
        AMQPClass::Connection(connection::AMQPMethod::Close(connection::Close {
            reply_code: 320,
            reply_text: t(),
            class_id: 0,
            method_id: 0,
        })),
        AMQPClass::Connection(connection::AMQPMethod::Blocked(connection::Blocked { reason: t() })),
        AMQPClass::Queue(queue::AMQPMethod::DeclareOk(queue::DeclareOk {
            queue: t(),
            message_count: 1,
            consumer_count: 2,
        })),
    ]
}

#[test]
fn every_method_of_the_broker_is_repaired_or_passes() {
    for method in methods() {
        let name = format!("{method:?}");
        let method = AMQPFrame::Method(1, method);
        let (good, _) = gen_frame(&method)(Vec::new().into()).unwrap().into_inner();
        assert_eq!(guarded(&good), good, "{name}");
        let texts: Vec<usize> = (0..good.len()).filter(|at| good[*at..].starts_with(b"a-text")).collect();
        assert!(!texts.is_empty(), "{name}");
        for at in texts {
            let mut bad = good.clone();
            // Within a character, and cut off in the middle of one.
            bad[at + 1] = 0xff;
            bad[at + 5] = 0xe2;
            assert!(parse_frame(&bad[..]).is_err(), "{name}");
            let out = guarded(&bad);
            let (rest, _) = parse_frame(&out[..]).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(rest.is_empty());
            let mut repaired = good.clone();
            repaired[at + 1] = b'?';
            repaired[at + 5] = b'?';
            assert_eq!(out, repaired, "{name}: nothing else is changed");
        }
    }
}
