//! Jobs that wait in the broker for long.

use std::time::Duration;

use lapin::types::AMQPValue;
use paced::time::{Micros, wall_now};

use crate::LONG;
use crate::rig::{Chaos, RATE, REPLICAS, Rig};
use crate::support::api::{Answer, stamp};
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::servers::{Rabbit, Redis, rabbit, redis};
use crate::support::site::{Site, compare};

/// Jobs that must not go before this instant.
pub(crate) fn later(stem: &str, count: usize, at: Micros) -> Vec<Job> {
    let not_before = |job: Job| job.header_value("paced-not-before", AMQPValue::LongLongInt(at.0 / 1000));
    Job::many(stem, count).into_iter().map(not_before).collect()
}

/// The lateness that only one in a hundred exceeds.
fn p99(mut late: Vec<Duration>) -> Duration {
    late.sort_unstable();
    late[late.len() * 99 / 100 - 1]
}

/// Jobs for 1 s, 5 s and 75 s from now, on a downstream that has nothing else to do: none is early, and they are late
/// by less than 250 ms.
#[tokio::test]
async fn delays_are_kept() {
    keeps_delays("delays", "rate = '1000/s'", [1, 5, 75]).await;
}

/// The same for jobs that are held for a second at most, so that each of them comes back from the ladder of parking, and
/// most of them several times.
#[tokio::test]
async fn delays_are_kept_by_the_ladder() {
    let stays = keeps_delays("ladder", "rate = '1000/s'\nhold_max = '1s'", [3, 9, 24]).await;
    assert!(stays >= 4 * DELAYED, "{stays} stays");
}

/// The jobs of each delay.
const DELAYED: usize = 200;

/// Sends jobs for these seconds from now; returns how often one was parked.
async fn keeps_delays(name: &str, downstream: &str, seconds: [u64; 3]) -> usize {
    let site = Site::on(rabbit().await, redis().await, name, downstream);
    let replica = Paced::spawn(&format!("admin.listen = '127.0.0.1:0'\n{}", site.config())).await;
    let delays = seconds.map(Duration::from_secs);
    let start = wall_now();
    // Spread over two seconds, so that they need not wait for each other.
    let spread = |n: usize| Duration::from_millis(10 * u64::try_from(n).unwrap());
    for delay in delays {
        let jobs = (0..DELAYED).flat_map(|n| {
            let at = start.plus(delay + spread(n));
            later("job", 1, at).into_iter().map(move |job| Job { id: Some(format!("{delay:?}-{n}")), ..job })
        });
        site.publish(jobs.collect()).await;
    }
    let arrivals = site.api.wait_for(3 * DELAYED, LONG).await;
    for delay in delays {
        let late: Vec<Duration> = (0..DELAYED)
            .map(|n| {
                let id = format!("{delay:?}-{n}");
                let mut of = arrivals.iter().filter(|arrival| arrival.id() == id);
                let (arrival, at) = (of.next().unwrap(), start.plus(delay + spread(n)));
                assert!(of.next().is_none(), "{id} came twice");
                assert!(arrival.wall.0 >= at.0 / 1000 * 1000, "{id} is early");
                arrival.wall.since(at)
            })
            .collect();
        let late = p99(late);
        eprintln!("{name}: after {delay:?} late by {late:?} at the 99th percentile");
        assert!(late < Duration::from_millis(250), "after {delay:?} late by {late:?}");
    }
    let metrics = replica.metrics().await;
    assert_eq!(replica.stop().await, 0);
    let series = "paced_jobs_settled_total{downstream=\"billing\",outcome=\"parked\"} ";
    let stays = metrics.lines().find_map(|line| line.strip_prefix(series)).unwrap().parse().unwrap();
    eprintln!("{name}: {stays} stays of {} jobs", 3 * DELAYED);
    stays
}

