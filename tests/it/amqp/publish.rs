use std::sync::Arc;

use paced::amqp::{AMQPValue, FieldTable, PublishError};
use tokio::task::JoinSet;

use super::late::Relay;
use super::*;

/// Class and method of basic.publish, with the reserved field behind them.
const PUBLISH: [u8; 6] = [0, 60, 0, 40, 0, 0];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_publishes_wait_for_no_other() {
    const ALL: u32 = 2_000;
    let rabbit = shared().await;
    let mut options = options(rabbit, "bulk");
    // The confirms are held back. Missed heartbeats must not end the connection meanwhile.
    let (relay, port) = Relay::start(rabbit.port(), PUBLISH.to_vec()).await;
    options.address = format!("amqp://guest:guest@127.0.0.1:{port}/?heartbeat=600").parse().unwrap();
    let amqp = Arc::new(Amqp::publishing(options.clone()).await.unwrap());
    let publisher = amqp.publisher();
    let mut publishes = JoinSet::new();
    for number in 0..ALL {
        let (publisher, exchange) = (publisher.clone(), options.jobs_exchange());
        publishes.spawn(async move {
            let properties = BasicProperties::default().with_delivery_mode(2);
            publisher.publish(&exchange, "billing", properties, &Bytes::from(number.to_string())).await
        });
    }
    let (_connection, channel) = open(&rabbit.url()).await;
    until("all of them", async || depth(&channel, "bulk.jobs.billing").await == ALL).await;
    assert!(publishes.try_join_next().is_none(), "none is confirmed");
    relay.let_through.send_replace(true);
    while let Some(published) = within("a confirm", publishes.join_next()).await {
        published.unwrap().unwrap();
    }
}

/// Each caller gets the confirm of its own message, for anything that the others do meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirms_are_not_mixed_up() {
    let rabbit = shared().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    // A queue that takes one message and rejects the rest.
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let declare = QueueDeclareOptions::durable();
    channel.queue_declare("mixed.full".into(), declare, arguments).await.unwrap();
    let amqp = Amqp::publishing(options(rabbit, "mixed")).await.unwrap();
    let publisher = amqp.publisher();
    publisher.publish("", "mixed.full", BasicProperties::default(), &Bytes::new()).await.unwrap();

    let mut publishes = JoinSet::new();
    for number in 0..2_000 {
        let publisher = publisher.clone();
        publishes.spawn(async move {
            let full = number % 2 == 0;
            let (exchange, key) = if full { ("", "mixed.full") } else { ("mixed.jobs", "billing") };
            (full, publisher.publish(exchange, key, BasicProperties::default(), &Bytes::new()).await)
        });
    }
    while let Some(published) = within("a confirm", publishes.join_next()).await {
        let (full, outcome) = published.unwrap();
        assert_eq!(outcome, if full { Err(PublishError::Rejected) } else { Ok(()) });
    }
    assert!(PublishError::Rejected.is_retryable());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_published_says_why_and_harms_no_other() {
    let rabbit = shared().await;
    let options = options(rabbit, "refused");
    let amqp = Amqp::publishing(options.clone()).await.unwrap();
    let publisher = amqp.publisher();
    let properties = BasicProperties::default;
    let body = Bytes::from_static(b"x");

    let missing = publisher.publish("refused.none", "k", properties(), &body).await.unwrap_err();
    assert_eq!(missing, PublishError::NoExchange("refused.none".into()));
    let unroutable = publisher.publish_routed("", "refused.none", properties(), &body).await.unwrap_err();
    assert_eq!(unroutable, PublishError::Unroutable("refused.none".into()));
    let long = "k".repeat(256);
    let name = publisher.publish("", &long, properties(), &body).await.unwrap_err();
    assert_eq!(name, PublishError::NameTooLong(long));
    let mut headers = FieldTable::default();
    headers.insert("http-x".into(), AMQPValue::LongString(vec![b'x'; 140_000].into()));
    let large = publisher.publish("", "k", properties().with_headers(headers), &body).await.unwrap_err();
    assert!(matches!(large, PublishError::HeadersTooLarge { .. }), "{large}");
    for error in [missing, unroutable, name, large] {
        assert!(!error.is_retryable(), "{error}");
    }

    // The connection has survived all of this.
    publisher.publish(&options.jobs_exchange(), "billing", properties(), &body).await.unwrap();
    publisher.publish_routed(&options.jobs_exchange(), "billing", properties(), &body).await.unwrap();
    // Messages for a misspelt downstream are kept in a queue of their own.
    publisher.publish(&options.jobs_exchange(), "biling", properties(), &body).await.unwrap();
    let (_connection, channel) = open(&rabbit.url()).await;
    let lost = pop(&channel, "refused.unroutable").await;
    assert_eq!(lost.routing_key.as_str(), "biling");
    assert_eq!(depth(&channel, "refused.jobs.billing").await, 2);
}

