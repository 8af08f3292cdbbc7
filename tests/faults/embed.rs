//! Tests of programs that embed paced beside the daemon: one pace and one set of limits in force, even if either is
//! killed or stopped.

use std::process::Stdio;
use std::time::Duration;

use paced::{Rate, Shaper};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::support::api::{Api, stamp};
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::servers::{Redis, rabbit};
use crate::support::site::{NAME, Site, compare};
use crate::support::{count, eventually};
use crate::{LONG, NOISE, assert_paced};

const SECOND: Duration = Duration::from_secs(1);

/// The time within which the other processes continue after one is killed: two horizons of 100 ms, and the delay of a
/// busy machine.
const WITHIN: Duration = Duration::from_millis(200).saturating_add(NOISE.saturating_mul(2));

fn rate() -> Rate {
    "200/s".parse().unwrap()
}

/// A process of the example `worker`, which uses the site's configuration.
struct Worker {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Worker {
    /// Starts a worker that makes this number of calls.
    fn start(site: &Site, (how, name): (&str, &str), calls: usize) -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, site.config()).unwrap();
        let mut path = std::env::current_exe().unwrap();
        path.pop();
        path.pop();
        path.push(format!("examples/worker{}", std::env::consts::EXE_SUFFIX));
        assert!(path.exists(), "{} is missing: run `cargo build --example worker` first", path.display());
        let mut command = Command::new(path);
        command.arg(file).arg(NAME).arg(site.api.url()).arg(calls.to_string()).args([how, name]);
        let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        Self { child, _folder: folder }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the worker has made its calls.
    async fn end(&mut self) {
        let ended = tokio::time::timeout(LONG, self.child.wait()).await.expect("it ends").unwrap();
        assert!(ended.success(), "{ended}");
    }
}

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
    site.api.watch_stalls();
    let (daemons, mut workers) = everybody(&site, 600, 300).await;
    site.api.wait_for(200, LONG).await;
    let begin = stamp();
    site.api.wait_for(600, LONG).await;
    let told = shares(&site.api, (begin, stamp()), &ALL);
    assert!(told.iter().all(|share| *share >= 40), "each gets its part: {told:?}");
    for worker in &mut workers {
        worker.end().await;
    }
    site.api.wait_for(1200, LONG).await;
    assert_paced(&site.api, rate(), NOISE);
    let spent = count::span(&site.api.stamps());
    assert!(spent < Duration::from_secs(12), "about 6 s of slots: {spent:?}");
    for daemon in &daemons {
        assert_eq!(daemon.stop().await, 0);
    }
}

/// Asserts that from the kill on the API never waits longer than two horizons for a call.
fn assert_no_pause_after(stamps: &[u64], killed: u64) {
    let after = stamps.iter().copied().filter(|at| *at > killed);
    let after = std::iter::once(killed).chain(after).collect::<Vec<_>>();
    let gap = count::gaps(&after).into_iter().max().expect("calls after the kill");
    assert!(Duration::from_nanos(gap) <= WITHIN, "{gap} ns without a call");
}

/// Measures how many calls arrive per second from now on.
async fn pace(api: &Api, calls: usize) -> f64 {
    // The slots that were granted before the change are used up first.
    let before = api.count();
    api.wait_for(before + 30, LONG).await;
    let (from, first) = (stamp(), api.count());
    api.wait_for(first + calls, LONG).await;
    f64::from(u32::try_from(calls).unwrap()) / Duration::from_nanos(stamp() - from).as_secs_f64()
}

#[tokio::test]
async fn what_is_done_to_the_downstream_counts_for_programs_that_embed_paced() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "embed-ops", "rate = '200/s'");
    site.api.watch_stalls();
    let daemon = site.replica().await;
    let mut worker = Worker::start(&site, ("acquire", "worker"), 1300);
    site.api.wait_for(200, LONG).await;
    let shaper = Shaper::from_config(daemon.config_file(), NAME).unwrap();

    shaper.penalize(SECOND).await.unwrap();
    let before = site.api.count();
    let paused = stamp();
    site.api.wait_for(before + 20, LONG).await;
    assert!(stamp() - paused >= 900_000_000, "nothing goes in a pause");

    shaper.set_rate("20/s".parse().unwrap(), Some(5 * SECOND)).await.unwrap();
    let slow = pace(&site.api, 20).await;
    assert!((16.0..=24.0).contains(&slow), "{slow}/s by an operator");
    eventually("the rate is over", LONG, || count::effective_rate(&last(&site.api, 50)) > 150.0).await;

    let config = std::fs::read_to_string(daemon.config_file()).unwrap();
    std::fs::write(daemon.config_file(), config.replace("200/s", "100/s")).unwrap();
    daemon.hangup();
    daemon.wait_line("reloaded", LONG).await;
    let reloaded = pace(&site.api, 50).await;
    assert!((80.0..=120.0).contains(&reloaded), "{reloaded}/s by a reload");

    redis.command(&["FLUSHALL"]).await.unwrap();
    let flushed = pace(&site.api, 100).await;
    assert!((80.0..=120.0).contains(&flushed), "{flushed}/s after a loss");
    worker.end().await;
    assert_paced(&site.api, rate(), NOISE);
    assert_eq!(daemon.stop().await, 0);
}

