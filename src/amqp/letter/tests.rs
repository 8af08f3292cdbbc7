use lapin::types::FieldArray;

use super::*;
use crate::dispatch::Report;
use crate::job::Reason;
use crate::sink::MAX_EXCERPT;

const FRAME: usize = 131_072;

fn dead(detail: &str) -> DeadLetter {
    DeadLetter::new(Reason::Status, detail, Report { attempts: 3, status: Some(422), released_at: None })
}

fn table(entries: &[(&str, &str)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert((*name).into(), text(value));
    }
    table
}

fn names(properties: &BasicProperties) -> Vec<String> {
    properties.headers().iter().flatten().map(|(name, _)| name.to_string()).collect()
}

#[test]
fn a_letter_carries_its_report_and_keeps_its_job() {
    let job = BasicProperties::default()
        .with_headers(table(&[("paced-lane", "a"), ("mine", "b")]))
        .with_message_id("id".into())
        .with_content_type("text/plain".into())
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_priority(4)
        .with_timestamp(12)
        .with_type("t".into())
        .with_app_id("app".into());
    let letter =
        dead_letter(&job, "billing.eu", &dead("no such customer"), Micros(1_700_000_000_123_456), FRAME);
    let headers = letter.headers().as_ref().unwrap().inner();
    assert_eq!(headers["paced-reason"], text("status"));
    assert_eq!(headers["paced-detail"], text("no such customer"));
    assert_eq!(headers["paced-status"], AMQPValue::LongLongInt(422));
    assert_eq!(headers["paced-attempts"], AMQPValue::LongLongInt(3));
    assert_eq!(headers["paced-routing-key"], text("billing.eu"));
    assert_eq!(headers["paced-dead-at"], AMQPValue::LongLongInt(1_700_000_000_123));
    assert_eq!(letter.delivery_mode(), &Some(PERSISTENT));
    assert!(!headers.contains_key(RESPONSE), "there was no answer, or it is not kept");
    // A letter that is replayed is the job that it was.
    let back = replay(&letter, &Edits::default()).unwrap();
    assert_eq!(back, job.with_delivery_mode(PERSISTENT));
}

#[test]
fn a_letter_has_the_beginning_of_the_answer_byte_by_byte() {
    let job = BasicProperties::default().with_headers(table(&[("mine", "b"), (RESPONSE, "forged")]));
    let letter = |answer: &[u8]| {
        let letter = dead("why").with_response(bytes::Bytes::copy_from_slice(answer));
        dead_letter(&job, "d", &letter, Micros(0), FRAME)
    };
    let kept = |answer: &[u8]| letter(answer).headers().as_ref().unwrap().inner().get(RESPONSE).cloned();
    let bytes = |bytes: &[u8]| Some(AMQPValue::LongString(LongString::from(bytes)));
    for answer in [&b"no such customer"[..], b"\x1b[2J\0\n", b"\xff\xfe", &[0xff; MAX_EXCERPT]] {
        assert_eq!(kept(answer), bytes(answer));
    }
    assert_eq!(kept(&[b'x'; 5000]), bytes(&[b'x'; MAX_EXCERPT]));
    assert_eq!(kept(b""), None, "the one that the producer sent does not count either");
    let letter = letter(b"no\xff");
    assert_eq!(response(&letter).as_deref(), Some("no\u{fffd}"));
    assert_eq!(names(&replay(&letter, &Edits::default()).unwrap()), ["mine"]);
    assert_eq!(
        names(&fitted(&letter, "d", &Stay { throttled: 0, refused: 0, unreadable: 0, ..a_stay() })).len(),
        6
    );
}

#[test]
fn an_answer_that_others_put_into_a_letter_is_read_within_its_bound() {
    let with = |value| {
        let mut headers = FieldTable::default();
        headers.insert(RESPONSE.into(), value);
        response(&BasicProperties::default().with_headers(headers))
    };
    assert_eq!(with(text(&"x".repeat(100_000))), Some("x".repeat(MAX_EXCERPT)));
    assert_eq!(with(AMQPValue::LongInt(1)), None);
    assert_eq!(response(&BasicProperties::default()), None);
}

