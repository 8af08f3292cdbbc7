//! Many dead letters, interrupted replays and purges, and unroutable messages.

use std::collections::BTreeMap;

use lapin::ExchangeKind;
use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use paced::amqp::{DeadLetters, Error, Filter, PublishError, Replay, Scan, Tally};
use paced::{Precision, Shaper};
use tokio::sync::Notify;

use super::dead::{letters, listed, replayed};
use super::*;
use crate::support::publish::{self, Job};
use crate::support::unique;

/// Puts dead letters with these ids and bodies into the queue, as the daemon would.
async fn bury(options: &Options, numbers: std::ops::Range<u32>) {
    let amqp = within("declarations", Amqp::publishing(options.clone())).await.unwrap();
    assert!(amqp.shutdown(Duration::from_secs(30)).await);
    let letter = |number: u32| {
        let reason = if number.is_multiple_of(10) { "expired" } else { "status" };
        Job::new(format!("id-{number}")).body(number.to_string()).header("paced-reason", reason)
    };
    let queue = format!("{}.dead.billing", options.prefix);
    publish::publish_to(&shared().await.url(), "", &queue, numbers.map(letter).collect()).await;
}

async fn drained(queue: &str) -> Vec<String> {
    let taken = publish::drain(&shared().await.url(), queue).await;
    taken.into_iter().map(|taken| String::from_utf8(taken.body).unwrap()).collect()
}

/// The number of messages that are ready in both queues.
async fn ready(queues: &[&str; 2]) -> u32 {
    let url = shared().await.url();
    let (one, other) = tokio::join!(publish::depth(&url, queues[0]), publish::depth(&url, queues[1]));
    one.unwrap_or(0) + other.unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_of_many_channels_keep_their_order() {
    let options = options(shared().await, &unique("hundreds"));
    // A channel holds two dozen of them.
    bury(&options, 0..120).await;
    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    for max in [120, 120, 3, 120] {
        assert_eq!(listed(&dead, max).await, numbered(0..max), "{max}");
    }
    // Those that stay keep their order, also where letters between them are taken.
    let tally = replayed(&dead, Filter { reason: Some("expired".into()), ..Filter::default() }).await;
    assert_eq!((tally.done, tally.kept), (12, 108));
    let rest: Vec<String> = (0..120_u32).filter(|n| !n.is_multiple_of(10)).map(|n| n.to_string()).collect();
    for _ in 0..2 {
        assert_eq!(listed(&dead, 120).await, rest);
    }
    let scan = Scan { limit: Some(30), ..Scan::default() };
    let tally = within("the purge", dead.purge(&scan, |_| {})).await.unwrap();
    assert_eq!(tally.done, 30);
    assert_eq!(listed(&dead, 120).await, rest[30..]);
    dead.close().await;
    let tens: Vec<String> = (0..120_u32).step_by(10).map(|n| n.to_string()).collect();
    assert_eq!(drained(&format!("{}.jobs.billing", options.prefix)).await, tens);
}

/// RabbitMQ 4 delivers by priority what was not delivered before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_of_any_priority_keep_the_order_of_the_first_list() {
    let rabbit = shared().await;
    let options = options(rabbit, &unique("priorities"));
    bury(&options, 0..0).await;
    let letter = |n: u8| Job::new(format!("id-{n}")).body(n.to_string()).priority(n % 10);
    let queue = format!("{}.dead.billing", options.prefix);
    publish::publish_to(&rabbit.url(), "", &queue, (0..100).map(letter).collect()).await;
    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    let first = listed(&dead, 100).await;
    assert_eq!(first.len(), 100);
    for max in [100, 50, 100] {
        assert_eq!(listed(&dead, max).await, first[..max as usize], "{max}");
    }
    dead.close().await;
}

