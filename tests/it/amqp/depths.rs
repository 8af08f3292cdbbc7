//! The lengths of queues are checked in the background, and cost the consumers nothing.

use lapin::options::QueueDeleteOptions;
use paced::amqp::{Depth, Depths};

use super::*;
use crate::support::publish::{self, Job};
use crate::support::unique;

/// The options, with a second downstream that consumes a queue of its own name.
fn two(rabbit: &Rabbit, prefix: &str) -> Options {
    let mut options = options(rabbit, prefix);
    options.haste = 50;
    let theirs = Downstream {
        name: "theirs".into(),
        queue: Some(format!("{prefix}-orders")),
        ..options.downstreams[0].clone()
    };
    options.downstreams.push(theirs);
    options
}

/// The lengths that are seen of a downstream: the jobs that are ready, and the dead letters.
fn lengths(depths: &Depths, downstream: &str) -> Option<(u32, Option<u32>)> {
    depths.of(downstream).map(|Depth { ready, dead, .. }| (ready, dead))
}

async fn put(rabbit: &Rabbit, exchange: &str, key: &str, count: usize) {
    publish::publish_to(&rabbit.url(), exchange, key, Job::many("job", count)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_are_seen_soon_and_follow_the_queues() {
    let rabbit = shared().await;
    let prefix = unique("depths");
    let all = two(rabbit, &prefix);
    let (_connection, channel) = open(&rabbit.url()).await;
    let amqp = Amqp::start(all.clone());
    let depths = amqp.depths();
    assert_eq!((depths.of("billing"), depths.unroutable()), (None, None));
    let mut source = amqp.source("billing").unwrap();
    // A queue is there, and is checked, before it is bound: what is published until then is unroutable.
    until("the consumer", async || amqp.is_attached("billing")).await;
    until("the first queue", async || lengths(&depths, "billing") == Some((0, Some(0)))).await;
    // The queue of the other downstream does not exist, which costs channels, and harms nobody.
    assert_eq!(depths.of("theirs"), None);
    until("the unroutable, too", async || depths.unroutable() == Some(0)).await;
    publish(&amqp, &all, numbered(0..3)).await;
    // One is held to the end: it is lost with its consumer.
    let held = next(&mut source).await;
    take(&mut source, 2).await.into_iter().for_each(ack);

    let orders = format!("{prefix}-orders");
    channel
        .queue_declare(orders.clone().into(), QueueDeclareOptions::durable(), Default::default())
        .await
        .unwrap();
    put(rabbit, "", &orders, 4).await;
    // Jobs that came home count as ready.
    let home = format!("{prefix}.home.theirs");
    channel
        .queue_declare(home.clone().into(), QueueDeclareOptions::durable(), Default::default())
        .await
        .unwrap();
    put(rabbit, "", &home, 2).await;
    put(rabbit, "", &format!("{prefix}.dead.billing"), 5).await;
    put(rabbit, &format!("{prefix}.jobs"), "nobody", 6).await;
    until("a queue that is there now", async || lengths(&depths, "theirs") == Some((6, None))).await;
    until("dead letters", async || lengths(&depths, "billing") == Some((0, Some(5)))).await;
    until("the unroutable", async || depths.unroutable() == Some(6)).await;
    // After a change nobody knows, until they are counted again.
    depths.forget_dead("billing");
    assert_eq!(lengths(&depths, "billing").map(|lengths| lengths.1), Some(None));
    until("they are counted again", async || lengths(&depths, "billing") == Some((0, Some(5)))).await;
    let at = depths.of("billing").unwrap().at;
    channel.queue_purge(orders.clone().into(), Default::default()).await.unwrap();
    until("the jobs are gone", async || lengths(&depths, "theirs") == Some((2, None))).await;
    until("a later look", async || depths.of("billing").unwrap().at > at).await;
    channel.queue_delete(orders.into(), QueueDeleteOptions::default()).await.unwrap();
    until("the queue is gone", async || depths.of("theirs").is_none()).await;

    // The consumer has never noticed. A message may still have come twice: quorum queues take back what crosses the
    // change of a window.
    publish(&amqp, &all, numbered(3..6)).await;
    let taken = take(&mut source, 3).await;
    assert!(held.ticket.is_live(), "the consumer is the first one");
    ack(held);
    taken.into_iter().for_each(ack);
    assert_eq!(lengths(&depths, "billing"), Some((0, Some(5))));
    drop(source);
    assert!(amqp.shutdown(LONG).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_looked_at_is_not_known_and_hides_nothing_else() {
    let rabbit = shared().await;
    let prefix = unique("locked");
    let all = options(rabbit, &prefix);
    // RabbitMQ lets no other connection check an exclusive queue, for any rights of the user.
    let (_connection, channel) = open(&rabbit.url()).await;
    let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel
        .queue_declare(format!("{prefix}.dead.billing").into(), exclusive, Default::default())
        .await
        .unwrap();
    channel
        .queue_declare(
            format!("{prefix}.jobs.billing").into(),
            QueueDeclareOptions::durable(),
            Default::default(),
        )
        .await
        .unwrap();
    put(rabbit, "", &format!("{prefix}.jobs.billing"), 3).await;
    let amqp = Amqp::start(all);
    let depths = amqp.depths();
    until("the jobs", async || lengths(&depths, "billing") == Some((3, None))).await;
    // Two sweeps later it is still not known.
    for _ in 0..2 {
        let at = depths.of("billing").unwrap().at;
        until("a sweep", async || depths.of("billing").unwrap().at > at).await;
    }
    assert_eq!(lengths(&depths, "billing"), Some((3, None)));
    assert!(amqp.shutdown(LONG).await);
}
