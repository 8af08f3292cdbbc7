//! A daemon that is killed in the middle of a change by the admin API: the change is not made, or the log has it.

use hyper::Method;
use serde_json::Value;

use crate::support::client::Client;

use super::*;

const TOKEN: &str = "correct-horse-battery";

/// Sends a change, by its path and body.
async fn send(replica: &Paced, (method, what, body): (Method, &str, &'static str)) -> Option<u16> {
    let line = replica.wait_line("probes and metrics are served", LONG).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let url = format!("http://{}/api/v1/downstreams/billing{what}", line["address"].as_str().unwrap());
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    Client::new().send(method, &url, &headers, body).await.ok().map(|reply| reply.status)
}

/// What may be seen of a change from another replica.
async fn state(site: &Site, config: &str) -> Value {
    let replica = Paced::start(config, &[], &[]).await;
    replica.wait_ready().await;
    let line = replica.wait_line("probes and metrics are served", LONG).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let url = format!("http://{}/api/v1/downstreams/billing", line["address"].as_str().unwrap());
    let state: Value = serde_json::from_str(&Client::new().get(&url).await.unwrap().text).unwrap();
    assert_eq!(replica.stop().await, 0);
    let dead = publish::depth(&site.amqp, &site.dead_queue()).await;
    serde_json::json!({ "pause": state["pause"], "overrides": state["overrides"], "dead": dead })
}

#[tokio::test]
async fn a_kill_in_a_change_leaves_it_unmade_or_in_the_log() {
    const LETTERS: u32 = 3;
    let purge = r#"{"all": true, "audit": "why"}"#;
    let changes = [
        (Method::POST, "/pause", r#"{"reason": "why"}"#),
        (Method::PUT, "/rate", r#"{"rate": "7/s", "reason": "why"}"#),
        (Method::POST, "/dead/purge", purge),
    ];
    // Whether the change is made by then.
    let points = [("change:begun", false), ("change:made", true)];
    each(&[Window::One], &points, async |kill, is_made| {
        for change in &changes {
            let site = kill.site("killchange", "").await;
            let config = format!("[admin]\nlisten = '127.0.0.1:0'\ntoken = '{TOKEN}'\n{}", site.config());
            site.declare().await;
            publish::publish_to(&site.amqp, "", &site.dead_queue(), Job::many("dead", 3)).await;
            site.depth(&site.dead_queue(), LETTERS, LONG).await;
            let before = state(&site, &config).await;
            let replica = kill.replica(&config).await;
            assert_eq!(send(&replica, change.clone()).await, None, "{kill:?}: {change:?}");
            kill.wait_exit(&replica).await;
            let log = replica.log().join("\n");
            assert_ne!(state(&site, &config).await == before, is_made, "{kill:?}: {change:?}");
            let begun = log.lines().filter(|line| line.contains("admin: changing"));
            let [begun]: [&str; 1] = begun.collect::<Vec<_>>().try_into().unwrap();
            assert!(begun.contains("\"reason\":\"why\"") && begun.contains("127.0.0.1:"), "{begun}");
            assert!(!log.contains("admin: changed"), "it was killed before: {log}");
        }
    })
    .await;
}