/// Runs the scan, and drops it after this many letters.
async fn dropped_after(letters: u32, scan: impl AsyncFnOnce(&mut dyn FnMut(&Tally)) -> Result<Tally, Error>) {
    let enough = Notify::new();
    let mut progress = |tally: &Tally| {
        if tally.done == letters {
            enough.notify_one();
        }
    };
    tokio::select! {
        biased;
        () = enough.notified() => {}
        tally = scan(&mut progress) => panic!("it ended before: {tally:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_dropped_loses_nothing() {
    let options = options(shared().await, &unique("broken"));
    bury(&options, 0..100).await;
    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    let (scan, replay) = (Scan::default(), Replay::default());
    dropped_after(30, async |progress| dead.replay(&scan, &replay, progress).await).await;
    dead.close().await;
    let queues = ["jobs", "dead"].map(|kind| format!("{}.{kind}.billing", options.prefix));
    let [jobs, dead] = &queues;
    until("all come back", async || ready(&[jobs, dead]).await >= 100).await;
    let (jobs, dead) = (drained(jobs).await, drained(dead).await);
    assert!((30..=31).contains(&jobs.len()), "{jobs:?}");
    let mut copies: BTreeMap<String, u32> = BTreeMap::new();
    jobs.into_iter().chain(dead).for_each(|body| *copies.entry(body).or_default() += 1);
    assert_eq!(copies.len(), 100);
    assert!(copies.values().sum::<u32>() <= 101, "the current one may be there twice: {copies:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_that_is_dropped_loses_no_more_than_it_removed() {
    let options = options(shared().await, &unique("half"));
    bury(&options, 0..100).await;
    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    let filter = Filter { reason: Some("status".into()), ..Filter::default() };
    let scan = Scan { filter, ..Scan::default() };
    dropped_after(30, async |progress| dead.purge(&scan, progress).await).await;
    dead.close().await;
    let queue = format!("{}.dead.billing", options.prefix);
    until("the others come back", async || ready(&[&queue, ""]).await >= 69).await;
    let mut rest: Vec<u32> = drained(&queue).await.iter().map(|body| body.parse().unwrap()).collect();
    rest.sort_unstable();
    // 30 that match are among the first 34, and one more may be gone. The last ack may not have come through either.
    let removed: Vec<u32> = (0..100).filter(|number| !rest.contains(number)).collect();
    assert!((29..=31).contains(&removed.len()), "{removed:?}");
    assert!(removed.iter().all(|number| *number < 36 && !number.is_multiple_of(10)), "{removed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_keeps_its_pace_and_stops_on_a_signal() {
    let options = options(shared().await, &unique("slowly"));
    bury(&options, 0..20).await;
    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    // Nothing is held while a slot is awaited, so a stop does not wait for it.
    let never = Shaper::builder("replay", "1/h".parse().unwrap()).max_wait(Duration::from_secs(7200));
    let pace = never.precision(Precision::Coarse).build().unwrap();
    let (scan, replay) = (Scan::default(), Replay { pace: Some(pace), ..Replay::default() });
    let stop = scan.stop.clone();
    let (_connection, channel) = open(&shared().await.url()).await;
    let begun = Notify::new();
    let queue = format!("{}.dead.billing", options.prefix);
    let stopping = async {
        begun.notified().await;
        until("all but one are ready", async || depth(&channel, &queue).await == 19).await;
        stop.cancel();
    };
    let replaying = dead.replay(&scan, &replay, |_| begun.notify_one());
    let (tally, ()) = within("the stop", async { tokio::join!(replaying, stopping) }).await;
    let tally = tally.unwrap();
    assert_eq!((tally.found, tally.done, tally.stopped), (20, 1, true));
    assert_eq!(listed(&dead, 100).await, numbered(1..20));
    dead.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unroutable_messages_are_listed_and_sent_where_they_belong() {
    let rabbit = shared().await;
    let options = options(rabbit, &unique("unroutable"));
    let (amqp, source) = consuming(options.clone()).await;
    let home = format!("{}.home.billing", options.prefix);
    until("the home queue", async || publish::depth(&rabbit.url(), &home).await.is_some()).await;
    drop(source);
    assert!(amqp.shutdown(Duration::from_secs(30)).await);
    let exchange = format!("{}.jobs", options.prefix);
    let jobs = (0..6).map(|n| Job::new(format!("id-{n}")).body(n.to_string())).collect();
    publish::publish_to(&rabbit.url(), &exchange, "biling.eu", jobs).await;
    let parked = |id: &str, key: &str| {
        let job = Job::new(id).header("paced-path", "kept").header("paced-parked", "1");
        job.header("paced-routing-key", key).header("paced-attempts", "2")
    };
    // Producers may not publish to this exchange, over which jobs that were parked come back.
    let ours = format!("{}.home", options.prefix);
    publish::publish_to(&rabbit.url(), &ours, "gone", vec![parked("parked", "billing.us").body("6")]).await;

    let lost = DeadLetters::open_unroutable(&options).await.unwrap();
    assert_eq!(lost.low_delivery_limit().await, None);
    // This is more often than RabbitMQ 4.0 allows by default.
    for _ in 0..30 {
        assert_eq!(listed(&lost, 100).await, numbered(0..7));
    }
    let found = letters(&lost, 100).await;
    assert_eq!(found[6].attempts.as_deref(), Some("2"));
    assert_eq!(found[0].routing_key.as_deref(), Some("biling.eu"));
    assert_eq!((found[6].routing_key.as_deref(), found[6].job().headers.len()), (Some("billing.us"), 1));

    // Where there is still no queue, a message stays where it is, once.
    let tally = replayed(&lost, Filter::default()).await;
    assert_eq!((tally.found, tally.done, tally.failed), (7, 1, 6));
    let Some(PublishError::Unroutable(queue)) = tally.error else { panic!("{:?}", tally.error) };
    assert_eq!(queue, format!("{}.jobs.biling", options.prefix));
    assert_eq!(listed(&lost, 100).await, numbered(0..6), "in their order");
    let replay = Replay { to: Some("other".into()), ..Replay::default() };
    let error = lost.replay(&Scan::default(), &replay, |_| {}).await.unwrap_err();
    assert_eq!(error, Error::UnknownDownstream("other".into()));

    let replay = Replay { to: Some("billing".into()), ..Replay::default() };
    let tally = within("the replay", lost.replay(&Scan::default(), &replay, |_| {})).await.unwrap();
    assert_eq!((tally.done, tally.error), (6, None));
    assert_eq!(lost.count().await.unwrap(), 0);
    lost.close().await;

    let (amqp, mut source) = consuming(options).await;
    let deliveries = take(&mut source, 7).await;
    assert_eq!(bodies(&deliveries), ["6", "0", "1", "2", "3", "4", "5"]);
    let keys: Vec<&str> = deliveries.iter().map(|delivery| delivery.message.routing_key.as_str()).collect();
    assert_eq!(keys[..2], ["billing.us", "billing.eu"]);
    let names: Vec<&str> = deliveries[0].message.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["paced-path"]);
    deliveries.into_iter().for_each(ack);
    assert!(amqp.shutdown(Duration::from_secs(30)).await);
}

/// An exchange of the operator's own may lead to one of paced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_over_another_exchange_is_no_parked_job() {
    let rabbit = shared().await;
    let options = options(rabbit, &unique("legacy"));
    bury(&options, 0..0).await;
    let (url, legacy) = (rabbit.url(), format!("{}-legacy", options.prefix));
    let (connection, channel) = publish::open(&url).await;
    let (kind, jobs) = (ExchangeKind::Topic, options.jobs_exchange());
    channel
        .exchange_declare(
            legacy.as_str().into(),
            kind,
            ExchangeDeclareOptions::default(),
            FieldTable::default(),
        )
        .await
        .unwrap();
    let all = ("#".into(), ExchangeBindOptions::default(), FieldTable::default());
    channel.exchange_bind(jobs.as_str().into(), legacy.as_str().into(), all.0, all.1, all.2).await.unwrap();
    let forged = Job::new("forged").header("paced-parked", "1").header("paced-routing-key", "billing.us");
    publish::publish_to(&url, &legacy, "biling.eu", vec![forged.header("paced-reason", "status")]).await;
    connection.close(200, "done".into()).await.unwrap();

    let lost = DeadLetters::open_unroutable(&options).await.unwrap();
    until("it to come", async || lost.count().await.unwrap() == 1).await;
    let letter = letters(&lost, 1).await.remove(0);
    assert_eq!((letter.routing_key.as_deref(), letter.reason), (Some("biling.eu"), None));
    lost.close().await;
}

/// The broker itself makes a letter of a job that expires in its queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_expires_in_its_queue_brings_no_report() {
    let rabbit = shared().await;
    let options = options(rabbit, &unique("forged"));
    bury(&options, 0..0).await;
    let mut forged = Job::new("forged").header("paced-routing-key", "billing.other");
    for (name, value) in [("paced-reason", "status"), ("paced-status", "503"), ("paced-response", "forged")] {
        forged = forged.header(name, value);
    }
    forged.properties = forged.properties.with_expiration("1".into());
    publish::publish_to(&rabbit.url(), &options.jobs_exchange(), "billing.eu", vec![forged]).await;

    let dead = DeadLetters::open(&options, "billing").await.unwrap();
    until("it to expire", async || dead.count().await.unwrap() == 1).await;
    let tally = replayed(&dead, Filter { status: Some(503), ..Filter::default() }).await;
    assert_eq!((tally.found, tally.done), (1, 0));
    let letter = letters(&dead, 1).await.remove(0);
    assert_eq!(
        (letter.message.message_id.as_deref(), letter.reason, letter.response, letter.routing_key.as_deref()),
        (Some("forged"), None, None, Some("billing.eu"))
    );
    // It goes back to its own downstream.
    let tally = replayed(&dead, Filter::default()).await;
    assert_eq!((tally.done, tally.error), (1, None));
    assert_eq!(drained(&format!("{}.jobs.billing", options.prefix)).await.len(), 1);
    dead.close().await;
}

/// Earlier versions declared the queue without a delivery limit, and others may have one of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_unroutable_messages_with_other_arguments_is_used_as_it_is() {
    let rabbit = shared().await;
    let options = options(rabbit, &unique("older"));
    let (_connection, channel) = open(&rabbit.url()).await;
    let queue = format!("{}.unroutable", options.prefix);
    publish::declare_quorum(&rabbit.url(), &queue).await;
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, ["x".to_owned()]).await;
    ack(next(&mut source).await);
    publish::publish(&rabbit.url(), &options.prefix, "biling", Job::many("lost", 3)).await;
    until("the messages lie there", async || depth(&channel, &queue).await == 3).await;
    assert!(amqp.shutdown(Duration::from_secs(30)).await);
    let lost = DeadLetters::open_unroutable(&options).await.unwrap();
    assert_eq!(letters(&lost, 100).await.len(), 3);
    let version = rabbit.version().await;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap());
    let is_limited = matches!((numbers.next(), numbers.next()), (Some(4), Some(0..=2)));
    assert_eq!(lost.low_delivery_limit().await, is_limited.then_some(20), "{version}");
    lost.close().await;
}
