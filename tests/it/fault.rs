//! Faults that are no job's: a replica that cannot reach the API, an API that is away, credentials that are refused, a
//! store that refuses for a while. No job is dead-lettered for these, and unaffected replicas continue.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};

use crate::support::api::{Answer, Api, Arrival, Gate, stamp};
use crate::support::count;
use crate::support::daemon::Paced;
use crate::support::prometheus::Scrape;
use crate::support::publish::{self, Job};
use crate::support::servers::{Redis, free_port, rabbit, redis};
use crate::support::site::{Site, compare};
use crate::support::{LONG, apart, eventually, scaled, until};

/// The configuration of replicas whose metrics are read.
const ADMIN: &str = "admin.listen = '127.0.0.1:0'\n";

fn halts(replica: &Paced) -> usize {
    replica.log().iter().filter(|line| line.contains("cannot be reached from here")).count()
}

fn went_on(replica: &Paced) -> usize {
    replica.log().iter().filter(|line| line.contains("can be used again")).count()
}

/// The site with its API at a port that no other program gets while nothing listens there.
fn at_one_port(mut site: Site) -> Site {
    site.api = Api::try_start(free_port()).unwrap();
    site
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
    const FIRST: usize = 100;
    const JOBS: usize = 300;
    let site = Site::shared("egress", "rate = '200/s'\nqueue.prefetch = 100").await;
    let closed = "downstreams.billing.http.base_url=http://127.0.0.1:1/";
    let (config, args) = (format!("{ADMIN}{}", site.config()), ["--set", closed]);
    let (good, bad) = tokio::join!(site.replica(), Paced::start(&config, &args, &[]));
    bad.wait_ready().await;
    let jobs = Job::many("job", JOBS);
    site.publish(jobs[..FIRST].to_vec()).await;
    eventually("the replica stops", LONG, || halts(&bad) == 1).await;
    // It holds no lease in force, so that the others have the whole pace. An idle replica makes no calls, so that nobody may
    // be there to remove what has lapsed; its own may have lapsed too.
    let store = redis().await;
    let script = "local t = redis.call('TIME') \
        return redis.call('ZCOUNT', KEYS[1], string.format('(%d%06d', t[1], t[2]), '+inf')";
    let leases = format!("{}:{{billing}}:replicas", site.prefix);
    let in_force = async || {
        let answer = store.command(&["EVAL", script, "1", &leases]).await.unwrap();
        answer.trim().trim_start_matches(':').parse::<usize>().unwrap()
    };
    until("the other one is alone", LONG, async || in_force().await <= 1).await;
    let slots = async || Scrape::read(&bad.metrics().await).sum("paced_slots_reserved_total").unwrap();
    let taken = slots().await;
    site.publish(jobs[FIRST..].to_vec()).await;
    let arrivals = site.api.wait_for(JOBS, LONG).await;
    assert!(in_force().await <= 1, "and holds no lease while the other one works");
    assert_eq!(slots().await, taken, "it takes no slots from then on");
    assert_eq!((halts(&bad), went_on(&bad), halts(&good)), (1, 0, 0), "{}", bad.log().join("\n"));
    assert_eq!((good.stop().await, bad.stop().await), (0, 0));
    let tally = compare("job", JOBS, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
    site.depth(&site.dead_queue(), 0, LONG).await;
    site.depth(&site.queue(), 0, LONG).await;
}

#[tokio::test]
async fn an_api_that_is_away_for_a_while_costs_no_job_and_then_comes_no_burst() {
    const FIRST: usize = 100;
    const JOBS: usize = 300;
    let outage = Duration::from_secs(scaled("PACED_OUTAGE_SECONDS", 0).into());
    let mut site = at_one_port(Site::shared("outage", "rate = '200/s'\nretry.max_attempts = 2").await);
    let (first, second) = tokio::join!(site.replica(), site.replica());
    let jobs = Job::many("job", JOBS);
    site.publish(jobs[..FIRST].to_vec()).await;
    site.api.wait_for(FIRST / 2, LONG).await;
    let (port, before) = away(&mut site);
    // However slow this machine is, these come while it is away.
    site.publish(jobs[FIRST..].to_vec()).await;
    eventually("both replicas stop", LONG, || halts(&first) == 1 && halts(&second) == 1).await;
    tokio::time::sleep(outage).await;
    let up = stamp();
    back(&mut site, port).await;
    let left = || {
        let mut all = ids(&before);
        all.extend(ids(&site.api.arrivals()));
        JOBS - all.len()
    };
    eventually("every job arrives", LONG, || left() == 0).await;
    // What 300 ms have slots for may be under way.
    count::assert_never_ahead(&site.api.stamps(), up, "200/s".parse().unwrap(), 61);
    eventually("both continue", LONG, || went_on(&first) == 1 && went_on(&second) == 1).await;
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
    let outages = usize::try_from(scaled("PACED_OUTAGES", 5)).unwrap();
    let limit = i64::from(scaled("PACED_DELIVERY_LIMIT", 3));
    // Most jobs are there from the start and come back again and again; however slow this machine is, there are others
    // that an outage affects, and that come after it.
    let (first, more) = (outages * 40, 20);
    let jobs = first + outages * more;
    let mut site = at_one_port(Site::shared("foreign", "").await);
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
        eventually("the replica continues", LONG, || went_on(&replica) == outage).await;
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
    let jobs = Job::many("job", 120);
    site.publish(jobs[..50].to_vec()).await;
    site.api.wait_for(40, LONG).await;
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await.unwrap();
    let since = stamp();
    site.publish(jobs[50..110].to_vec()).await;
    replica.wait_line("pacing alone", LONG).await;
    site.api.wait_for(110, LONG).await;
    // What 300 ms have slots for may be under way.
    count::assert_never_ahead(&site.api.stamps(), since, "50/s".parse().unwrap(), 16);
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await.unwrap();
    site.publish(jobs[110..].to_vec()).await;
    replica.wait_line("back to the pace", LONG).await;
    let arrivals = site.api.wait_for(120, LONG).await;
    assert_eq!(replica.stop().await, 0);
    let tally = compare("job", 120, &arrivals);
    assert!(tally.is_clean(), "{tally:?}");
}

#[tokio::test]
async fn one_job_that_is_refused_among_many_good_ones_is_dead_alone() {
    let site = Site::shared("refused", "rate = '500/s'\nretry.min_backoff = '100ms'").await;
    site.api.rule(|arrival| if arrival.id() == "job-13" { Answer::status(401) } else { Answer::ok() });
    let replica = site.replica().await;
    site.publish(Job::many("job", 300)).await;
    let dead = site.dead(1, LONG).await;
    assert_eq!(dead[0].id(), "job-13");
    assert_eq!(
        (dead[0].headers["paced-reason"].as_str(), dead[0].headers["paced-status"].as_str()),
        ("status", "401")
    );
    eventually("every job arrives", LONG, || ids(&site.api.arrivals()).len() == 300).await;
    assert_eq!(replica.stop().await, 0);
    let log = replica.log();
    assert!(!log.iter().any(|line| line.contains("refuses the credentials")), "{}", log.join("\n"));
    site.depth(&site.queue(), 0, LONG).await;
}

#[tokio::test]
async fn credentials_that_are_refused_bury_nothing_and_are_read_again() {
    const JOBS: usize = 300;
    let mut site = Site::shared("secret", "rate = '200/s'").await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "Bearer old\n").unwrap();
    site.http = format!("timeout = '300s'\nheaders = {{ authorization_file = '{}' }}", file.display());
    let (accepted, is_gated) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let (gate, gated) = (Gate::closed(), Arc::clone(&is_gated));
    let held = gate.clone();
    site.api.rule(move |arrival| match arrival.header("authorization") {
        Some("Bearer new") => Answer::ok(),
        Some("Bearer old") if accepted.fetch_add(1, Ordering::SeqCst) < 50 => Answer::ok(),
        _ if gated.load(Ordering::SeqCst) => Answer::status(401).gated(&held),
        _ => Answer::status(401),
    });
    let replica = Paced::spawn(&format!("{ADMIN}{}", site.config())).await;
    site.publish(Job::many("job", JOBS)).await;
    replica.wait_line("refuses the credentials", LONG).await;
    until("nothing is being sent", LONG, async || {
        let metrics = replica.metrics().await;
        metrics.contains("\npaced_jobs_in_flight{downstream=\"billing\",state=\"sending\"} 0\n")
    })
    .await;
    is_gated.store(true, Ordering::SeqCst);
    // Several trials are refused, while nothing else is sent.
    for trial in 1..=scaled("PACED_TRIALS", 2) {
        gate.wait_for(1, LONG).await;
        let (count, since) = (site.api.count(), stamp());
        until("a while has passed", LONG, async || stamp() > since + 200_000_000).await;
        assert_eq!((gate.waiting(), site.api.count()), (1, count), "one at a time: trial {trial}");
        gate.let_through(1);
        site.api.wait_for(count + 1, LONG).await;
    }
    std::fs::write(&file, "Bearer new\n").unwrap();
    gate.open();
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
