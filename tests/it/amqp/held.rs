//! Messages that are held for longer than the broker usually waits for their settlement.

use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};

use super::*;

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
    let rabbit = Rabbit::dedicated().await;
    let quick = "application:set_env(rabbit, consumer_timeout, 2000), \
                 application:set_env(rabbit, channel_tick_interval, 1000).";
    rabbit.ctl(&["eval", quick]).await;
    let options = options(&rabbit, "held");
    let (amqp, mut source) = consuming(options.clone()).await;
    publish(&amqp, &options, numbered(0..1)).await;
    let held = next(&mut source).await;
    // Twice as long as the broker waits for others.
    for queue in ["first", "second"] {
        let (_connection, channel) = open(&rabbit.url()).await;
        outlast(&channel, queue).await;
    }
    let version = rabbit.version().await;
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if (parts.next(), parts.next()) >= (Some(4), Some(3)) {
        assert!(held.ticket.is_live(), "RabbitMQ {version} took it back");
        ack(held);
    } else {
        until("it is taken back", async || !held.ticket.is_live()).await;
        ack(next(&mut source).await);
    }
    assert!(amqp.shutdown(LONG).await);
}
