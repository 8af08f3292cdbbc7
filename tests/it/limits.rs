//! Limits of every kind at the API: several at once, policing, and plans.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::park::parked;
use crate::support::api::{Answer, Api};
use crate::support::count;
use crate::support::daemon::{Paced, run_cli};
use crate::support::publish::{Job, Taken, drain};
use crate::support::site::{Site, compare, slots_missed};
use crate::support::until;

const LONG: Duration = Duration::from_secs(60);

/// The configuration of replicas whose metrics are read.
const ADMIN: &str = "admin.listen = '127.0.0.1:0'\n";

/// The delay that a busy machine may add. The benchmarks measure exact figures.
const NOISE: Duration = Duration::from_millis(150);

/// Panics if more than `most` requests arrived in any window that is shorter than `window` by the noise, or many more
/// in a whole one.
#[track_caller]
fn assert_window(stamps: &[u64], window: Duration, most: usize) {
    let (within, whole) = (count::busiest(stamps, window - NOISE), count::busiest(stamps, window));
    assert!(within <= most, "{within} in {window:?} less {NOISE:?}, at most {most}");
    assert!(whole <= most + 3, "{whole} in {window:?}, at most {most} and what is late");
}

/// The time from the first stamp to the one at this index.
fn after(stamps: &[u64], place: usize) -> Duration {
    Duration::from_nanos(stamps[place] - stamps[0])
}

#[tokio::test]
async fn two_limits_hold_at_once_over_two_replicas() {
    let limits = "rate = '30/s'\nlimits = [{ algorithm = 'sliding-log', rate = '50/5s' }]";
    let site = Site::shared("both", limits).await;
    let config = format!("{ADMIN}{}", site.config());
    let (first, second) = tokio::join!(Paced::spawn(&config), Paced::spawn(&config));
    site.publish(Job::many("job", 130)).await;
    let arrivals = site.api.wait_for(130, LONG).await;
    let missed = slots_missed(&[&first, &second]).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    assert!(compare("job", 130, &arrivals).is_clean());
    let stamps = site.api.stamps();
    assert_window(&stamps, Duration::from_secs(1), 30);
    assert_window(&stamps, Duration::from_secs(5), 50);
    // First the shaper determines the slots, one in 33.3 ms; then the log does, until the first of the 50 are 5 s old.
    count::assert_paced(&stamps, "30/s".parse().unwrap(), NOISE);
    // A slot that is missed still counts, so the job that takes its place comes later.
    for (place, slot) in [(49, 1633), (50, 5000), (100, 10_000)] {
        let slot = Duration::from_millis(slot);
        let (at, at_least) = (after(&stamps, place), after(&stamps, place.saturating_sub(missed)));
        let told = format!("{at:?}, not {slot:?}, {missed} missed");
        assert!(at >= slot - NOISE && at_least < slot + Duration::from_secs(1), "{told}");
    }
}

