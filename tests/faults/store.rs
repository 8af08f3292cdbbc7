//! Tests of a Redis that becomes unavailable and returns, with its data or without.

use std::time::Duration;

use crate::support::LONG;
use crate::support::api::stamp;
use crate::support::publish::Job;
use crate::support::servers::{Redis, rabbit};
use crate::support::site::{Site, compare};
use crate::{UNDER_WAY, assert_paced};

#[tokio::test]
async fn jobs_are_held_while_the_store_is_away_and_nothing_bursts_when_it_is_back() {
    let redis = Redis::dedicated().await;
    // Each replica has jobs that wait, however unevenly the broker deals them.
    let downstream = "rate = '100/s'\n[downstreams.billing.queue]\nprefetch = 100";
    let site = Site::on(rabbit().await, &redis, "store", downstream);
    let begun = stamp();
    let (first, second) = tokio::join!(site.replica(), site.replica());
    site.publish(Job::many("job", 600)).await;
    site.api.wait_for(200, LONG).await;
    redis.kill().await;
    let at_kill = site.api.count();
    for replica in [&first, &second] {
        replica.wait_line("no slots while the store is away", LONG).await;
    }
    // The slots of one horizon that were granted before may still be used. The other jobs wait.
    let early = site.api.reaches(at_kill + UNDER_WAY, Duration::from_secs(1)).await;
    assert!(!early, "released without a slot: {at_kill}, then {}", site.api.count());
    redis.wipe().await;
    let back = stamp();
    redis.start().await;
    let arrivals = site.api.wait_for(600, LONG).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    site.depth(&site.queue(), 0, LONG).await;

    let tally = compare("job", 600, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
    assert_paced(&site.api, begun, "100/s", 0);
    assert_paced(&site.api, back, "100/s", UNDER_WAY);
}

#[tokio::test]
async fn a_daemon_waits_for_a_store_that_is_not_there() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "nostore", "rate = '100/s'");
    redis.stop().await;
    let replica = site.replica().await;
    site.publish(Job::many("job", 20)).await;
    let line = replica.wait_line("no slots while the store is away", LONG).await;
    assert!(line.contains(&redis.port().to_string()), "names the address: {line}");
    assert_eq!(site.api.count(), 0);
    redis.start().await;
    let arrivals = site.api.wait_for(20, LONG).await;
    assert!(compare("job", 20, &arrivals).is_clean());
    assert_eq!(replica.stop().await, 0);
}
