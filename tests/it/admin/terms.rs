//! Terms that are rolled back: those of a higher revision, and those of a later version of paced.

use paced::store::Change;
use paced::{RedisOptions, RedisStore, Store as _};
use serde_json::json;

use super::api::{AdminReplica, TOKEN};
use super::*;

/// The store of the site, as a library has it.
pub async fn store(site: &Site) -> RedisStore {
    let options = RedisOptions::default().with_timeouts(LONG, LONG).with_key_prefix(&site.prefix);
    RedisStore::connect(&site.store, options).await.unwrap()
}

/// Has a later version of paced put its terms in force.
pub async fn newer_terms(store: &RedisStore) -> String {
    // A replica that is ready may be about to write them.
    let proposed = || async {
        Some(store.read_record("billing").await.unwrap()).filter(|record| record.terms.is_some())
    };
    let record = poll(LONG, proposed).await.expect("terms in the store");
    let text = record.terms.unwrap().replacen("\"version\":2", "\"version\":99", 1);
    assert!(text.contains("\"version\":99"), "{text}");
    let of = record.status.generation;
    store.update_record("billing", Change::Terms { of, text: &text }).await.unwrap();
    text
}

/// The status of the probe for readiness, and what it says.
async fn readiness(replica: &AdminReplica) -> (u16, String) {
    let reply = replica.client.get(&format!("{}/readyz?verbose", replica.base)).await.unwrap();
    (reply.status, reply.text)
}

#[tokio::test]
async fn terms_of_a_later_version_hold_the_jobs_until_they_are_dropped() {
    let site = Site::shared("termsdrop", "rate = '200/s'").await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    let store = store(&site).await;
    let text = newer_terms(&store).await;
    for replica in [&one, &other] {
        until("it is not ready", LONG, async || readiness(replica).await.0 == 503).await;
        let (_, probe) = readiness(replica).await;
        assert!(probe.contains("this replica cannot use the limits in the store"), "{probe}");
    }
    // A replica that starts now is as little ready, and proposes nothing.
    let late = Paced::start(&format!("{}{ADMIN}", site.config()), &[], &[]).await;
    late.wait_line("nothing is released: the terms cannot be used", LONG).await;
    site.publish(Job::many("job", 20)).await;
    until("the status says so", LONG, async || {
        let output = one.tool(TOKEN, &["-o", "json", "status", "billing"]).await;
        serde_json::from_str::<Value>(&output.stdout).is_ok_and(|state| state["binding"]["reason"] == "terms")
    })
    .await;
    let shown = one.tool(TOKEN, &["-o", "json", "terms", "show", "billing"]).await;
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!((&shown["version"], &shown["text"]), (&json!(99), &json!(text)), "{shown}");
    assert!(shown["error"].as_str().unwrap().contains("paced terms drop"), "{shown}");
    let refused = one.tool(TOKEN, &["terms", "force", "billing", "--yes"]).await;
    assert_eq!(refused.code, 1, "what is not understood is not taken over: {refused:?}");
    let unsure = one.tool(TOKEN, &["terms", "drop", "billing"]).await;
    assert!(unsure.code == 2 && unsure.stderr.contains("--yes"), "{unsure:?}");
    assert_eq!(site.api.count(), 0, "nothing is released by terms that nobody can read");

    let dropped = one.tool(TOKEN, &["terms", "drop", "billing", "--yes", "--reason", "rolled back"]).await;
    assert!(dropped.code == 0 && dropped.stdout.contains("leaky-bucket-0 200/s"), "{dropped:?}");
    site.api.wait_for(20, LONG).await;
    for replica in [&one, &other] {
        until("it is ready", LONG, async || readiness(replica).await.0 == 200).await;
    }
    let line = &one.audit("admin: changed", 1).await[0];
    assert_eq!((&line["change"], &line["reason"]), (&json!("terms drop"), &json!("rolled back")), "{line}");
    assert!(line["before"].as_str().unwrap().contains("version 99"), "{line}");
    assert_eq!((one.paced.stop().await, other.paced.stop().await, late.stop().await), (0, 0, 0));
}

#[tokio::test]
async fn a_lower_revision_is_forced_and_keeps_the_rates_that_were_set() {
    let site = Site::shared("termsforce", "rate = '200/s'\nrevision = 7").await;
    let config = |rate: &str, revision: u32| {
        let config = format!("{}{ADMIN}token = '{TOKEN}'\n", site.config());
        let config = config.replace("rate = '200/s'", &format!("rate = '{rate}'"));
        config.replace("revision = 7", &format!("revision = {revision}"))
    };
    let new = AdminReplica::with_config(&config("200/s", 7)).await;
    assert_eq!(new.send(Method::PUT, "/rate", &[], r#"{"rate": "150/s"}"#).await.0, 200);
    let old = AdminReplica::with_config(&config("90/s", 6)).await;
    old.paced.wait_line("of a higher revision than this replica's configuration", LONG).await;
    let limit = |state: &Value| (state["limits"][0]["rate"].clone(), state["limits"][0]["file_rate"].clone());
    assert_eq!(limit(&old.get().await), (json!("150/s"), json!("200/s")));

    let forced = old.tool(TOKEN, &["terms", "force", "billing", "--yes"]).await;
    assert_eq!(forced.code, 0, "{forced:?}");
    for replica in [&old, &new] {
        let state = replica.get().await;
        assert_eq!(
            (limit(&state), &state["revision"]),
            ((json!("150/s"), json!("90/s")), &json!(6)),
            "{state}"
        );
    }
    // The replica with the later file follows it, and does not load its own again.
    new.paced.wait_line("differs from the terms in force", LONG).await;
    let dropped = old.tool(TOKEN, &["terms", "drop", "billing", "--yes"]).await;
    assert_eq!(dropped.code, 0, "{dropped:?}");
    let state = new.get().await;
    assert_eq!((&state["limits"][0]["rate"], &state["overrides"]), (&json!("90/s"), &json!([])), "{state}");
    assert_eq!((old.paced.stop().await, new.paced.stop().await), (0, 0));
}
