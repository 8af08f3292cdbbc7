//! How many messages are unsettled at once, while that changes.

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
    // More: what is unsettled stays so, and is settled on the same channel.
    source.resize(30);
    let second = take(&mut source, 30).await;
    ready(160).await;
    let mut seen = bodies(&first);
    seen.extend(bodies(&second));
    first.into_iter().rev().for_each(ack);
    second.into_iter().rev().for_each(ack);
    let third = take(&mut source, 30).await;
    ready(130).await;
    // Fewer, while some are settled.
    source.resize(2);
    seen.extend(bodies(&third));
    third.into_iter().for_each(ack);
    let fourth = take(&mut source, 2).await;
    until("no more than two in hand", async || depth(&channel, "window.jobs.billing").await <= 128).await;
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
