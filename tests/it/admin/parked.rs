//! What parked jobs wait for, and until when: in the API and in `paced status`, also after a restart of all replicas.

use lapin::types::AMQPValue;
use paced::time::wall_now;
use serde_json::json;

use super::api::{AdminReplica, TOKEN};
use super::*;

/// The milliseconds in an hour.
const HOUR: i64 = 3_600_000;

#[tokio::test]
async fn parked_jobs_are_shown_by_their_reason_and_hour_also_after_a_restart() {
    let site = Site::shared("parkedby", "rate = '100/s'\nhold_max = '1s'").await;
    let replica = AdminReplica::with_token(&site).await;
    // In the middle of an hour, so that no clock moves a job into another one.
    let hour = wall_now().0 / 1000 / HOUR;
    let at = |id: &str, hour: i64| {
        Job::new(id).header_value("paced-not-before", AMQPValue::LongLongInt(hour * HOUR + HOUR / 2))
    };
    site.publish(vec![at("soon", hour + 2), at("too", hour + 2), at("late", hour + 5)]).await;
    let expected = json!([{
        "reason": "not-before",
        "jobs": 3,
        "first": (hour + 3) * HOUR,
        "first_jobs": 2,
        "last": (hour + 6) * HOUR,
    }]);
    let shown = async |replica: &AdminReplica| {
        let mut last = Value::Null;
        until("the three are counted", LONG, async || {
            last = replica.downstream().await;
            last["parked_by"] == expected
        })
        .await;
        last
    };
    let state = shown(&replica).await;
    assert_eq!(state["parked"], 3, "{state}");
    let text = state["binding"]["text"].as_str().unwrap();
    assert!(
        text.starts_with("no job may be released yet: 3 parked in the broker; the first are due"),
        "{text}"
    );
    let output = replica.tool(TOKEN, &["status", "billing"]).await;
    assert!(output.stdout.contains("3 for a time of their own: 2 are due before "), "{}", output.stdout);
    assert_eq!(replica.paced.stop().await, 0);

    let other = AdminReplica::with_token(&site).await;
    shown(&other).await;
    assert_eq!(other.paced.stop().await, 0);
}

/// Jobs that wait for their next attempt are parked while their dispatcher ends.
#[tokio::test]
async fn jobs_that_a_restart_of_their_downstream_parks_are_counted() {
    let retry = "[downstreams.billing.retry]\nmax_attempts = 2\nmin_backoff = '300s'\nmax_backoff = '300s'";
    let site = Site::shared("parkedrestart", &format!("rate = '100/s'\nhold_max = '10m'\n{retry}")).await;
    site.api.rule(|_| Answer::status(500));
    let replica = AdminReplica::with_token(&site).await;
    site.publish(Job::many("job", 3)).await;
    site.api.wait_for(3, LONG).await;
    let file = replica.paced.config_file();
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace("base_url =", "timeout = '20s'\nbase_url =")).unwrap();
    replica.paced.hangup();
    replica.paced.wait_line("the downstream has restarted", LONG).await;
    until("they are counted", LONG, async || replica.downstream().await["parked"] == 3).await;
    assert_eq!(site.api.count(), 3);
    assert_eq!(replica.paced.stop().await, 0);
}