#[test]
fn what_the_broker_trips_over_is_left_behind() {
    let brokers = [
        "x-death",
        "x-first-death-reason",
        "x-last-death-queue",
        "x-delivery-count",
        "x-acquired-count",
        "x-delay",
        "CC",
        "BCC",
    ];
    let mut headers = table(&[("x-mine", "kept"), ("paced-reason", "expired"), ("paced-status", "1")]);
    for name in brokers {
        headers.insert(name.into(), text("x"));
    }
    let job = BasicProperties::default()
        .with_headers(headers)
        .with_expiration("1000".into())
        .with_user_id("someone".into());
    let letter = dead_letter(&job, "d", &dead(""), Micros(0), FRAME);
    assert_eq!(letter.expiration(), &None);
    assert_eq!(letter.user_id(), &None);
    let expected = [ATTEMPTS, DEAD_AT, DETAIL, REASON, ROUTING_KEY, STATUS, "x-mine"];
    assert_eq!(names(&letter), expected);
    assert_eq!(letter.headers().as_ref().unwrap().inner()[REASON], text("status"), "the last death counts");
    assert_eq!(names(&replay(&letter, &Edits::default()).unwrap()), ["x-mine"]);
}

/// The copy, in a frame that is large enough.
fn fitted(properties: &BasicProperties, routing_key: &str, stay: &Stay) -> BasicProperties {
    parked(properties, routing_key, stay, FRAME).unwrap()
}

fn a_stay() -> Stay {
    Stay {
        until: Micros(1_700_000_000_123_456),
        reason: ParkReason::Retry,
        attempts: 5,
        throttled: 2,
        refused: 1,
        unreadable: 1,
        first_seen: Micros(1_600_000_000_000_007),
        assigned_id: None,
        versions: None,
    }
}

#[test]
fn a_parked_copy_carries_its_stay_and_keeps_its_job() {
    let job = BasicProperties::default()
        .with_headers(table(&[("paced-lane", "a"), ("mine", "b")]))
        .with_message_id("id".into())
        .with_content_type("text/plain".into())
        .with_content_encoding("gzip".into())
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_priority(4)
        .with_timestamp(12)
        .with_type("t".into())
        .with_app_id("app".into());
    let copy = fitted(&job, "billing.eu", &a_stay());
    let headers = copy.headers().as_ref().unwrap().inner();
    assert_eq!(headers[PARKED], AMQPValue::LongLongInt(1_700_000_000_124), "it is never early");
    assert_eq!(headers[PARKED_FOR], text("retry"));
    assert_eq!(headers[FIRST_SEEN], AMQPValue::LongLongInt(1_600_000_000_000_007));
    for (name, count) in [(ATTEMPTS, 5), (THROTTLED, 2), (REFUSED, 1), (UNREADABLE, 1)] {
        assert_eq!(headers[name], AMQPValue::LongLongInt(count), "{name}");
    }
    assert_eq!(copy.delivery_mode(), &Some(PERSISTENT));
    assert!(is_parked(&copy) && !is_parked(&job));
    assert_eq!(parked_key(&copy).unwrap().as_str(), "billing.eu");
    let until = Micros(1_700_000_000_124_000);
    assert_eq!(stay(&copy), Some(Stay { until, ..a_stay() }));
    assert_eq!(stay(&job), None);
    // A parked job that is dead-lettered and replayed is the job that it was.
    let letter = dead_letter(&copy, "billing.eu", &dead("why"), Micros(0), FRAME);
    assert_eq!(replay(&letter, &Edits::default()).unwrap(), job.with_delivery_mode(PERSISTENT));
}

#[test]
fn a_parked_copy_has_nothing_that_the_broker_trips_over() {
    let brokers = [
        "x-death",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-last-death-queue",
        "x-opt-delivery-time",
        "x-opt-anything",
        "x-delay",
        "x-delivery-count",
        "x-acquired-count",
        "CC",
        "BCC",
    ];
    // From another sender the headers of a stay and of a report mean nothing, whether they are set again or not.
    let mut headers = table(&[
        ("x-mine", "kept"),
        (PARKED, "1"),
        (THROTTLED, "9"),
        (REFUSED, "9"),
        (UNREADABLE, "9"),
        (REASON, "status"),
        (DEAD_AT, "1"),
        (RESPONSE, "x"),
        (EXPIRATION, "1"),
    ]);
    for name in brokers {
        headers.insert(name.into(), text("x"));
    }
    let job = BasicProperties::default()
        .with_headers(headers)
        .with_expiration("1000".into())
        .with_user_id("someone".into());
    let stay = Stay { throttled: 0, refused: 0, unreadable: 0, ..a_stay() };
    let copy = fitted(&job, "d", &stay);
    assert_eq!((copy.expiration(), copy.user_id()), (&None, &None));
    let expected = [ATTEMPTS, EXPIRATION, FIRST_SEEN, PARKED, PARKED_FOR, ROUTING_KEY, "x-mine"];
    assert_eq!(names(&copy), expected);
    assert_eq!(header(&copy, EXPIRATION).as_deref(), Some("1000"));
    // When it is parked again, its properties have no expiration any more.
    assert_eq!(header(&fitted(&copy, "d", &stay), EXPIRATION).as_deref(), Some("1000"));
    assert_eq!(header(&fitted(&BasicProperties::default(), "d", &stay), EXPIRATION), None);
}