#[tokio::test]
async fn three_a_second_and_a_hundred_a_minute_hold_at_once() {
    let limits = "rate = '3/s'\nlimits = [{ algorithm = 'sliding-log', rate = '100/minute' }]";
    let site = Site::shared("minute", limits).await;
    let config = format!("{ADMIN}{}", site.config());
    let (first, second) = tokio::join!(Paced::spawn(&config), Paced::spawn(&config));
    site.publish(Job::many("job", 110)).await;
    let missed = site.used_up(100, &[&first, &second], LONG).await;
    let used = 100 - missed;
    // At 3/s alone, 12 more would be released in this time.
    assert!(
        !site.api.reaches(used + 1, Duration::from_secs(4)).await,
        "over 100, {missed} of them missed, in {:?}",
        after(&site.api.stamps(), used)
    );
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    let stamps = site.api.stamps();
    assert_window(&stamps, Duration::from_secs(1), 3);
    assert_window(&stamps, Duration::from_secs(60), 100);
    let all = after(&stamps, used - 1);
    let least = Duration::from_secs(33) - u32::try_from(missed).unwrap() * Duration::from_millis(334) - NOISE;
    assert!(all >= least && all < Duration::from_secs(36), "100 at 3/s, {missed} of them missed: {all:?}");
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
    site.publish(Job::many("job", 400)).await;
    site.depth(&site.queue(), 0, LONG).await;
    let settled = |arrived: usize| u32::try_from(400 - arrived).unwrap();
    // Every job has arrived or is a dead letter: this waits until both numbers agree.
    let mut letters = Vec::new();
    for _ in 0..600 {
        letters.extend(drain(&site.amqp, &site.dead_queue()).await);
        if letters.len() + site.api.count() >= 400 {
            break;
        }
        site.api.reaches(site.api.count() + 1, Duration::from_millis(100)).await;
    }
    let arrivals = site.api.arrivals();
    assert_eq!(u32::try_from(letters.len()).unwrap(), settled(arrivals.len()));
    let ids: BTreeSet<&str> =
        arrivals.iter().map(|arrival| arrival.id()).chain(letters.iter().map(Taken::id)).collect();
    assert_eq!(ids.len(), 400, "allowed and rejected are all, each once");
    let stamps = site.api.stamps();
    assert!(arrivals.len() >= 40, "{} in a burst of 40", arrivals.len());
    let most = 40 + count::allowed_with("20/s".parse().unwrap(), count::span(&stamps), NOISE);
    assert!(arrivals.len() <= most, "{} in {:?}", arrivals.len(), count::span(&stamps));
    for letter in &letters {
        let (reason, detail) = headers(letter);
        assert_eq!((reason, letter.headers["paced-attempts"].as_str()), ("rejected", "0"));
        assert!(detail.starts_with("the limit `gcra-0` is used up; it allows this job from 20"), "{detail}");
    }
    let mut rejected = 0.0;
    for replica in [&first, &second] {
        rejected +=
            counted(replica, "paced_jobs_rejected_total{downstream=\"billing\",reason=\"rejected\"}").await;
        assert!(
            counted(replica, "paced_store_roundtrip_seconds_count{downstream=\"billing\",op=\"check\"}")
                .await
                > 0.0
        );
        assert_eq!(replica.stop().await, 0);
    }
    assert_eq!(rejected, f64::from(settled(arrivals.len())));
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
    let pro = Job::many("pro", 120).into_iter().enumerate().map(|(place, job)| {
        // Every other job is on the default plan.
        if place % 2 == 0 { job.header("paced-plan", "pro") } else { job }
    });
    let stray = Job::new("stray").header("paced-plan", "gold");
    site.publish(free.chain(pro).chain([stray]).collect()).await;
    let of = |plan: &str| {
        let arrivals = site.api.arrivals();
        arrivals.into_iter().filter(|arrival| arrival.id().starts_with(plan)).collect::<Vec<_>>()
    };
    // A slot of the exhausted plan that was missed is lost.
    until("every job that may go has arrived", LONG, async || {
        let missed = slots_missed(&[&first, &second]).await;
        of("pro").len() == 120 && of("free").len() + missed >= 6
    })
    .await;
    let letters = site.dead(1, LONG).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    let free = of("free").len();
    assert!(free <= 6 && site.api.count() == 120 + free, "{free} of the plan that has 6 a day");
    assert!(compare("pro", 120, &of("pro")).is_clean());
    // Both levels hold: the plan's 50/s, and the downstream's 100/s.
    let pro: Vec<u64> = of("pro").iter().map(|arrival| arrival.at).collect();
    count::assert_paced(&pro, "50/s".parse().unwrap(), NOISE);
    count::assert_paced(&site.api.stamps(), "100/s".parse().unwrap(), NOISE);
    let span = count::span(&pro);
    assert!(span >= Duration::from_millis(2380) - NOISE && span < Duration::from_millis(3600), "{span:?}");
    let (reason, detail) = headers(&letters[0]);
    assert_eq!((letters[0].id(), reason), ("stray", "malformed-header"));
    assert!(detail.contains("send one of free, pro"), "{detail}");
    let waiting = u32::try_from(60 - free).unwrap();
    until("the others to be parked", LONG, async || parked(&site).await == waiting).await;
    site.depth(&site.queue(), 0, LONG).await;
}

#[tokio::test]
async fn a_window_opens_for_both_replicas() {
    let limits = "limits = [{ algorithm = 'fixed-window', rate = '60/2s', anchor = 'first-hit' }]";
    let site = Site::shared("window", limits).await;
    let config = format!("{ADMIN}{}", site.config());
    let (first, second) = tokio::join!(Paced::spawn(&config), Paced::spawn(&config));
    site.publish(Job::many("job", 150)).await;
    let arrivals = site.api.wait_for(150, LONG).await;
    let missed = slots_missed(&[&first, &second]).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    assert!(compare("job", 150, &arrivals).is_clean());
    let stamps = site.api.stamps();
    // In each window 60 arrive soon after its beginning, except for slots that were missed.
    let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
    for place in 0..stamps.len() {
        let after = (after(&stamps, place) + NOISE).as_millis();
        assert!(after % 2000 < 1000 + NOISE.as_millis(), "{after} ms");
        *counts.entry(after / 2000).or_default() += 1;
    }
    assert!(counts.values().all(|count| *count <= 60), "{counts:?}");
    assert!(counts[&0] + counts[&1] + missed >= 120, "{counts:?}, {missed} missed");
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