/// 5 000 jobs for 55 s from now lie before 100 for now, ten more of which always fail: the 100 are out within 3 s, however
/// long a job may be held, and the others go in time.
#[tokio::test]
async fn jobs_for_soon_hold_up_nobody() {
    const SOON: usize = 5000;
    for hold_max in ["60s", "10m"] {
        let downstream =
            format!("rate = '200/s'\nhold_max = '{hold_max}'\n[downstreams.billing.retry]\nmax_attempts = 3");
        let site = Site::on(rabbit().await, redis().await, "soon", &downstream);
        let fails = |id: &str| id.starts_with("bad");
        site.api.rule(move |arrival| if fails(arrival.id()) { Answer::status(500) } else { Answer::ok() });
        site.declare().await;
        let at = wall_now().plus(Duration::from_secs(55));
        site.publish(later("soon", SOON, at)).await;
        for number in 0..10 {
            site.publish(Job::many(&format!("bad{number}"), 1)).await;
            site.publish(Job::many(&format!("now{number}"), 10)).await;
        }
        let replica = Paced::spawn(&format!("admin.listen = '127.0.0.1:0'\n{}", site.config())).await;
        let ready = stamp();
        let of = |stem: &'static str| {
            let arrivals = site.api.arrivals().into_iter();
            arrivals.filter(move |arrival| arrival.id().starts_with(stem)).collect::<Vec<_>>()
        };
        crate::support::eventually("the jobs for now", LONG, || of("now").len() >= 100).await;
        let last = of("now").iter().map(|arrival| arrival.at).max().unwrap();
        let out = Duration::from_nanos(last.saturating_sub(ready));
        eprintln!("soon: 100 jobs behind {SOON} are out after {out:?} with hold_max = {hold_max}");
        assert!(out < Duration::from_secs(3), "{out:?}");
        crate::support::eventually("the jobs for soon", LONG, || of("soon").len() >= SOON).await;
        let missed = replica.slots_missed().await;
        assert_eq!(replica.stop().await, 0);
        let soon = of("soon");
        assert!(compare("soon", SOON, &soon).is_clean());
        assert!(soon.iter().all(|arrival| arrival.wall.0 >= at.0 / 1000 * 1000), "one is early");
        let span = Duration::from_nanos(soon[SOON - 1].at - soon[0].at).as_secs_f64();
        let (rate, after) = ((SOON - 1) as f64 / span, soon[0].wall.since(at));
        eprintln!(
            "soon: {SOON} jobs at {rate:.1}/s from {after:?} after their time on; {missed} slots were missed"
        );
        // What a busy machine misses, nothing makes up for.
        let taken = (SOON + missed) as f64 / span;
        assert!((196.0..=204.0).contains(&taken), "{rate:.1}/s, and {missed} slots missed in {span:.1} s");
    }
}

/// 10 000 jobs for the same time: broker, store and all replicas are restarted meanwhile. They all come home, and while
/// they do the pace is whole.
#[tokio::test]
async fn parked_jobs_survive_a_restart_of_everything() {
    const JOBS: usize = 10_000;
    // A pace that debug builds keep on two slow cores.
    const RATE: f64 = 500.0;
    let (rabbit, redis) = (Rabbit::dedicated().await, Redis::dedicated().await);
    let downstream = "rate = '500/s'\nhold_max = '1s'";
    let site = Site::on(&rabbit, &redis, "restarted", downstream);
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(site.replica().await);
    }
    let at = wall_now().plus(Duration::from_secs(45));
    site.publish(later("job", JOBS, at)).await;
    site.depth(&site.queue(), 0, LONG).await;
    for replica in replicas {
        assert_eq!(replica.stop().await, 0);
    }
    redis.kill().await;
    rabbit.kill().await;
    rabbit.start().await;
    redis.wipe().await;
    redis.start().await;
    assert!(wall_now() < at, "the restart took too long for this test");
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(site.replica().await);
    }
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    for replica in &replicas {
        assert_eq!(replica.stop().await, 0);
    }
    let arrivals = if arrivals.len() > JOBS { arrivals } else { site.api.arrivals() };
    let tally = compare("job", JOBS, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
    assert!(arrivals.iter().all(|arrival| arrival.wall >= at), "one is early");
    let (first, last) = (arrivals[0].at, arrivals[JOBS - 1].at);
    let span = Duration::from_nanos(last - first).as_secs_f64();
    let rate = (JOBS - 1) as f64 / span;
    let after = arrivals[0].wall.since(at);
    eprintln!("restarted: {JOBS} jobs at {rate:.1}/s from {after:?} after their time on");
    assert!((rate - RATE).abs() <= RATE * 0.02, "{rate:.1}/s");
}