#[test]
fn a_parked_copy_has_the_id_that_its_job_was_given() {
    let stay = Stay { assigned_id: Some("0199".to_owned()), ..a_stay() };
    let copy = fitted(&BasicProperties::default(), "d", &stay);
    assert_eq!(copy.message_id().as_ref().map(ShortString::as_str), Some("0199"));
    let own = BasicProperties::default().with_message_id("own".into());
    assert_eq!(fitted(&own, "d", &a_stay()).message_id(), own.message_id());
    let long = Stay { assigned_id: Some("n".repeat(256)), ..a_stay() };
    assert_eq!(fitted(&own, "d", &long).message_id(), own.message_id(), "no id has more than 255 bytes");
}

/// The properties of a job that uses all options.
fn a_job() -> BasicProperties {
    let headers = table(&[
        ("paced-path", "a/b"),
        ("paced-method", "PUT"),
        ("paced-lane", "l"),
        ("paced-plan", "p"),
        ("paced-cost", "3"),
        ("paced-not-before", "1800000000000"),
        ("paced-deadline", "1900000000000"),
        ("http-x-a", "v"),
        ("traceparent", "00-1-2-03"),
        ("tracestate", "a=b"),
    ]);
    BasicProperties::default()
        .with_headers(headers)
        .with_message_id("id".into())
        .with_content_type("text/plain".into())
        .with_content_encoding("gzip".into())
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_priority(4)
        .with_timestamp(12)
        .with_expiration("60000".into())
}

fn with(properties: &BasicProperties, more: &[(&str, usize)]) -> BasicProperties {
    let mut headers = properties.headers().clone().unwrap();
    for (name, length) in more {
        headers.insert((*name).into(), text(&"x".repeat(*length)));
    }
    properties.clone().with_headers(headers)
}

#[test]
fn a_parked_copy_that_does_not_fit_a_frame_loses_what_nobody_reads_in_this_order() {
    let (job, whole) = (a_job(), FRAME - OTHER_PROPERTIES);
    let expected = |more: &[&str]| {
        let mut names = names(&fitted(&job, "d", &a_stay()));
        names.extend(more.iter().map(ToString::to_string));
        names.sort();
        names
    };
    for (more, kept) in [
        (&[("x-shovelled", 9), ("mine", 9)][..], &["mine", "x-shovelled"][..]),
        // What brokers add goes before what a producer may have meant for others, however large that is.
        (&[("x-shovelled", 900), ("x-a", 9), ("mine", whole - 1200)], &["mine", "x-a"]),
        (&[("x-shovelled", whole), ("mine", 9)], &["mine"]),
        // Of the others the largest goes first.
        (
            &[("x-a", 9), ("mine", whole / 2), ("another", whole / 2 + 9), ("PACED-x", 9)],
            &["PACED-x", "mine"],
        ),
        (&[("mine", whole), ("another", whole)], &[]),
    ] {
        let copy = parked(&with(&job, more), "d", &a_stay(), FRAME).unwrap();
        assert!(size(&copy) <= FRAME);
        assert_eq!(names(&copy), expected(kept));
        // For any dropped headers, the job that comes home is the one that was parked.
        let slim = fitted(&job, "d", &a_stay());
        for name in expected(&[]) {
            let of = |copy: &BasicProperties| copy.headers().as_ref().unwrap().inner()[name.as_str()].clone();
            assert_eq!(of(&copy), of(&slim), "{name}");
        }
        let bare = |copy: &BasicProperties| copy.clone().with_headers(FieldTable::default());
        assert_eq!(bare(&copy), bare(&slim));
    }
}

#[test]
fn a_job_whose_own_headers_fill_a_frame_is_not_parked() {
    let job = a_job();
    for name in ["http-x-b", "paced-path", "traceparent", "paced-lane"] {
        let whole = with(&job, &[(name, FRAME - OTHER_PROPERTIES - 900)]);
        assert!(names(&fitted(&whole, "d", &a_stay())).contains(&name.to_owned()), "{name}");
        let large = with(&job, &[(name, FRAME - OTHER_PROPERTIES - 100)]);
        assert!(size(&large) - 400 <= FRAME, "it came in a frame");
        assert_eq!(parked(&large, "d", &a_stay(), FRAME), None, "{name}");
        assert_eq!(parked(&with(&large, &[("mine", 400)]), "d", &a_stay(), FRAME), None, "{name}");
    }
}

