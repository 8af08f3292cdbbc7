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
    let text = rabbit.version().await;
    let mut parts = text.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next(), parts.next());
    if version >= (Some(4), Some(3)) {
        assert!(held.ticket.is_live(), "RabbitMQ {text} took it back");
        ack(held);
    } else {
        until("it is taken back", async || !held.ticket.is_live()).await;
    }
    assert!(amqp.shutdown(LONG).await);
    // It is there again where it was taken back, for a consumer that has the time to ack it.
    set_timeout(rabbit, Duration::from_secs(1800), Duration::from_secs(60)).await;
    if version < (Some(4), Some(3)) {
        let (amqp, mut source) = consuming(options).await;
        ack(next(&mut source).await);
        assert!(amqp.shutdown(LONG).await);
    }
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
