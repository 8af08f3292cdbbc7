//! A program that embeds paced and a daemon share 200/s, and one of them is killed: the others continue at once, and soon at
//! the whole pace.

use std::time::Duration;

use crate::LONG;
use crate::rig::RATE;
use crate::support::api::{Api, stamp};
use crate::support::count::{busiest, effective_rate, gaps};
use crate::support::eventually;
use crate::support::publish::Job;
use crate::support::servers::{rabbit, redis};
use crate::support::site::Site;
use crate::support::worker::Worker;
use crate::verdict::{WINDOWS, most};
use crate::watch::Watch;

/// The longest time without a request after the kill.
const GAP: Duration = Duration::from_millis(300);
/// The time after the kill in which the others reach the whole pace, and the requests by which that is measured.
const WHOLE: Duration = Duration::from_secs(3);
const MEASURED: usize = 100;
/// The pace that counts as whole.
const LEAST: f64 = 170.0;
/// More requests than come in [`WHOLE`].
const AFTER: usize = 620;

async fn site(topic: &str) -> Site {
    let downstream = format!("rate = '{RATE}'\nqueue.prefetch = 200");
    let site = Site::on(rabbit().await, redis().await, topic, &downstream);
    site.declare().await;
    site.publish(Job::many("job", 1500)).await;
    site
}

/// Waits for 200 requests, some of them by the daemon and some by each of these programs.
async fn all_send(api: &Api, programs: &[&str]) {
    let by = |name: Option<&str>| api.arrivals().iter().any(|arrival| arrival.header("x-replica") == name);
    let all = || by(None) && programs.iter().all(|name| by(Some(name)));
    eventually("all take part", LONG, || api.count() >= 200 && all()).await;
}

/// Judges the requests after this instant, once there are enough.
async fn judge(name: &str, api: &Api, killed: u64, watch: Watch) {
    let before = api.stamps().iter().filter(|at| **at <= killed).count();
    api.wait_for(before + AFTER, LONG).await;
    let stalls = watch.end();
    let after: Vec<u64> =
        std::iter::once(killed).chain(api.stamps().into_iter().filter(|at| *at > killed)).collect();
    let gap = Duration::from_nanos(gaps(&after).into_iter().max().unwrap());
    let whole = after[1..].windows(MEASURED).find(|requests| effective_rate(requests) > LEAST);
    let reached = whole.map(|requests| Duration::from_nanos(requests[MEASURED - 1] - killed));
    for window in WINDOWS {
        let (count, most) = (busiest(&api.stamps(), window), most(RATE.parse().unwrap(), window));
        let held_up = stalls.iter().map(|stall| stall.end - stall.start).max().unwrap_or(0) / 5_000_000;
        eprintln!("{name}: {count} in {window:?}");
        assert!(count as u64 <= most as u64 + held_up, "{count} in {window:?}, at most {most} + {held_up}");
    }
    let still = stalls.iter().filter(|stall| stall.end > killed).map(|stall| stall.end - stall.start).max();
    eprintln!(
        "{name}: the longest gap after the kill {gap:?}; over {LEAST}/s after {reached:?}; the machine stood still for {:?} \
         at most",
        Duration::from_nanos(still.unwrap_or(0))
    );
    assert!(gap <= GAP, "{gap:?} without a request");
    assert!(reached.is_some_and(|reached| reached <= WHOLE), "over {LEAST}/s after {reached:?}");
}

#[tokio::test]
async fn a_program_that_embeds_paced_is_killed_beside_a_daemon() {
    let site = site("embed-kill").await;
    let daemon = site.replica().await;
    let mut worker = Worker::start(&site, ("acquire", "crowd"), 3000);
    all_send(&site.api, &["crowd"]).await;
    let watch = Watch::start();
    let killed = stamp();
    worker.kill().await;
    judge("embed-kill", &site.api, killed, watch).await;
    assert_eq!(daemon.stop().await, 0);
}

#[tokio::test]
async fn a_daemon_is_killed_beside_programs_that_embed_paced() {
    let site = site("embed-kill9").await;
    let daemon = site.replica().await;
    let _workers = ["one", "two"].map(|name| Worker::start(&site, ("acquire", name), 700));
    all_send(&site.api, &["one", "two"]).await;
    let watch = Watch::start();
    daemon.kill9();
    judge("embed-kill9", &site.api, stamp(), watch).await;
}
