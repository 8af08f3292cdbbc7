//! Ten replicas with a thousand downstreams each: what they ask of the store while nothing happens, and how all of them return
//! at once after it was away.

use std::fmt::Write as _;
use std::time::Duration;

use futures_util::{StreamExt as _, future::join_all, stream};

use crate::LONG;
use crate::rig::rest;
use crate::support::api::stamp;
use crate::support::daemon::Paced;
use crate::support::publish::{Job, publish};
use crate::support::servers::{Redis, rabbit};
use crate::support::site::Site;

const REPLICAS: usize = 10;
const DOWNSTREAMS: usize = 1000;
/// How long calls are counted.
const SPAN: Duration = Duration::from_secs(20);
/// The most calls a second of all replicas together, while nothing happens.
const MOST_CALLS: f64 = 20.0;
/// The longest time in which all jobs go once the store is back. Most of it is what ten processes and the broker take on few
/// cores.
const RETURN: Duration = Duration::from_secs(60);

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
    let all_names = stream::iter(0..DOWNSTREAMS);
    all_names
        .for_each_concurrent(8, |n| {
            let name = format!("d{n}");
            let jobs = Job::many(&name, REPLICAS);
            let (url, prefix) = (site.amqp.clone(), site.prefix.clone());
            async move { publish(&url, &prefix, &name, jobs).await }
        })
        .await;
    rest(Duration::from_secs(10)).await;
    assert_eq!(site.api.count(), 0, "nothing goes without a slot");
    redis.start().await;
    let back = stamp();
    let all = REPLICAS * DOWNSTREAMS;
    site.api.wait_for(all, LONG).await;
    let arrivals = site.api.stamps();
    let first = Duration::from_nanos(arrivals[0].saturating_sub(back));
    let last = Duration::from_nanos(arrivals[all - 1].saturating_sub(back));
    eprintln!(
        "many: {calls:.1} scripts/s of {REPLICAS} replicas with {DOWNSTREAMS} idle downstreams each; back, the first of \
         {all} jobs after {first:?}, the last after {last:?}"
    );
    assert!(calls <= MOST_CALLS, "{calls} scripts/s");
    assert!(last <= RETURN, "{last:?}");
    for stopped in join_all(replicas.iter().map(Paced::stop)).await {
        assert_eq!(stopped, 0);
    }
    assert_eq!(site.api.count(), all, "each job once");
}