/// The API throttles for long: nothing is sent in the pauses that it asks for, and no job is dead.
#[tokio::test]
async fn nothing_is_sent_in_long_pauses_and_no_job_is_dead() {
    const JOBS: usize = 200;
    const PAUSES: usize = 10;
    let redis = Redis::dedicated().await;
    let pause = Duration::from_secs(3);
    let downstream = "rate = '200/s'\nhold_max = '1s'\n[downstreams.billing.retry]\nmax_attempts = 2";
    let rig = Rig::with(Chaos::begin("pauses"), downstream, [&redis.url(); REPLICAS]).await;
    // An attempt that is answered so may be on its way in other replicas too, but none begins later.
    let asked = std::sync::Mutex::new((0_usize, 0_u64));
    let (grace, length) = (200_000_000, u64::try_from(pause.as_nanos()).unwrap());
    let early = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = std::sync::Arc::clone(&early);
    // The jobs that were answered 200.
    let taken = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let ok = std::sync::Arc::clone(&taken);
    rig.site.api.rule(move |arrival| {
        let mut asked = asked.lock().unwrap();
        let (count, since) = *asked;
        if arrival.at >= since + length || since == 0 {
            if count == PAUSES {
                ok.lock().unwrap().push(arrival.id().to_owned());
                return Answer::ok();
            }
            *asked = (count + 1, arrival.at);
        } else if arrival.at > since + grace {
            noted.lock().unwrap().push(Duration::from_nanos(arrival.at - since));
        }
        Answer::status(429).header("retry-after", pause.as_secs())
    });
    rig.publish_some(JOBS).await;
    let dead = rig.site.dead_queue();
    let site_amqp = rig.site.amqp.clone();
    crate::support::until("all jobs", LONG, async || {
        taken.lock().unwrap().len() >= JOBS
            && rig.site.api.count() >= JOBS + PAUSES
            && crate::support::publish::depth(&site_amqp, &rig.site.queue()).await == Some(0)
            && rig.site.api.in_flight() == 0
    })
    .await;
    assert_eq!(crate::support::publish::depth(&site_amqp, &dead).await, Some(0));
    let early = std::mem::take(&mut *early.lock().unwrap());
    assert!(early.is_empty(), "sent in a pause: {early:?}");
    for replica in &rig.replicas {
        assert_eq!(Paced::stop(replica).await, 0);
    }
    // All replicas have ended, so that no job is sent any more.
    let taken = std::mem::take(&mut *taken.lock().unwrap());
    let ids: std::collections::BTreeSet<&str> = taken.iter().map(String::as_str).collect();
    assert_eq!((ids.len(), taken.len()), (JOBS, JOBS), "each is delivered, once");
}

