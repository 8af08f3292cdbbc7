//! Faults that are no job's: a replica that cannot reach the API, an API that is away, credentials that are refused, a
//! store that refuses for a while. No job is dead-lettered for these, and unaffected replicas continue.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use tokio::time::Instant;

use crate::support::api::{Answer, Api, Arrival};
use crate::support::daemon::Paced;
use crate::support::publish::{self, Job};
use crate::support::servers::{Redis, rabbit};
use crate::support::site::{Site, compare};
use crate::support::{apart, eventually, scaled};

const LONG: Duration = Duration::from_secs(60);

fn secs(stamps: &[u64]) -> f64 {
    let (first, last) = (stamps[0], stamps[stamps.len() - 1]);
    Duration::from_nanos(last - first).as_secs_f64()
}

fn halts(replica: &Paced) -> usize {
    replica.log().iter().filter(|line| line.contains("cannot be reached from here")).count()
}

fn went_on(replica: &Paced) -> usize {
    replica.log().iter().filter(|line| line.contains("can be used again")).count()
}

/// Stops the API; its port stays closed until [`back`].
fn away(site: &mut Site) -> (u16, Vec<Arrival>) {
    let gone = std::mem::replace(&mut site.api, Api::start());
    (gone.port(), gone.end())
}

async fn back(site: &mut Site, port: u16) {
    let started = crate::support::poll(LONG, || async { Api::try_start(port).ok() }).await;
    site.api = started.expect("the port of the API that went away");
}

fn ids(arrivals: &[Arrival]) -> BTreeSet<String> {
    arrivals.iter().map(|arrival| arrival.id().to_owned()).collect()
}

