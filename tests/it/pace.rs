//! The main promise: replicas share one pace, and deliver every job once.

use std::time::Duration;

use paced::Rate;

use crate::support::api::Answer;
use crate::support::daemon::Paced;
use crate::support::proxy::Proxy;
use crate::support::publish::Job;
use crate::support::servers::{Redis, rabbit};
use crate::support::site::{Site, compare};
use crate::support::{count, eventually};

const LONG: Duration = Duration::from_secs(60);

/// The delay that a busy machine may add. The benchmarks measure exact figures.
const NOISE: Duration = Duration::from_millis(50);

#[tokio::test]
async fn two_replicas_share_one_pace_and_deliver_everything_once() {
    let site = Site::shared("pace", "rate = '200/s'").await;
    let (first, second) = tokio::join!(site.replica(), site.replica());
    site.publish(Job::many("job", 600)).await;
    let arrivals = site.api.wait_for(600, LONG).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));

    let tally = compare("job", 600, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
    let (stamps, rate) = (site.api.stamps(), "200/s".parse::<Rate>().unwrap());
    let span = count::span(&stamps);
    assert!(span >= Duration::from_millis(2995) - NOISE, "faster than the limit: {span:?}");
    assert!(span <= Duration::from_millis(4500), "far slower than the limit: {span:?}");
    count::assert_paced(&stamps, rate, NOISE);
    site.depth(&site.queue(), 0, LONG).await;
}

/// Four replicas share 200/s, the last of which reaches the store at a port of its own.
async fn four_replicas_share(topic: &str, redis: &Redis, last: u16) {
    const JOBS: usize = 1200;
    const NAMES: [&str; 4] = ["one", "two", "three", "four"];
    // However unevenly the broker distributes the jobs, no replica gets all of them or runs out of them early.
    let site = Site::on(rabbit().await, redis, topic, "rate = '200/s'\nqueue.prefetch = 100");
    let config = |name| format!("{}headers = {{ x-replica = '{name}' }}\n", site.config());
    let start = async |name| {
        let port = if name == NAMES[3] { last } else { redis.port() };
        let store = format!("store.url=redis://127.0.0.1:{port}");
        let replica = Paced::start(&config(name), &["--set", &store], &[]).await;
        replica.wait_ready().await;
        replica
    };
    let [a, b, c, d] = NAMES.map(start);
    let replicas = tokio::join!(a, b, c, d);
    site.publish(Job::many("job", JOBS)).await;
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    let calls = script_calls(redis).await;
    for replica in [&replicas.0, &replicas.1, &replicas.2, &replicas.3] {
        assert_eq!(replica.stop().await, 0);
    }
    site.depth(&site.queue(), 0, LONG).await;

    let tally = compare("job", JOBS, &site.api.arrivals());
    assert!(tally.is_clean(), "{tally:?}");
    // Four daemons on two cores delay the API for longer than one does.
    count::assert_paced(&site.api.stamps(), "200/s".parse().unwrap(), 2 * NOISE);
    // In the second half a replica may run out of jobs.
    let half = &arrivals[..JOBS / 2];
    let shares = NAMES.map(|name| {
        let of = half.iter().filter(|arrival| arrival.header("x-replica") == Some(name)).count();
        of * 100 / half.len()
    });
    assert!(shares.iter().all(|share| (12..=38).contains(share)), "% of each: {shares:?}");
    assert!(calls < JOBS / 2, "{calls} calls of the store's script for {JOBS} jobs");
}

/// The number of scripts that this server was asked to run.
async fn script_calls(redis: &Redis) -> usize {
    let stats = redis.command(&["INFO", "commandstats"]).await.unwrap();
    let of = |name: &str| {
        let line = stats.split(&format!("cmdstat_{name}:calls=")).nth(1)?;
        line.split(',').next()?.parse::<usize>().ok()
    };
    // A script that the server does not know yet is sent by EVAL, or loaded first.
    of("evalsha").unwrap() + of("eval").unwrap_or(0)
}

#[tokio::test]
async fn four_replicas_take_about_a_quarter_each_for_less_than_half_a_call_a_job() {
    let redis = Redis::dedicated().await;
    four_replicas_share("four", &redis, redis.port()).await;
}

#[tokio::test]
async fn a_replica_far_from_the_store_gets_its_quarter_too() {
    let redis = Redis::dedicated().await;
    let far = Proxy::start(redis.port(), Duration::from_millis(2)).unwrap();
    four_replicas_share("far", &redis, far.port()).await;
}

#[tokio::test]
async fn several_limits_hold_at_once() {
    let limits = "rate = '100/s'\nlimits = [{ rate = '20/s', burst = 10 }]";
    let site = Site::shared("limits", limits).await;
    let _replica = site.replica().await;
    site.publish(Job::many("job", 40)).await;
    let arrivals = site.api.wait_for(40, LONG).await;
    assert!(compare("job", 40, &arrivals).is_clean());
    let stamps = site.api.stamps();
    // The 10 jobs of the burst are released at 100/s, the other 30 at 20/s.
    let burst = count::span(&stamps[..10]);
    assert!(burst >= Duration::from_millis(90) - NOISE && burst < Duration::from_millis(600), "{burst:?}");
    let all = count::span(&stamps);
    assert!(all >= Duration::from_millis(1500) - NOISE && all < Duration::from_secs(4), "{all:?}");
}

#[tokio::test]
async fn replicas_replaced_one_by_one_lose_and_double_nothing() {
    let site = Site::shared("rolling", "rate = '200/s'\nconcurrency = 32").await;
    // The delay is so long that some requests are always in flight.
    site.api.rule(|_| Answer::ok().after(Duration::from_millis(20)));
    let (mut first, mut second) = tokio::join!(site.replica(), site.replica());
    site.publish(Job::many("job", 1200)).await;
    let mut logs = Vec::new();
    for target in [300, 700] {
        site.api.wait_for(target, LONG).await;
        assert_eq!(first.stop().await, 0);
        logs.extend(first.log());
        first = site.replica().await;
        std::mem::swap(&mut first, &mut second);
    }
    let delivered = || compare("job", 1200, &site.api.arrivals()).lost.is_empty();
    eventually("every job is delivered", LONG, delivered).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    let tally = compare("job", 1200, &site.api.arrivals());
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
