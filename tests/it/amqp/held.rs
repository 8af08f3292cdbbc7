//! Messages that are held for longer than the broker usually waits for their settlement.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};

use super::*;
use crate::support::daemon::Paced;
use crate::support::publish::{self, Job};
use crate::support::servers::redis;
use crate::support::site::{Site, compare};

/// Consumes a message from a queue of its own, and returns when the broker has taken it back.
async fn outlast(channel: &lapin::Channel, queue: &str) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    let properties = BasicProperties::default();
    let sent = channel.basic_publish("".into(), queue.into(), Default::default(), b"", properties).await;
    sent.unwrap().await.unwrap();
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer = channel.basic_consume(queue.into(), "".into(), options, arguments).await.unwrap();
    let taken = within("a message", consumer.next()).await;
    assert!(taken.is_some_and(|taken| taken.is_ok()));
    // RabbitMQ closes the channel, or cancels the consumer.
    while within("the end of the consumer", consumer.next()).await.is_some_and(|next| next.is_ok()) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_held_for_longer_than_the_broker_usually_waits() {
    let node = NodeForFaults::lock().await;
    let rabbit: &Rabbit = &node;
    set_timeout(rabbit, Duration::from_millis(500), Duration::from_millis(250)).await;
    let options = options(rabbit, "held");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..1)).await;
    let held = next(&mut source).await;
    // Twice as long as the broker waits for others.
    for queue in ["first", "second"] {
        let (_connection, channel) = open(&rabbit.url()).await;
        outlast(&channel, queue).await;
    }
    let lasts = may_last(rabbit).await;
    if lasts {
        assert!(held.ticket.is_live(), "it was taken back");
        ack(held);
    } else {
        until("it is taken back", async || !held.ticket.is_live()).await;
    }
    // A stop that the broker does not end by taking the message back once more; then it is there again, for a consumer that
    // has the time to ack it.
    set_timeout(rabbit, Duration::from_secs(1800), Duration::from_secs(60)).await;
    assert!(amqp.shutdown(LONG).await);
    if !lasts {
        let (amqp, mut source) = consuming(options).await;
        ack(next(&mut source).await);
        assert!(amqp.shutdown(LONG).await);
    }
}

/// An alarm that outlasts the time after which the broker takes messages back: their jobs were delivered, and the replies
/// could not be published.
#[tokio::test]
async fn work_that_is_done_is_not_repeated_over_an_alarm() {
    const JOBS: usize = 5;
    let node = NodeForFaults::lock().await;
    let rabbit: &Rabbit = &node;
    set_timeout(rabbit, Duration::from_secs(3), Duration::from_millis(500)).await;
    let mut site = Site::on(rabbit, redis().await, "alarm", "rate = '100/s'\n[reply]\nallow = ['replies-']");
    let gate = site.hold_after(0);
    let queue = format!("replies-{}", site.prefix);
    publish::declare_quorum(&site.amqp, &queue).await;
    let replica = Paced::start(&site.config(), &["-v"], &[]).await;
    replica.wait_ready().await;
    let asking = Job::many("job", JOBS).into_iter().map(|mut job| {
        let id = job.id.clone().unwrap();
        job.properties = job.properties.with_reply_to(queue.as_str().into()).with_correlation_id(id.into());
        job
    });
    site.publish(asking.collect()).await;
    site.api.wait_for(JOBS, LONG).await;
    rabbit.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.00001)").await;
    gate.open();
    if !may_last(rabbit).await {
        replica.wait_line("delivered again", LONG).await;
    }
    rabbit.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.4)").await;
    site.depth(&queue, JOBS as u32, LONG).await;
    site.depth(&site.queue(), 0, LONG).await;
    assert_eq!(replica.stop().await, 0);
    set_timeout(rabbit, Duration::from_secs(1800), Duration::from_secs(60)).await;
    assert_eq!(publish::depth(&site.amqp, &site.queue()).await, Some(0), "all were acked");
    assert!(compare("job", JOBS, &site.api.arrivals()).is_clean(), "each was sent once");
    let replied = publish::drain(&site.amqp, &queue).await;
    let ids = replied.iter().map(|reply| reply.properties.correlation_id().as_ref().map(ToString::to_string));
    assert_eq!(ids.collect::<BTreeSet<_>>().len(), JOBS, "a reply to each");
    // One whose confirm was outstanding when its channel was lost is published once more.
    assert!(replied.len() <= 2 * JOBS, "{} replies", replied.len());
}

/// Whether the broker lets a consumer say how long its messages may be held.
async fn may_last(rabbit: &Rabbit) -> bool {
    let text = rabbit.version().await;
    let mut parts = text.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(4), Some(3))
}

/// Sets how long channels that are opened from now on wait for a settlement, and how often they look.
async fn set_timeout(rabbit: &Rabbit, timeout: Duration, look: Duration) {
    let (timeout, look) = (timeout.as_millis(), look.as_millis());
    let set = format!(
        "application:set_env(rabbit, consumer_timeout, {timeout}), \
         application:set_env(rabbit, channel_tick_interval, {look})"
    );
    rabbit.eval(&set).await;
}
