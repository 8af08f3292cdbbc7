//! The main promise: replicas share one pace, and deliver every job once.

use std::time::Duration;

use futures_util::future::join_all;
use paced::store::{Change, RedisOptions, RedisStore, Store};
use serde_json::Value;

use crate::support::api::Answer;
use crate::support::daemon::{self, Paced};
use crate::support::prometheus::Scrape;
use crate::support::proxy::Proxy;
use crate::support::publish::Job;
use crate::support::servers::{Redis, rabbit, redis};
use crate::support::site::{NAME, Site, compare};
use crate::support::{LONG, eventually, until};

/// A replica that logs each job.
pub async fn logging(config: &str) -> Paced {
    let replica = Paced::start(config, &["--log-jobs"], &[]).await;
    replica.wait_ready().await;
    replica
}

/// The slots of the jobs that these replicas delivered, all of which have ended, in their order: µs on the clock of the
/// store.
pub fn slots(replicas: &[&Paced]) -> Vec<u64> {
    let lines: Vec<String> = replicas.iter().flat_map(|replica| replica.log()).collect();
    let jobs = lines.iter().filter(|line| daemon::message(line).as_deref() == Some("job"));
    let slot = |line: &String| serde_json::from_str::<Value>(line).unwrap()["slot"].as_u64();
    let mut slots: Vec<u64> = jobs.filter_map(slot).collect();
    slots.sort_unstable();
    slots
}

/// Has replicas take all of these jobs, each as many, and grants no slot before they have: so the slots do not depend on
/// when a job came. The site's `queue.prefetch` is as many, and its horizon is long.
pub async fn begin_at_once<const N: usize>(
    site: &Site,
    prefetch: usize,
    jobs: impl FnOnce() -> Vec<Job>,
) -> [Paced; N] {
    let config = format!("admin.listen = '127.0.0.1:0'\n{}", site.config());
    let replicas: [Paced; N] = join_all((0..N).map(|_| logging(&config))).await.try_into().unwrap();
    let options = RedisOptions::default().with_timeouts(LONG, LONG).with_key_prefix(&site.prefix);
    let store = RedisStore::connect(&site.store, options).await.unwrap();
    store.update_record(NAME, Change::Pause { span: None, note: "" }).await.unwrap();
    let sum = async |series: &str| {
        let pages = join_all(replicas.iter().map(|replica| replica.metrics())).await;
        pages.iter().filter_map(|text| Scrape::read(text).sum(series)).sum::<f64>()
    };
    until("the pause is known", LONG, async || sum("paced_paused").await == N as f64).await;
    site.publish(jobs()).await;
    let all = (N * prefetch) as f64;
    until("all jobs are taken", LONG, async || sum("paced_jobs_received_total").await >= all).await;
    store.update_record(NAME, Change::Resume).await.unwrap();
    replicas
}

/// Asserts that there are `count` slots, no two of which are less than this many µs apart.
#[track_caller]
fn assert_apart(slots: &[u64], count: usize, apart: u64) {
    assert_eq!(slots.len(), count);
    let least = slots.windows(2).map(|pair| pair[1] - pair[0]).min();
    assert!(least.is_some_and(|least| least >= apart), "two slots are {least:?} us apart");
}

#[tokio::test]
async fn two_replicas_share_one_pace_and_deliver_everything_once() {
    const JOBS: usize = 300;
    let site = Site::shared("pace", "rate = '200/s'").await;
    let config = site.config();
    let (first, second) = tokio::join!(logging(&config), logging(&config));
    site.publish(Job::many("job", JOBS)).await;
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));

    let tally = compare("job", JOBS, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
    assert_apart(&slots(&[&first, &second]), JOBS, 5000);
    site.depth(&site.queue(), 0, LONG).await;
}

/// Four replicas share 200/s, the last of which reaches the store at a port of its own.
async fn four_replicas_share(topic: &str, redis: &Redis, last: u16) {
    const JOBS: usize = 400;
    const NAMES: [&str; 4] = ["one", "two", "three", "four"];
    // However unevenly the broker distributes the jobs, no replica gets all of them.
    let site = Site::on(rabbit().await, redis, topic, "rate = '200/s'\nqueue.prefetch = 50");
    let config = |name| format!("{}headers = {{ x-replica = '{name}' }}\n", site.config());
    let start = async |name| {
        let port = if name == NAMES[3] { last } else { redis.port() };
        let store = format!("store.url=redis://127.0.0.1:{port}");
        let replica = Paced::start(&config(name), &["--log-jobs", "--set", &store], &[]).await;
        replica.wait_ready().await;
        replica
    };
    let [a, b, c, d] = NAMES.map(start);
    let replicas = tokio::join!(a, b, c, d);
    site.publish(Job::many("job", JOBS)).await;
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    let replicas = [&replicas.0, &replicas.1, &replicas.2, &replicas.3];
    for replica in replicas {
        assert_eq!(replica.stop().await, 0);
    }
    site.depth(&site.queue(), 0, LONG).await;

    let tally = compare("job", JOBS, &site.api.arrivals());
    assert!(tally.is_clean(), "{tally:?}");
    assert_apart(&slots(&replicas), JOBS, 5000);
    // How evenly they share is decided under paused time and in the benchmarks.
    for name in NAMES {
        assert!(arrivals.iter().any(|arrival| arrival.header("x-replica") == Some(name)), "{name} sent none");
    }
}

