//! The broker side against a real RabbitMQ.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::ops::Deref;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::{BasicProperties, Channel};
use paced::amqp::{Address, Amqp, AmqpSource, Downstream, Options};
use paced::dispatch::{Delivery, Report, Source};
use paced::sink::{Receipt, Response};
use tokio::sync::{Mutex, MutexGuard};

mod check;
mod dead;
mod delays;
mod depths;
mod held;
mod kinds;
mod late;
mod leaderless;
mod leftovers;
mod letters;
mod loss;
pub(crate) mod many;
mod park;
mod poison;
mod publish;
mod rights;
mod settle;
mod timeouts;
mod topology;
mod window;

use crate::support::publish::open;
use crate::support::{self, LONG};
// Each test has a prefix of its own on the shared servers.
use crate::support::servers::{Rabbit, rabbit as shared};

/// A node for one test at a time, which may stop it, freeze it, or change what it allows, and leaves it as it was. One
/// that a test leaves by a panic ends.
struct NodeForFaults(MutexGuard<'static, Option<Rabbit>>);

impl NodeForFaults {
    async fn lock() -> Self {
        static NODE: LazyLock<Mutex<Option<Rabbit>>> = LazyLock::new(Mutex::default);
        let mut node = NODE.lock().await;
        if node.is_none() {
            *node = Some(Rabbit::dedicated().await);
        }
        Self(node)
    }
}

impl Deref for NodeForFaults {
    type Target = Rabbit;

    fn deref(&self) -> &Rabbit {
        self.0.as_ref().unwrap()
    }
}

impl Drop for NodeForFaults {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0 = None;
        }
    }
}

/// The vhost `/`, for this user and password.
fn url(rabbit: &Rabbit, login: &str) -> String {
    format!("amqp://{login}@127.0.0.1:{}", rabbit.port())
}

fn options(rabbit: &Rabbit, prefix: &str) -> Options {
    let downstream = Downstream {
        name: "billing".into(),
        queue: None,
        prefetch: 100,
        max_length: None,
        prefetch_bytes: 64 << 20,
    };
    Options {
        address: url(rabbit, "guest:guest").parse::<Address>().unwrap(),
        prefix: prefix.into(),
        declare: true,
        window_bytes: 256 << 20,
        rung_unit: paced::amqp::RUNG_UNIT,
        haste: 1,
        downstreams: vec![downstream],
    }
}

/// Waits for a future; the test fails if it takes longer than [`LONG`].
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LONG, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// Polls until the condition holds.
async fn until(what: &str, so: impl AsyncFnMut() -> bool) {
    within(what, support::until(what, LONG, so)).await;
}

/// A consuming session that is ready.
async fn consuming(options: Options) -> (Amqp, AmqpSource) {
    let amqp = Amqp::start(options);
    let source = amqp.source("billing").unwrap();
    within("the consumer", amqp.ready()).await;
    (amqp, source)
}

async fn next(source: &mut AmqpSource) -> Delivery {
    within("a message", source.next()).await.expect("the source has ended")
}

async fn take(source: &mut AmqpSource, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for _ in 0..count {
        deliveries.push(next(source).await);
    }
    deliveries
}

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|d| String::from_utf8(d.message.content.body.to_vec()).unwrap()).collect()
}

fn ack(delivery: Delivery) {
    let report = Report { attempts: 1, status: Some(200), released_at: None };
    delivery.ticket.ack(Receipt::new(Response::default()), report);
}

/// Publishes all in their order, and returns when the last one is confirmed.
async fn publish(amqp: &Amqp, options: &Options, bodies: impl IntoIterator<Item = String>) {
    let (publisher, exchange) = (amqp.publisher(), options.jobs_exchange());
    let publish = async |body: String| {
        let properties = BasicProperties::default().with_delivery_mode(2);
        publisher.publish(&exchange, "billing", properties, &Bytes::from(body)).await.unwrap();
    };
    let mut bodies = bodies.into_iter();
    // The first one opens the channel, for which the others would not wait in their order.
    if let Some(first) = bodies.next() {
        within("a confirm", publish(first)).await;
    }
    within("the confirms", futures_util::future::join_all(bodies.map(publish))).await;
}

fn numbered(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

/// The number of messages that are ready in the queue.
async fn depth(channel: &Channel, queue: &str) -> u32 {
    let declare = QueueDeclareOptions::default().passive();
    channel.queue_declare(queue.into(), declare, Default::default()).await.unwrap().message_count()
}

/// Takes one message off the queue.
async fn pop(channel: &Channel, queue: &str) -> lapin::message::Delivery {
    let mut popped = None;
    until("a message in the queue", async || {
        popped = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap();
        popped.is_some()
    })
    .await;
    popped.unwrap().delivery
}
