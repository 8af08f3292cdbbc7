//! Answers of the broker that arrive after the call was given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::many::{channels, vhost};
use super::*;

/// Class and method of basic.consume, with the reserved field behind them.
const CONSUME: [u8; 6] = [0, 60, 0, 20, 0, 0];

/// Class and method of queue.declare, with the reserved field behind them.
const DECLARE: [u8; 6] = [0, 50, 0, 10, 0, 0];

/// A method that is about this queue.
fn about(method: [u8; 6], queue: &str) -> Vec<u8> {
    let length = u8::try_from(queue.len()).unwrap();
    method.into_iter().chain([length]).chain(queue.bytes()).collect()
}

/// A relay between paced and the broker, which holds back the broker's answers once a certain method is called for the
/// first time.
pub(super) struct Relay {
    question: Vec<u8>,
    /// Whether the method was called, so that the answer is held back.
    asked: watch::Sender<bool>,
    /// Whether another method was called after that.
    went_on: watch::Sender<bool>,
    pub(super) let_through: watch::Sender<bool>,
    first: AtomicBool,
}

impl Relay {
    /// Starts the relay; returns its port.
    pub(super) async fn start(broker: u16, question: Vec<u8>) -> (Arc<Self>, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let relay = Arc::new(Self {
            question,
            asked: watch::Sender::new(false),
            went_on: watch::Sender::new(false),
            let_through: watch::Sender::new(false),
            first: AtomicBool::new(true),
        });
        let accepting = Arc::clone(&relay);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_client, to_client) = client.into_split();
                let broker = TcpStream::connect(("127.0.0.1", broker)).await.unwrap();
                let (from_broker, to_broker) = broker.into_split();
                let held = watch::Sender::new(false);
                let answers = Arc::clone(&accepting).answers(from_broker, to_client, held.subscribe());
                tokio::spawn(answers);
                tokio::spawn(Arc::clone(&accepting).questions(from_client, to_broker, held));
            }
        });
        (relay, port)
    }

    async fn questions(
        self: Arc<Self>,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        held: watch::Sender<bool>,
    ) {
        let mut received = Vec::new();
        let mut part = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut part).await {
            received.extend_from_slice(&part[..length]);
            if *held.borrow() {
                self.went_on.send_replace(true);
            }
            let asks = received.windows(self.question.len()).any(|bytes| bytes == &self.question[..]);
            if asks && self.first.swap(false, Ordering::SeqCst) {
                held.send_replace(true);
                self.asked.send_replace(true);
            }
            if to.write_all(&part[..length]).await.is_err() {
                return;
            }
        }
    }

    async fn answers(
        self: Arc<Self>,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        held: watch::Receiver<bool>,
    ) {
        let mut let_through = self.let_through.subscribe();
        let mut part = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut part).await {
            if *held.borrow() {
                let_through.wait_for(|now| *now).await.unwrap();
            }
            if to.write_all(&part[..length]).await.is_err() {
                return;
            }
        }
    }
}

/// Lets more time pass than the time-out for an answer, second by second, as it is counted so.
async fn outlast_the_timeout() {
    tokio::time::pause();
    for _ in 0..15 {
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    tokio::time::resume();
}

/// The broker grants a consumer after the call was given up: no job may be delivered to it.
#[tokio::test]
async fn a_consumer_that_is_granted_too_late_takes_no_jobs() {
    let rabbit = shared().await;
    let mut options = options(rabbit, "granted");
    let (relay, port) = Relay::start(rabbit.port(), about(CONSUME, "granted.jobs.billing")).await;
    // Missed heartbeats must not end the connection whose answers are held back.
    options.address = format!("amqp://guest:guest@127.0.0.1:{port}/?heartbeat=600").parse().unwrap();
    let amqp = Amqp::start(options.clone());
    let mut source = amqp.source("billing").unwrap();
    within("the consume", relay.asked.subscribe().wait_for(|asked| *asked)).await.unwrap();
    let (_connection, channel) = open(&rabbit.url()).await;
    until("the broker's consent", async || consumers(&channel, "granted.jobs.billing").await == 1).await;
    assert!(!amqp.is_ready());
    outlast_the_timeout().await;
    within("another question", relay.went_on.subscribe().wait_for(|went_on| *went_on)).await.unwrap();
    relay.let_through.send_replace(true);
    within("the consumer", amqp.ready()).await;
    until("one consumer", async || consumers(&channel, "granted.jobs.billing").await == 1).await;
    publish(&amqp, &options, numbered(0..20)).await;
    let deliveries = take(&mut source, 20).await;
    assert_eq!(bodies(&deliveries), numbered(0..20));
    deliveries.into_iter().for_each(ack);
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// A declaration that is answered after the call was given up leaves no channel open.
#[tokio::test]
async fn a_late_declaration_leaves_no_channel() {
    let rabbit = shared().await;
    let url = vhost(rabbit, "tardy").await;
    let (relay, port) = Relay::start(rabbit.port(), about(DECLARE, "tardy.jobs.billing")).await;
    let mut options = options(rabbit, "tardy");
    options.address = format!("amqp://guest:guest@127.0.0.1:{port}/tardy?heartbeat=600").parse().unwrap();
    let amqp = Amqp::start(options);
    let _source = amqp.source("billing").unwrap();
    within("the declaration", relay.asked.subscribe().wait_for(|asked| *asked)).await.unwrap();
    let (_connection, _channel) = open(&url).await;
    outlast_the_timeout().await;
    within("another question", relay.went_on.subscribe().wait_for(|went_on| *went_on)).await.unwrap();
    assert!(!amqp.is_ready());
    relay.let_through.send_replace(true);
    within("the consumer", amqp.ready()).await;
    // The test's own channel has no consumer.
    until("a channel for each queue", async || {
        let mut channels = channels(rabbit, "tardy").await;
        channels.sort_unstable();
        channels == [0, 1, 1]
    })
    .await;
    assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
}

/// The number of consumers of the queue.
pub async fn consumers(channel: &Channel, queue: &str) -> u32 {
    let declare = QueueDeclareOptions::default().passive();
    channel.queue_declare(queue.into(), declare, Default::default()).await.unwrap().consumer_count()
}
