//! The number of unsettled messages while the window changes.

use std::collections::BTreeSet;

use super::*;

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

/// Publishes jobs of this size; returns when all are confirmed.
async fn publish_sized(amqp: &Amqp, options: &Options, count: usize, bytes: usize) {
    let bodies = (0..count).map(|number| format!("{number:0bytes$}"));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_answered_although_nothing_is_read() {
    const SHORTER: usize = 30_000;
    let rabbit = shared().await;
    let mut options = options(rabbit, "unread");
    options.downstreams[0].prefetch_bytes = 20 * SHORTER as u64;
    let (amqp, mut source) = consuming(options.clone()).await;
    // These are long enough for a connection of its own, where the window becomes 20.
    publish_sized(&amqp, &options, 60, SHORTER).await;
    for _ in 0..60 {
        ack(next(&mut source).await);
    }
    // Ten of these fill the bytes: the others that were requested are not read.
    publish_sized(&amqp, &options, 20, 2 * SHORTER).await;
    let held = take(&mut source, 10).await;
    within("the pause", source.pause()).await;
    // Messages in transit were handed on, or have been given back.
    drop(held);
    source.resume();
    for _ in 0..20 {
        ack(next(&mut source).await);
    }
    drop(source);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}
