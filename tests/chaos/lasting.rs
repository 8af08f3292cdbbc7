//! A daemon at 200/s that keeps its pace in a file is killed 200 times: no second has more than 201 requests, and no tenth of
//! one more than 21.

use std::time::Duration;

use crate::LONG;
use crate::rig::{Chaos, RATE};
use crate::support::api::stamp;
use crate::support::count::busiest;
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::servers::{rabbit, redis};
use crate::support::site::Site;
use crate::verdict::{WINDOWS, most};
use crate::watch::Watch;

const KILLS: usize = 200;
/// The most requests between two kills.
const BETWEEN: usize = 60;

#[tokio::test]
async fn a_daemon_with_a_file_is_killed_again_and_again() {
    let mut chaos = Chaos::begin("lasting");
    let folder = tempfile::tempdir().unwrap();
    let mut site =
        Site::on(rabbit().await, redis().await, "lasting", &format!("rate = '{RATE}'\nqueue.prefetch = 200"));
    site.store = format!("file:{}", folder.path().join("pace").display());
    site.declare().await;
    // What a killed replica has sent and not acked is sent again, so that they never run out.
    site.publish(Job::many("job", KILLS * BETWEEN)).await;
    let (begun, watch) = (stamp(), Watch::start());
    for _ in 0..KILLS {
        let replica = Paced::start(&site.config(), &[], &[]).await;
        let more = site.api.count() + chaos.rng.usize(1..=BETWEEN);
        assert!(site.api.reaches(more, LONG).await, "no request for {LONG:?}: {:?}", replica.log());
        replica.kill9();
    }
    let (stalls, stamps) = (watch.end(), site.api.stamps());
    let held_up = stalls.iter().map(|stall| stall.end - stall.start).max().unwrap_or(0) / 5_000_000;
    for window in WINDOWS {
        let (count, most) = (busiest(&stamps, window), most(RATE.parse().unwrap(), window));
        eprintln!("lasting: {count} in {window:?}, of {} requests", stamps.len());
        assert!(count as u64 <= most as u64 + held_up, "{count} in {window:?}, at most {most} + {held_up}");
    }
    eprintln!("lasting: {KILLS} kills in {:?}", Duration::from_nanos(stamp() - begun));
}
