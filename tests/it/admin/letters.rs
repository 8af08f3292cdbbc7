//! Dead letters by way of the admin API: listed, replayed and purged by whoever has the token, and by nobody else.

use serde_json::json;

use super::api::AdminReplica;
use super::*;
use crate::support::publish;

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
    let replica = AdminReplica::with_token(&site).await;
    site.publish(Job::many("bad", 4)).await;
    site.publish(Job::many("gone", 3)).await;
    site.depth(&site.dead_queue(), 7, LONG).await;

    let (status, told) = replica.send(Method::GET, "/dead?limit=2&status=404", &[], "").await;
    let letters = told["letters"].as_array().unwrap();
    assert_eq!((status, letters.len(), told["total"].as_u64()), (200, 2, Some(7)), "{told}");
    // Letters of one instant lie in any order.
    let is_bad = |letter: &Value| letter["id"].as_str().unwrap().starts_with("bad-");
    assert!(letters.iter().all(is_bad) && letters[0]["reason"] == "status", "{told}");
    assert_eq!((&letters[0]["status"], &letters[0]["attempts"]), (&json!(404), &json!(1)), "{told}");
    assert_eq!(letters[0]["response"], "<b>no</b>\n\u{1b}[2J", "{told}");
    let (_, told) = replica.send(Method::GET, "/dead?limit=1&status=410", &[], "").await;
    assert_eq!(told["letters"][0]["response"], Value::Null, "{told}");

    // With the token for reading nothing is changed, and no letters are held.
    for (method, what) in
        [(Method::GET, "/dead"), (Method::POST, "/dead/replay"), (Method::POST, "/dead/purge")]
    {
        let (status, told) = replica.send(method, what, &[("authorization", "")], "").await;
        assert_eq!(status, 401, "{what} {told}");
    }
    for (what, body, error) in [
        ("/dead/purge", r#"{"rate": "1/s"}"#, "a purge has none"),
        ("/dead/purge", r#"{"state": 5}"#, "unknown field `state`"),
        ("/dead/replay", r#"{"rate": "fast"}"#, "rate: "),
    ] {
        let (status, told) = replica.send(Method::POST, what, &[], body).await;
        assert!(status == 400 && told["error"].as_str().unwrap().contains(error), "{what} {told}");
    }
    assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(7));

    let body = r#"{"id": "bad-1", "audit": "nobody wants it"}"#;
    let (status, told) = replica.send(Method::POST, "/dead/purge", &[], body).await;
    assert_eq!((status, &told["purged"], &told["passed"]), (200, &json!(1), &json!(6)), "{told}");
    site.api.rule(|_| Answer::ok());
    let body = r#"{"status": 410, "rate": "1000/s", "audit": "it is back"}"#;
    let (status, told) = replica.send(Method::POST, "/dead/replay", &[], body).await;
    assert_eq!((status, &told["replayed"], &told["failed"]), (200, &json!(3), &json!(0)), "{told}");
    let mut sent: Vec<String> =
        site.api.wait_for(10, LONG).await[7..].iter().map(|arrival| arrival.id().to_owned()).collect();
    sent.sort_unstable();
    assert_eq!(sent, ["gone-0", "gone-1", "gone-2"]);
    site.depth(&site.dead_queue(), 3, LONG).await;
    let lines = replica.audit("admin: changed", 2).await;
    assert_eq!((&lines[0]["change"], &lines[0]["done"]), (&json!("dead purge"), &json!(1)), "{lines:?}");
    assert_eq!((&lines[1]["change"], &lines[1]["reason"]), (&json!("dead replay"), &json!("it is back")));
    assert_eq!(replica.paced.stop().await, 0);
}