#[tokio::test]
async fn four_replicas_share_one_pace_and_each_sends() {
    let redis = redis().await;
    four_replicas_share("four", redis, redis.port()).await;
}

#[tokio::test]
async fn a_replica_far_from_the_store_shares_the_pace_and_sends_too() {
    let redis = redis().await;
    let far = Proxy::start(redis.port(), Duration::from_millis(2)).unwrap();
    four_replicas_share("far", redis, far.port()).await;
}

#[tokio::test]
async fn several_limits_hold_at_once() {
    let limits = "rate = '100/s'\nlimits = [{ rate = '20/s', burst = 10 }]";
    let site = Site::shared("limits", limits).await;
    let replica = logging(&site.config()).await;
    site.publish(Job::many("job", 40)).await;
    let arrivals = site.api.wait_for(40, LONG).await;
    assert!(compare("job", 40, &arrivals).is_clean());
    assert_eq!(replica.stop().await, 0);
    // The jobs of the burst are 10 ms apart, too. Any span has the 10 of the burst and one for each 50 ms.
    let slots = slots(&[&replica]);
    assert_apart(&slots, 40, 10_000);
    for (first, from) in slots.iter().enumerate() {
        for (last, to) in slots.iter().enumerate().skip(first) {
            let most = 10 + usize::try_from((to - from) / 50_000).unwrap();
            assert!(last - first < most, "{} slots in {} us", last - first + 1, to - from);
        }
    }
}

#[tokio::test]
async fn replicas_replaced_one_by_one_lose_and_double_nothing() {
    let site = Site::shared("rolling", "rate = '200/s'\nconcurrency = 32").await;
    // The delay is so long that some requests are always in flight.
    site.api.rule(|_| Answer::ok().after(Duration::from_millis(20)));
    let (mut first, mut second) = tokio::join!(site.replica(), site.replica());
    site.publish(Job::many("job", 600)).await;
    let mut logs = Vec::new();
    for target in [150, 350] {
        site.api.wait_for(target, LONG).await;
        assert_eq!(first.stop().await, 0);
        logs.extend(first.log());
        first = site.replica().await;
        std::mem::swap(&mut first, &mut second);
    }
    let delivered = || compare("job", 600, &site.api.arrivals()).lost.is_empty();
    eventually("every job is delivered", LONG, delivered).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    let tally = compare("job", 600, &site.api.arrivals());
    logs.extend([first.log(), second.log()].concat());
    assert!(tally.is_clean(), "{tally:?}\n{}", logs.join("\n"));
    site.depth(&site.queue(), 0, LONG).await;
}

#[tokio::test]
async fn a_failed_job_is_tried_again_with_its_own_key() {
    let retry = "rate = '100/s'\n[downstreams.billing.retry]\nmin_backoff = '10ms'\nmax_attempts = 3";
    let site = Site::shared("retry", retry).await;
    site.api.script("/flaky", [Answer::status(503), Answer::hang_up()]);
    let replica = site.replica().await;
    site.publish(vec![Job::new("flaky").header("paced-path", "flaky")]).await;
    let arrivals = site.api.wait_for(3, LONG).await;
    assert!(arrivals.iter().all(|arrival| arrival.id() == "flaky"));
    assert_eq!(replica.stop().await, 0);
    site.depth(&site.queue(), 0, LONG).await;
    site.depth(&site.dead_queue(), 0, LONG).await;
}

#[tokio::test]
async fn a_second_signal_ends_a_drain_that_takes_too_long() {
    let site = Site::shared("second", "rate = '100/s'").await;
    let gate = crate::support::api::Gate::closed();
    let held = gate.clone();
    site.api.rule(move |_| Answer::ok().gated(&held));
    let replica = site.replica().await;
    site.publish(Job::many("job", 3)).await;
    gate.wait_for(3, LONG).await;
    replica.term();
    replica.wait_line("stopping", LONG).await;
    replica.term();
    assert_eq!(replica.wait_exit(LONG).await, 75);
    gate.open();
    // Jobs that were not acked are there for the next replica.
    site.depth(&site.queue(), 3, LONG).await;
}

#[tokio::test]
async fn a_drain_that_times_out_says_so() {
    let site = Site::shared("drain", "rate = '100/s'").await;
    let gate = crate::support::api::Gate::closed();
    let held = gate.clone();
    site.api.rule(move |_| Answer::ok().gated(&held));
    let config = format!("shutdown.drain_timeout = '300ms'\n{}", site.config());
    let replica = Paced::spawn(&config).await;
    site.publish(Job::many("job", 2)).await;
    gate.wait_for(2, LONG).await;
    assert_eq!(replica.stop().await, 75);
    gate.open();
    site.depth(&site.queue(), 2, LONG).await;
}
