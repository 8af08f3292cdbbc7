//! The right to settle one delivery.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::ShortString;
use tracing::{info, warn};

use super::acker::Acker;
use super::budget::{Account, Charge};
use super::connection::Backoff;
use super::gate::Gate;
use super::letter;
use super::message::value;
use super::publisher::{PublishError, Publisher};
use super::replies::Replies;
use super::supervisor::Line;
use super::{Downstream, Options};
use crate::bounded_log::BoundedLog;
use crate::dispatch::{DeadLetter, Report, Ticket};
use crate::job::Value;
use crate::sink::{Receipt, Response};
use crate::store::BoxFuture;
use crate::time::{Micros, wall_now};

mod reply;

/// One consumer on one channel: the generation that its deliveries belong to.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) acker: Arc<Acker>,
    over: AtomicBool,
    /// Rises from one to the next.
    generation: u64,
}

/// The generation of the latest subscription.
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl Subscription {
    pub(super) fn new(acker: Arc<Acker>) -> Self {
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
        Self { acker, over: AtomicBool::new(false), generation }
    }

    /// Its deliveries come again elsewhere.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_live(&self) -> bool {
        !self.over.load(Ordering::SeqCst) && self.acker.channel().status().connected()
    }
}

/// What the tickets of one downstream share.
pub(super) struct Settlement {
    pub(super) options: Arc<Options>,
    pub(super) downstream: Downstream,
    pub(super) publisher: Publisher,
    pub(super) replies: Arc<Replies>,
    /// The consuming connection, for declarations.
    pub(super) line: Line,
    /// The gate of the consuming connection.
    pub(super) gate: Arc<Gate>,
    /// The log of publishes that fail: each job may cause several lines.
    pub(super) log: Arc<BoundedLog>,
    /// The bytes of the messages that are held.
    pub(super) account: Arc<Account>,
}

/// The log of the publishes of one downstream that fail.
pub(super) fn publish_log(downstream: &str) -> Arc<BoundedLog> {
    let downstream = downstream.to_owned();
    BoundedLog::new(move |summary| {
        let (lines, publishes) = (summary.lines, &summary);
        warn!(%downstream, lines, %publishes, "publishes that failed, or did after all; too many to log each");
    })
}

impl Settlement {
    /// Publishes a dead letter; where its queue has been deleted, declares it for the next attempt.
    async fn send_dead(&self, properties: BasicProperties, body: &Bytes) -> Result<(), PublishError> {
        let queue = self.options.names().dead(&self.downstream.name);
        let sent = self.publisher.publish_routed("", &queue, properties, body).await;
        let connection = self.line.borrow().clone();
        if let (Err(PublishError::Unroutable(_)), true, Some(connection)) =
            (&sent, self.options.declare, connection)
        {
            // Should it fail, the next attempt says what is missing.
            let _ = self.gate.ensure(&connection, &self.options, &self.downstream).await;
        }
        sent
    }
}

/// How often a reply may fail: a requester whose queue stays full does not read it, and a name that costs
/// the channel each time is no requester's.
const REPLY_FAILURES: u32 = 3;

/// A message that came back more often is not given back by choice: RabbitMQ 4.0 to 4.2 drop what came back 20
/// times, where nobody sets another limit.
const MOST_DELIVERIES: i128 = 10;

/// How often the message came back, as a quorum queue counts it.
fn delivery_count(properties: &BasicProperties) -> i128 {
    let headers = properties.headers().as_ref();
    match headers.and_then(|headers| headers.inner().get("x-delivery-count")).map(value) {
        Some(Value::Integer(count)) => count,
        _ => 0,
    }
}

/// A delivery that is not settled yet. Dropped so, it goes back to its queue.
pub(super) struct AmqpTicket {
    pub(super) subscription: Arc<Subscription>,
    pub(super) settlement: Arc<Settlement>,
    pub(super) tag: u64,
    pub(super) redelivered: bool,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
    pub(super) charge: Charge,
}

impl fmt::Debug for AmqpTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpTicket")
            .field("downstream", &self.settlement.downstream.name)
            .field("tag", &self.tag)
            .field("bytes", &self.charge.bytes())
            .field("live", &self.is_live())
            .finish_non_exhaustive()
    }
}

impl Drop for AmqpTicket {
    fn drop(&mut self) {
        // Nothing happens to what is settled; what is not live comes again by itself.
        if self.is_live() {
            self.subscription.acker.give_back(self.tag);
        }
    }
}

