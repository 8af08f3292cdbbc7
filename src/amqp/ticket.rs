//! The right to settle one delivery.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use lapin::BasicProperties;
use lapin::types::ShortString;
use tracing::{info, warn};

use super::acker::Acker;
use super::budget::{Account, Charge};
use super::connection::Backoff;
use super::gate::Gate;
use super::letter;
use super::message::value;
use super::parking::{Parkable, Parking};
use super::publish_error::PublishError;
use super::publisher::{Ordering as Order, Publisher, Turn};
use super::replies::Replies;
use super::supervisor::ConnectionWatch;
use super::{Downstream, Options};
use crate::bounded_log::BoundedLog;
use crate::dispatch::{DeadLetter, Liveness, Parked, Report, Stay, Ticket, Unburied};
use crate::episode::Episode;
use crate::failpoint;
use crate::job::Value;
use crate::sink::{Receipt, Response};
use crate::time::{Micros, wall_now};

mod reply;

/// One consumer on one channel, with the generation of its deliveries.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) acker: Arc<Acker>,
    /// The gate of its connection.
    gate: Arc<Gate>,
    over: AtomicBool,
    /// Whether its queue has not answered the end of the consumer.
    silent: AtomicBool,
    /// The generation rises from one subscription to the next.
    generation: u64,
}

/// The generation of the latest subscription.
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl Subscription {
    pub(super) fn new(acker: Arc<Acker>, gate: Arc<Gate>) -> Self {
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
        let (over, silent) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { acker, gate, over, silent, generation }
    }

    /// Marks its deliveries as lost: they are delivered again elsewhere.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Notes that its queue has not answered in time when it was to deliver nothing more.
    pub(super) fn note_silence(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::SeqCst)
    }

    pub(super) fn is_live(&self) -> bool {
        !self.over.load(Ordering::SeqCst) && self.acker.channel().status().connected()
    }
}

/// The parts that the tickets of one downstream share.
pub(super) struct Settlement {
    pub(super) options: Arc<Options>,
    pub(super) downstream: Downstream,
    pub(super) publisher: Publisher,
    pub(super) replies: Arc<Replies>,
    /// The consuming connection, for declarations.
    pub(super) current: ConnectionWatch,
    /// The gate of that connection.
    pub(super) gate: Arc<Gate>,
    /// The log of publishes that fail: each job may cause several lines.
    pub(super) log: Arc<BoundedLog>,
    /// The account of the bytes of the messages that are held.
    pub(super) account: Arc<Account>,
    pub(super) parking: Arc<Parking>,
}

/// The log of the publishes of one downstream that fail.
pub(super) fn publish_log(downstream: &str) -> Arc<BoundedLog> {
    let downstream = downstream.to_owned();
    BoundedLog::new(move |summary| {
        let (lines, publishes) = (summary.lines, &summary);
        warn!(%downstream, lines, %publishes, "publishes that failed, or succeeded later; too many to log each");
    })
}

impl Settlement {
    /// Publishes a dead letter; if its queue has been deleted, declares it for the next attempt.
    async fn send_dead(
        &self,
        turn: Turn,
        queue: &str,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        let sent = turn.publish("", queue, properties, body).await;
        let connection = self.current.borrow().clone();
        if let (Err(PublishError::Unroutable(_)), true, Some(connection)) =
            (&sent, self.options.declare, connection)
        {
            // If this fails, the next attempt reports what is missing.
            let _ = self.gate.ensure(&connection, &self.options, &self.downstream).await;
        }
        sent
    }
}

/// After this many failures to publish a reply, it is given up. A requester whose queue stays full does not read it;
/// a name that closes the channel each time is not the name of a requester's queue.
const REPLY_FAILURES: u32 = 3;

/// A message that came back this often is not given back voluntarily: RabbitMQ 4.0 to 4.2 drop a message that came
/// back 20 times, unless another limit is set.
const MOST_DELIVERIES: i128 = 10;

/// How often the message came back, as a quorum queue counts it.
fn delivery_count(properties: &BasicProperties) -> i128 {
    let headers = properties.headers().as_ref();
    match headers.and_then(|headers| headers.inner().get("x-delivery-count")).map(value) {
        Some(Value::Integer(count)) => count,
        _ => 0,
    }
}

/// A delivery that is not settled yet. When dropped, it returns to its queue.
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
        // A settled ticket needs nothing; a message that is not live is delivered again by itself.
        if self.is_live() {
            self.subscription.acker.give_back(self.tag);
        }
    }
}

impl Ticket for AmqpTicket {
    fn is_live(&self) -> bool {
        self.subscription.is_live()
    }

    fn liveness(&self) -> Liveness {
        let subscription = Arc::clone(&self.subscription);
        Arc::new(move || subscription.is_live())
    }

    fn generation(&self) -> u64 {
        self.subscription.generation
    }

    fn is_redelivered(&self) -> bool {
        self.redelivered
    }

    fn header(&self, name: &str) -> Option<Value> {
        self.properties.headers().as_ref()?.inner().get(name).map(value)
    }

    fn ack(self: Box<Self>, _receipt: Receipt, _report: Report) {
        failpoint::reached("deliver:sent");
        self.subscription.acker.ack(self.tag);
        failpoint::reached("deliver:acked");
    }

    fn discard(self: Box<Self>, _report: Report) {
        failpoint::reached("cancel:settle");
        self.subscription.acker.ack(self.tag);
        failpoint::reached("cancel:acked");
    }

