//! Tests of programs that embed paced beside the daemon: one pace and one set of limits in force, even if either is
//! killed or stopped.

use std::time::Duration;

use paced::Shaper;
use rustix::process::Signal;

use crate::support::LONG;
use crate::support::api::{Api, stamp};
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::servers::{Redis, rabbit};
use crate::support::site::{NAME, Site, compare};
use crate::support::worker::Worker;
use crate::support::{count, eventually};
use crate::{UNDER_WAY, assert_paced};

const SECOND: Duration = Duration::from_secs(1);

/// Returns how many of the arrivals between these instants came from each of these senders.
fn shares(api: &Api, (from, to): (u64, u64), names: &[&str]) -> Vec<usize> {
    let arrivals = api.arrivals();
    let between: Vec<_> = arrivals.iter().filter(|arrival| (from..to).contains(&arrival.at)).collect();
    let of = |name: &&str| between.iter().filter(|arrival| arrival.header("x-replica") == Some(name)).count();
    names.iter().map(of).collect()
}

const ALL: [&str; 4] = ["daemon-1", "daemon-2", "worker-1", "worker-2"];

/// Starts two daemons and two workers with work for a while.
async fn everybody(site: &Site, jobs: usize, calls: usize) -> ([Paced; 2], [Worker; 2]) {
    let named = |name: &str| format!("{}headers = {{ x-replica = '{name}' }}\n", site.config());
    let configs = [named("daemon-1"), named("daemon-2")];
    let (one, two) = tokio::join!(Paced::spawn(&configs[0]), Paced::spawn(&configs[1]));
    site.publish(Job::many("job", jobs)).await;
    let workers = ["worker-1", "worker-2"].map(|name| Worker::start(site, ("acquire", name), calls));
    ([one, two], workers)
}

#[tokio::test]
async fn daemons_and_programs_that_embed_paced_share_one_pace() {
    let site = Site::shared("embed", "rate = '200/s'\nqueue.prefetch = 200").await;
    let begun = stamp();
    let (daemons, mut workers) = everybody(&site, 600, 300).await;
    // Shares are judged in virtual time: a process that the machine holds up takes less.
    let all_send = |since| shares(&site.api, (since, stamp()), &ALL).iter().all(|share| *share > 0);
    eventually("all take part", LONG, || all_send(begun)).await;
    let since = stamp();
    eventually("all continue", LONG, || all_send(since)).await;
    for worker in &mut workers {
        worker.end().await;
    }
    site.api.wait_for(1200, LONG).await;
    assert_paced(&site.api, begun, "200/s", 0);
    for daemon in &daemons {
        assert_eq!(daemon.stop().await, 0);
    }
}

/// Waits for enough requests to show a higher rate, and asserts that they kept this one from now on, but for the slots
/// that were granted before.
async fn keeps(api: &Api, rate: &str) {
    let (since, before) = (stamp(), api.count());
    api.wait_for(before + 2 * UNDER_WAY, LONG).await;
    assert_paced(api, since, rate, UNDER_WAY);
}

#[tokio::test]
async fn what_is_done_to_the_downstream_counts_for_programs_that_embed_paced() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "embed-ops", "rate = '200/s'");
    let begun = stamp();
    let daemon = site.replica().await;
    // More calls than go meanwhile on a slow machine: 15 s at the full rate.
    let mut worker = Worker::start(&site, ("acquire", "worker"), 3000);
    site.api.wait_for(200, LONG).await;
    let shaper = Shaper::from_config(daemon.config_file(), NAME).unwrap();

    let asked = stamp();
    shaper.penalize(SECOND).await.unwrap();
    let before = site.api.count();
    site.api.wait_for(before + UNDER_WAY, LONG).await;
    // The pause began after it was asked for, and at most what was under way went in it.
    let behind = site.api.stamps()[before + UNDER_WAY - 1] - asked;
    assert!(behind >= 1_000_000_000, "nothing goes in a pause: {behind} ns");

    shaper.set_rate("20/s".parse().unwrap(), Some(3600 * SECOND)).await.unwrap();
    keeps(&site.api, "20/s").await;
    shaper.set_rate("20/s".parse().unwrap(), Some(SECOND)).await.unwrap();
    eventually("the rate is over", LONG, || count::effective_rate(&last(&site.api, 30)) > 40.0).await;

    let config = std::fs::read_to_string(daemon.config_file()).unwrap();
    std::fs::write(daemon.config_file(), config.replace("200/s", "100/s")).unwrap();
    daemon.hangup();
    daemon.wait_line("reloaded", LONG).await;
    keeps(&site.api, "100/s").await;

    redis.command(&["FLUSHALL"]).await.unwrap();
    keeps(&site.api, "100/s").await;
    worker.kill().await;
    assert_paced(&site.api, begun, "200/s", 0);
    assert_eq!(daemon.stop().await, 0);
}

