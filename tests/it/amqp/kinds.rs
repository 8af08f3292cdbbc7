//! Queues of kinds that paced declares none of.

use std::collections::BTreeSet;

use futures_util::FutureExt as _;
use lapin::types::{AMQPValue, FieldTable};
use paced::amqp::{Error, Warning, check_online};

use super::*;
use crate::support::daemon::Paced;
use crate::support::site::Site;
use crate::support::unique;

/// The options for a downstream that consumes a queue of others, by a user who may configure it, so that its kind can be
/// asked for, or not.
async fn foreign(rabbit: &Rabbit, queue: &str, may_ask: bool) -> Options {
    let prefix = unique("kinds");
    let mut options = options(rabbit, &prefix);
    if !may_ask {
        let user = unique("user");
        rabbit.add_user(&user, "pw", [&format!("^{prefix}[.]"), ".*", ".*"]).await;
        options.address = url(rabbit, &format!("{user}:pw")).parse().unwrap();
    }
    options.downstreams[0].queue = Some(queue.to_owned());
    options
}

async fn publish_to(amqp: &Amqp, queue: &str, count: u32) {
    for body in numbered(0..count) {
        let properties = BasicProperties::default().with_delivery_mode(2);
        let sent = amqp.publisher().publish("", queue, properties, &Bytes::from(body)).await;
        sent.unwrap();
    }
}

async fn declare_stream(channel: &Channel) -> String {
    let (queue, mut arguments) = (unique("stream"), FieldTable::default());
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("stream".into()));
    channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    queue
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_not_consumed() {
    let rabbit = shared().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let queue = declare_stream(&channel).await;
    let options = foreign(rabbit, &queue, true).await;
    let errors = within("the check", check_online(&options)).await.errors;
    assert_eq!(errors, [Error::Stream { queue: queue.clone() }]);
    let site = Site::shared("stream", &format!("rate = '100/s'\nqueue.name = '{queue}'")).await;
    let amqp = Amqp::publishing(options).await.unwrap();
    publish_to(&amqp, &queue, 3).await;
    let replica = Paced::start(&site.config(), &[], &[]).await;
    replica.wait_line("is a stream", LONG).await;
    // The other queue of the downstream is consumed meanwhile.
    let home = format!("{}.home.billing", site.prefix);
    let consumers = async |queue: &str| {
        let declare = QueueDeclareOptions::default().passive();
        channel.queue_declare(queue.into(), declare, FieldTable::default()).await.unwrap().consumer_count()
    };
    until("the consumer", async || consumers(&home).await == 1).await;
    publish_to(&amqp, &queue, 3).await;
    assert_eq!((consumers(&queue).await, site.api.count()), (0, 0));
    assert_eq!(replica.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_cannot_be_asked_is_known_by_its_first_message() {
    let rabbit = shared().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    let queue = declare_stream(&channel).await;
    let options = foreign(rabbit, &queue, false).await;
    let (amqp, mut source) = consuming(options).await;
    publish_to(&amqp, &queue, 3).await;
    until("it is refused", async || !amqp.is_attached("billing")).await;
    publish_to(&amqp, &queue, 3).await;
    assert!(source.next().now_or_never().is_none(), "none of its messages is a job");
    assert!(amqp.shutdown(LONG).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_with_its_last_consumer_always_has_one() {
    const JOBS: usize = 1000;
    let rabbit = shared().await;
    let (_connection, channel) = open(&rabbit.url()).await;
    for may_ask in [true, false] {
        let queue = unique("autodelete");
        let declare = QueueDeclareOptions { durable: true, auto_delete: true, ..Default::default() };
        channel.queue_declare(queue.as_str().into(), declare, FieldTable::default()).await.unwrap();
        let options = foreign(rabbit, &queue, may_ask).await;
        if may_ask {
            let warnings = within("the check", check_online(&options)).await.warnings;
            let warned = [Warning::AutoDelete { downstream: "billing".into(), queue: queue.clone() }];
            assert_eq!(warnings, warned);
        }
        let (amqp, mut source) = consuming(options).await;
        publish_to(&amqp, &queue, JOBS.try_into().unwrap()).await;
        let mut seen = BTreeSet::new();
        for turn in 0..20 {
            source.resize([3, 100, 20, 1][turn % 4]);
            if turn % 5 == 4 {
                within("the pause", source.pause()).await;
                source.resume();
            }
            let mut held = Vec::new();
            for _ in 0..JOBS / 20 {
                held.push(next(&mut source).await);
                // Some are held, so that there is no room for more.
                if held.len() >= [1, 10, 10, 1][turn % 4] {
                    let oldest = held.remove(0);
                    assert!(seen.insert(bodies(std::slice::from_ref(&oldest)).remove(0)), "twice");
                    ack(oldest);
                }
            }
            for delivery in held {
                assert!(seen.insert(bodies(std::slice::from_ref(&delivery)).remove(0)), "twice");
                ack(delivery);
            }
        }
        assert_eq!(seen.len(), JOBS);
        drop(source);
        assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
    }
}
