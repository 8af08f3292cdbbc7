//! The number of unsettled messages while the window changes.

use std::collections::BTreeSet;

use lapin::types::{AMQPValue, FieldTable};

use super::*;
use crate::support::daemon::Paced;
use crate::support::publish::Job;
use crate::support::site::Site;
use crate::support::unique;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_window_counts_at_once_and_neither_loses_nor_doubles_a_message() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "window");
    options.downstreams[0].prefetch = 10;
    let (amqp, mut source) = consuming(options.clone()).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let ready = async |count: u32| {
        let so = async || depth(&channel, "window.jobs.billing").await == count;
        until(&format!("{count} messages left in the queue"), so).await;
    };
    publish(&amqp, &options, numbered(0..200)).await;
    let first = take(&mut source, 10).await;
    ready(190).await;
    // The window grows: messages that are unsettled stay so, count, and are settled on the same channel.
    source.resize(30);
    let second = take(&mut source, 20).await;
    ready(170).await;
    let mut seen = bodies(&first);
    seen.extend(bodies(&second));
    first.into_iter().rev().for_each(ack);
    second.into_iter().rev().for_each(ack);
    let third = take(&mut source, 30).await;
    ready(140).await;
    // The window shrinks while some are settled.
    source.resize(2);
    seen.extend(bodies(&third));
    third.into_iter().for_each(ack);
    let fourth = take(&mut source, 2).await;
    until("no more than two in hand", async || depth(&channel, "window.jobs.billing").await <= 138).await;
    seen.extend(bodies(&fourth));
    fourth.into_iter().for_each(ack);
    while seen.len() < 200 {
        let delivery = next(&mut source).await;
        seen.extend(bodies(std::slice::from_ref(&delivery)));
        ack(delivery);
    }
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 200, "each once: {seen:?}");
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    ready(0).await;
}

/// A body of this length, of which there is one for each number.
fn sized(number: usize, bytes: usize) -> String {
    let number = number.to_string();
    "-".repeat(bytes - number.len()) + &number
}

/// Publishes jobs of this size; returns when all are confirmed.
async fn publish_sized(amqp: &Amqp, options: &Options, count: usize, bytes: usize) {
    let bodies = (0..count).map(|number| sized(number, bytes));
    publish_all(amqp, options, bodies).await;
}