#[test]
fn edits_are_made() {
    let job = BasicProperties::default()
        .with_headers(table(&[("paced-lane", "a"), ("paced-cost", "9"), ("http-x", "1")]))
        .with_message_id("id".into());
    let edits = Edits {
        set: vec![("paced-cost".into(), "1".into()), ("paced-path".into(), "p".into())],
        unset: vec!["http-x".into()],
        new_id: true,
    };
    let back = replay(&job, &edits).unwrap();
    assert_eq!(back.message_id(), &None);
    assert_eq!(
        back.headers(),
        &Some(table(&[("paced-lane", "a"), ("paced-cost", "1"), ("paced-path", "p")]))
    );
    let long = "n".repeat(256);
    let edits = Edits { set: vec![(long.clone(), String::new())], ..Edits::default() };
    assert_eq!(replay(&job, &edits), Err(long));
}

#[test]
fn a_detail_is_cut_at_a_character() {
    let letter = dead_letter(&BasicProperties::default(), "d", &dead(&"é".repeat(2000)), Micros(0), FRAME);
    let detail = header(&letter, DETAIL).unwrap();
    assert_eq!(detail, "é".repeat(MAX_DETAIL / 2));
    let odd = format!("x{}", "é".repeat(2000));
    assert_eq!(bounded(&odd).len(), MAX_DETAIL - 1);
}

#[test]
fn headers_that_fill_a_frame_make_way_for_the_report() {
    let large = "x".repeat(FRAME - 3_200);
    let job = BasicProperties::default().with_headers(table(&[("large", &large), ("paced-lane", "a")]));
    let letter = dead_letter(&job, "d", &dead("why"), Micros(0), FRAME);
    assert!(size(&letter) <= FRAME);
    assert_eq!(names(&letter), [ATTEMPTS, DEAD_AT, DETAIL, "paced-lane", REASON, ROUTING_KEY, STATUS]);
}

#[test]
fn an_answer_makes_way_for_the_headers_of_the_job() {
    let large = "x".repeat(FRAME - OTHER_PROPERTIES - 1000);
    let job = BasicProperties::default().with_headers(table(&[("large", &large)]));
    let outcome = dead("why").with_response(bytes::Bytes::from(vec![b'x'; MAX_EXCERPT]));
    let letter = dead_letter(&job, "d", &outcome, Micros(0), FRAME);
    assert!(size(&letter) <= FRAME);
    assert_eq!(names(&letter), ["large", ATTEMPTS, DEAD_AT, DETAIL, REASON, ROUTING_KEY, STATUS]);
}

#[test]
fn the_routing_key_is_the_brokers_or_else_ours() {
    let death = |key: &str| {
        let mut death = FieldTable::default();
        death.insert("routing-keys".into(), AMQPValue::FieldArray(FieldArray::from(vec![text(key)])));
        AMQPValue::FieldTable(death)
    };
    let mut headers = FieldTable::default();
    headers
        .insert("x-death".into(), AMQPValue::FieldArray(FieldArray::from(vec![death("new"), death("old")])));
    let brokers = BasicProperties::default().with_headers(headers.clone());
    assert_eq!(routing_key(&brokers).as_deref(), Some("new"));
    // A producer may send such a header, so it does not count beside the broker's record.
    headers.insert(ROUTING_KEY.into(), text("ours"));
    assert_eq!(routing_key(&BasicProperties::default().with_headers(headers)).as_deref(), Some("new"));
    let ours = BasicProperties::default().with_headers(table(&[(ROUTING_KEY, "ours")]));
    assert_eq!(routing_key(&ours).as_deref(), Some("ours"));
    assert_eq!(routing_key(&BasicProperties::default()), None);
}

#[test]
fn a_copy_says_by_which_limits_it_was_parked_and_its_job_does_not() {
    let under = |versions: &str| Stay { versions: Some(versions.to_owned()), ..a_stay() };
    let copy = fitted(&BasicProperties::default(), "billing", &under("3.ab.1.7"));
    let name = names(&copy).into_iter().find(|name| name.contains("versions")).unwrap();
    // Other readers, and older versions of paced, take it for a header of the broker.
    assert!(!is_ours(&name) && is_brokers(&name), "{name}");
    assert_eq!(stay(&copy).unwrap().versions.as_deref(), Some("3.ab.1.7"));
    let again = fitted(&copy, "billing", &under("4.ab.1.7"));
    assert_eq!(stay(&again).unwrap().versions.as_deref(), Some("4.ab.1.7"));
    assert_eq!(versions(&fitted(&again, "billing", &a_stay())), None);
}
