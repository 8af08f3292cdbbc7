//! What a downstream has left that no replica serves: it is deleted only where nothing is in it, and nothing can come back.

use futures_util::StreamExt as _;
use lapin::Consumer;
use lapin::message::Delivery as Taken;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions};
use paced::amqp::{Leftover, Leftovers};

use super::*;
use crate::support::publish::{self, Job};
use crate::support::unique;

/// The queues of a downstream that nobody serves any more.
struct Left {
    url: String,
    prefix: String,
    queues: Leftovers,
    channel: Channel,
    _connection: lapin::Connection,
}

impl Left {
    async fn new(topic: &str) -> Self {
        let (rabbit, prefix) = (shared().await, unique(topic));
        let options = options(rabbit, &prefix);
        let (amqp, source) = consuming(options.clone()).await;
        drop(source);
        assert!(within("the shutdown", amqp.shutdown(Duration::from_secs(30))).await);
        let queues = within("the leftovers", Leftovers::open(&options, "billing")).await.unwrap();
        let (connection, channel) = open(&rabbit.url()).await;
        let left = Self { url: rabbit.url(), prefix, queues, channel, _connection: connection };
        // The broker may notice later that nobody consumes any more.
        until("nobody consumes", async || left.jobs().await.iter().all(|(.., holders)| *holders == 0)).await;
        left
    }

    fn queue(&self, kind: &str) -> String {
        format!("{}.{kind}.billing", self.prefix)
    }

    async fn put(&self, kind: &str, count: usize) {
        publish::publish_to(&self.url, "", &self.queue(kind), Job::many("job", count)).await;
    }

    /// The kind of each queue that holds jobs, the messages that are ready, and who holds others.
    async fn jobs(&self) -> Vec<(String, u32, u32)> {
        within("a look", self.queues.jobs()).await.unwrap().into_iter().map(|left| self.short(left)).collect()
    }

    fn short(&self, Leftover { queue, ready, holders }: Leftover) -> (String, u32, u32) {
        let kind = queue.split('.').rev().nth(1).unwrap().to_owned();
        assert_eq!(queue, self.queue(&kind));
        (kind, ready, holders)
    }

    /// Those that are in use, of which none was deleted; empty where all were.
    async fn delete(&self) -> Vec<(String, u32, u32)> {
        let in_use = within("the deletion", self.queues.delete()).await.unwrap();
        in_use.into_iter().map(|left| self.short(left)).collect()
    }

    async fn exists(&self, kind: &str) -> bool {
        publish::depth(&self.url, &self.queue(kind)).await.is_some()
    }

    /// Waits until this many messages of the queue of new jobs are ready, and this many clients hold others.
    async fn settled(&self, ready: u32, holders: u32) {
        until("the queue is so", async || self.jobs().await[0] == ("jobs".to_owned(), ready, holders)).await;
    }

    async fn get(&self) -> Taken {
        let got = self.channel.basic_get(self.queue("jobs").into(), BasicGetOptions::default());
        within("a message", got).await.unwrap().expect("a message").delivery
    }

    async fn consume(&self) -> Consumer {
        let options = BasicConsumeOptions::default();
        let consume =
            self.channel.basic_consume(self.queue("jobs").into(), "one".into(), options, Default::default());
        within("a consumer", consume).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_queues_are_deleted_and_jobs_for_them_are_kept() {
    let left = Left::new("gone").await;
    assert_eq!(left.jobs().await, [("jobs".to_owned(), 0, 0), ("home".to_owned(), 0, 0)]);
    within("the end of the bindings", left.queues.unbind()).await.unwrap();
    publish::publish(&left.url, &left.prefix, "billing", Job::many("job", 2)).await;
    let unroutable = format!("{}.unroutable", left.prefix);
    until("they are kept", async || publish::depth(&left.url, &unroutable).await == Some(2)).await;
    assert_eq!(left.jobs().await[0], ("jobs".to_owned(), 0, 0));
    assert_eq!(left.delete().await, []);
    for kind in ["jobs", "home", "dead"] {
        assert!(!left.exists(kind).await, "{kind}");
    }
    // Where nothing is left, there is nothing to do.
    assert_eq!(left.jobs().await, []);
    assert_eq!(within("a look", left.queues.dead()).await.unwrap(), None);
    within("the end of the bindings", left.queues.unbind()).await.unwrap();
    assert_eq!(left.delete().await, []);
    left.queues.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_deleted_while_a_message_is_ready_or_may_come_back() {
    let left = Left::new("inuse").await;
    let in_use = |kind: &str, ready, holders| vec![(kind.to_owned(), ready, holders)];
    left.put("dead", 1).await;
    left.put("jobs", 2).await;
    until("both are there", async || left.delete().await.len() == 2).await;
    publish::drain(&left.url, &left.queue("dead")).await;
    until("the letter is gone", async || left.delete().await == in_use("jobs", 2, 0)).await;

    // Somebody holds both, and no consumer is there.
    let taken = [left.get().await, left.get().await];
    left.settled(0, 2).await;
    assert_eq!(left.delete().await, in_use("jobs", 0, 2));
    let again = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
    for message in &taken {
        left.channel.basic_nack(message.delivery_tag, again).await.unwrap();
    }
    left.settled(2, 0).await;

    // A consumer that was cancelled holds both.
    let mut consumer = left.consume().await;
    let mut tags = Vec::new();
    for _ in 0..2 {
        tags.push(within("a message", consumer.next()).await.unwrap().unwrap().delivery_tag);
    }
    left.settled(0, 1).await;
    left.channel.basic_cancel("one".into(), BasicCancelOptions::default()).await.unwrap();
    left.settled(0, 1).await;
    assert_eq!(left.delete().await, in_use("jobs", 0, 1));
    for tag in tags {
        left.channel.basic_ack(tag, BasicAckOptions::default()).await.unwrap();
    }
    left.settled(0, 0).await;

    // A consumer that holds nothing would take what comes.
    let _consumer = left.consume().await;
    left.settled(0, 1).await;
    assert_eq!(left.delete().await, in_use("jobs", 0, 1));
    for kind in ["jobs", "home", "dead"] {
        assert!(left.exists(kind).await, "{kind}");
    }
    left.channel.basic_cancel("one".into(), BasicCancelOptions::default()).await.unwrap();
    left.settled(0, 0).await;
    assert_eq!(left.delete().await, []);
    assert!(!left.exists("jobs").await);
    left.queues.close().await;
}
