//! A consumer that stands in while a queue has no other, where the queue may be deleted with its last consumer.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use lapin::Consumer;
use tokio::time::Instant;

use super::{Feed, Subscriber};
use crate::amqp::error::Error;

/// A message that waits for the end of a pause goes back once in this time. RabbitMQ ends a consumer that has held a
/// message for its `consumer_timeout`, 30 minutes unless set, and that would delete the queue. Where the queue may
/// count returns, the message does not come back more often than that time-out would make it.
const RENEWAL: Duration = Duration::from_secs(25 * 60);

/// A consumer beside that of the window, on a channel of its own. It takes one job at a time, regardless of how many
/// are held.
pub(super) struct StandIn {
    pub(super) feed: Feed,
    consumer: Option<Consumer>,
    /// When it began, or last gave a message back.
    since: Instant,
}

impl StandIn {
    /// A consumer that will use this channel once it begins.
    pub(super) fn new(feed: Feed) -> Self {
        Self { feed, consumer: None, since: Instant::now() }
    }

    /// Starts to consume, unless it already does.
    pub(super) async fn begin(&mut self, subscriber: &Subscriber) -> Result<(), Error> {
        if self.consumer.is_none() {
            self.consumer = Some(subscriber.subscribe(&self.feed, 1).await?);
            self.since = Instant::now();
        }
        Ok(())
    }

    /// Ends the consumer, and hands on what it has delivered.
    pub(super) async fn end(&mut self, subscriber: &mut Subscriber) -> Result<(), Error> {
        match self.consumer.take() {
            Some(consumer) => subscriber.drain(&self.feed, consumer, "standing in no more").await,
            None => Ok(()),
        }
    }

    /// Whether its channel is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.consumer.is_some() && !self.feed.subscription.is_live()
    }

    /// Gives back a message that nobody took for long. The broker delivers it again at once, and it stays for as long
    /// again.
    pub(super) fn renew(&mut self) {
        if self.since.elapsed() < RENEWAL {
            return;
        }
        self.since = Instant::now();
        let Some(Some(Some(Ok(delivery)))) = self.consumer.as_mut().map(|c| c.next().now_or_never()) else {
            return;
        };
        let Feed { subscription, admission, .. } = &self.feed;
        drop(admission.arrived(delivery.data.len() as u64, 0));
        subscription.acker.delivered(delivery.delivery_tag);
        subscription.acker.give_back(delivery.delivery_tag);
    }

    /// What comes next, as from a stream of lapin; it waits for ever if nothing is consumed. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Result<lapin::message::Delivery, lapin::Error>> {
        match &mut self.consumer {
            Some(consumer) => consumer.next().await,
            None => std::future::pending().await,
        }
    }
}
