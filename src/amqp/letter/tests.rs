use lapin::types::FieldArray;

use super::*;
use crate::dispatch::Report;
use crate::job::Reason;

const FRAME: usize = 131_072;

fn dead(detail: &str) -> DeadLetter {
    DeadLetter {
        reason: Reason::Status,
        detail: detail.to_owned(),
        report: Report { attempts: 3, status: Some(422), released_at: None },
    }
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
    // A letter that is replayed is the job that it was.
    let back = replay(&letter, &Edits::default()).unwrap();
    assert_eq!(back, job.with_delivery_mode(PERSISTENT));
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
fn the_routing_key_is_ours_or_else_the_brokers() {
    let death = |key: &str| {
        let mut death = FieldTable::default();
        death.insert("routing-keys".into(), AMQPValue::FieldArray(FieldArray::from(vec![text(key)])));
        AMQPValue::FieldTable(death)
    };
    let mut headers = FieldTable::default();
    headers
        .insert("x-death".into(), AMQPValue::FieldArray(FieldArray::from(vec![death("new"), death("old")])));
    let brokers = BasicProperties::default().with_headers(headers.clone());
    assert_eq!(routing_key(&brokers).as_deref(), Some("old"));
    headers.insert(ROUTING_KEY.into(), text("ours"));
    assert_eq!(routing_key(&BasicProperties::default().with_headers(headers)).as_deref(), Some("ours"));
    assert_eq!(routing_key(&BasicProperties::default()), None);
}
