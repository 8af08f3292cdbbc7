//! A queue is without a leader for long: what is to go there waits, and is published once or twice; all else continues.

use std::collections::BTreeMap;
use std::time::Duration;

use paced::time::wall_now;

use crate::LONG;
use crate::park::later;
use crate::rig::{REPLICAS, rest};
use crate::support::api::{Answer, Api, stamp};
use crate::support::daemon::Paced;
use crate::support::publish::{self, Job, drain, publish};
use crate::support::servers::{rabbit, redis};
use crate::support::site::Site;
use crate::support::until;
use crate::watch::nanos;

/// The name of a second downstream.
const OTHER: &str = "other";

/// The settings of a second downstream at this rate, for the table of the first one.
fn beside(api: &Api, rate: &str) -> String {
    let url = api.url();
    format!("[downstreams.{OTHER}]\nrate = '{rate}'\n[downstreams.{OTHER}.http]\nbase_url = '{url}'\n")
}

async fn replicas(site: &Site) -> Vec<Paced> {
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(site.replica().await);
    }
    replicas
}

async fn stop(replicas: &[Paced]) {
    for replica in replicas {
        assert_eq!(replica.stop().await, 0);
    }
}

/// The messages that are ready in a queue.
async fn depth(site: &Site, queue: &str) -> u32 {
    publish::depth(&site.amqp, queue).await.unwrap_or(0)
}

/// Takes every message out of a queue, and returns their ids.
async fn taken(site: &Site, queue: &str) -> Vec<String> {
    drain(&site.amqp, queue).await.iter().map(|taken| taken.id().to_owned()).collect()
}

/// The ids of the requests.
fn requested(api: &Api) -> Vec<String> {
    api.arrivals().iter().map(|arrival| arrival.id().to_owned()).collect()
}

/// How often each id with one of these stems is among these.
fn times(ids: &[String], stems: &[&str]) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for id in ids.iter().filter(|id| stems.iter().any(|stem| id.starts_with(stem))) {
        *times.entry(id.clone()).or_default() += 1;
    }
    times
}

/// Asserts that there are this many ids, each at most twice.
#[track_caller]
fn assert_at_most_twice(what: &str, times: &BTreeMap<String, usize>, count: usize) {
    let doubled = times.values().filter(|times| **times > 1).count();
    eprintln!("leaderless: {} of {count} {what}, {doubled} of them doubled", times.len());
    assert_eq!(times.len(), count, "{what}: {times:?}");
    assert!(times.values().all(|times| *times <= 2), "{what}: {times:?}");
}

/// The queue of the dead letters of one downstream has no leader for half a minute. Each letter of another downstream is in its
/// queue within a second of its request.
#[tokio::test]
async fn letters_of_others_go_on_beside_a_queue_without_a_leader() {
    const LETTERS: usize = 100;
    const OTHERS: u32 = 30;
    let api = Api::start();
    let downstream = format!("rate = '200/s'\n{}", beside(&api, "200/s"));
    let site = Site::on(rabbit().await, redis().await, "deadstuck", &downstream);
    site.api.rule(|_| Answer::status(400));
    api.rule(|_| Answer::status(400));
    let replicas = replicas(&site).await;
    // The channels of the first letter know its queue.
    site.publish(Job::many("first", 1)).await;
    site.depth(&site.dead_queue(), 1, LONG).await;
    let rabbit = rabbit().await;
    let member = rabbit.stop_member(&site.dead_queue()).await;
    site.publish(Job::many("job", LETTERS)).await;
    let letters = format!("{}.dead.{OTHER}", site.prefix);
    let mut longest = Duration::ZERO;
    for number in 0..OTHERS {
        publish(&site.amqp, &site.prefix, OTHER, vec![Job::new(format!("other-{number}"))]).await;
        site.depth(&letters, number + 1, LONG).await;
        let (there, sent) = (stamp(), api.arrivals().last().unwrap().at);
        longest = longest.max(Duration::from_nanos(there.saturating_sub(sent)));
        rest(Duration::from_secs(1)).await;
    }
    eprintln!("leaderless: a letter of another downstream is in its queue after {longest:?} at most");
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    rabbit.restart_member(&member).await;
    let all = u32::try_from(LETTERS).unwrap() + 1;
    until("all letters", LONG, async || depth(&site, &site.dead_queue()).await >= all).await;
    stop(&replicas).await;
    let dead = taken(&site, &site.dead_queue()).await;
    assert_at_most_twice("letters", &times(&dead, &["first", "job"]), LETTERS + 1);
    let is_named = |replica: &Paced| replica.log().iter().any(|line| line.contains("does not confirm"));
    assert!(replicas.iter().any(is_named), "the queue is named in the log");
}

