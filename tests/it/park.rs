//! Jobs that cannot go for long wait in the broker, and stand before nobody.

use std::time::Duration;

use lapin::types::AMQPValue;
use paced::time::wall_now;

use crate::support::api::Answer;
use crate::support::daemon::Paced;
use crate::support::publish::{self, Job};
use crate::support::site::{Site, compare};
use crate::support::{LONG, eventually, until};

/// The present time, in ms since the epoch.
fn now() -> u64 {
    u64::try_from(wall_now().0 / 1000).unwrap()
}

/// Jobs that must not go before this long from now.
fn later(stem: &str, count: usize, wait: Duration) -> Vec<Job> {
    let at = i64::try_from(now() + u64::try_from(wait.as_millis()).unwrap()).unwrap();
    let not_before = |job: Job| job.header_value("paced-not-before", AMQPValue::LongLongInt(at));
    Job::many(stem, count).into_iter().map(not_before).collect()
}

/// The number of jobs that wait for a limit.
pub async fn waiting(site: &Site) -> u32 {
    let mut all = 0;
    for power in (2..=12).step_by(2) {
        let rung = format!("{}.wait.billing.{}s", site.prefix, 1 << power);
        all += publish::depth(&site.amqp, &rung).await.unwrap_or(0);
    }
    all
}

/// The number of jobs that wait in all rungs.
pub async fn parked(site: &Site) -> u32 {
    let mut all = waiting(site).await;
    for power in 0..=22 {
        let rung = format!("{}.park.{}s", site.prefix, 1 << power);
        all += publish::depth(&site.amqp, &rung).await.unwrap_or(0);
    }
    all
}

/// Waits until this many jobs wait in the queue and the rungs: the broker counts what was given back to it a moment later.
async fn all_wait(site: &Site, jobs: u32) {
    until("all jobs to wait in the broker", LONG, async || {
        let queued = publish::depth(&site.amqp, &site.queue()).await.unwrap();
        queued + parked(site).await == jobs
    })
    .await;
}

#[tokio::test]
async fn jobs_for_tomorrow_stand_before_nobody() {
    let site = Site::shared("tomorrow", "rate = '100/s'").await;
    site.declare().await;
    let day = Duration::from_secs(86_400);
    site.publish(later("tomorrow", 700, day)).await;
    site.publish(Job::many("now", 20)).await;
    let replica = site.replica().await;
    // Those before them cannot go for a day.
    let arrivals = site.api.wait_for(20, LONG).await;
    assert!(compare("now", 20, &arrivals).is_clean());
    site.depth(&site.queue(), 0, LONG).await;
    site.depth(&format!("{}.park.65536s", site.prefix), 700, LONG).await;
    // None is held by the replica either.
    assert_eq!(replica.stop().await, 0);
    assert_eq!(publish::depth(&site.amqp, &site.queue()).await, Some(0));
    assert_eq!(parked(&site).await, 700);
}

/// They would fill the window for nine minutes: as many stay as leave a fifth of it free.
#[tokio::test]
async fn jobs_that_may_be_held_do_not_fill_the_window() {
    let retry = "[downstreams.billing.retry]\nmax_attempts = 2\nmin_backoff = '300s'\nmax_backoff = '300s'";
    let site = Site::shared("pressed", &format!("rate = '200/s'\nhold_max = '10m'\n{retry}")).await;
    site.api.rule(|arrival| if arrival.id().starts_with("bad") { Answer::status(500) } else { Answer::ok() });
    site.declare().await;
    site.publish(later("soon", 1500, Duration::from_secs(540))).await;
    site.publish(Job::many("bad", 10)).await;
    site.publish(Job::many("now", 100)).await;
    let replica = site.replica().await;
    let arrivals = site.api.wait_for(110, LONG).await;
    let now: Vec<_> = arrivals.into_iter().filter(|arrival| arrival.id().starts_with("now")).collect();
    assert!(compare("now", 100, &now).is_clean());
    until("all but four fifths of the window to be parked", LONG, async || {
        publish::depth(&site.amqp, &site.queue()).await == Some(0) && parked(&site).await >= 1510 - 800
    })
    .await;
    assert_eq!(replica.stop().await, 0);
    // What was held is in the queue again, or parked if it had been tried.
    all_wait(&site, 1510).await;
    assert_eq!(site.api.count(), 110);
}

