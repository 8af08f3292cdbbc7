//! Dead letters through the admin API: listed, replayed and purged by clients that have the token, and by no others.

use serde_json::json;

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::publish;

/// A replica that shows bodies.
async fn with_bodies(site: &Site) -> AdminReplica {
    AdminReplica::start(site, &format!("token = '{TOKEN}'\nshow_bodies = true\n")).await
}

#[tokio::test]
async fn dead_letters_are_listed_replayed_and_purged() {
    let site = Site::shared("apidead", "rate = '100/s'").await;
    site.api.rule(|arrival| {
        if arrival.id().starts_with("bad") {
            Answer::status(404).body("<b>no</b>\n\u{1b}[2J")
        } else {
            Answer::status(410)
        }
    });
    let replica = with_bodies(&site).await;
    site.publish(Job::many("bad", 4)).await;
    site.publish(Job::many("gone", 3)).await;
    site.depth(&site.dead_queue(), 7, LONG).await;

    let (status, answer) = replica.send(Method::GET, "/dead?limit=2&status=404", &[], "").await;
    let letters = answer["letters"].as_array().unwrap();
    assert_eq!((status, letters.len(), answer["total"].as_u64()), (200, 2, Some(7)), "{answer}");
    // Letters of one instant lie in any order.
    let is_bad = |letter: &Value| letter["id"].as_str().unwrap().starts_with("bad-");
    assert!(letters.iter().all(is_bad) && letters[0]["reason"] == "status", "{answer}");
    assert_eq!((&letters[0]["status"], &letters[0]["attempts"]), (&json!(404), &json!(1)), "{answer}");
    assert_eq!(letters[0]["response"], "<b>no</b>\n\u{1b}[2J", "{answer}");
    let (_, answer) = replica.send(Method::GET, "/dead?limit=1&status=410", &[], "").await;
    assert_eq!(answer["letters"][0]["response"], Value::Null, "{answer}");

    // The body is only in the answer for one letter.
    let (status, answer) = replica.send(Method::GET, "/dead/letter?id=bad-1", &[], "").await;
    assert_eq!((status, &answer["id"], &answer["is_cut"]), (200, &json!("bad-1"), &json!(false)), "{answer}");
    let length = answer["body"].as_str().unwrap().len();
    assert_eq!(Some(length as u64), answer["bytes"].as_u64(), "{answer}");
    assert_eq!(answer["response"], "<b>no</b>\n\u{1b}[2J", "{answer}");
    for (query, status) in
        [("?id=none", 404), ("?id=bad-1&dead_at=1", 404), ("", 400), ("?id=a&limit=2", 400)]
    {
        let path = format!("/dead/letter{query}");
        assert_eq!(replica.send(Method::GET, &path, &[], "").await.0, status, "{query}");
    }

    // With the token for reading nothing is changed, and no letters are held.
    for (method, what) in [
        (Method::GET, "/dead"),
        (Method::GET, "/dead/letter?id=bad-1"),
        (Method::POST, "/dead/replay"),
        (Method::POST, "/dead/purge"),
    ] {
        let (status, answer) = replica.send(method, what, &[("authorization", "")], "").await;
        assert_eq!(status, 401, "{what} {answer}");
    }
    for (what, body, error) in [
        ("/dead/purge", r#"{"rate": "1/s", "all": true}"#, "a purge has none"),
        ("/dead/purge", r#"{"state": 5}"#, "unknown field `state`"),
        ("/dead/replay", r#"{"rate": "fast", "all": true}"#, "rate: "),
        ("/dead/purge", "", "no letters are chosen"),
        ("/dead/purge", "{}", "no letters are chosen"),
        ("/dead/purge", r#"{"reason": null}"#, "reason: null chooses no letters"),
        ("/dead/purge", r#"{"reason": null, "status": null, "first": 7}"#, "reason: null chooses no letters"),
        ("/dead/replay", r#"{"status": null}"#, "status: null chooses no letters"),
        ("/dead/replay", r#"{"all": true, "status": 404}"#, "leave one out"),
    ] {
        let (status, answer) = replica.send(Method::POST, what, &[], body).await;
        assert!(status == 400 && answer["error"].as_str().unwrap().contains(error), "{what} {answer}");
    }
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(7));

    let body = r#"{"id": "bad-1", "audit": "nobody wants it"}"#;
    let (status, answer) = replica.send(Method::POST, "/dead/purge", &[], body).await;
    assert_eq!((status, &answer["purged"], &answer["passed"]), (200, &json!(1), &json!(6)), "{answer}");
    site.api.rule(|_| Answer::ok());
    let body = r#"{"status": 410, "rate": "1000/s", "audit": "it is back"}"#;
    let (status, answer) = replica.send(Method::POST, "/dead/replay", &[], body).await;
    assert_eq!((status, &answer["replayed"], &answer["failed"]), (200, &json!(3), &json!(0)), "{answer}");
    let mut sent: Vec<String> =
        site.api.wait_for(10, LONG).await[7..].iter().map(|arrival| arrival.id().to_owned()).collect();
    sent.sort_unstable();
    assert_eq!(sent, ["gone-0", "gone-1", "gone-2"]);
    site.depth(&site.dead_queue(), 3, LONG).await;
    let lines = replica.audit("admin: changed", 2).await;
    let result = json!("1 of 7 done, 6 passed over, 0 failed");
    assert_eq!((&lines[0]["change"], &lines[0]["after"]), (&json!("dead purge"), &result), "{lines:?}");
    assert_eq!((&lines[1]["change"], &lines[1]["reason"]), (&json!("dead replay"), &json!("it is back")));
    assert_eq!(replica.paced.stop().await, 0);
}

/// Ids repeat where each tenant counts its jobs by itself: the body is that of the letter which is named with its key and time.
#[tokio::test]
async fn letters_of_one_id_are_told_apart() {
    let site = Site::shared("apisameid", "rate = '100/s'").await;
    let replica = with_bodies(&site).await;
    let letter = |millis: i64, body: &str| {
        let dead_at = millis.to_string();
        let job = Job::new("1").header("paced-reason", "status").header("paced-dead-at", &dead_at).body(body);
        job.header("paced-path", "customers/7?token=s3cret")
    };
    let letters = vec![letter(1_600_000_000_000, "older"), letter(1_600_000_000_001, "newer")];
    publish::publish_to(&site.amqp, "", &site.dead_queue(), letters).await;
    site.depth(&site.dead_queue(), 2, LONG).await;
    for (query, status, body) in [
        ("id=1", 200, json!("older")),
        ("id=1&dead_at=1600000000000", 200, json!("older")),
        ("id=1&dead_at=1600000000001", 200, json!("newer")),
        ("id=1&dead_at=1600000000002", 404, Value::Null),
        ("id=1&key=other", 404, Value::Null),
    ] {
        let path = format!("/dead/letter?{query}");
        let (found, answer) = replica.send(Method::GET, &path, &[], "").await;
        assert_eq!((found, &answer["body"]), (status, &body), "{query} {answer}");
    }
    // Only the answer with the body has the query of the path.
    let path = |answer: &Value| answer["path"].as_str().unwrap_or_default().to_owned();
    let (_, list) = replica.send(Method::GET, "/dead", &[], "").await;
    assert!(list["letters"].as_array().unwrap().iter().all(|letter| path(letter) == "customers/7"), "{list}");
    let (_, whole) = replica.send(Method::GET, "/dead/letter?id=1", &[], "").await;
    assert_eq!(path(&whole), "customers/7?token=s3cret", "{whole}");
    // Each of these is in the log, also if nothing was found, with who asked.
    let as_kim = [("paced-as", "kim")];
    let (status, _) = replica.send(Method::GET, "/dead/letter?id=none", &as_kim, "").await;
    assert_eq!(status, 404);
    let lines = replica.audit("admin: reading a body", 7).await;
    assert_eq!(lines[2]["chosen"], "id `1`, died 2020-09-13T12:26:40Z", "{lines:?}");
    let last = &lines[6];
    assert_eq!((&last["chosen"], &last["claimed"]), (&json!("id `none`"), &json!("kim")), "{last}");
    assert_eq!((&last["by"], &last["certificate"]), (&json!("127.0.0.1"), &json!("")), "{last}");
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(2));
    assert_eq!(replica.paced.stop().await, 0);
}

/// A purge and a replay of what was shown leave out what came since, also where letters were taken meanwhile.
#[tokio::test]
async fn what_was_not_shown_stays() {
    let site = Site::shared("apibounds", "rate = '100/s'").await;
    site.api.rule(|_| Answer::ok());
    let replica = AdminReplica::with_token(&site).await;
    let died = |id: &str, millis: i64| {
        Job::new(id).header("paced-reason", "status").header("paced-dead-at", &millis.to_string())
    };
    let old: Vec<Job> = (0..4).map(|n| died(&format!("old-{n}"), 1_600_000_000_000)).collect();
    publish::publish_to(&site.amqp, "", &site.dead_queue(), old).await;
    site.depth(&site.dead_queue(), 4, LONG).await;
    let (status, shown) = replica.send(Method::GET, "/dead", &[], "").await;
    assert_eq!((status, &shown["total"], &shown["stopped_by"]), (200, &json!(4), &Value::Null), "{shown}");
    // Bodies are not shown unless the configuration says so.
    let (status, answer) = replica.send(Method::GET, "/dead/letter?id=old-0", &[], "").await;
    assert!(status == 403 && answer["error"].as_str().unwrap().contains("admin.show_bodies"), "{answer}");
    let (first, until) = (shown["total"].clone(), shown["listed_at"].as_i64().unwrap());

    // Somebody else takes two; three come, of which one has no time, as those that the broker dead-letters.
    let (_, answer) = replica.send(Method::POST, "/dead/purge", &[], r#"{"all": true, "limit": 2}"#).await;
    assert_eq!((&answer["purged"], &answer["stopped_by"]), (&json!(2), &json!("limit")), "{answer}");
    let new = vec![died("new-0", until + 1), Job::new("brokers"), died("new-1", until + 60_000)];
    publish::publish_to(&site.amqp, "", &site.dead_queue(), new).await;
    site.depth(&site.dead_queue(), 5, LONG).await;
    let body = json!({ "all": true, "first": first, "died_until": until, "audit": "over" }).to_string();
    let (status, answer) = replica.send(Method::POST, "/dead/purge", &[], &body).await;
    // Of the first four those that died before: `brokers` is the fourth.
    assert_eq!((status, &answer["found"], &answer["purged"]), (200, &json!(4), &json!(3)), "{answer}");
    assert_eq!((&answer["passed"], &answer["stopped_by"]), (&json!(1), &Value::Null), "{answer}");
    let body = json!({ "reason": "status", "first": 2, "died_until": until + 1 }).to_string();
    let (status, answer) = replica.send(Method::POST, "/dead/replay", &[], &body).await;
    assert_eq!((status, &answer["replayed"], &answer["passed"]), (200, &json!(1), &json!(1)), "{answer}");
    assert_eq!(site.api.wait_for(1, LONG).await[0].id(), "new-0");
    let left: Vec<String> = site.dead(1, LONG).await.iter().map(|letter| letter.id().to_owned()).collect();
    assert_eq!(left, ["new-1"]);
    let lines = replica.audit("admin: changed", 3).await;
    assert!(
        lines[1]["chosen"].as_str().unwrap().starts_with("all, of the first 4, died until "),
        "{lines:?}"
    );
    assert_eq!(replica.paced.stop().await, 0);
}

/// A list and a purge never have bodies in memory, for any size.
#[tokio::test]
async fn a_list_holds_no_bodies() {
    let site = Site::shared("apilarge", "rate = '100/s'").await;
    let replica = AdminReplica::with_token(&site).await;
    let body = vec![b'x'; 16 << 20];
    // What the first connection takes is there before.
    let small = vec![Job::new("small").header("paced-reason", "status")];
    publish::publish_to(&site.amqp, "", &site.dead_queue(), small).await;
    site.depth(&site.dead_queue(), 1, LONG).await;
    for (method, what, body) in
        [(Method::GET, "/dead", ""), (Method::POST, "/dead/purge", r#"{"id": "small"}"#)]
    {
        assert_eq!(replica.send(method, what, &[], body).await.0, 200);
    }
    site.depth(&site.dead_queue(), 0, LONG).await;
    for n in 0..4 {
        let letters = vec![Job::new(format!("job-{n}")).header("paced-reason", "status").body(body.clone())];
        publish::publish_to(&site.amqp, "", &site.dead_queue(), letters).await;
    }
    site.depth(&site.dead_queue(), 4, LONG).await;
    let peak = || memory(replica.paced.pid(), "VmHWM");
    let before = peak();
    let (status, answer) = replica.send(Method::GET, "/dead?limit=500", &[], "").await;
    let letters = answer["letters"].as_array().unwrap();
    assert_eq!((status, letters.len(), &letters[3]["bytes"]), (200, 4, &json!(16 << 20)), "{answer}");
    let (_, answer) = replica.send(Method::POST, "/dead/purge", &[], r#"{"id": "job-0"}"#).await;
    assert_eq!((&answer["purged"], &answer["passed"]), (&json!(1), &json!(3)), "{answer}");
    let grown = peak() - before;
    // The bodies are 64 MiB; what is in transit is cut as it is read.
    assert!(grown < 32 << 10, "{grown} KiB more: bodies are held");
    // Nothing is lost of those that stay.
    let kept = site.dead(3, LONG).await;
    assert!(kept.iter().all(|letter| letter.body.len() == body.len()));
    assert_eq!(replica.paced.stop().await, 0);
}

/// A figure of a process from `/proc`, in KiB.
fn memory(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}
