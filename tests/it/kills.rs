//! A replica that is killed between any two steps loses no job, and each kill makes at most one more copy of one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lapin::types::AMQPValue;
use paced::time::wall_now;

use crate::park::parked;
use crate::support::api::Answer;
use crate::support::daemon::{Paced, run_cli};
use crate::support::publish::{self, Job};
use crate::support::servers::free_port;
use crate::support::site::Site;
use crate::support::until;

const LONG: Duration = Duration::from_secs(60);
/// The variable that names the point at which a process ends.
const FAIL_AT: &str = "PACED_TEST_FAIL_AT";
const JOBS: usize = 10;

/// A replica that ends at this point.
async fn doomed(site: &Site, point: &str) -> Paced {
    let replica = Paced::start(&site.config(), &[], &[(FAIL_AT, point)]).await;
    replica.wait_ready().await;
    replica
}

/// Runs jobs through a replica that ends at `point` and then another one, until no job is left.
///
/// The jobs are made once the first replica is ready, since they may name an instant shortly after.
async fn killed_at(site: &Site, point: &str, jobs: impl FnOnce() -> Vec<Job>) {
    let replica = doomed(site, point).await;
    site.publish(jobs()).await;
    let exit = replica.wait_exit(LONG).await;
    assert_eq!(exit, -6, "{point}: it was to end there\n{}", replica.log().join("\n"));
    // What a replica holds when it stops goes back to a queue, for the next one.
    for _ in 0..5 {
        let replica = site.replica().await;
        until("every job to arrive, and no message to be left", LONG, async || {
            let arrivals = site.api.arrivals();
            let ids: BTreeSet<&str> = arrivals.iter().map(|arrival| arrival.id()).collect();
            ids.len() == JOBS && left(site).await == 0
        })
        .await;
        assert_eq!(replica.stop().await, 0);
        if left(site).await == 0 {
            return;
        }
    }
    panic!("{point}: after five replicas {} messages are left", left(site).await);
}

/// How many messages are ready in the queues of the site's jobs.
async fn left(site: &Site) -> u32 {
    let mut left = parked(site).await;
    for queue in [site.queue(), format!("{}.home.billing", site.prefix)] {
        left += publish::depth(&site.amqp, &queue).await.unwrap_or(0);
    }
    left
}

/// How often each of the ten jobs came; the test fails if one is missing, or came more than twice.
#[track_caller]
fn copies(point: &str, ids: impl Iterator<Item = String>) -> usize {
    let mut counts = BTreeMap::<String, usize>::new();
    ids.for_each(|id| *counts.entry(id).or_default() += 1);
    assert_eq!(counts.len(), JOBS, "{point}: {counts:?}");
    assert!(counts.values().all(|count| *count <= 2), "{point}: {counts:?}");
    counts.values().sum::<usize>() - JOBS
}

#[tokio::test]
async fn a_kill_while_jobs_are_parked_loses_none() {
    for point in ["park:publish=4", "park:confirmed=4", "park:acked=4", "home:taken=4", "deliver:sent=4"] {
        let site = Site::shared("killpark", "rate = '100/s'\nhold_max = '1s'").await;
        let jobs = || {
            let at = wall_now().plus(Duration::from_secs(4)).0 / 1000;
            let later = |job: Job| job.header_value("paced-not-before", AMQPValue::LongLongInt(at));
            Job::many("job", JOBS).into_iter().map(later).collect()
        };
        killed_at(&site, point, jobs).await;
        site.api.wait_for(JOBS, LONG).await;
        let more = copies(point, site.api.arrivals().iter().map(|arrival| arrival.id().to_owned()));
        // All that were in flight at the kill may come once more.
        eprintln!("{point}: {more} more copies");
    }
}

