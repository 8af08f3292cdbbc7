//! What the API says of letters, and which a query chooses.

use serde_json::json;

use super::*;

#[test]
fn answers_are_the_same_texts() {
    let text = |text: &str| Some(text.to_owned());
    let mut letter = Letter {
        message: paced::job::Message {
            message_id: text("a\n"),
            content: paced::job::Content { body: "12345".into(), ..Default::default() },
            ..Default::default()
        },
        properties: amqp::BasicProperties::default(),
        reason: text("status"),
        detail: None,
        status: text("404"),
        attempts: text("many"),
        routing_key: text("billing.x"),
        dead_at: text("1764000000000"),
        response: text("<b>"),
    };
    let full = r#"{"attempts":null,"bytes":5,"dead_at":1764000000000,"detail":null,"id":"a\n","key":"billing.x","reason":"status","response":"<b>","status":404}"#;
    assert_eq!(json!(view(letter.clone(), 5)).to_string(), full);
    letter.message = paced::job::Message::default();
    let Letter { reason, status, routing_key, dead_at, response, .. } = &mut letter;
    for field in [reason, status, routing_key, dead_at, response] {
        *field = None;
    }
    let bare = r#"{"attempts":null,"bytes":0,"dead_at":null,"detail":null,"id":null,"key":null,"reason":null,"response":null,"status":null}"#;
    assert_eq!(json!(view(letter.clone(), 0)).to_string(), bare);
    let (letters, stopped_by) = (vec![view(letter, 0)], Some(StoppedBy::Size));
    let list = letters::List { letters, total: 7, stopped: true, stopped_by, listed_at: 5 };
    let expected =
        format!(r#"{{"letters":[{bare}],"listed_at":5,"stopped":true,"stopped_by":"size","total":7}}"#);
    assert_eq!(json!(list).to_string(), expected);
    let tally = Tally { found: 9, seen: 8, done: 3, kept: 4, failed: 1, ..Tally::default() };
    let mut done = Done { tally, ..Done::default() };
    let replay =
        r#"{"error":null,"failed":1,"found":9,"passed":4,"replayed":3,"stopped":false,"stopped_by":null}"#;
    assert_eq!(json!(replayed(&done)).to_string(), replay);
    (done.tally.stopped, done.stopped_by) = (true, Some(StoppedBy::Time));
    let purge = r#"{"found":9,"passed":4,"purged":3,"stopped":true,"stopped_by":"time"}"#;
    assert_eq!(json!(purged(&done)).to_string(), purge);
}

#[test]
fn the_reason_why_it_stopped_is_shown() {
    let scan = Scan { limit: Some(3), ..Scan::default() };
    let tally = Tally { found: 9, seen: 4, done: 2, ..Tally::default() };
    let error = || Some(amqp::PublishError::Malformed(String::new()));
    for (tally, expected) in [
        (Tally { stopped: true, ..tally.clone() }, Some(StoppedBy::Time)),
        (Tally { done: 3, ..tally.clone() }, Some(StoppedBy::Limit)),
        (Tally { error: error(), ..tally.clone() }, Some(StoppedBy::Error)),
        // One that failed by itself does not end the replay.
        (Tally { seen: 9, error: error(), ..tally.clone() }, None),
        (Tally { seen: 9, done: 3, ..tally.clone() }, None),
        // The queue counted too many.
        (tally, None),
    ] {
        assert_eq!(stopped_by(&tally, &scan), expected, "{tally:?}");
    }
}

#[test]
fn a_query_chooses_letters() {
    let scan = chosen("").unwrap();
    assert_eq!((scan.limit, scan.filter), (Some(LISTED), Filter::default()));
    let scan = chosen("limit=7&reason=status&status=404&id=a%20b&key=billing.x").unwrap();
    let text = |text: &str| Some(text.to_owned());
    let (reason, id, key) = (text("status"), text("a b"), text("billing.x"));
    assert_eq!(scan.limit, Some(7));
    assert_eq!(scan.filter, Filter { reason, status: Some(404), id, key, ..Filter::default() });
    assert_eq!(chosen("limit=1000000").unwrap().limit, Some(MOST_LISTED));
    for (query, expected) in
        [("limit=x", "limit: `x`"), ("status=70000", "status: "), ("older=1", "`older` chooses no")]
    {
        let refusal = chosen(query).unwrap_err();
        assert!(refusal.text().contains(expected) && refusal.status() == 400, "{refusal:?}");
    }
}

#[test]
fn the_log_says_which_letters_in_words() {
    let text = |text: &str| Some(text.to_owned());
    let every = Chosen { all: true, ..Chosen::default() };
    assert_eq!(which(&every, Bounds::default()), "all");
    let bounds = Bounds { limit: Some(10), first: Some(40), died_until: Some(1_764_000_000_123) };
    let expected = "all, at most 10, of the first 40, died until 2025-11-24T16:00:00Z";
    assert_eq!(which(&every, bounds), expected);
    let (reason, id, key) = (text("status"), Some("x".repeat(5_000)), text("a.b"));
    let some = Chosen { all: false, reason, status: Some(404), id, key };
    let expected = format!("reason `status`, status 404, id `{}`, key `a.b`", "x".repeat(MAX_SHOWN));
    assert_eq!(which(&some, Bounds::default()), expected);
}
