//! Limits of every kind at the API: several at once, policing, and plans.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lapin::types::AMQPValue;
use serde_json::Value;

use crate::pace::{begin_at_once, slots};
use crate::park::parked;
use crate::support::api::{Answer, Api, stamp};
use crate::support::count;
use crate::support::daemon::{Paced, run_cli};
use crate::support::publish::{Job, Taken, drain};
use crate::support::site::{Site, compare, slots_missed};
use crate::support::{LONG, until};

/// The configuration of replicas whose metrics are read.
const ADMIN: &str = "admin.listen = '127.0.0.1:0'\n";

/// A second in us.
const SECOND: u64 = 1_000_000;

/// Runs `count` jobs through two replicas of this site, each of which takes half of them. All wait before the first slot
/// is granted, and every slot is granted long before it comes: so the slots do not depend on when a job arrived. Returns
/// the slots, and how many more were missed.
async fn shared_slots(site: &mut Site, count: usize) -> (Vec<u64>, usize) {
    let prefetch = count / 2;
    site.downstream.insert_str(0, &format!("horizon = '10s'\nqueue.prefetch = {prefetch}\n"));
    let [first, second] = begin_at_once(site, prefetch, || Job::many("job", count)).await;
    let arrivals = site.api.wait_for(count, LONG).await;
    assert!(compare("job", count, &arrivals).is_clean());
    let missed = slots_missed(&[&first, &second]).await;
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    for replica in [&first, &second] {
        assert!(!slots(&[replica]).is_empty(), "both send");
    }
    let slots = slots(&[&first, &second]);
    assert_eq!(slots.len(), count);
    (slots, missed)
}

/// Asserts that the slots are those of `due`, us after the first slot, but for as many as were missed: each of these is
/// not among the slots, and its job has a later one.
#[track_caller]
fn assert_due(slots: &[u64], due: impl Fn(u64) -> u64, missed: usize) {
    let most = u64::try_from(slots.len() + missed).unwrap();
    // As many as were missed may lie before the first one that was used.
    let is_due = |place: u64| {
        let first = slots[0] - due(place);
        let all: BTreeSet<u64> = (0..most).map(|place| first + due(place)).collect();
        slots.iter().filter(|slot| !all.contains(slot)).count() <= missed
    };
    let after: Vec<u64> = slots.iter().map(|slot| slot - slots[0]).collect();
    let missed_first = u64::try_from(missed).unwrap();
    assert!((0..=missed_first).any(is_due), "{after:?}, {missed} missed");
}

#[tokio::test]
async fn two_limits_hold_at_once_over_two_replicas() {
    let limits = "rate = '40/s'\nlimits = [{ algorithm = 'sliding-log', rate = '20/1s' }]";
    let mut site = Site::shared("both", limits).await;
    let (slots, missed) = shared_slots(&mut site, 60).await;
    // First the shaper determines the slots, one in 25 ms; then the log does, until the first of the 20 are 1 s old.
    assert!(slots.windows(2).all(|pair| pair[1] - pair[0] >= SECOND / 40), "{slots:?}");
    assert!(slots.windows(21).all(|all| all[20] - all[0] >= SECOND), "{slots:?}");
    assert_due(&slots, |place| place / 20 * SECOND + place % 20 * SECOND / 40, missed);
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

/// The number of jobs in each window from this instant on, and how many jobs of all but the first lie behind its edge.
fn in_windows(slots: &[u64], first: u64) -> (BTreeMap<u64, usize>, usize) {
    let (mut counts, mut late) = (BTreeMap::new(), 0);
    for slot in slots {
        let (window, after) = ((slot - first) / SECOND, (slot - first) % SECOND);
        *counts.entry(window).or_default() += 1;
        late += usize::from(window > 0 && after > 0);
    }
    (counts, late)
}

#[tokio::test]
async fn a_window_opens_for_both_replicas() {
    let limits = "limits = [{ algorithm = 'fixed-window', rate = '60/1s', anchor = 'first-hit' }]";
    let mut site = Site::shared("window", limits).await;
    let (slots, missed) = shared_slots(&mut site, 150).await;
    // The first slot begins the first window; where some were missed, it may be one of these. Every other window is used
    // up at its edge, except by jobs whose slot was missed.
    let edges = slots.iter().map(|slot| slots[0] - (SECOND - (slot - slots[0]) % SECOND) % SECOND);
    let firsts = edges.filter(|first| missed > 0 || *first == slots[0]);
    let mut windows = firsts.map(|first| in_windows(&slots, first));
    let is_whole = |counts: &BTreeMap<u64, usize>| {
        let full = counts.get(&0).unwrap_or(&0) + counts.get(&1).unwrap_or(&0);
        counts.values().all(|count| *count <= 60) && full + missed >= 120
    };
    assert!(
        windows.any(|(counts, late)| is_whole(&counts) && late <= missed),
        "{:?}, {missed} missed",
        in_windows(&slots, slots[0])
    );
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

/// Each limit counts jobs by its own cost, over replicas: 20 of 1500 tokens and 5 of the default fill both limits.
#[tokio::test]
async fn requests_and_tokens_are_limited_together() {
    let limits = "on_limit = 'reject'
        limits = [
            { algorithm = 'quota', rate = '25/d', name = 'requests', cost = 1 },
            { algorithm = 'quota', rate = '30500/d', name = 'tokens', cost = 'header:tokens', default_cost = 100 },
        ]";
    let site = Site::shared("tokens", limits).await;
    let [first, second] = [site.replica().await, site.replica().await];
    let costly =
        Job::many("costly", 20).into_iter().map(|job| job.header_value("tokens", AMQPValue::LongInt(1500)));
    site.publish(costly.collect()).await;
    site.api.wait_for(20, LONG).await;
    // 500 tokens and 5 requests are left: the first costs too much, the second is one too many for what a job may cost.
    site.publish(vec![
        Job::new("rejected").header("tokens", "501"),
        Job::new("too-costly").header_value("tokens", AMQPValue::LongInt(30_501)),
        Job::new("own").header("paced-cost-tokens", "100").header("tokens", "9999"),
    ])
    .await;
    site.api.wait_for(21, LONG).await;
    site.publish(Job::many("cheap", 5)).await;
    let mut letters = Vec::new();
    until("every job is there or dead", LONG, async || {
        letters.extend(drain(&site.amqp, &site.dead_queue()).await);
        letters.len() + site.api.count() >= 28
    })
    .await;
    let reasons: BTreeMap<&str, &str> =
        letters.iter().map(|letter| (letter.id(), letter.headers["paced-reason"].as_str())).collect();
    assert_eq!((reasons["rejected"], reasons["too-costly"]), ("rejected", "cost-too-large"));
    assert_eq!((site.api.count(), letters.len()), (25, 3), "{reasons:?}");
    let check = site.cli(&["check"]).await;
    for line in
        ["limit requests: cost 1, max_cost 25", "limit tokens: cost header:tokens (or 100), max_cost 30500"]
    {
        assert!(check.stdout.contains(line), "{line}: {}", check.stdout);
    }
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
}