/// A long one and short ones that were seen after it: the short ones make it look as if there was room for many.
#[tokio::test]
async fn jobs_that_may_be_held_do_not_fill_the_bytes() {
    let queue = "queue.prefetch_bytes = '1MiB'";
    let site = Site::shared("bytes", &format!("rate = '200/s'\nhold_max = '10m'\n{queue}")).await;
    site.declare().await;
    let wait = Duration::from_secs(540);
    site.publish(later("long", 1, wait).into_iter().map(|job| job.body(vec![b'x'; 500_000])).collect()).await;
    site.publish(later("soon", 400, wait)).await;
    site.publish(Job::many("now", 20)).await;
    let replica = site.replica().await;
    let arrivals = site.api.wait_for(20, LONG).await;
    assert!(compare("now", 20, &arrivals).is_clean());
    assert_eq!(replica.stop().await, 0);
    all_wait(&site, 401).await;
}

#[tokio::test]
async fn jobs_of_a_plan_that_is_used_up_stand_before_nobody() {
    let plan = "rate = '100/s'\n[plans.free]\nlimits = [{ algorithm = 'fixed-window', rate = '3/d' }]";
    let site = Site::shared("usedup", plan).await;
    site.declare().await;
    site.publish(Job::many("free", 703).into_iter().map(|job| job.header("paced-plan", "free")).collect())
        .await;
    site.publish(Job::many("now", 20)).await;
    let replica = Paced::spawn(&format!("{}\n[admin]\nlisten = '127.0.0.1:0'", site.config())).await;
    let sent = |stem: &str| -> Vec<_> {
        site.api.arrivals().into_iter().filter(|arrival| arrival.id().starts_with(stem)).collect()
    };
    eventually("the others", LONG, || sent("now").len() >= 20).await;
    assert!(compare("now", 20, &sent("now")).is_clean());
    // A busy machine misses a slot at times, and its unit of the plan is lost for the day.
    until("what the plan allows", LONG, async || sent("free").len() + replica.slots_missed().await >= 3)
        .await;
    site.depth(&site.queue(), 0, LONG).await;
    assert_eq!(replica.stop().await, 0);
    let allowed = sent("free").len();
    assert!(allowed <= 3, "{allowed} of 3 a day");
    // In the last minutes of a day they are held.
    all_wait(&site, 703 - u32::try_from(allowed).unwrap()).await;
}

#[tokio::test]
async fn a_job_for_next_year_does_not_stop_a_slow_downstream() {
    let site = Site::shared("nextyear", "rate = '1/min'").await;
    let replica = site.replica().await;
    site.publish(later("far", 1, Duration::from_secs(300 * 86_400))).await;
    site.publish(Job::many("near", 1)).await;
    let arrivals = site.api.wait_for(1, LONG).await;
    assert_eq!(arrivals[0].id(), "near-0");
    assert_eq!(replica.stop().await, 0);
    assert_eq!(parked(&site).await, 1);
}

#[tokio::test]
async fn parked_jobs_come_back_in_time_over_a_restart() {
    let site = Site::shared("intime", "rate = '100/s'\nhold_max = '1s'").await;
    let replica = site.replica().await;
    let start = now();
    for (stem, seconds) in [("one", 1), ("two", 2), ("four", 4)] {
        site.publish(later(stem, 10, Duration::from_secs(seconds))).await;
    }
    site.depth(&site.queue(), 0, LONG).await;
    assert_eq!(replica.stop().await, 0);
    let replica = site.replica().await;
    let arrivals = site.api.wait_for(30, LONG).await;
    for (stem, seconds) in [("one", 1_u64), ("two", 2), ("four", 4)] {
        let of: Vec<_> = arrivals.iter().filter(|arrival| arrival.id().starts_with(stem)).cloned().collect();
        assert!(compare(stem, 10, &of).is_clean(), "{stem}");
        for arrival in of {
            let after = u64::try_from(arrival.wall.0 / 1000).unwrap();
            assert!(after >= start + seconds * 1000, "{stem} {} ms early", start + seconds * 1000 - after);
        }
    }
    assert_eq!(replica.stop().await, 0);
    assert_eq!(parked(&site).await, 0);
}

#[tokio::test]
async fn attempts_are_counted_over_restarts() {
    let retry = "rate = '100/s'\n[downstreams.billing.retry]\nmax_attempts = 4\nmin_backoff = '500ms'\nmax_backoff = '1s'";
    let site = Site::shared("counted", retry).await;
    site.api.rule(|_| Answer::status(500));
    let mut replica = site.replica().await;
    site.publish(Job::many("job", 10)).await;
    for restart in 1..=3 {
        site.api.wait_for(10 * restart, LONG).await;
        assert_eq!(replica.stop().await, 0);
        replica = site.replica().await;
    }
    let letters = site.dead(10, LONG).await;
    assert_eq!(letters.len(), 10);
    let arrivals = site.api.arrivals();
    for number in 0..10 {
        let id = format!("job-{number}");
        let sent = arrivals.iter().filter(|arrival| arrival.id() == id).count();
        assert_eq!(sent, 4, "{id}");
    }
    assert_eq!(replica.stop().await, 0);
}
