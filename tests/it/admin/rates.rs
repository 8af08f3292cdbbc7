//! `paced rate` and reloads while jobs are in progress: the last change applies to all replicas.

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::api::stamp;
use crate::support::count;
use crate::support::site::compare;

const SECOND: u64 = 1_000_000_000;

/// The number of requests that arrived from `since` to `until`, by [`stamp`].
fn between(site: &Site, since: u64, until: u64) -> usize {
    site.api.stamps().iter().filter(|at| (since..until).contains(*at)).count()
}

#[tokio::test]
async fn a_rate_that_is_set_counts_everywhere_and_ends_when_it_is_over() {
    const JOBS: usize = 400;
    // What 300 ms have slots for may be under way.
    const AHEAD: usize = 61;
    let mut site = Site::shared("rateset", "rate = '200/s'\nqueue.prefetch = 100").await;
    let gate = site.hold_after(50);
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    let begin = stamp();
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(50, LONG).await;
    let before = stamp();
    let order = r#"{"rate": "1/s", "for": "3s"}"#;
    assert_eq!(one.send(Method::PUT, "/rate", &[], order).await.0, 200);
    let set = stamp();
    gate.open();
    // At 1/s, more than 200 jobs would take longer than this waits.
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert!(compare("job", JOBS, &arrivals).is_clean());
    // Three seconds have slots for all that was left.
    let slow = between(&site, set, before + 3 * SECOND);
    assert!(slow <= AHEAD + 3, "{slow} at 1/s");
    count::assert_never_ahead(&site.api.stamps(), begin, "200/s".parse().unwrap(), AHEAD);
    until("the rate is gone", LONG, async || other.get().await["overrides"] == serde_json::json!([])).await;
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}

#[tokio::test]
async fn a_slow_rate_that_is_raised_stalls_nobody() {
    let site = Site::shared("rateraise", "rate = '1/5m'\nqueue.prefetch = 100").await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    site.publish(Job::many("job", 30)).await;
    site.api.wait_for(1, LONG).await;
    let set = stamp();
    assert_eq!(other.tool(TOKEN, &["rate", "set", "billing", "40/s"]).await.code, 0);
    for replica in [&one, &other] {
        replica.paced.wait_line("limits changed: leaky-bucket-0 1/5m → 40/s", LONG).await;
    }
    let arrivals = site.api.wait_for(30, LONG).await;
    assert!(compare("job", 30, &arrivals).is_clean());
    count::assert_never_ahead(&site.api.stamps(), set, "40/s".parse().unwrap(), 4);
    // Back at the file's rate, the next job is due five minutes after the last: longer than anything here waits.
    assert_eq!(one.tool(TOKEN, &["rate", "unset", "billing"]).await.code, 0);
    for replica in [&one, &other] {
        until("it is known", LONG, async || replica.metric("paced_rate_limit_jobs_per_second").await < 1.0)
            .await;
    }
    let known = stamp();
    site.publish(Job::many("more", 5)).await;
    until("a while has passed", LONG, async || stamp() > known + SECOND).await;
    assert_eq!(between(&site, known, u64::MAX), 0);
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}