#[tokio::test]
async fn a_replica_without_a_way_to_the_api_leaves_the_pace_to_the_others() {
    const JOBS: usize = 300;
    let site = Site::shared("egress", "rate = '50/s'\nqueue.prefetch = 100").await;
    let closed = "downstreams.billing.http.base_url=http://127.0.0.1:1/";
    let (config, args) = (site.config(), ["--set", closed]);
    let (good, bad) = tokio::join!(site.replica(), Paced::start(&config, &args, &[]));
    bad.wait_ready().await;
    site.publish(Job::many("job", JOBS)).await;
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert_eq!((halts(&bad), went_on(&bad), halts(&good)), (1, 0, 0), "{}", bad.log().join("\n"));
    assert_eq!((good.stop().await, bad.stop().await), (0, 0));
    let tally = compare("job", JOBS, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
    site.depth(&site.dead_queue(), 0, LONG).await;
    site.depth(&site.queue(), 0, LONG).await;
    // At first it takes slots, until it has noticed that it cannot use them.
    let stamps = &site.api.stamps()[JOBS / 5..];
    let share = f64::from(u32::try_from(stamps.len() - 1).unwrap()) / secs(stamps) / 50.0;
    println!("{:.1} % of the pace by the other replica", share * 100.0);
    assert!(share >= 0.95, "{share} of the pace");
}

#[tokio::test]
async fn an_api_that_is_away_for_a_while_costs_no_job_and_then_the_pace_is_there_at_once() {
    const JOBS: usize = 600;
    let outage = Duration::from_secs(scaled("PACED_OUTAGE_SECONDS", 3).into());
    let mut site = Site::shared("outage", "rate = '100/s'\nretry.max_attempts = 2").await;
    let (first, second) = tokio::join!(site.replica(), site.replica());
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(100, LONG).await;
    let (port, before) = away(&mut site);
    let start = Instant::now();
    eventually("both replicas stop", LONG, || halts(&first) == 1 && halts(&second) == 1).await;
    tokio::time::sleep_until(start + outage).await;
    back(&mut site, port).await;
    let up = Instant::now();
    site.api.wait_for(1, LONG).await;
    let first_after = up.elapsed();
    let left = || {
        let mut all = ids(&before);
        all.extend(ids(&site.api.arrivals()));
        JOBS - all.len()
    };
    eventually("every job arrives", LONG, || left() == 0).await;
    let all = up.elapsed();
    let rest = site.api.count();
    println!("away for {outage:?}: the first job after {first_after:?}, the other {rest} within {all:?}");
    assert!(first_after < Duration::from_millis(2500), "{first_after:?}");
    let paced = Duration::from_millis(10) * u32::try_from(rest).unwrap();
    assert!(all < first_after + paced + Duration::from_secs(2), "{rest} in {all:?}");
    assert_eq!((first.stop().await, second.stop().await), (0, 0));
    site.depth(&site.dead_queue(), 0, LONG).await;
    site.depth(&site.queue(), 0, LONG).await;
}

/// Declares a quorum queue as other programs do, from which the broker drops messages that came back too often.
async fn foreign_queue(url: &str, name: &str, limit: i64) {
    let (url, name) = (url.to_owned(), name.to_owned());
    apart(async move {
        let (connection, channel) = publish::open(&url).await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(limit));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name.as_str().into(), options, arguments).await.unwrap();
        connection.close(200, "done".into()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn outages_lose_nothing_of_a_foreign_queue_with_a_delivery_limit() {
    let outages = usize::try_from(scaled("PACED_OUTAGES", 8)).unwrap();
    let limit = i64::from(scaled("PACED_DELIVERY_LIMIT", 3));
    // Most jobs are there from the start and come back again and again; however slow this machine is, there are others
    // that an outage affects, and that come after it.
    let (first, more) = (outages * 40, 20);
    let jobs = first + outages * more;
    let mut site = Site::shared("foreign", "").await;
    let queue = format!("{}.foreign", site.prefix);
    foreign_queue(&site.amqp, &queue, limit).await;
    site.downstream =
        format!("rate = '200/s'\nqueue.name = '{queue}'\nqueue.prefetch = 200\nretry.max_attempts = 1000");
    let replica = site.replica().await;
    publish::publish_to(&site.amqp, "", &queue, Job::many("job", first)).await;
    let mut arrived = BTreeSet::new();
    for outage in 1..=outages {
        site.api.wait_for(10, LONG).await;
        let (port, before) = away(&mut site);
        arrived.extend(ids(&before));
        publish::publish_to(&site.amqp, "", &queue, Job::many(&format!("more-{outage}"), more)).await;
        eventually("the replica stops", LONG, || halts(&replica) == outage).await;
        back(&mut site, port).await;
        eventually("the replica goes on", LONG, || went_on(&replica) == outage).await;
    }
    let all = || {
        let mut all = arrived.clone();
        all.extend(ids(&site.api.arrivals()));
        all.len()
    };
    eventually("every job arrives", LONG, || all() == jobs).await;
    assert_eq!(replica.stop().await, 0);
    println!("{outages} outages, a delivery limit of {limit}: {jobs} of {jobs} jobs arrived");
    site.depth(&site.dead_queue(), 0, LONG).await;
    site.depth(&queue, 0, LONG).await;
}

#[tokio::test]
async fn a_store_that_refuses_writes_for_want_of_replicas_counts_as_away() {
    let redis = Redis::dedicated().await;
    let site = Site::on(rabbit().await, &redis, "noreplicas", "rate = '50/s'\non_unavailable = 'local'");
    let replica = site.replica().await;
    site.publish(Job::many("job", 200)).await;
    site.api.wait_for(50, LONG).await;
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await.unwrap();
    replica.wait_line("pacing alone", LONG).await;
    let (count, start) = (site.api.count(), Instant::now());
    site.api.wait_for(count + 50, LONG).await;
    let took = start.elapsed();
    println!("50 jobs without the store in {took:?}");
    assert!(took >= Duration::from_millis(900) && took < Duration::from_secs(3), "at the pace: {took:?}");
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await.unwrap();
    replica.wait_line("back to the pace", LONG).await;
    let arrivals = site.api.wait_for(200, LONG).await;
    assert_eq!(replica.stop().await, 0);
    let tally = compare("job", 200, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
}

#[tokio::test]
async fn one_job_that_is_refused_among_a_thousand_good_ones_is_dead_alone() {
    let site = Site::shared("refused", "rate = '500/s'\nretry.min_backoff = '100ms'").await;
    site.api.rule(|arrival| if arrival.id() == "job-13" { Answer::status(401) } else { Answer::ok() });
    let replica = site.replica().await;
    site.publish(Job::many("job", 1000)).await;
    let dead = site.dead(1, LONG).await;
    assert_eq!(dead[0].id(), "job-13");
    assert_eq!(
        (dead[0].headers["paced-reason"].as_str(), dead[0].headers["paced-status"].as_str()),
        ("status", "401")
    );
    site.api.wait_for(1001, LONG).await;
    assert_eq!(replica.stop().await, 0);
    let log = replica.log();
    assert!(!log.iter().any(|line| line.contains("refuses the credentials")), "{}", log.join("\n"));
    assert_eq!(ids(&site.api.arrivals()).len(), 1000);
    site.depth(&site.queue(), 0, LONG).await;
}

#[tokio::test]
async fn credentials_that_are_refused_bury_nothing_and_are_read_again() {
    const JOBS: usize = 300;
    let mut site = Site::shared("secret", "rate = '200/s'").await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "Bearer old\n").unwrap();
    site.http = format!("headers = {{ authorization_file = '{}' }}", file.display());
    let accepts_old = Arc::new(AtomicBool::new(true));
    let old = Arc::clone(&accepts_old);
    site.api.rule(move |arrival| match arrival.header("authorization") {
        Some("Bearer new") => Answer::ok(),
        Some("Bearer old") if old.load(Ordering::SeqCst) => Answer::ok(),
        _ => Answer::status(401),
    });
    let replica = site.replica().await;
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(50, LONG).await;
    accepts_old.store(false, Ordering::SeqCst);
    replica.wait_line("refuses the credentials", LONG).await;
    let (stopped, start) = (site.api.count(), Instant::now());
    // Several trials are refused, while nothing else is sent.
    let trials = usize::try_from(scaled("PACED_TRIALS", 3)).unwrap();
    site.api.wait_for(stopped + trials, LONG).await;
    println!("401 to all for {:?}: {trials} trials", start.elapsed());
    assert!(start.elapsed() >= Duration::from_millis(500), "one at a time: {:?}", start.elapsed());
    std::fs::write(&file, "Bearer new\n").unwrap();
    replica.wait_line("can be used again", LONG).await;
    let delivered = || site.api.arrivals();
    let all = || ids(&delivered()).len() == JOBS;
    eventually("every job arrives", LONG, all).await;
    site.depth(&site.queue(), 0, LONG).await;
    assert_eq!(replica.stop().await, 0);
    site.depth(&site.dead_queue(), 0, LONG).await;
    site.depth(&site.queue(), 0, LONG).await;
    assert!(!replica.log().iter().any(|line| line.contains("Bearer")), "no secret in the log");
}
