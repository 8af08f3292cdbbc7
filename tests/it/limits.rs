//! Limits of every kind at the API: several at once, policing, and plans.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::park::parked;
use crate::support::api::{Answer, Api, stamp};
use crate::support::count;
use crate::support::daemon::{Paced, run_cli};
use crate::support::publish::{Job, Taken, drain};
use crate::support::site::{Site, compare, slots_missed};
use crate::support::{LONG, until};

/// The configuration of replicas whose metrics are read.
const ADMIN: &str = "admin.listen = '127.0.0.1:0'\n";

/// What the clocks of the store and of the API may drift apart.
const DRIFT: Duration = Duration::from_millis(20);

/// Panics if a request arrived that is over `most` in each `window`: a job that is late only makes room, so that this
/// holds on a slow machine too. `since` is from before the first of them.
#[track_caller]
fn assert_windows(stamps: &[u64], since: u64, window: Duration, most: usize) {
    for (number, first) in stamps.iter().step_by(most).enumerate() {
        let after = Duration::from_nanos(first - since) + DRIFT;
        let earliest = window * u32::try_from(number).unwrap();
        assert!(after >= earliest, "job {} after {after:?}, not {earliest:?}", number * most);
    }
}

#[tokio::test]
async fn two_limits_hold_at_once_over_two_replicas() {
    let limits = "rate = '30/s'\nlimits = [{ algorithm = 'sliding-log', rate = '20/1s' }]";
    let site = Site::shared("both", limits).await;
    let config = format!("{ADMIN}{}", site.config());
    let (first, second) = tokio::join!(Paced::spawn(&config), Paced::spawn(&config));
    let since = stamp();
    site.publish(Job::many("job", 60)).await;
    let arrivals = site.api.wait_for(60, LONG).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    assert!(compare("job", 60, &arrivals).is_clean());
    // First the shaper determines the slots, one in 33.3 ms; then the log does, until the first of the 20 are 1 s old.
    let stamps = site.api.stamps();
    count::assert_never_ahead(&stamps, since, "30/s".parse().unwrap(), 2);
    assert_windows(&stamps, since, Duration::from_secs(1), 20);
}

#[tokio::test]
async fn thirty_a_second_and_a_hundred_a_minute_hold_at_once() {
    let limits = "rate = '30/s'\nlimits = [{ algorithm = 'sliding-log', rate = '100/minute' }]";
    let site = Site::shared("minute", limits).await;
    let config = format!("{ADMIN}{}", site.config());
    let (first, second) = tokio::join!(Paced::spawn(&config), Paced::spawn(&config));
    let since = stamp();
    site.publish(Job::many("job", 110)).await;
    let missed = site.used_up(100, &[&first, &second], LONG).await;
    let used = 100 - missed;
    // At 30/s alone, the others would be released in this time.
    assert!(!site.api.reaches(used + 1, Duration::from_secs(1)).await, "over 100, {missed} of them missed");
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    count::assert_never_ahead(&site.api.stamps(), since, "30/s".parse().unwrap(), 2);
    // Jobs that were not allowed any more are in the queue.
    site.depth(&site.queue(), u32::try_from(10 + missed).unwrap(), LONG).await;
}

fn headers(letter: &Taken) -> (&str, &str) {
    (&letter.headers["paced-reason"], &letter.headers["paced-detail"])
}

#[tokio::test]
async fn what_limits_reject_is_dead_lettered_and_nothing_is_lost() {
    let limits = "on_limit = 'reject'\nlimits = [{ algorithm = 'gcra', rate = '20/s', burst = 40 }, \
                  { algorithm = 'fixed-window', rate = '1000/hour', name = 'hourly' }]\n\
                  retry = { min_backoff = '1ms', max_backoff = '1ms' }";
    let site = Site::shared("reject", limits).await;
    let config = format!("{ADMIN}{}", site.config());
    let (first, second) = tokio::join!(Paced::spawn(&config), Paced::spawn(&config));
    let since = stamp();
    site.publish(Job::many("job", 400)).await;
    site.depth(&site.queue(), 0, LONG).await;
    let settled = |arrived: usize| u32::try_from(400 - arrived).unwrap();
    // Every job has arrived or is a dead letter: this waits until both numbers agree.
    let mut letters = Vec::new();
    until("every job is there or dead", LONG, async || {
        letters.extend(drain(&site.amqp, &site.dead_queue()).await);
        letters.len() + site.api.count() >= 400
    })
    .await;
    let arrivals = site.api.arrivals();
    assert_eq!(u32::try_from(letters.len()).unwrap(), settled(arrivals.len()));
    let ids: BTreeSet<&str> =
        arrivals.iter().map(|arrival| arrival.id()).chain(letters.iter().map(Taken::id)).collect();
    assert_eq!(ids.len(), 400, "allowed and rejected are all, each once");
    let stamps = site.api.stamps();
    // A slot that was missed still counts.
    let missed = slots_missed(&[&first, &second]).await;
    assert!(arrivals.len() + missed >= 40, "{} in a burst of 40, {missed} missed", arrivals.len());
    count::assert_never_ahead(&stamps, since, "20/s".parse().unwrap(), 42);
    for letter in &letters {
        let (reason, detail) = headers(letter);
        assert_eq!((reason, letter.headers["paced-attempts"].as_str()), ("rejected", "0"));
        assert!(detail.starts_with("the limit `gcra-0` is used up; it allows this job from 20"), "{detail}");
    }
    until("each rejected job is counted", LONG, async || {
        let series = "paced_jobs_rejected_total{downstream=\"billing\",reason=\"rejected\"}";
        let rejected = counted(&first, series).await + counted(&second, series).await;
        rejected == f64::from(settled(arrivals.len()))
    })
    .await;
    for replica in [&first, &second] {
        assert!(
            counted(replica, "paced_store_roundtrip_seconds_count{downstream=\"billing\",op=\"check\"}")
                .await
                > 0.0
        );
        assert_eq!(replica.stop().await, 0);
    }
}

