//! Tests what is kept of each kind of malformed message, and which detail names the trouble.

use super::generate::{deliver, entry, long, nested, payload, short, with_headers};
use super::*;

/// The result of rebuilding a content header with this payload.
fn rebuilt(payload: &[u8]) -> (BasicProperties, String) {
    let out = guarded(&frame(HEADER, 1, payload));
    let (_, properties, mark) = parsed(&out).expect("lapin parses it");
    (properties, mark.expect("a mark"))
}

/// Headers that are good but for one entry between two others.
fn one_bad(bad: &[u8]) -> Vec<u8> {
    with_headers(&[&entry(b"before", b"V"), bad, &entry(b"paced-lane", &long(b'S', b"acme"))].concat())
}

#[test]
fn one_bad_header_costs_no_other_and_no_id() {
    let cases = [
        (nested(b'A', 3000), "the header `deep` nests deeper than 32; send it flatter"),
        (nested(b'F', 100), "the header `deep` nests deeper than 32; send it flatter"),
        (entry(b"k\xff", b"V"), "a name in the header `k\\xff` is not UTF-8; send text"),
        (
            entry(b"outer", &long(b'F', &entry(b"\xc3\x28", b"V"))),
            "a name in the header `outer` is not UTF-8; send text",
        ),
        (
            entry(b"many", &long(b'A', &[b'V'; 5000])),
            "the headers have over 4096 values; send less in headers, more in the body",
        ),
        (
            entry(b"short", &long(b'A', b"S\0\0\0\x05abc")),
            "the header `short` is broken: a length in it is wrong",
        ),
        (entry(b"odd", &long(b'A', b"z")), "the header `odd` has a value of the unknown type 0x7a"),
    ];
    for (bad, detail) in cases {
        let (properties, mark) = rebuilt(&one_bad(&bad));
        assert_eq!(mark, detail);
        assert_eq!(properties.message_id().as_ref().map(|id| id.as_str()), Some("id-1"), "{detail}");
        let names: Vec<_> = headers(&properties).into_iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["before", "paced-lane"], "{detail}");
        assert_eq!(headers(&properties).inner()["paced-lane"], text("acme"));
    }
}

#[test]
fn where_the_next_header_begins_nobody_knows_the_rest_is_dropped() {
    let unknown = one_bad(&entry(b"odd", b"z\0\0"));
    let (properties, mark) = rebuilt(&unknown);
    assert_eq!(mark, "the header `odd` has a value of the unknown type 0x7a");
    let names: Vec<_> = headers(&properties).into_iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["before", "x-death"], "the rest may have the broker's account");
    assert!(properties.message_id().is_some());

    // The length of this entry leads out of the headers.
    let (properties, mark) = rebuilt(&one_bad(&entry(b"far", b"S\0\0\xff\xff")));
    assert_eq!(mark, "the header `far` is broken: a length in it is wrong");
    assert!(properties.message_id().is_some());

    // The headers' own length is wrong: what is in them is there, what is behind them is lost.
    let mut payload = payload(7, 1 << 13 | 1 << 7, b"\0\0\xff\xff");
    payload.extend_from_slice(&entry(b"a", b"V"));
    let (properties, mark) = rebuilt(&payload);
    assert_eq!(mark, "the properties are broken: a length in them is wrong");
    assert!(headers(&properties).contains_key("a") && properties.message_id().is_none());
}

#[test]
fn a_property_that_is_no_text_is_dropped_alone() {
    let texts = [
        (15, "content_type"),
        (14, "content_encoding"),
        (10, "correlation_id"),
        (9, "reply_to"),
        (8, "expiration"),
        (7, "message_id"),
        (5, "type"),
        (4, "user_id"),
        (3, "app_id"),
        (2, "cluster_id"),
    ];
    for (bad, name) in texts {
        let flags = texts.iter().fold(0, |flags, (bit, _)| flags | 1 << bit);
        let value = |bit| if bit == bad { &b"a\xff"[..] } else { b"good" };
        let properties: Vec<u8> = texts.iter().flat_map(|(bit, _)| short(value(*bit))).collect();
        let (properties, mark) = rebuilt(&payload(7, flags, &properties));
        assert_eq!(mark, format!("`{name}` is not UTF-8: `a\\xff`; send text"));
        let kept = [
            properties.content_type(),
            properties.content_encoding(),
            properties.correlation_id(),
            properties.reply_to(),
            properties.expiration(),
            properties.message_id(),
            properties.kind(),
            properties.user_id(),
            properties.app_id(),
            properties.cluster_id(),
        ];
        let missing: Vec<_> = texts.iter().zip(kept).filter(|(_, kept)| kept.is_none()).collect();
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].0.1, name);
        assert!(headers(&properties).inner().is_empty(), "the mark alone was in them");
    }
}

