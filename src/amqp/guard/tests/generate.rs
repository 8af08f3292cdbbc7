//! Content headers as a broker may send them, good and bad.

use super::*;

/// A short string.
pub(super) fn short(text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(text.len()).unwrap()];
    bytes.extend_from_slice(text);
    bytes
}

/// A type and a length before these bytes.
pub(super) fn long(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut value = vec![kind];
    value.extend_from_slice(&frame::length(bytes));
    value.extend_from_slice(bytes);
    value
}

/// An entry of a table.
pub(super) fn entry(name: &[u8], value: &[u8]) -> Vec<u8> {
    [short(name), value.to_vec()].concat()
}

/// The payload of a content header with these flags, and these properties behind them.
pub(super) fn payload(size: u64, flags: u16, properties: &[u8]) -> Vec<u8> {
    let mut payload = vec![0, 60, 0, 0];
    payload.extend_from_slice(&size.to_be_bytes());
    payload.extend_from_slice(&flags.to_be_bytes());
    payload.extend_from_slice(properties);
    payload
}

/// The payload of a content header that has a message id and these headers.
pub(super) fn with_headers(entries: &[u8]) -> Vec<u8> {
    let headers = &long(b'F', entries)[1..];
    payload(7, 1 << 13 | 1 << 7, &[headers, &short(b"id-1")].concat())
}

/// As many nested arrays, or tables, as given, in a header.
pub(super) fn nested(kind: u8, depth: usize) -> Vec<u8> {
    let mut value = vec![b'V'];
    for _ in 0..depth {
        value = if kind == b'F' { entry(b"n", &value) } else { value };
        value = long(kind, &value);
    }
    entry(b"deep", &value)
}

/// A random content header frame; most are good.
pub(super) fn header(rng: &mut Rng) -> Vec<u8> {
    let mut properties = Vec::new();
    let mut flags = rng.u16(..) & rng.u16(..);
    if rng.u8(..) < 250 {
        // The broker sets neither of the last two.
        flags &= !3;
    }
    for index in 0..14 {
        if flags & (1 << (15 - index)) == 0 {
            continue;
        }
        match index {
            2 => properties.extend_from_slice(&long(b'F', &entries(rng, 0))[1..]),
            3 | 4 => properties.push(rng.u8(..)),
            9 => properties.extend_from_slice(&rng.u64(..).to_be_bytes()),
            _ => properties.extend_from_slice(&short(&name(rng))),
        }
    }
    if rng.u8(..) == 0 {
        properties.push(0);
    }
    frame(HEADER, rng.u16(1..4), &payload(rng.u64(..1000), flags, &properties))
}

/// A random text; one of thirty is not UTF-8.
fn name(rng: &mut Rng) -> Vec<u8> {
    const TEXTS: [&str; 6] = ["", "a", "x-death", "paced-lane", "\u{fc}mlaut", "\u{1f600}"];
    let mut text = TEXTS[rng.usize(..TEXTS.len())].as_bytes().to_vec();
    if rng.u8(..) < 8 {
        text.push(0x80 | rng.u8(..));
    }
    text
}

fn entries(rng: &mut Rng, depth: usize) -> Vec<u8> {
    let count = rng.usize(..6);
    let named = |number| {
        let mut name = name(rng);
        // The parser keeps one of two entries with the same name.
        name.extend_from_slice(format!("-{number}").as_bytes());
        let value = value(rng, depth);
        entry(&name, &value)
    };
    (0..count).flat_map(named).collect()
}

fn value(rng: &mut Rng, depth: usize) -> Vec<u8> {
    const TYPES: &[u8] = b"tbBsUuIiLlfdDSATFxVAFAFAF";
    let kind = match rng.u16(..) {
        0..300 => rng.u8(..),
        _ => TYPES[rng.usize(..TYPES.len())],
    };
    let octets = |rng: &mut Rng, count| {
        let mut value = vec![kind];
        value.extend((0..count).map(|_| rng.u8(..)));
        value
    };
    let mut value = match kind {
        b't' | b'b' | b'B' => octets(rng, 1),
        b's' | b'U' | b'u' => octets(rng, 2),
        b'I' | b'i' | b'f' => octets(rng, 4),
        b'D' => octets(rng, 5),
        b'L' | b'l' | b'd' | b'T' => octets(rng, 8),
        b'S' | b'x' => long(kind, &octets(rng, 4)),
        // Deep enough for the bound, and not for the parser's stack.
        b'A' | b'F' if depth < 40 && rng.u16(..) < 400 => {
            let inner = value_chain(rng, kind, 40 - depth);
            long(kind, &inner)
        }
        b'A' if depth < 5 => {
            let count = rng.usize(..4);
            let inner: Vec<u8> = (0..count).flat_map(|_| value(rng, depth + 1)).collect();
            long(kind, &inner)
        }
        b'F' if depth < 5 => long(kind, &entries(rng, depth + 1)),
        b'A' | b'F' => long(kind, &[]),
        _ => vec![kind],
    };
    if rng.u16(..) < 600 && value.len() > 4 {
        // A length, or what looks like one.
        value[4] ^= 1 << rng.u32(..8);
    }
    value
}

/// The inside of a container around up to `most` more.
fn value_chain(rng: &mut Rng, kind: u8, most: usize) -> Vec<u8> {
    let mut value = vec![b'V'];
    for _ in 0..rng.usize(..most) {
        let kind = if rng.bool() { b'A' } else { b'F' };
        value = long(kind, &if kind == b'F' { entry(b"n", &value) } else { value });
    }
    if kind == b'F' { entry(b"n", &value) } else { value }
}

/// Whole frames as they come on a connection that consumes: methods, content headers, bodies, heartbeats.
/// Only the content headers may be bad.
pub(super) fn traffic(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.usize(1..8) {
        match rng.u8(..8) {
            0 => bytes.extend_from_slice(&frame(HEARTBEAT, 0, &[])),
            _ => message(rng, &mut bytes),
        }
    }
    bytes
}

fn message(rng: &mut Rng, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&frame(METHOD, 1, &deliver(b"jobs", b"billing.1")));
    bytes.extend_from_slice(&header(rng));
    for _ in 0..rng.usize(..3) {
        let body: Vec<u8> = (0..rng.usize(..300)).map(|_| rng.u8(..)).collect();
        bytes.extend_from_slice(&frame(BODY, 1, &body));
    }
}

/// The payload of basic.deliver.
pub(super) fn deliver(exchange: &[u8], key: &[u8]) -> Vec<u8> {
    let tag = short(b"ctag-1");
    [&[0, 60, 0, 60][..], &tag, &7_u64.to_be_bytes(), &[0], &short(exchange), &short(key)].concat()
}
