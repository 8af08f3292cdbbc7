//! `paced pause` and `resume` while jobs are on their way.

use super::api::{AdminReplica, TOKEN};
use super::*;
use crate::support::api::stamp;
use crate::support::count;
use crate::support::prometheus::Scrape;
use crate::support::site::compare;

/// The time, in ns, until a pause is known everywhere and requests in transit have arrived.
const KNOWN: u64 = 200_000_000;

impl AdminReplica {
    /// The value of a series of this replica.
    pub(super) async fn metric(&self, name: &str) -> f64 {
        let reply = self.client.get(&format!("{}/metrics", self.base)).await.unwrap();
        Scrape::read(&reply.text).sum(name).unwrap()
    }
}

/// The number of requests that arrived from `since` to `until`, by [`stamp`].
fn between(site: &Site, since: u64, until: u64) -> usize {
    site.api.stamps().iter().filter(|at| (since..until).contains(*at)).count()
}

#[tokio::test]
async fn a_pause_stops_every_replica_until_it_is_resumed() {
    const JOBS: usize = 400;
    let site = Site::shared("pausestop", "rate = '200/s'\nqueue.prefetch = 100").await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(50, LONG).await;
    let output = one.tool(TOKEN, &["pause", "billing", "--reason", "they asked"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let paused = stamp();
    for replica in [&one, &other] {
        until("the pause is known", LONG, async || replica.metric("paced_paused").await == 1.0).await;
    }
    // Replicas that start later also know of it before they send anything.
    let late = AdminReplica::with_token(&site).await;
    until("the pause is known", LONG, async || late.metric("paced_paused").await == 1.0).await;
    until("a while has passed", LONG, async || stamp() > paused + 2 * KNOWN).await;
    let resumed = stamp();
    assert_eq!(other.tool(TOKEN, &["resume", "billing"]).await.code, 0);
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert!(compare("job", JOBS, &arrivals).is_clean());
    assert_eq!(between(&site, paused + KNOWN, resumed), 0);
    let after: Vec<u64> = site.api.stamps().into_iter().filter(|at| *at >= resumed).collect();
    assert!(after.len() > JOBS / 4, "{} jobs were paused", after.len());
    count::assert_paced(&after, "200/s".parse().unwrap(), Duration::from_millis(100));
    for replica in [&one, &other, &late] {
        assert_eq!(replica.metric("paced_paused").await, 0.0);
        assert_eq!(replica.paced.stop().await, 0);
    }
}

#[tokio::test]
async fn a_pause_for_a_while_ends_by_itself_and_without_a_burst() {
    const JOBS: usize = 300;
    let site = Site::shared("pausefor", "rate = '200/s'\nqueue.prefetch = 100").await;
    let (one, other) = tokio::join!(AdminReplica::with_token(&site), AdminReplica::with_token(&site));
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(50, LONG).await;
    let begin = stamp();
    assert_eq!(one.send(Method::POST, "/pause", &[], r#"{"for": "2s"}"#).await.0, 200);
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert!(compare("job", JOBS, &arrivals).is_clean());
    let end = begin + 2_000_000_000;
    assert_eq!(between(&site, begin + KNOWN, end), 0);
    let after: Vec<u64> = site.api.stamps().into_iter().filter(|at| *at >= end).collect();
    count::assert_paced(&after, "200/s".parse().unwrap(), Duration::from_millis(100));
    assert!(after[0] < end + 1_000_000_000, "late by {} ns", after[0] - end);
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}