/// The API fails during three rolling restarts: each job is tried as often as it may be, and no more.
#[tokio::test]
async fn attempts_are_bounded_over_rolling_restarts() {
    const JOBS: usize = 100;
    let redis = Redis::dedicated().await;
    let downstream = "rate = '200/s'\nhold_max = '1s'\n[downstreams.billing.retry]\nmax_attempts = 6\n\
                      min_backoff = '2s'\nmax_backoff = '3s'";
    let mut rig = Rig::with(Chaos::begin("attempts"), downstream, [&redis.url(); REPLICAS]).await;
    rig.site.api.rule(|_| Answer::status(500));
    rig.publish_some(JOBS).await;
    rig.reach(JOBS).await;
    for _ in 0..3 {
        for number in 0..REPLICAS {
            rig.replace(number).await;
        }
    }
    let dead = rig.site.dead_queue();
    rig.site.depth(&dead, u32::try_from(JOBS).unwrap(), LONG).await;
    let run = rig.end(JOBS).await;
    for number in 0..JOBS {
        let id = format!("job-{number}");
        let sent = run.arrivals.iter().filter(|arrival| arrival.id() == id).count();
        assert_eq!(sent, 6, "{id}; {run}");
    }
}

/// 900 jobs of a plan that is used up are parked. After a reset of its count the next 100 go within 5 s, and after its limit was
/// raised all others, at the pace of their downstream; each goes once.
#[tokio::test]
async fn parked_jobs_of_a_plan_go_soon_after_a_change() {
    const JOBS: usize = 1000;
    const QUOTA: usize = 100;
    const SOON: Duration = Duration::from_secs(5);
    let redis = Redis::dedicated().await;
    let limit =
        format!("algorithm = 'fixed-window', anchor = 'first-hit', rate = '{QUOTA}/30d', name = 'monthly'");
    let downstream = format!("rate = '{RATE}'\n[plans.free]\nlimits = [{{ {limit} }}]");
    let rig = Rig::with(Chaos::begin("changes"), &downstream, [&redis.url(); REPLICAS]).await;
    let of_plan = |job: Job| job.header("paced-plan", "free");
    rig.site.publish(Job::many("job", JOBS).into_iter().map(of_plan).collect()).await;
    all_but_those_sent_are_parked(&rig, JOBS).await;
    let before = rig.site.api.count();

    let changed = stamp();
    rig.cli(&["reset", "billing", "--yes", "--reason", "chaos"]).await;
    let replicas: Vec<&Paced> = rig.replicas.iter().collect();
    rig.site.used_up(2 * QUOTA, &replicas, LONG).await;
    let took = since(&rig, changed);
    let sent = rig.site.api.count() - before;
    eprintln!("changes: {sent} jobs are out {took:?} after a reset");
    assert!(sent > QUOTA / 2 && took < SOON, "{sent} after {took:?}");

    all_but_those_sent_are_parked(&rig, JOBS).await;
    let left = JOBS - rig.site.api.count();
    let changed = stamp();
    rig.cli(&["rate", "set", "billing", "10000/30d", "--limit", "plan.free.monthly", "--reason", "chaos"])
        .await;
    rig.reach(JOBS).await;
    let took = since(&rig, changed);
    eprintln!("changes: {left} jobs are out {took:?} after their limit was raised");
    let pace = rig.rate.interval() * u32::try_from(left).unwrap();
    assert!(took < SOON + pace, "{left} after {took:?}");
    let run = rig.end(JOBS).await;
    run.assert_once();
    run.assert_paced();
}

/// Waits until every job of a plan is parked that was not sent.
async fn all_but_those_sent_are_parked(rig: &Rig, jobs: usize) {
    crate::support::until("the others to be parked", LONG, async || {
        let mut waiting = 0;
        for seconds in [4, 16, 64, 256, 1024, 4096] {
            let queue = format!("{}.wait.billing.{seconds}s", rig.site.prefix);
            waiting += crate::support::publish::depth(&rig.site.amqp, &queue).await.unwrap_or(0);
        }
        waiting as usize + rig.site.api.count() == jobs
    })
    .await;
}

/// The time from then to the last request.
fn since(rig: &Rig, then: u64) -> Duration {
    let last = rig.site.api.stamps().last().copied().unwrap();
    Duration::from_nanos(last.saturating_sub(then))
}
