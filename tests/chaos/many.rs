//! Ten replicas with a thousand downstreams each: what they ask of the store while nothing happens, and how all of them return
//! at once after it was away.

use std::fmt::Write as _;
use std::time::Duration;

use futures_util::future::join_all;

use crate::rig::rest;
use crate::support::api::stamp;
use crate::support::daemon::Paced;
use crate::support::publish::{Job, publish_all};
use crate::support::servers::{Redis, rabbit};
use crate::support::site::Site;

const REPLICAS: usize = 10;
const DOWNSTREAMS: usize = 1000;
/// How long calls are counted.
const SPAN: Duration = Duration::from_secs(20);
/// The most calls a second of all replicas together, while nothing happens.
const MOST_CALLS: f64 = 20.0;
/// The longest time in which all jobs go once the store is back. Most of it is the work of ten processes that are not optimized,
/// and of the broker, on few cores.
const RETURN: Duration = Duration::from_secs(180);

/// Returns how many scripts the store has run.
async fn scripts(redis: &Redis) -> usize {
    let stats = redis.command(&["INFO", "commandstats"]).await.unwrap();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    line.split(['=', ',']).nth(1).unwrap_or("0").parse().unwrap()
}

#[tokio::test]
async fn ten_thousand_are_quiet_and_return_at_once() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "many", "rate = '1/s'");
    let mut config = site.config().replace("[store]\n", "[store]\non_unavailable = 'hold'\n");
    for n in 0..DOWNSTREAMS {
        write!(
            config,
            "[downstreams.d{n}]\nrate = '100/s'\nqueue.prefetch = 1\nhttp.base_url = '{}'\n",
            site.api.url()
        )
        .unwrap();
    }
    // The first one declares the queues.
    let mut replicas = vec![Paced::spawn(&config).await];
    replicas.extend(join_all((1..REPLICAS).map(|_| Paced::spawn(&config))).await);
    rest(Duration::from_secs(5)).await;
    let before = scripts(&redis).await;
    rest(SPAN).await;
    let calls = (scripts(&redis).await - before) as f64 / SPAN.as_secs_f64();
    redis.stop().await;
    // One job for each of all engines.
    let names = (0..DOWNSTREAMS).map(|n| format!("d{n}"));
    let jobs =
        names.flat_map(|name| Job::many(&name, REPLICAS).into_iter().map(move |job| (name.clone(), job)));
    publish_all(&site.amqp, &format!("{}.jobs", site.prefix), jobs.collect()).await;
    rest(Duration::from_secs(10)).await;
    assert_eq!(site.api.count(), 0, "nothing goes without a slot");
    redis.start().await;
    let back = stamp();
    let all = REPLICAS * DOWNSTREAMS;
    site.api.wait_for(all, RETURN).await;
    let arrivals = site.api.stamps();
    let after = |n: usize| Duration::from_nanos(arrivals[n].saturating_sub(back));
    let (first, half, last) = (after(0), after(all / 2), after(all - 1));
    eprintln!(
        "many: {calls:.1} scripts/s of {REPLICAS} replicas with {DOWNSTREAMS} idle downstreams each; back, the first of \
         {all} jobs after {first:?}, half of them after {half:?}, the last after {last:?}"
    );
    assert!(calls <= MOST_CALLS, "{calls} scripts/s");
    assert!(last <= RETURN, "{last:?}");
    // One after the other: each closes two thousand channels.
    for replica in &replicas {
        assert_eq!(replica.stop().await, 0);
    }
    assert_eq!(site.api.count(), all, "each job once");
}
