//! `paced rate` and reloads while jobs are in progress: the last change applies to all replicas.

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::api::stamp;
use crate::support::count;
use crate::support::site::compare;

/// The time, in ns, until all replicas keep a new rate.
const KNOWN: u64 = 300_000_000;

const SECOND: u64 = 1_000_000_000;

/// The requests that arrived from `since` to `until`, by [`stamp`].
fn between(site: &Site, since: u64, until: u64) -> Vec<u64> {
    site.api.stamps().into_iter().filter(|at| (since..until).contains(at)).collect()
}

#[tokio::test]
async fn a_rate_that_is_set_counts_everywhere_and_ends_when_it_is_over() {
    const JOBS: usize = 500;
    // A replica that a busy machine holds up learns of it late, and its requests arrive late.
    const NOISE: Duration = Duration::from_millis(250);
    let site = Site::shared("rateset", "rate = '200/s'\nqueue.prefetch = 100").await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(50, LONG).await;
    let output = one.tool(TOKEN, &["rate", "set", "billing", "20/s", "--for", "3s"]).await;
    let set = stamp();
    assert_eq!(output.code, 0, "{output:?}");
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert!(compare("job", JOBS, &arrivals).is_clean());

    // The tool's answer came after the rate was set, and took less than half a second.
    let slow = between(&site, set + KNOWN, set + 2 * SECOND);
    count::assert_paced(&slow, "20/s".parse().unwrap(), NOISE);
    assert!(slow.len() >= 25, "no stall: {} in 1.7 s", slow.len());
    count::assert_paced(&site.api.stamps(), "200/s".parse().unwrap(), NOISE);
    // Some 390 jobs are left at the end of the three seconds: two seconds at 200/s, twenty at 20/s.
    let span = site.api.stamps().last().unwrap() - set;
    assert!(span < 8 * SECOND, "{span} ns after it was set");
    until("the rate is gone", LONG, async || other.get().await["overrides"] == serde_json::json!([])).await;
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}

#[tokio::test]
async fn a_slow_rate_that_is_raised_stalls_nobody() {
    let site = Site::shared("rateraise", "rate = '1/m'\nqueue.prefetch = 100").await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    site.publish(Job::many("job", 60)).await;
    site.api.wait_for(1, LONG).await;
    let set = stamp();
    assert_eq!(other.tool(TOKEN, &["rate", "set", "billing", "20/s"]).await.code, 0);
    let arrivals = site.api.wait_for(60, Duration::from_secs(20)).await;
    assert!(compare("job", 60, &arrivals).is_clean());
    let after = between(&site, set, u64::MAX);
    count::assert_paced(&after, "20/s".parse().unwrap(), Duration::from_millis(100));
    // Back at the file's rate, the next job is due a minute after the last.
    assert_eq!(one.tool(TOKEN, &["rate", "unset", "billing"]).await.code, 0);
    for replica in [&one, &other] {
        until("it is known", LONG, async || replica.metric("paced_rate_limit_jobs_per_second").await < 1.0)
            .await;
    }
    let known = stamp();
    site.publish(Job::many("more", 5)).await;
    until("a while has passed", LONG, async || stamp() > known + 2 * SECOND).await;
    assert_eq!(between(&site, known, u64::MAX), [0; 0]);
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}