/// The queues where jobs wait for a time and for a limit have no leader for three minutes: no job has more than two copies,
/// none is lost, and another downstream keeps its pace.
#[tokio::test]
async fn queues_of_parked_jobs_are_away_for_three_minutes() {
    const JOBS: usize = 200;
    const LIMITED: usize = 50;
    const OTHERS: usize = 12_000;
    const RATE: f64 = 50.0;
    const AWAY: Duration = Duration::from_secs(180);
    let api = Api::start();
    let plan =
        "[plans.free]\nlimits = [{ algorithm = 'fixed-window', anchor = 'first-hit', rate = '1/30d' }]";
    let downstream = format!("rate = '200/s'\nhold_max = '1s'\n{plan}\n{}", beside(&api, "50/s"));
    let site = Site::on(rabbit().await, redis().await, "rungstuck", &downstream);
    let replicas = replicas(&site).await;
    let of_plan = |job: Job| job.header("paced-plan", "free");
    let (rung, wait) = (format!("{}.park.8s", site.prefix), format!("{}.wait.billing.4096s", site.prefix));
    let soon = || wall_now().plus(Duration::from_secs(16));
    // Both queues are declared by now. The plan allows one job; it may miss its slot, and be parked too.
    site.publish(later("first", 1, soon())).await;
    site.publish(Job::many("plan", 2).into_iter().map(of_plan).collect()).await;
    until("both to be parked in", LONG, async || {
        depth(&site, &rung).await > 0 && depth(&site, &wait).await > 0
    })
    .await;
    let rabbit = rabbit().await;
    let members = [rabbit.stop_member(&rung).await, rabbit.stop_member(&wait).await];
    publish(&site.amqp, &site.prefix, OTHER, Job::many("other", OTHERS)).await;
    assert!(api.reaches(1, LONG).await);
    site.publish(later("job", JOBS, soon())).await;
    site.publish(Job::many("free", LIMITED).into_iter().map(of_plan).collect()).await;
    let began = rest(AWAY).await;
    let during = began..began + nanos(AWAY);
    for member in &members {
        rabbit.restart_member(member).await;
    }
    let others = api.stamps().into_iter().filter(|at| during.contains(at)).count();
    let part = others as f64 / (RATE * AWAY.as_secs_f64());
    eprintln!("leaderless: another downstream had {part:.3} of its pace meanwhile");
    assert!(part >= 0.98, "{part:.3}");

    let plan = ["free", "plan"];
    until("all jobs", LONG, async || times(&requested(&site.api), &["job"]).len() == JOBS).await;
    let home = format!("{}.home.billing", site.prefix);
    until("no job to be left but those of the plan", LONG, async || {
        let sent = times(&requested(&site.api), &plan).len();
        let left = depth(&site, &site.queue()).await + depth(&site, &home).await + depth(&site, &rung).await;
        left == 0 && depth(&site, &wait).await as usize + sent >= LIMITED + 2
    })
    .await;
    stop(&replicas).await;
    // What a replica still held is there again.
    let mut copies = requested(&site.api);
    for queue in [&site.queue(), &home, &rung, &wait] {
        copies.extend(taken(&site, queue).await);
    }
    assert_at_most_twice("jobs for a time", &times(&copies, &["job"]), JOBS);
    assert_at_most_twice("jobs of the plan", &times(&copies, &plan), LIMITED + 2);
    let others = times(&requested(&api), &[OTHER]);
    assert!(others.values().all(|times| *times == 1), "{others:?}");
}
