//! Two builds of paced side by side, as in an upgrade and on the way back.
//!
//! `PACED_OTHER=PATH make chaos ARGS=rolled` takes the program at PATH as the other build. Without it the other build is
//! this one, and the runs only show what a rolling restart does.

use std::path::PathBuf;
use std::time::Duration;

use crate::rig::{Chaos, RATE, REPLICAS, Rig};
use crate::support::api::stamp;
use crate::support::daemon::binary;
use crate::support::servers::Redis;
use crate::verdict::Run;
use crate::watch::nanos;

/// The variable that names the program of the other build.
const OTHER: &str = "PACED_OTHER";
/// The jobs that a queue still has at each replacement, at least: a replica is replaced in less than eight seconds.
const BACKLOG: usize = 1600;
const SECOND: Duration = Duration::from_secs(1);

fn other() -> PathBuf {
    std::env::var_os(OTHER).map_or_else(binary, PathBuf::from)
}

/// Replaces four replicas of the first build by the second one, one by one, and then again by the first one.
async fn rolled(name: &'static str, first: PathBuf, second: PathBuf) {
    let chaos = Chaos::begin(name);
    eprintln!("{name}: from {} to {} and back", first.display(), second.display());
    let redis = Redis::dedicated().await;
    let mut rig = Rig::running(first.clone(), chaos, &format!("rate = '{RATE}'"), &redis).await;
    let mut jobs = rig.refill(0, BACKLOG).await;
    // From here on each replica has more jobs than it can send. Before, a broker that has just started gives the pace.
    let backlog = stamp();
    let (mut rolled, mut log) = (Vec::new(), Vec::new());
    for program in [second, first] {
        rig.program = program;
        for number in 0..REPLICAS {
            jobs = rig.refill(jobs, BACKLOG).await;
            rig.reach(rig.site.api.count() + RATE_IN_HALF_A_SECOND).await;
            log.extend(rig.replicas[number].log());
            rig.replace(number).await;
            if number == REPLICAS / 2 {
                // The first replica, of the second build on the way there, writes terms that both builds read.
                rig.cli(&["rate", "set", "billing", RATE, "--reason", "chaos"]).await;
            }
        }
        jobs = rig.refill(jobs, BACKLOG).await;
        rolled.push(stamp());
        // The replicas of one build alone have the load for two seconds.
        rig.reach(rig.site.api.count() + 4 * RATE_IN_HALF_A_SECOND).await;
    }
    log.extend(rig.replicas.iter().flat_map(|replica| replica.log()));
    let run = rig.finish_some(jobs).await;
    run.assert_once();
    run.assert_paced();
    assert_keeps_pace(&run, backlog);
    for at in rolled {
        let during = at..at + 2 * nanos(SECOND);
        let shares: Vec<usize> =
            (0..REPLICAS).map(|number| run.of(number).filter(|at| during.contains(at)).count()).collect();
        assert!(shares.iter().all(|share| *share > 0), "{shares:?} of each replica; {run}");
    }
    let held: Vec<&String> = log.iter().filter(|line| line.contains(HELD)).collect();
    assert!(held.is_empty(), "{held:?}; {run}");
}

/// The jobs of half a second.
const RATE_IN_HALF_A_SECOND: usize = 100;

/// What a replica logs that cannot read the limits of another one.
const HELD: &str = "the terms cannot be used";

/// Asserts that each second from `backlog` on has its jobs, but for what this machine missed.
#[track_caller]
fn assert_keeps_pace(run: &Run, backlog: u64) {
    let (begun, ended) = (run.stamps[0].max(backlog), run.stamps[run.stamps.len() - 1]);
    eprintln!(
        "{} requests before all jobs of the first backlog were published",
        run.count(run.stamps[0]..begun)
    );
    let starts =
        (begun..ended.saturating_sub(nanos(SECOND))).step_by(usize::try_from(nanos(SECOND)).unwrap());
    for from in starts {
        let second = from..from + nanos(SECOND);
        let (count, least) = (run.count(second.clone()), 190 - run.missed(second).min(60));
        let after = Duration::from_nanos(from - begun);
        assert!(count >= least, "{count} in the second from {after:?} on, at least {least}; {run}");
    }
}

#[tokio::test]
async fn another_build_is_rolled_in_and_back() {
    rolled("rolled", binary(), other()).await;
}

#[tokio::test]
async fn this_build_is_rolled_in_and_back() {
    rolled("rolled-in", other(), binary()).await;
}
