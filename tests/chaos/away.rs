//! What is released while the store is away: nothing.

use std::time::Duration;

use crate::rig::{Chaos, RATE, REPLICAS, Rig, rest};
use crate::support::api::stamp;
use crate::support::count::busiest;
use crate::support::servers::Redis;
use crate::verdict::{Run, most};
use crate::watch::nanos;

const SECOND: Duration = Duration::from_secs(1);
/// How long the store is away.
const AWAY: Duration = Duration::from_secs(3);
/// How soon every replica has noticed.
const NOTICED: Duration = Duration::from_millis(200);
/// How soon all keep the shared pace again.
const RETURNED: Duration = Duration::from_secs(2);

/// When the store went, and when it was back.
struct Times {
    away: u64,
    back: u64,
}

/// Kills the store in mid-run and starts it again, with what it had written.
async fn outage(name: &'static str, policy: &str, jobs: usize) -> (Run, Times) {
    let mut chaos = Chaos::begin(name);
    let moment = chaos.rng.usize(300..600);
    let redis = Redis::dedicated().await;
    let downstream = format!("rate = '{RATE}'\non_unavailable = '{policy}'");
    let rig = Rig::with(chaos, &downstream, [&redis.url(); REPLICAS]).await;
    rig.publish_some(jobs).await;
    rig.reach(moment).await;
    redis.kill().await;
    let away = rest(AWAY).await;
    redis.start().await;
    let back = stamp();
    rig.reach(jobs).await;
    (rig.end(jobs).await, Times { away, back })
}

impl Times {
    /// The shared pace holds again, and all take part in it.
    #[track_caller]
    fn assert_shared(&self, run: &Run) {
        let from = self.back + nanos(RETURNED);
        let later: Vec<u64> = run.stamps.iter().copied().filter(|at| *at >= from).collect();
        let rate = RATE.parse().unwrap();
        for window in [SECOND, SECOND / 10] {
            let count = busiest(&later, window);
            assert!(count <= most(rate, window), "{count} in {window:?} after the return; {run}");
        }
        let second = from..from + nanos(SECOND);
        let count = run.count(second.clone());
        assert!(count >= 190, "{count} in the second after the return; {run}");
        for replica in 0..REPLICAS {
            let own = run.of(replica).filter(|at| second.contains(at)).count();
            assert!(own >= 10, "{own} by replica {replica}; {run}");
        }
    }
}

#[tokio::test]
#[ignore = "long: `make chaos`"]
async fn hold_releases_nothing_while_the_store_is_away() {
    let (run, times) = outage("hold", "hold", 1800).await;
    run.assert_once();
    run.assert_paced();
    assert_eq!(run.count(times.away + nanos(NOTICED)..times.back), 0, "without a slot; {run}");
    assert!(run.resumed_after(times.back) <= RETURNED, "{:?}; {run}", run.resumed_after(times.back));
    times.assert_shared(&run);
}