#[test]
fn bytes_behind_the_properties_and_a_missing_end_are_reported() {
    let (_, mark) = rebuilt(&payload(7, 0, b"x"));
    assert_eq!(mark, "the properties are broken: there are bytes behind them");
    let (_, mark) = rebuilt(&payload(7, 0, &[])[..13]);
    assert_eq!(mark, "the properties are broken: a length in them is wrong");
    let (properties, _) = rebuilt(&payload(7, 1 << 7 | 1 << 6, &short(b"id-1")));
    assert!(properties.message_id().is_some() && properties.timestamp().is_none());
}

#[test]
fn a_routing_key_that_is_no_text_marks_the_message() {
    let good = frame(HEADER, 1, &with_headers(&entry(b"a", b"V")));
    let other = frame(HEADER, 2, &with_headers(&[]));
    let bad = frame(METHOD, 1, &deliver(b"jobs", b"a.\xff"));
    let heartbeat = frame(HEARTBEAT, 0, &[]);
    let out = guarded(&[&bad[..], &heartbeat, &other, &good, &good].concat());
    let (out, AMQPFrame::Method(..)) = parse_frame(&out[..]).unwrap() else { panic!("no method") };
    let out = out.strip_prefix(&heartbeat[..]).unwrap();
    let out = out.strip_prefix(&other[..]).expect("that of another channel is as it was");
    let marked = out.strip_suffix(&good[..]).expect("that of the next message is as it was");
    let (_, properties, mark) = parsed(marked).unwrap();
    assert_eq!(mark.as_deref(), Some("the routing key is not UTF-8: `a.\\xff`; send text"));
    assert!(headers(&properties).contains_key("a") && properties.message_id().is_some());

    // A method that is not followed by content taints no content header.
    let close = frame(METHOD, 1, &[&[0, 20, 0, 40, 1, 2][..], &short(b"cut \xe2"), &[0; 4]].concat());
    let next = frame(METHOD, 1, &deliver(b"jobs", b"a"));
    let out = guarded(&[&close[..], &next, &good].concat());
    assert!(out.ends_with(&[next, good].concat()));
}

/// A content header of this many bytes in one header, and an id behind it.
fn large(bytes: usize) -> Vec<u8> {
    let before = [entry(b"first", b"V"), entry(b"x-death", &long(b'A', &[b'V'; 100]))].concat();
    let large = entry(b"large", &long(b'x', &vec![7; bytes]));
    let behind = entry(b"paced-lane", &long(b'S', b"acme"));
    frame(HEADER, 1, &with_headers(&[before, large, behind].concat()))
}

#[test]
fn a_content_header_that_is_too_long_is_cut_and_keeps_its_id() {
    let max = MAX as usize;
    let rest = large(0).len();
    assert_eq!(guarded(&large(max - rest)), large(max - rest), "exactly as long as it may be");
    for over in [1, 2, 500, max, 10 * max, 1000 * max] {
        let out = guarded(&large(max - rest + over));
        assert!(out.len() <= max, "{}", out.len());
        let (_, properties, mark) = parsed(&out).unwrap();
        let is = max - OVERHEAD + over;
        let max = max - OVERHEAD;
        assert_eq!(
            mark.unwrap(),
            format!(
                "the properties take {is} bytes and must fit {max}; send less in headers, more in the body"
            )
        );
        assert_eq!(properties.message_id().as_ref().map(|id| id.as_str()), Some("id-1"));
        let headers = headers(&properties);
        assert!(headers.contains_key("first") && !headers.contains_key("large"));
    }
}

