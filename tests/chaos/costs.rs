//! Limits that count by costs of their own, over two real minutes.

use std::time::Duration;

use lapin::types::AMQPValue;

use crate::LONG;
use crate::rig::{Chaos, REPLICAS, Rig};
use crate::support::count::busiest;
use crate::support::publish::Job;
use crate::support::servers::redis;
use crate::watch::nanos;

/// An API that allows 500 requests and 30 000 tokens a minute.
const LIMITS: &str = r#"
limits = [
    { rate = "500/min", name = "requests", cost = 1 },
    { rate = "30000/min", name = "tokens", cost = "header:tokens", default_cost = 100 },
]"#;

/// The jobs of a minute: each has 1 500 tokens, so that they are 3 s apart.
const EACH: usize = 20;
const TOKENS: i32 = 1500;

/// 20 jobs of 1 500 tokens go in the first minute and 20 in the next, and none is dead.
#[tokio::test]
async fn jobs_go_by_requests_and_by_tokens() {
    let rig = Rig::with(Chaos::begin("tokens"), LIMITS, [&redis().await.url(); REPLICAS]).await;
    let jobs = Job::many("job", 2 * EACH).into_iter();
    rig.site.publish(jobs.map(|job| job.header_value("tokens", AMQPValue::LongInt(TOKENS))).collect()).await;
    rig.reach(EACH).await;
    rig.reach(2 * EACH).await;
    rig.site.depth(&rig.site.dead_queue(), 0, LONG).await;
    let run = rig.finish_some(2 * EACH).await;

    run.assert_once();
    // The last job of a minute goes 3 s before the first one of the next: the edge is in the middle.
    let first = run.stamps[0];
    let edges = [0, 58_500, 118_500].map(|millis| first + nanos(Duration::from_millis(millis)));
    let counts = [0, 1].map(|n| run.count(edges[n]..edges[n + 1]));
    assert_eq!(counts, [EACH; 2], "{run}");
    let count = busiest(&run.stamps, Duration::from_secs(57));
    assert!(count <= EACH, "{count} in 57 s; {run}");
}