    fn dead_letter(self: Box<Self>, letter: DeadLetter) -> BoxFuture<'static, Option<Unburied>> {
        Box::pin(async move {
            failpoint::reached("dead:publish");
            let pending = PendingPublish::DeadLetter { letter: &letter, at: wall_now() };
            if !self.until_done(&pending).await {
                return Some(Unburied::Unpublished(letter));
            }
            if !self.is_live() {
                return Some(Unburied::Published(letter));
            }
            failpoint::reached("dead:confirmed");
            self.subscription.acker.ack(self.tag);
            failpoint::reached("dead:acked");
            None
        })
    }

    fn give_back(self: Box<Self>) {
        self.subscription.acker.give_back(self.tag);
    }

    fn can_park(&self) -> bool {
        self.settlement.parking.is_available()
    }

    fn park(self: Box<Self>, stay: Stay) -> BoxFuture<'static, Parked> {
        let parking = Arc::clone(&self.settlement.parking);
        Box::pin(parking.park(self, stay))
    }

    fn may_be_given_back(&self) -> bool {
        let Settlement { options, downstream, .. } = &*self.settlement;
        let is_own = downstream.queue.is_none()
            && !self.subscription.gate.existing.has(&options.names().queue(downstream));
        is_own && delivery_count(&self.properties) < MOST_DELIVERIES
    }

    fn reply<'a>(&'a self, response: &'a Response) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let Some(queue) = self.properties.reply_to() else { return true };
            failpoint::reached("reply:publish");
            let queue = queue.as_str();
            let is_done =
                self.until_done(&PendingPublish::Reply { queue, body: reply::body(response) }).await;
            // The publish is given up while the message is live.
            is_done || self.is_live()
        })
    }
}

impl Parkable for AmqpTicket {
    fn properties(&self) -> &BasicProperties {
        &self.properties
    }

    fn routing_key(&self) -> &str {
        self.routing_key.as_str()
    }

    fn body(&self) -> &Bytes {
        &self.body
    }

    fn ack_parked(&self) {
        self.subscription.acker.ack(self.tag);
    }
}

/// A message that has to be published before a delivery is settled.
enum PendingPublish<'a> {
    DeadLetter { letter: &'a DeadLetter, at: Micros },
    Reply { queue: &'a str, body: Bytes },
}

impl PendingPublish<'_> {
    const fn name(&self) -> &'static str {
        match self {
            Self::DeadLetter { .. } => "dead letter",
            Self::Reply { .. } => "reply",
        }
    }

    /// True where further attempts would only delay the job. A dead letter must not be lost, and nobody waits for it.
    /// But a requester that is gone or broken could make the job wait for ever.
    fn is_lost(&self, error: &PublishError, failures: u32) -> bool {
        match self {
            Self::DeadLetter { .. } => false,
            Self::Reply { .. } => !error.is_retryable() || failures >= REPLY_FAILURES,
        }
    }
}

/// Whether the broker accepts nothing from anybody, which is no fault of this reply.
const fn is_brokers(error: &PublishError) -> bool {
    matches!(error, PublishError::TimedOut { blocked: true, .. })
}

impl AmqpTicket {
    /// Publishes until it is confirmed; returns false if the delivery is not live any more, or the message is given up.
    async fn until_done(&self, pending: &PendingPublish<'_>) -> bool {
        let (downstream, what) = (&self.settlement.downstream.name, pending.name());
        let address = &self.settlement.options.address;
        let mut backoff = Backoff::default();
        let mut trouble = Episode::default();
        let mut failures = 0;
        while self.is_live() {
            match self.publish(pending).await {
                Ok(()) => {
                    if trouble.end() {
                        let line = || info!(%downstream, "published a {what} at a later try");
                        self.settlement.log.line("done", line);
                    }
                    return true;
                }
                // The channel may have been lost before it was published.
                Err(_) if !self.is_live() => return false,
                Err(error) => {
                    failures += u32::from(!is_brokers(&error));
                    if pending.is_lost(&error, failures) {
                        let line =
                            || warn!(%downstream, %address, %error, "cannot publish a {what}; gave it up");
                        self.settlement.log.line("given-up", line);
                        return false;
                    }
                    if trouble.note(()) {
                        let line =
                            || warn!(%downstream, %address, %error, "cannot publish a {what}; trying again");
                        self.settlement.log.line("trying-again", line);
                    }
                    tokio::time::sleep(backoff.next()).await;
                }
            }
        }
        false
    }

    async fn publish(&self, pending: &PendingPublish<'_>) -> Result<(), PublishError> {
        let Settlement { options, downstream, publisher, replies, .. } = &*self.settlement;
        match pending {
            PendingPublish::DeadLetter { letter, at } => {
                let queue = options.names().dead(&downstream.name);
                let turn = publisher.turn(&queue, Order::Free).await?;
                if !self.is_live() {
                    return Err(PublishError::Unavailable);
                }
                let (key, frame_max) = (self.routing_key.as_str(), publisher.frame_max());
                let properties = letter::dead_letter(&self.properties, key, letter, *at, frame_max);
                self.settlement.send_dead(turn, &queue, properties, &self.body).await
            }
            // A requester that is gone has no queue any more, and then nothing is left to do.
            PendingPublish::Reply { queue, body } => {
                let properties = letter::reply(self.properties.correlation_id().as_ref());
                replies.publish(queue, properties, body, || self.is_live()).await
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