/// The value of a series of a replica's metrics.
async fn counted(replica: &Paced, series: &str) -> f64 {
    let text = replica.metrics().await;
    let sample = text
        .lines()
        .find_map(|line| line.strip_prefix(series))
        .unwrap_or_else(|| panic!("{series} in\n{text}"));
    sample.trim().parse().unwrap()
}

#[tokio::test]
async fn a_retry_that_finds_no_room_is_rejected_too() {
    let limits = "on_limit = 'reject'\nlimits = [{ algorithm = 'quota', rate = '3/day', reset = 'rolling' }]\n\
                  retry = { min_backoff = '1ms', max_backoff = '1ms' }";
    let site = Site::shared("again", limits).await;
    site.api.rule(|_| Answer::status(503));
    let replica = site.replica().await;
    site.publish(vec![Job::new("down")]).await;
    let letters = site.dead(1, LONG).await;
    assert_eq!(site.api.count(), 3);
    let (reason, detail) = headers(&letters[0]);
    assert_eq!((reason, letters[0].headers["paced-attempts"].as_str()), ("rejected", "3"));
    assert!(detail.starts_with("the limit `quota-0` is used up; it allows this job from "), "{detail}");
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test]
async fn a_plan_that_is_used_up_holds_up_no_other_over_two_replicas() {
    let site = Site::shared("plans", "rate = '100/s'\nlanes.default_plan = 'pro'").await;
    let plans = "[plans.free]\nlimits = [{ algorithm = 'fixed-window', rate = '6/day', anchor = 'first-hit' }]\n\
                 [plans.pro]\nlimits = [{ rate = '50/s' }]\n";
    let config = format!("{ADMIN}{plans}{}", site.config());
    let (first, second) = tokio::join!(Paced::spawn(&config), Paced::spawn(&config));
    let free = Job::many("free", 60).into_iter().map(|job| job.header("paced-plan", "free"));
    let pro = Job::many("pro", 60).into_iter().enumerate().map(|(place, job)| {
        // Every other job is on the default plan.
        if place % 2 == 0 { job.header("paced-plan", "pro") } else { job }
    });
    let stray = Job::new("stray").header("paced-plan", "gold");
    let since = stamp();
    site.publish(free.chain(pro).chain([stray]).collect()).await;
    let of = |plan: &str| {
        let arrivals = site.api.arrivals();
        arrivals.into_iter().filter(|arrival| arrival.id().starts_with(plan)).collect::<Vec<_>>()
    };
    // A slot of the exhausted plan that was missed is lost.
    until("every job that may go has arrived, and the others are parked", LONG, async || {
        let parked = usize::try_from(parked(&site).await).unwrap();
        of("pro").len() == 60 && of("free").len() + parked == 60
    })
    .await;
    let missed = slots_missed(&[&first, &second]).await;
    let letters = site.dead(1, LONG).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    let free = of("free").len();
    assert!(free <= 6 && free + missed >= 6, "{free} of the plan that has 6 a day, {missed} missed");
    assert_eq!(site.api.count(), 60 + free);
    assert!(compare("pro", 60, &of("pro")).is_clean());
    // Both levels hold: the plan's 50/s, and the downstream's 100/s.
    let pro: Vec<u64> = of("pro").iter().map(|arrival| arrival.at).collect();
    count::assert_never_ahead(&pro, since, "50/s".parse().unwrap(), 2);
    count::assert_never_ahead(&site.api.stamps(), since, "100/s".parse().unwrap(), 2);
    let (reason, detail) = headers(&letters[0]);
    assert_eq!((letters[0].id(), reason), ("stray", "malformed-header"));
    assert!(detail.contains("send one of free, pro"), "{detail}");
    site.depth(&site.queue(), 0, LONG).await;
}

#[tokio::test]
async fn a_window_opens_for_both_replicas() {
    let limits = "limits = [{ algorithm = 'fixed-window', rate = '60/1s', anchor = 'first-hit' }]";
    let site = Site::shared("window", limits).await;
    let config = format!("{ADMIN}{}", site.config());
    let (first, second) = tokio::join!(Paced::spawn(&config), Paced::spawn(&config));
    let since = stamp();
    site.publish(Job::many("job", 150)).await;
    let arrivals = site.api.wait_for(150, LONG).await;
    for replica in [&first, &second] {
        assert!(counted(replica, "paced_jobs_released_total{downstream=\"billing\"}").await > 0.0);
    }
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    assert!(compare("job", 150, &arrivals).is_clean());
    assert_windows(&site.api.stamps(), since, Duration::from_secs(1), 60);
}

#[tokio::test]
async fn a_pipe_may_reject() {
    let api = Api::start();
    let lines: String = (0..30).map(|n| format!("{{\"id\": \"job-{n}\"}}\n")).collect();
    let args = ["pipe", "--rate", "1/m", "--on-limit", "reject", "--to", &api.url()];
    let output = run_cli(&args, lines.as_bytes()).await;
    assert_eq!((output.code, api.count()), (1, 1), "{}", output.stderr);
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for line in output.stdout.lines() {
        let outcome: Value = serde_json::from_str(line).unwrap();
        *outcomes.entry(format!("{} {}", outcome["outcome"], outcome["reason"])).or_default() += 1;
    }
    let expected = [("\"delivered\" null".to_owned(), 1), ("\"rejected\" \"rejected\"".to_owned(), 29)];
    assert_eq!(outcomes, BTreeMap::from(expected));
}