#[tokio::test]
async fn a_kill_while_letters_are_replayed_loses_none() {
    for point in ["replay:publish=4", "replay:confirmed=4", "replay:removed=4"] {
        let site = Site::shared("killreplay", "rate = '100/s'").await;
        site.api.rule(|_| Answer::status(404));
        let replica = site.replica().await;
        site.publish(Job::many("job", JOBS)).await;
        site.depth(&site.dead_queue(), u32::try_from(JOBS).unwrap(), LONG).await;
        assert_eq!(replica.stop().await, 0);
        site.api.rule(|_| Answer::ok());
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::write(folder.path().join("paced.toml"), site.config()).unwrap();
        let mut replay = std::process::Command::new(crate::support::daemon::binary());
        replay.current_dir(folder.path()).env(FAIL_AT, point).args(["dead", "replay", "billing"]);
        let killed = crate::support::blocking(move || replay.output().unwrap()).await;
        assert_eq!(killed.status.code(), None, "{point}: {killed:?}");
        let rest = site.cli(&["dead", "replay", "billing"]).await;
        assert_eq!(rest.code, 0, "{point}: {}", rest.stderr);
        let replica = site.replica().await;
        // One may come twice, before another one.
        until("all jobs to be sent again", LONG, async || {
            let arrivals = site.api.arrivals();
            let ids: BTreeSet<&str> = arrivals[JOBS..].iter().map(|arrival| arrival.id()).collect();
            ids.len() == JOBS
        })
        .await;
        site.depth(&site.queue(), 0, LONG).await;
        assert_eq!(replica.stop().await, 0);
        let arrivals = site.api.arrivals();
        let more = copies(point, arrivals[JOBS..].iter().map(|arrival| arrival.id().to_owned()));
        assert!(more <= 1, "{point}: {more} more copies");
        assert_eq!(publish::depth(&site.amqp, &site.dead_queue()).await, Some(0), "{point}");
    }
}

#[tokio::test]
async fn a_kill_while_jobs_are_cancelled_sends_none() {
    for point in ["cancel:kept", "cancel:settle=4", "cancel:acked=4"] {
        let site = Site::shared("killcancel", "rate = '100/s'").await;
        let port = free_port();
        let config = format!(
            "[admin]\nlisten = '127.0.0.1:{port}'\ntoken = 'kills-0123456789abcdef'\n{}",
            site.config()
        );
        let replica = Paced::start(&config, &[], &[(FAIL_AT, point)]).await;
        replica.wait_ready().await;
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, &config).unwrap();
        let ids: Vec<String> = (0..JOBS).map(|n| format!("job-{n}")).collect();
        let mut args = vec!["-c", file.to_str().unwrap(), "cancel", "billing"];
        args.extend(ids.iter().map(String::as_str));
        let done = run_cli(&args, b"").await;
        assert_eq!(done.code == 0, point != "cancel:kept", "{point}: {}", done.stderr);
        if point != "cancel:kept" {
            site.publish(Job::many("job", JOBS)).await;
        }
        assert_eq!(replica.wait_exit(LONG).await, -6, "{point}: {}", replica.log().join("\n"));
        let replica = site.replica().await;
        if point == "cancel:kept" {
            // What the store has is never sent, although nobody was told so.
            site.publish(Job::many("job", JOBS)).await;
        }
        site.depth(&site.queue(), 0, LONG).await;
        assert_eq!(replica.stop().await, 0);
        assert_eq!(site.api.count(), 0, "{point}: a cancelled job was sent");
        assert_eq!(publish::depth(&site.amqp, &site.queue()).await, Some(0), "{point}");
    }
}

#[tokio::test]
async fn a_kill_while_jobs_are_dead_lettered_loses_none() {
    for point in ["dead:publish=4", "dead:confirmed=4", "dead:acked=4"] {
        let site = Site::shared("killdead", "rate = '100/s'").await;
        site.api.rule(|_| Answer::status(404));
        killed_at(&site, point, || Job::many("job", JOBS)).await;
        let letters = publish::drain(&site.amqp, &site.dead_queue()).await;
        let id = |letter: &publish::Taken| letter.properties.message_id().as_ref().unwrap().to_string();
        copies(point, letters.iter().map(id));
    }
}