/// An alarm stops all who publish at the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_while_the_broker_blocks_are_no_copies() {
    let node = NodeForFaults::lock().await;
    let rabbit: &Rabbit = &node;
    let options = options(rabbit, "blocked");
    let amqp = Amqp::publishing(options.clone()).await.unwrap();
    let (publisher, exchange) = (amqp.publisher(), options.jobs_exchange());
    let properties = BasicProperties::default;
    let body = Bytes::from_static(b"x");
    publisher.publish(&exchange, "billing", properties(), &body).await.unwrap();
    publisher.publish_routed(&exchange, "billing", properties(), &body).await.unwrap();

    rabbit.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.00001)").await;
    // The broker reports that it blocks when something is published, so the first message arrives. More do if the alarm
    // comes late.
    let mut during = 0;
    while !publisher.is_blocked() {
        during += 1;
        tokio::select! {
            biased;
            sent = publisher.publish(&exchange, "billing", properties(), &body) => sent.unwrap(),
            () = until("the alarm", async || publisher.is_blocked()) => {}
        }
    }
    for _ in 0..4 {
        let attempt = publisher.publish(&exchange, "billing", properties(), &body);
        assert!(tokio::time::timeout(Duration::from_millis(50), attempt).await.is_err(), "it is blocked");
    }
    for _ in 0..5 {
        let attempt = publisher.publish_routed(&exchange, "billing", properties(), &body);
        assert!(tokio::time::timeout(Duration::from_millis(50), attempt).await.is_err(), "it is blocked");
    }
    rabbit.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.4)").await;
    within("a confirm", publisher.publish(&exchange, "billing", properties(), &body)).await.unwrap();
    within("a confirm", publisher.publish_routed(&exchange, "billing", properties(), &body)).await.unwrap();
    let (_connection, channel) = open(&rabbit.url()).await;
    let all = async || depth(&channel, "blocked.jobs.billing").await == 2 + during + 2;
    until("two before, one during, two after", all).await;
}

/// The broker closes the channel of each publish to a missing exchange. A connection uses the number of that channel again
/// after all other numbers. Other publishes still succeed then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_that_the_broker_has_closed_keep_nobody_from_publishing() {
    const CHANNELS: usize = 48;
    let node = NodeForFaults::lock().await;
    let rabbit: &Rabbit = &node;
    rabbit.eval(&format!("application:set_env(rabbit, channel_max, {CHANNELS})")).await;
    let amqp = Amqp::publishing(options(rabbit, "spent")).await.unwrap();
    let publisher = amqp.publisher();
    let mut lost = 0;
    for number in 0..3 * CHANNELS {
        let publish = |exchange| {
            let publisher = &publisher;
            let body = Bytes::from(number.to_string());
            async move { publisher.publish_routed(exchange, "billing", BasicProperties::default(), &body).await }
        };
        within("a refusal", publish("spent.missing")).await.unwrap_err();
        until("the next one is published", async || match publish("spent.jobs").await {
            Ok(()) => true,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                lost += 1;
                false
            }
        })
        .await;
    }
    rabbit.eval("application:set_env(rabbit, channel_max, 2047)").await;
    let (_connection, channel) = open(&rabbit.url()).await;
    assert_eq!(depth(&channel, "spent.jobs.billing").await, 3 * CHANNELS as u32);
    // Each connection serves all that its numbers are good for before the next one takes its place.
    assert!(lost <= 2 * 4, "{lost} publishes had to be made again");
}