/// As [`publish`], with many confirms outstanding.
async fn publish_all(amqp: &Amqp, options: &Options, bodies: impl Iterator<Item = String>) {
    use futures_util::{StreamExt, stream};
    let (publisher, exchange) = (amqp.publisher(), options.jobs_exchange());
    stream::iter(bodies)
        .for_each_concurrent(64, |body| {
            let (publisher, exchange) = (&publisher, &exchange);
            async move {
                let properties = BasicProperties::default().with_delivery_mode(2);
                let body = Bytes::from(body);
                let sent = publisher.publish(exchange, "billing", properties, &body);
                within("a confirm", sent).await.unwrap();
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_jobs_fill_the_whole_window_although_none_is_settled() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "fullwindow");
    options.downstreams[0].prefetch = 1000;
    let (amqp, source) = consuming(options.clone()).await;
    publish_sized(&amqp, &options, 1200, 1024).await;
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);

    let (_connection, channel) = open(&rabbit.url()).await;
    let amqp = Amqp::start(options);
    let mut source = amqp.source("billing").unwrap();
    within("the consumer", amqp.ready()).await;
    // Nothing is settled, so the sizes alone make the window grow.
    let held = take(&mut source, 1000).await;
    until("no more than the window", async || depth(&channel, "fullwindow.jobs.billing").await == 200).await;
    drop(held);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_often_the_window_changes_there_is_never_a_second_one() {
    const JOBS: u32 = 2_000;
    const WIDE: u16 = 100;
    let rabbit = shared().await;
    let mut options = options(rabbit, "toggles");
    options.downstreams[0].prefetch = WIDE;
    let (amqp, mut source) = consuming(options.clone()).await;
    publish_all(&amqp, &options, numbered(0..JOBS).into_iter()).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let (mut held, mut acked, mut most) = (std::collections::VecDeque::new(), 0_u32, 0);
    for toggle in 0..50 {
        source.resize(if toggle % 2 == 0 { 20 } else { WIDE });
        // Few are settled at a time, so that many are unsettled at each change.
        for _ in 0..20 {
            held.push_back(next(&mut source).await);
            while held.len() > 8 {
                ack(held.pop_front().unwrap());
                acked += 1;
            }
        }
        // Some are settled all the while: messages that are neither ready nor acked are unacked.
        let mut look = async || {
            let unacked = JOBS - acked - depth(&channel, "toggles.jobs.billing").await;
            most = most.max(unacked);
            assert!(unacked <= u32::from(WIDE), "{unacked} after {toggle} changes");
            most > 20
        };
        if toggle % 2 == 0 {
            look().await;
        } else {
            until("a wide window", look).await;
        }
    }
    drop(held);
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// The bytes that a downstream holds in the tests below, and jobs of which four fill them.
const HELD: usize = 1 << 20;
const LONG_JOB: usize = 300_000;

/// Grows the window to its most by jobs that are so short that no trouble is expected.
async fn grow(amqp: &Amqp, options: &Options, source: &mut AmqpSource) {
    publish_sized(amqp, options, 150, 8).await;
    for _ in 0..150 {
        ack(next(source).await);
    }
}

/// Acks what is held and all that comes, until this many jobs were seen, each once.
async fn ack_all(source: &mut AmqpSource, held: Vec<Delivery>, count: usize) {
    let mut seen = bodies(&held);
    held.into_iter().for_each(ack);
    while seen.len() < count {
        let delivery = next(source).await;
        seen.extend(bodies(std::slice::from_ref(&delivery)));
        ack(delivery);
    }
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), count, "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_without_room_are_given_back_and_come_when_there_is_some() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "noroom");
    options.downstreams[0].prefetch_bytes = HELD as u64;
    let (amqp, mut source) = consuming(options.clone()).await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let ready = async |count: u32| {
        let so = async || depth(&channel, "noroom.jobs.billing").await == count;
        until(&format!("{count} messages in the queue"), so).await;
    };
    grow(&amqp, &options, &mut source).await;
    publish_sized(&amqp, &options, 20, LONG_JOB).await;
    // All were requested. Four fill the bytes, and the others are there for any replica.
    let held = take(&mut source, 4).await;
    ready(16).await;
    assert!(source.is_full() && source.most_at_once(4) == 4, "bytes bound it, not places");
    // While nothing has room nothing is consumed, a pause is answered, and a resume gets no more.
    within("the pause", source.pause()).await;
    source.resume();
    ack_all(&mut source, held, 20).await;
    ready(0).await;
    // Short jobs have the whole window again.
    grow(&amqp, &options, &mut source).await;
    publish_sized(&amqp, &options, 100, 8).await;
    let held = take(&mut source, 100).await;
    ack_all(&mut source, held, 100).await;
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// After a long job the window is of a few, and many short ones are held that cannot go: others still come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_jobs_come_behind_a_long_one_while_many_are_held() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "behind");
    options.downstreams[0].prefetch = 1000;
    options.downstreams[0].prefetch_bytes = HELD as u64;
    let (amqp, mut source) = consuming(options.clone()).await;
    grow(&amqp, &options, &mut source).await;
    publish_sized(&amqp, &options, 100, 8).await;
    let mut held = take(&mut source, 100).await;
    publish_sized(&amqp, &options, 1, HELD / 2).await;
    held.extend(take(&mut source, 1).await);
    publish_sized(&amqp, &options, 20, 8).await;
    held.extend(take(&mut source, 20).await);
    held.into_iter().for_each(ack);
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// The job that came last is kept each time, as one that waits, and all others are settled: most of their room is used at
/// once, and not when the window is filled up after a while, which this many times would take too long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_behind_a_job_that_waits_is_used_at_once() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "atonce");
    options.downstreams[0].prefetch_bytes = HELD as u64;
    let (amqp, mut source) = consuming(options.clone()).await;
    grow(&amqp, &options, &mut source).await;
    publish_sized(&amqp, &options, 80, LONG_JOB).await;
    let mut held = take(&mut source, 4).await;
    within("all rounds", async {
        for _ in 0..15 {
            // One that is settled brings one, by a consumer that may bring no more.
            ack(held.remove(0));
            let newest = next(&mut source).await;
            held.drain(..).for_each(ack);
            held.push(newest);
            held.extend(take(&mut source, 2).await);
        }
    })
    .await;
    held.into_iter().for_each(ack);
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// A message that is longer than all that its downstream may hold has its turn too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_always_has_room() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "oneroom");
    options.downstreams[0].prefetch_bytes = HELD as u64;
    let (amqp, mut source) = consuming(options.clone()).await;
    grow(&amqp, &options, &mut source).await;
    publish_sized(&amqp, &options, 5, 2 * HELD).await;
    for _ in 0..5 {
        let delivery = next(&mut source).await;
        assert!(source.is_full());
        ack(delivery);
    }
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// A queue of others may dead-letter what comes back to it some times: paced gives back a job there once, or not at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_without_room_are_not_given_back_into_a_limit() {
    for limit in [2, 5] {
        jobs_come_within(limit).await;
    }
}

async fn jobs_come_within(limit: i32) {
    let (queue, lost) = (format!("limited.{limit}.theirs"), format!("limited.{limit}.lost"));
    let rabbit = shared().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare(lost.as_str().into(), durable, arguments.clone()).await.unwrap();
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(limit));
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(&lost));
    channel.queue_declare(queue.as_str().into(), durable, arguments).await.unwrap();
    let mut options = options(rabbit, &format!("limited{limit}"));
    options.downstreams[0].prefetch_bytes = HELD as u64;
    options.downstreams[0].queue = Some(queue.clone());
    let publish = async |amqp: &Amqp, count: usize, bytes: usize| {
        for number in 0..count {
            let body = Bytes::from(sized(number, bytes));
            let sent = amqp.publisher().publish("", &queue, BasicProperties::default(), &body).await;
            sent.unwrap();
        }
    };
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, 150, 8).await;
    for _ in 0..150 {
        ack(next(&mut source).await);
    }
    for _ in 0..3 {
        publish(&amqp, 20, LONG_JOB).await;
        let held = take(&mut source, 4).await;
        ack_all(&mut source, held, 20).await;
    }
    // A replica that ends gives back what it holds, and another one gets it.
    publish(&amqp, 20, LONG_JOB).await;
    let held = take(&mut source, 4).await;
    drop((held, source));
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    let (amqp, mut source) = consuming(options).await;
    ack_all(&mut source, Vec::new(), 20).await;
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    assert_eq!(depth(&channel, &lost).await, 0, "the broker took none for bad");
}

/// Long messages between short ones are delivered over the connections that paced has from the start.
#[tokio::test]
async fn a_user_who_may_open_no_more_connections_gets_all_jobs() {
    let (rabbit, site) = (shared().await, Site::shared("few", "rate = '200/s'").await);
    site.declare().await;
    let user = unique("few");
    rabbit.add_user(&user, "pw", [".*"; 3]).await;
    let replica = Paced::spawn(&site.config().replace(&site.amqp, &url(rabbit, &format!("{user}:pw")))).await;
    let connections = async || -> usize {
        let all = "[{user, User}] <- rabbit_networking:connection_info_all([user])";
        let count = format!("length([1 || {all}, User =:= <<\"{user}\">>])");
        rabbit.eval(&count).await.parse().unwrap()
    };
    // One that consumes, and one that publishes.
    until("all connections", async || connections().await == 2).await;
    rabbit.bound_connections(&user, 2).await;
    let (short, long) = (Job::many("short", 97), Job::many("long", 4));
    let long = long.into_iter().map(|job| job.body(vec![b'x'; 1 << 20]));
    site.publish(long.chain(short).collect()).await;
    site.api.wait_for(101, LONG).await;
    assert_eq!((replica.stop().await, site.api.count()), (0, 101), "each once");
}
