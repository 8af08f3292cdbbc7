//! Jobs that an operator cancels.

use super::*;

/// They have an outcome, so that a later run does not send them, and are no failures that are reported.
#[tokio::test]
async fn a_cancelled_job_has_an_outcome_of_its_own() {
    let notices = Notices::default();
    let mut out = Vec::new();
    let input = &b"{\"id\": \"a\"}\n{\"id\": \"b\"}\n"[..];
    let (mut source, writer) = open_lines(input, &mut out, notices.notify()).await;
    source.next().await.expect("a").ticket.discard(report(2, None));
    ack(source.next().await.expect("b"));
    drop(source);
    let totals = writer.run().await.expect("written");
    assert_eq!(totals, Totals { delivered: 1, cancelled: 1, ..Totals::default() });
    assert_eq!((totals.settled(), totals.done(), totals.is_clean()), (2, 2, false));
    let first = &parsed(&out)[0];
    assert_eq!(
        (&first["id"], &first["outcome"], &first["reason"]),
        (&json!("a"), &json!("cancelled"), &Value::Null)
    );
    assert_eq!(notices.all(), Vec::<String>::new());
}

#[tokio::test]
async fn a_job_that_an_earlier_run_was_done_with_is_not_sent() {
    let earlier = tempfile::NamedTempFile::new().expect("a file");
    let outcome = |line, id, outcome| json!({"line": line, "id": id, "outcome": outcome}).to_string() + "\n";
    let text = outcome(1, "a", "cancelled") + &outcome(2, "b", "delivered") + &outcome(3, "c", "dead");
    std::fs::write(earlier.path(), text).expect("written");
    let outcomes = resume(earlier.path()).expect("outcomes").outcomes;
    let input = &b"{\"id\": \"a\"}\n{\"id\": \"b\"}\n{\"id\": \"c\"}\n"[..];
    let records = Records::open(input, &Format::Ndjson).await.expect("lines");
    let options = PipeOptions { rules: Some(rules()), outcomes, ..PipeOptions::default() };
    let (mut source, writer) = open(records, tokio::io::sink(), options, Notices::default().notify());
    let delivery = source.next().await.expect("c");
    assert_eq!(delivery.message.message_id.as_deref(), Some("c"));
    ack(delivery);
    assert!(source.next().await.is_none());
    drop(source);
    let totals = writer.run().await.expect("written");
    let before = Before { delivered: 1, cancelled: 1 };
    assert_eq!(totals, Totals { delivered: 1, before, ..Totals::default() });
    assert_eq!((totals.done(), totals.is_clean()), (3, true));
}
