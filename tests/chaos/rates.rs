//! Rates that change while jobs wait.

use std::time::Duration;

use paced::Rate;

use crate::rig::{Chaos, RATE, REPLICAS, Rig, rest};
use crate::support::api::stamp;
use crate::support::count::busiest;
use crate::support::servers::Redis;
use crate::verdict::{Run, most};
use crate::watch::nanos;

/// The time until every replica keeps the new rate.
const CHANGED: Duration = Duration::from_millis(300);
const SECOND: Duration = Duration::from_secs(1);

/// The way in which the rate is changed.
#[derive(Clone, Copy, Debug)]
enum By {
    /// New files, and a SIGHUP to each replica.
    Hangup,
    /// `paced rate set`, at one replica.
    Command,
}

impl By {
    /// Changes the rate; returns when all replicas were signalled, or the command had ended.
    async fn change(self, rig: &mut Rig, (from, to): (&str, &str)) -> u64 {
        match self {
            Self::Hangup => {
                rig.site.downstream = rig.site.downstream.replace(&format!("'{from}'"), &format!("'{to}'"));
                rig.reload()
            }
            Self::Command => {
                rig.cli(&["rate", "set", "billing", to, "--reason", "chaos"]).await;
                stamp()
            }
        }
    }
}

/// The rate is 20/s, then 200/s, then 20/s again.
async fn up_and_down(name: &'static str, by: By) {
    // The jobs last for 3 s of the slow rate, 8 s of the fast one, and 5 s of the slow one again.
    const JOBS: usize = 60 + 1600 + 100;
    let (slow, fast): (Rate, Rate) = ("20/s".parse().unwrap(), "200/s".parse().unwrap());
    let mut chaos = Chaos::begin(name);
    let (first, second) = (30 + chaos.rng.usize(..30), 1500 + chaos.rng.usize(..100));
    let redis = Redis::dedicated().await;
    let mut rig = Rig::with(chaos, "rate = '20/s'", [&redis.url(); REPLICAS]).await;
    rig.publish_some(JOBS).await;
    rig.reach(first).await;
    let faster = by.change(&mut rig, ("20/s", "200/s")).await;
    rig.reach(second).await;
    let slower = by.change(&mut rig, ("200/s", "20/s")).await;
    let run = rig.finish_some(JOBS).await;

    run.assert_once();
    run.assert_paced();
    let kept = faster + nanos(CHANGED);
    assert_all_keep(&run, fast, kept..kept + nanos(SECOND));
    let kept = slower + nanos(CHANGED);
    let late: Vec<u64> = run.stamps.iter().copied().filter(|at| *at >= kept).collect();
    let count = busiest(&late, SECOND);
    assert!(count <= most(slow, SECOND), "{count} in a second at {slow}; {run}");
    // One slot of the slow rate may be missed.
    run.assert_no_gap_over(2 * slow.interval() + Duration::from_millis(20));
}

/// Asserts that all replicas together release at this rate, and each takes part.
#[track_caller]
fn assert_all_keep(run: &Run, rate: Rate, second: std::ops::Range<u64>) {
    let units = usize::try_from(rate.units_in(SECOND)).unwrap();
    let least = units * 95 / 100 - run.missed(second.clone()).min(units / 2);
    let count = run.count(second.clone());
    assert!(count >= least, "{count} in the first second of {rate}, at least {least}; {run}");
    for replica in 0..REPLICAS {
        let own = run.of(replica).filter(|at| second.contains(at)).count();
        assert!(own >= least / REPLICAS / 3, "{own} of {count} by replica {replica}; {run}");
    }
}

#[tokio::test]
async fn the_rate_goes_up_and_down_by_sighup() {
    up_and_down("rate-sighup", By::Hangup).await;
}

#[tokio::test]
async fn the_rate_goes_up_and_down_by_command() {
    up_and_down("rate-set", By::Command).await;
}

/// One job a minute, then ten a second: the wait for the next minute ends with the change.
async fn out_of_a_minute(name: &'static str, by: By) {
    const JOBS: usize = 60;
    let chaos = Chaos::begin(name);
    let redis = Redis::dedicated().await;
    let mut rig = Rig::with(chaos, "rate = '1/m'", [&redis.url(); REPLICAS]).await;
    rig.rate = "10/s".parse().unwrap();
    rig.publish_some(JOBS).await;
    rig.reach(1).await;
    let before = rest(SECOND).await + nanos(SECOND);
    let faster = by.change(&mut rig, ("1/m", "10/s")).await;
    let run = rig.finish_some(JOBS).await;
    run.assert_once();
    run.assert_paced();
    assert_eq!(run.count(0..before), 1, "{run}");
    let changed_after = Duration::from_nanos(faster - before);
    assert!(run.resumed_after(before) <= changed_after + CHANGED, "{:?}; {run}", run.resumed_after(before));
    // One slot of 10/s may be missed.
    let gap = run.longest_gap(faster + nanos(CHANGED)..u64::MAX);
    assert!(gap <= Duration::from_millis(220), "a gap of {gap:?} at 10/s; {run}");
}

#[tokio::test]
async fn a_minute_is_not_waited_for_after_a_sighup() {
    out_of_a_minute("minute-sighup", By::Hangup).await;
}

#[tokio::test]
async fn a_minute_is_not_waited_for_after_a_command() {
    out_of_a_minute("minute-set", By::Command).await;
}

/// Replicas are replaced one by one with another file: the first of them brings the new rate for all, and those with
/// the old file warn that theirs differs.
#[tokio::test]
async fn a_rolling_restart_ends_on_the_last_load() {
    const JOBS: usize = 2500;
    let mut chaos = Chaos::begin("rolling");
    let moment = chaos.rng.usize(100..300);
    let redis = Redis::dedicated().await;
    let mut rig = Rig::with(chaos, "rate = '100/s'", [&redis.url(); REPLICAS]).await;
    rig.publish_some(JOBS).await;
    rig.reach(moment).await;
    rig.site.downstream = rig.site.downstream.replace("'100/s'", "'200/s'");
    rig.replace(0).await;
    let first = stamp();
    rig.replicas[REPLICAS - 1].wait_line(DIFFERS, Duration::from_secs(5)).await;
    for number in 1..REPLICAS {
        rig.replace(number).await;
    }
    let last = stamp();
    let run = rig.finish_some(JOBS).await;
    run.assert_once();
    run.assert_paced();
    // The new rate applies to all from the first load of the new file on, and still does after the last.
    for from in [first, last] {
        let kept = from + nanos(CHANGED);
        let second = kept..kept + nanos(SECOND);
        let (count, least) = (run.count(second.clone()), 180 - run.missed(second).min(60));
        assert!(count >= least, "{count} in a second, at least {least}; {run}");
    }
}

/// Counts are reset again and again: the pace holds, and no slot is lost.
#[tokio::test]
async fn resets_keep_the_pace() {
    let mut chaos = Chaos::begin("resets");
    let moments = chaos.moments(12);
    let redis = Redis::dedicated().await;
    let rig = Rig::with(chaos, &format!("rate = '{RATE}'"), [&redis.url(); REPLICAS]).await;
    rig.publish().await;
    for moment in moments {
        rig.reach(moment).await;
        rig.cli(&["reset", "billing", "--yes", "--reason", "chaos"]).await;
    }
    let run = rig.finish().await;
    run.assert_once();
    run.assert_paced();
    run.assert_no_gap_over(Duration::from_millis(100));
}

/// The warning of a replica whose file differs from the terms in force.
const DIFFERS: &str = "differs from the terms in force";