/// The broker's account of dead-letterings is the first to go, but for its name.
#[test]
fn jobs_headers_come_before_the_brokers_where_there_is_too_little_room() {
    let death = entry(b"x-death", &long(b'x', &vec![7; 9_000]));
    let jobs = entry(b"paced-note", &long(b'S', &vec![b'a'; 9_000]));
    let out = guarded(&frame(HEADER, 1, &with_headers(&[death, jobs].concat())));
    let (_, properties, _) = parsed(&out).unwrap();
    // The last entry is not all there.
    assert!(headers(&properties).contains_key("x-death"));

    let death = entry(b"x-death", &long(b'x', &vec![7; 12_300]));
    let jobs = entry(b"paced-note", &long(b'S', &vec![b'a'; 4_000]));
    let bad = entry(b"k\xff", b"V");
    let out = guarded(&frame(HEADER, 1, &with_headers(&[bad, death, jobs].concat())));
    let (_, properties, _) = parsed(&out).unwrap();
    assert!(headers(&properties).contains_key("paced-note"), "there is no room for both and the mark");
    assert_eq!(headers(&properties).inner()["x-death"], AMQPValue::Void);
}

/// Otherwise the headers of its producer would count as the report of paced.
#[test]
fn a_letter_of_the_broker_stays_one_whatever_is_left_out() {
    let forged = entry(b"paced-reason", &long(b'S', b"status"));
    let deaths = |values: usize| entry(b"x-death", &long(b'A', &vec![b'V'; values]));
    let large = |bytes: usize| entry(b"large", &long(b'x', &vec![7; bytes]));
    let max = MAX as usize;
    let before = frame(HEADER, 1, &with_headers(&[&forged[..], &large(0)].concat())).len();
    // What is kept of one that is too long ends within an entry, or between two.
    let cut = (0..40).map(|less| [&large(max - before - less)[..], &deaths(100)].concat());
    let others = [
        deaths(5_000),
        entry(b"x-death", &long(b'A', b"z")),
        [entry(b"odd", b"z"), deaths(1)].concat(),
        [entry(b"k\xff", b"V"), deaths(1)].concat(),
        [large(max), deaths(1)].concat(),
        [entry(b"k\xff", b"V"), large(max - before - 200), deaths(300)].concat(),
    ];
    for entries in cut.chain(others) {
        let (properties, _) = rebuilt(&with_headers(&[&forged[..], &entries].concat()));
        let headers = headers(&properties);
        assert!(headers.contains_key("paced-reason") && headers.contains_key("x-death"), "{headers:?}");
    }
    let (properties, _) = rebuilt(&with_headers(&[&forged[..], &entry(b"k\xff", b"V")].concat()));
    assert!(!headers(&properties).contains_key("x-death"), "a report of paced still counts");
}

#[test]
fn a_length_of_four_gibibytes_takes_no_memory() {
    for kind in [METHOD, HEADER, BODY] {
        let mut stream = GuardedStream::new(
            Script::of([[&[kind, 0, 1, 255, 255, 255, 255][..], &vec![7; 4 << 20]].concat()]),
            frame_max(),
        );
        let mut buf = vec![0; 64 * 1024];
        let mut cx = Context::from_waker(Waker::noop());
        while !matches!(Pin::new(&mut stream).poll_read(&mut cx, &mut buf), Poll::Ready(Ok(0))) {
            assert!(stream.memory() < 128 * 1024, "{}", stream.memory());
        }
    }
}

#[test]
fn a_producers_header_that_looks_like_a_mark_is_none() {
    let name = format!("guard-{:032x}", 7);
    let good = frame(HEADER, 1, &with_headers(&entry(name.as_bytes(), &long(b'S', b"x"))));
    assert_eq!(guarded(&good), good);
    let (_, properties, mark) = parsed(&good).unwrap();
    assert_eq!(mark, None);
    assert!(headers(&properties).contains_key(&name));
}

/// Bytes that are no AMQP pass, for lapin to fail on.
#[test]
fn broken_framing_is_left_to_lapin() {
    let good = frame(HEADER, 1, &with_headers(&[]));
    let mut unended = frame(HEADER, 1, &one_bad(&entry(b"k\xff", b"V")));
    *unended.last_mut().unwrap() = 0;
    let tiny = frame(HEADER, 1, &[0, 60, 0, 0]);
    for bad in [&b"AMQP\0\0\x09\x01"[..], &unended, &tiny, &[9; 8]] {
        let input = [&good[..], bad, &unended].concat();
        assert_eq!(guarded(&input), input);
        assert!(!matches!(parse_frame(bad), Ok((_, AMQPFrame::Header(..)))));
    }
}