impl Ticket for AmqpTicket {
    fn is_live(&self) -> bool {
        self.subscription.is_live()
    }

    fn generation(&self) -> u64 {
        self.subscription.generation
    }

    fn is_redelivered(&self) -> bool {
        self.redelivered
    }

    fn ack(self: Box<Self>, _receipt: Receipt, _report: Report) {
        self.subscription.acker.ack(self.tag);
    }

    fn dead_letter(self: Box<Self>, letter: DeadLetter) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if self.until_done(&Errand::Bury { letter, at: wall_now() }).await {
                self.subscription.acker.ack(self.tag);
            }
        })
    }

    fn give_back(self: Box<Self>) {
        self.subscription.acker.give_back(self.tag);
    }

    fn may_be_given_back(&self) -> bool {
        self.settlement.downstream.queue.is_none() && delivery_count(&self.properties) < MOST_DELIVERIES
    }

    fn reply<'a>(&'a self, response: &'a Response) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(queue) = self.properties.reply_to() else { return };
            let queue = queue.to_string();
            self.until_done(&Errand::Reply { queue, body: reply::body(response) }).await;
        })
    }
}

/// What has to be published before a delivery is settled.
enum Errand {
    Bury { letter: DeadLetter, at: Micros },
    Reply { queue: String, body: Bytes },
}

impl Errand {
    const fn name(&self) -> &'static str {
        match self {
            Self::Bury { .. } => "dead letter",
            Self::Reply { .. } => "reply",
        }
    }

    /// True where trying on would only hold the job up: nobody waits for a dead letter, and it must not
    /// be lost, but a requester that is gone or broken can wait for ever.
    fn is_lost(&self, error: &PublishError, failures: u32) -> bool {
        match self {
            Self::Bury { .. } => false,
            Self::Reply { .. } => !error.is_retryable() || failures >= REPLY_FAILURES,
        }
    }
}

/// Whether the broker takes nothing from anybody: that says nothing about this reply.
const fn is_brokers(error: &PublishError) -> bool {
    matches!(error, PublishError::TimedOut { blocked: true, .. })
}

impl AmqpTicket {
    /// Publishes until it is confirmed; false where the delivery is not live any more, or the errand is
    /// one to give up.
    async fn until_done(&self, errand: &Errand) -> bool {
        let (downstream, what) = (&self.settlement.downstream.name, errand.name());
        let mut backoff = Backoff::default();
        let mut troubled = false;
        let mut failures = 0;
        while self.is_live() {
            match self.publish(errand).await {
                Ok(()) => {
                    if troubled {
                        let line = || info!(%downstream, "published a {what} after all");
                        self.settlement.log.line("done", line);
                    }
                    return true;
                }
                Err(error) => {
                    failures += u32::from(!is_brokers(&error));
                    if errand.is_lost(&error, failures) {
                        let line = || warn!(%downstream, %error, "cannot publish a {what}; gave it up");
                        self.settlement.log.line("given-up", line);
                        return false;
                    }
                    if !troubled {
                        let line = || warn!(%downstream, %error, "cannot publish a {what}; trying on");
                        self.settlement.log.line("trying-on", line);
                        troubled = true;
                    }
                    tokio::time::sleep(backoff.next()).await;
                }
            }
        }
        false
    }

    async fn publish(&self, errand: &Errand) -> Result<(), PublishError> {
        let publisher = &self.settlement.publisher;
        match errand {
            Errand::Bury { letter, at } => {
                let frame_max = publisher.frame_max();
                let properties =
                    letter::dead_letter(&self.properties, self.routing_key.as_str(), letter, *at, frame_max);
                self.settlement.send_dead(properties, &self.body).await
            }
            // A requester that is gone has no queue any more: nothing is left to do then.
            Errand::Reply { queue, body } => {
                let properties = letter::reply(self.properties.correlation_id().as_ref());
                self.settlement.replies.publish(queue, properties, body).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::{AMQPValue, FieldTable};

    use super::*;

    #[test]
    fn a_message_tells_how_often_it_came_back() {
        let counted = |value| {
            let mut headers = FieldTable::default();
            headers.insert("x-delivery-count".into(), value);
            delivery_count(&BasicProperties::default().with_headers(headers))
        };
        assert_eq!(counted(AMQPValue::LongLongInt(12)), 12);
        assert_eq!(counted(AMQPValue::LongInt(3)), 3);
        assert_eq!(counted(AMQPValue::Void), 0);
        assert_eq!(delivery_count(&BasicProperties::default()), 0);
    }
}
