//! Releases while the store is away: none, each replica's share of the rate, or all.

use std::time::Duration;

use paced::Rate;

use crate::rig::{Chaos, RATE, REPLICAS, Rig, rest};
use crate::support::api::{Answer, stamp};
use crate::support::count::{allowed, busiest};
use crate::support::servers::Redis;
use crate::verdict::{Run, WINDOWS};
use crate::watch::nanos;

const SECOND: Duration = Duration::from_secs(1);
/// How long the store is away.
const AWAY: Duration = Duration::from_secs(3);
/// The time until every replica has noticed.
const NOTICED: Duration = Duration::from_millis(200);
/// The time until all keep the shared pace again.
const RETURNED: Duration = Duration::from_secs(2);

/// The instants at which the store went away and returned.
struct Times {
    away: u64,
    back: u64,
}

/// Kills the store during the run and starts it again with its data.
async fn outage(name: &'static str, policy: &str, jobs: usize, answer: Answer) -> (Run, Times) {
    let mut chaos = Chaos::begin(name);
    let moment = chaos.rng.usize(300..600);
    let redis = Redis::dedicated().await;
    // With this concurrency and the API's delay, the replicas can send some 800/s.
    let downstream = format!("rate = '{RATE}'\nconcurrency = 4\non_unavailable = '{policy}'");
    let rig = Rig::with(chaos, &downstream, [&redis.url(); REPLICAS]).await;
    rig.site.api.rule(move |_| answer.clone());
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
    /// The whole seconds of the outage, once it was noticed.
    fn seconds(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let from = self.away + nanos(NOTICED);
        let starts = (0..).map(move |n| from + n * nanos(SECOND / 10));
        starts.map(|from| from..from + nanos(SECOND)).take_while(|second| second.end <= self.back)
    }

    /// Asserts that the shared pace holds again, and that all replicas take part in it.
    #[track_caller]
    fn assert_shared(&self, run: &Run) {
        let from = self.back + nanos(RETURNED);
        run.assert_paced_since(from);
        let second = from..from + nanos(SECOND);
        let count = run.count(second.clone());
        let least = 190 - run.missed(second.clone()).min(100);
        assert!(count >= least, "{count} in the second after the return, at least {least}; {run}");
        for replica in 0..REPLICAS {
            let own = run.of(replica).filter(|at| second.contains(at)).count();
            assert!(own >= 10, "{own} by replica {replica}; {run}");
        }
    }
}

#[tokio::test]
async fn hold_releases_nothing_while_the_store_is_away() {
    let (run, times) = outage("hold", "hold", 1800, Answer::ok()).await;
    run.assert_once();
    run.assert_paced();
    assert_eq!(run.count(times.away + nanos(NOTICED)..times.back), 0, "without a slot; {run}");
    assert!(run.resumed_after(times.back) <= RETURNED, "{:?}; {run}", run.resumed_after(times.back));
    times.assert_shared(&run);
}

#[tokio::test]
async fn local_releases_no_more_than_the_limit_while_the_store_is_away() {
    let (run, times) = outage("local", "local", 2500, Answer::ok()).await;
    run.assert_once();
    for second in times.seconds() {
        let (count, least) = (run.count(second.clone()), 150 - run.missed(second).min(100));
        assert!(count <= 210, "{count} in a second, at most 210 (the limit and 5 %); {run}");
        assert!(count >= least, "{count} in a second, at least {least}: it continues; {run}");
    }
    // This includes the transitions into the outage and out of it. Each replica keeps its share by itself.
    let share: Rate = "50/s".parse().unwrap();
    for window in WINDOWS {
        let (count, most) = (busiest(&run.handed_over, window), REPLICAS * allowed(share, window));
        assert!(count <= most, "{count} handed over in {window:?}, at most {most}; {run}");
    }
    times.assert_shared(&run);
}

#[tokio::test]
async fn open_releases_all_that_the_api_takes_while_the_store_is_away() {
    let answer = Answer::ok().after(Duration::from_millis(20));
    let (run, times) = outage("open", "open", 4500, answer).await;
    run.assert_once();
    for second in times.seconds() {
        let (count, least) = (run.count(second.clone()), 500 - run.missed(second).min(200));
        assert!(count >= least, "{count} in a second, at least {least}, far more than the limit; {run}");
    }
    times.assert_shared(&run);
}