/// Returns the last `many` stamps.
fn last(api: &Api, many: usize) -> Vec<u64> {
    let stamps = api.stamps();
    stamps[stamps.len().saturating_sub(many)..].to_vec()
}

/// A process with far more waiting callers than slots is killed: the other processes continue at once.
#[tokio::test]
async fn those_who_wait_in_a_process_that_is_killed_hold_nobody_up() {
    let site = Site::shared("embed-kill", "rate = '200/s'\nqueue.prefetch = 200").await;
    site.api.watch_stalls();
    let daemon = site.replica().await;
    let mut worker = Worker::start(&site, ("acquire", "crowd"), 3000);
    site.publish(Job::many("job", 600)).await;
    site.api.wait_for(200, LONG).await;
    worker.signal(Signal::KILL);
    let killed = stamp();
    worker.child.wait().await.unwrap();
    let called = shares(&site.api, (0, u64::MAX), &["crowd"])[0];
    eventually("the daemon's jobs are done", LONG, || site.api.count() >= 600 + called).await;
    let stamps = site.api.stamps();
    assert_no_pause_after(&stamps, killed);
    assert_paced(&site.api, rate(), NOISE);
    assert_eq!(daemon.stop().await, 0);
}

/// A daemon is killed beside programs that embed paced: they continue at once, and soon with its share of the pace. Its
/// jobs are done by the daemon that is started in its place.
#[tokio::test]
async fn a_daemon_that_is_killed_leaves_its_part_to_programs_that_embed_paced() {
    let site = Site::shared("embed-kill9", "rate = '200/s'\nqueue.prefetch = 200").await;
    site.api.watch_stalls();
    let daemon = site.replica().await;
    let mut workers = ["worker-1", "worker-2"].map(|name| Worker::start(&site, ("acquire", name), 700));
    site.publish(Job::many("job", 400)).await;
    site.api.wait_for(200, LONG).await;
    daemon.kill9();
    let killed = stamp();
    let before = site.api.count();
    site.api.wait_for(before + 400, LONG).await;
    assert_no_pause_after(&site.api.stamps(), killed);
    let is_whole = || count::effective_rate(&last(&site.api, 100)) > 170.0;
    eventually("the programs have the whole pace", LONG, is_whole).await;

    let successor = site.replica().await;
    for worker in &mut workers {
        worker.end().await;
    }
    let is_done = || compare("job", 400, &site.api.arrivals()).lost.is_empty();
    eventually("the jobs are done", LONG, is_done).await;
    assert_eq!(shares(&site.api, (0, u64::MAX), &["worker-1", "worker-2"]), [700, 700]);
    assert_paced(&site.api, rate(), NOISE);
    assert_eq!(successor.stop().await, 0);
}

/// A process that embeds paced is stopped for 2.5 s: it does not make up for the slots that it missed.
#[tokio::test]
async fn a_program_that_stands_still_makes_no_burst() {
    for how in ["acquire", "schedule", "reserve"] {
        let site = Site::shared("embed-stop", "rate = '200/s'").await;
        site.api.watch_stalls();
        let mut worker = Worker::start(&site, (how, "frozen"), 700);
        site.api.wait_for(150, LONG).await;
        worker.signal(Signal::STOP);
        let stopped = stamp();
        eventually("2.5 s", LONG, || stamp() - stopped >= 2_500_000_000).await;
        worker.signal(Signal::CONT);
        worker.end().await;
        assert_eq!(site.api.count(), 700, "{how}");
        // Calls in flight when it was stopped may arrive together with the first ones after it: the slots of one
        // tolerance.
        assert_paced(&site.api, rate(), NOISE);
    }
}