/// Returns the last `many` stamps.
fn last(api: &Api, many: usize) -> Vec<u64> {
    let stamps = api.stamps();
    stamps[stamps.len().saturating_sub(many)..].to_vec()
}

/// A process with far more waiting callers than slots is killed: the other processes continue.
#[tokio::test]
async fn those_who_wait_in_a_process_that_is_killed_hold_nobody_up() {
    let site = Site::shared("embed-kill", "rate = '200/s'\nqueue.prefetch = 200").await;
    let begun = stamp();
    let daemon = site.replica().await;
    let mut worker = Worker::start(&site, ("acquire", "crowd"), 3000);
    site.publish(Job::many("job", 600)).await;
    site.api.wait_for(200, LONG).await;
    let killed = stamp();
    worker.kill().await;
    let called = shares(&site.api, (0, u64::MAX), &["crowd"])[0];
    eventually("the daemon's jobs are done", LONG, || site.api.count() >= 600 + called).await;
    assert_paced(&site.api, begun, "200/s", 0);
    assert_paced(&site.api, killed, "200/s", UNDER_WAY);
    assert_eq!(daemon.stop().await, 0);
}

/// A daemon is killed beside programs that embed paced: they continue, and its jobs are done by the daemon that is started
/// in its place.
#[tokio::test]
async fn a_daemon_that_is_killed_leaves_its_part_to_programs_that_embed_paced() {
    let site = Site::shared("embed-kill9", "rate = '200/s'\nqueue.prefetch = 200").await;
    let begun = stamp();
    let daemon = site.replica().await;
    let mut workers = ["worker-1", "worker-2"].map(|name| Worker::start(&site, ("acquire", name), 400));
    site.publish(Job::many("job", 400)).await;
    site.api.wait_for(200, LONG).await;
    daemon.kill9();
    let (killed, before) = (stamp(), site.api.count());
    site.api.wait_for(before + 200, LONG).await;

    let successor = site.replica().await;
    for worker in &mut workers {
        worker.end().await;
    }
    let is_done = || compare("job", 400, &site.api.arrivals()).lost.is_empty();
    eventually("the jobs are done", LONG, is_done).await;
    assert_eq!(shares(&site.api, (0, u64::MAX), &["worker-1", "worker-2"]), [400, 400]);
    assert_paced(&site.api, begun, "200/s", 0);
    assert_paced(&site.api, killed, "200/s", UNDER_WAY);
    assert_eq!(successor.stop().await, 0);
}

/// A process that embeds paced is stopped for a second: it does not make up for the slots that it missed.
#[tokio::test]
async fn a_program_that_stands_still_makes_no_burst() {
    for how in ["acquire", "schedule", "reserve"] {
        let site = Site::shared("embed-stop", "rate = '200/s'").await;
        let begun = stamp();
        let mut worker = Worker::start(&site, (how, "frozen"), 400);
        site.api.wait_for(100, LONG).await;
        worker.signal(Signal::STOP);
        let stopped = stamp();
        eventually("a second", LONG, || stamp() - stopped >= 1_000_000_000).await;
        let thawed = stamp();
        worker.signal(Signal::CONT);
        worker.end().await;
        assert_eq!(site.api.count(), 400, "{how}");
        assert_paced(&site.api, begun, "200/s", 0);
        assert_paced(&site.api, thawed, "200/s", UNDER_WAY);
    }
}
