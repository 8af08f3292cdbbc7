//! Keeps one queue of a downstream consumed.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use lapin::Consumer;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Slot;
use crate::amqp::admission::{Admission, Admissions};
use crate::amqp::attached::Attached;
use crate::amqp::connection::{Backoff, STABLE, close};
use crate::amqp::error::Error;
use crate::amqp::foreign::{Kind, Traits};
use crate::amqp::guard::{Mark, take_mark};
use crate::amqp::letter;
use crate::amqp::links::Route;
use crate::amqp::message::message;
use crate::amqp::read_timeout;
use crate::amqp::rungs;
use crate::amqp::supervisor::up;
use crate::amqp::ticket::{AmqpTicket, Settlement, Subscription};
use crate::amqp::topology::short;
use crate::amqp::weight::{least, weight};
use crate::amqp::window::{Bounds, Consuming, Sizes};
use crate::dispatch::Delivery;
use crate::episode::Episode;
use crate::failpoint;
use crate::lock::lock;
use pump::Pump;
use stand_in::StandIn;

mod attach;
mod pump;
mod stand_in;

/// How long a message may stay unacked before the broker takes it back. A consumer may request this where the broker
/// permits it; otherwise one time holds for all consumers. The jobs of a slow limit are held for longer than the
/// usual 30 minutes.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The argument for that time. RabbitMQ knows it from 4.3 on, for quorum queues.
const TIMEOUT: &str = "x-consumer-timeout";

/// The header with the offset of a message that comes from a stream.
const OFFSET: &str = "x-stream-offset";

/// One of the queues that a downstream is consumed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// The queue that producers publish to.
    Jobs,
    /// The queue of jobs that come back from where they were parked.
    Home,
}

/// Keeps one queue of a downstream consumed, over one connection after another.
pub(in crate::amqp) struct Subscriber {
    pub(super) queue: Queue,
    pub(super) settlement: Arc<Settlement>,
    /// Boxed, since the channel allocates room for some from the start.
    pub(super) arrivals: mpsc::UnboundedSender<Box<Delivery>>,
    /// The number of messages that the dispatcher wants unsettled at most; 0 stands for a pause.
    pub(super) window: watch::Receiver<u16>,
    pub(super) sizes: Sizes,
    pub(super) closing: CancellationToken,
    pub(super) reports: Reports,
    /// The connection that the queue is consumed over.
    pub(super) route: Route,
    pub(super) known: Known,
}

/// What is known about a queue, which others may have declared.
#[derive(Default)]
pub(super) struct Known {
    /// Whether the broker refuses a consumer with a time-out of its own, as it does for a queue that is no quorum
    /// queue. If the kind of the queue cannot be found out, only this refusal shows it.
    refuses_timeout: bool,
    /// The traits, once they are known. They are kept, since the broker logs an error for each query.
    traits: Mutex<Option<Traits>>,
    /// Until when a queue of an unknown kind counts as a stream, since a message seemed to come from one. Anybody may
    /// publish such a message, so consuming is tried again.
    is_stream_until: Option<Instant>,
}

/// How long a queue counts as a stream.
const STREAM: Duration = Duration::from_secs(60);

/// The state that a subscriber reports.
pub(super) struct Reports {
    /// Whether there is no consumer.
    pub(super) idle: watch::Sender<bool>,
    /// The assumed size of messages of the jobs' queue, in bytes.
    pub(super) size: Arc<AtomicU64>,
    /// Whether the queue is consumed as well as it can be.
    pub(super) attached: Attached,
    /// The last subscriptions, whose messages may still be settled.
    pub(super) slot: Slot,
    /// Counts deliveries that are given back for lack of room.
    pub(super) cut: metrics::Counter,
}

/// How long jobs are not consumed after a connection is up, while it is not known whether they can be parked.
const DECISION: Duration = Duration::from_secs(15);

/// The reason why a consumer ended.
enum End {
    /// The subscriber closed it; messages that had arrived were handed on.
    Closed,
    Lost(String),
}

/// The result of an attempt to attach.
enum Attempt {
    Consuming(Box<Started>),
    /// The subscriber is stopping.
    Over,
}

/// A consumer that has started.
struct Started {
    feeds: Feeds,
    consumer: Consumer,
    consuming: Consuming,
}

/// A channel for consuming a queue.
struct Feed {
    subscription: Arc<Subscription>,
    /// The admissions of its connection.
    admissions: Arc<Admissions>,
    /// Decides which of its deliveries are accepted.
    admission: Arc<Admission>,
    /// Whether the queue may be a stream.
    may_be_stream: bool,
}

/// The channel of the consumer, and that of the consumer that stands in for it, if the queue must never be without one.
struct Feeds {
    main: Feed,
    stand_in: Option<StandIn>,
}

/// When the next attempt to attach is made.
enum After {
    /// After a time that grows with each failure.
    Backoff,
    /// After this time.
    Delay(Duration),
}

impl Subscriber {
    /// Boxed, since the future has room for its argument twice, and there are two for each downstream.
    pub(in crate::amqp) async fn run(mut self: Box<Self>) {
        let mut backoff = Backoff::default();
        let mut trouble = Episode::default();
        // The reason why jobs cannot be parked, although those that are parked come back.
        let mut without = None;
        if self.queue == Queue::Jobs {
            self.await_parking().await;
        }
        while !self.closing.is_cancelled() {
            tokio::select! {
                () = self.closing.cancelled() => return,
                // Without a sender there is nobody to hand messages to. Later changes of the window are applied once
                // there is a consumer.
                wanted = self.window.wait_for(|window| *window > 0) => if wanted.is_err() { return },
            }
            self.reports.idle.send_replace(false);
            tokio::select! {
                () = self.closing.cancelled() => return,
                is_known = self.route.choose() => if !is_known { return },
            }
            let attached = tokio::select! {
                () = self.closing.cancelled() => return,
                // Boxed, since this future is large and short-lived.
                attached = Box::pin(self.attach(&mut trouble, &mut without)) => attached,
            };
            let wait = match attached {
                Ok(Attempt::Over) => return,
                Ok(Attempt::Consuming(started)) => {
                    if trouble.end() {
                        info!(downstream = %self.name(), "consuming again");
                    }
                    let since = Instant::now();
                    match self.pump(started, without.take()).await {
                        End::Closed => return,
                        End::Lost(reason) => Box::pin(self.give_back(&mut trouble, reason)).await,
                    }
                    if since.elapsed() >= STABLE {
                        backoff.reset();
                    }
                    backoff.next()
                }
                Err(error) => match self.on_error(&error, &mut trouble) {
                    Some(After::Backoff) => backoff.next(),
                    Some(After::Delay(delay)) => delay,
                    None => continue,
                },
            };
            self.reports.idle.send_replace(true);
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Hands on the deliveries of a consumer until it ends. `without` is the reason why jobs cannot be parked.
    async fn pump(&mut self, started: Box<Started>, without: Option<Error>) -> End {
        self.reports.attached.set(true);
        if self.queue == Queue::Home {
            match without {
                Some(error) => self.settlement.parking.shut(&error, Some(rungs::RETRY)),
                None => self.settlement.parking.open(),
            }
        }
        let end = Pump::new(self, *started).run().await;
        self.reports.attached.set(false);
        end
    }

    /// Handles an error of an attempt to attach. Returns the time until the next attempt; `None` if it is made at once.
    fn on_error(&mut self, error: &Error, trouble: &mut Episode<String>) -> Option<After> {
        if !self.known.refuses_timeout && is_about_timeout(error) {
            self.known.refuses_timeout = true;
            return None;
        }
        if matches!(error, Error::NotFound { .. }) {
            // If a queue of this name exists again, it is another queue.
            (self.known.is_stream_until, *lock(&self.known.traits)) = (None, None);
        }
        if self.queue == Queue::Home && error.is_final() {
            self.settlement.parking.shut(error, None);
            // The downstream is consumed as well as it can be.
            self.reports.attached.set(true);
            return Some(After::Delay(rungs::RETRY));
        }
        let gate = &self.route.link.gate;
        if gate.existing.note(error) {
            return None;
        }
        if !gate.continues_without(self.name(), error) {
            self.log_trouble(trouble, error.to_string());
        }
        Some(After::Backoff)
    }

    /// Waits until it is known whether jobs can be parked: otherwise those that must wait for long would be held.
    async fn await_parking(&self) {
        let (mut current, parking) = (self.route.link.current.clone(), &self.settlement.parking);
        let patience = async {
            up(&mut current).await;
            tokio::time::sleep(DECISION).await;
        };
        tokio::select! {
            () = self.closing.cancelled() => {}
            () = parking.decided() => {}
            () = patience => parking.shut(&"the queue of parked jobs cannot be consumed", None),
        }
    }

    /// Ends the subscriptions of a consumer that was lost, and returns its unacked messages to the queue.
    async fn give_back(&self, trouble: &mut Episode<String>, reason: String) {
        self.log_trouble(trouble, reason);
        let subscriptions = std::mem::take(&mut *lock(&self.reports.slot));
        for subscription in subscriptions {
            // Settlements made just before still count where the channel is open.
            subscription.acker.write_now();
            subscription.end();
            // Where only the consumer is gone, the broker returns its messages when the channel is closed.
            tokio::select! {
                () = self.closing.cancelled() => {}
                () = close(subscription.acker.channel()) => {}
            }
        }
    }

    /// The present bounds of the messages that are unsettled.
    fn bounds(&self, admission: &Admission) -> Bounds {
        let (wanted, account) = (*self.window.borrow(), &self.settlement.account);
        let left = account.left().saturating_add(admission.reserved());
        Bounds { wanted, bytes: account.allowance(), left, gives_back: admission.gives_back() }
    }

    /// Starts a consumer with this prefetch.
    async fn subscribe(&self, feed: &Feed, prefetch: u16) -> Result<Consumer, Error> {
        let (queue, channel) = (self.queue_name(), feed.subscription.acker.channel());
        // With a prefetch of 0 RabbitMQ would not bound the deliveries.
        let qos = channel.basic_qos(prefetch.max(1), BasicQosOptions::default());
        self.answer(feed, "setting the prefetch", qos).await?;
        let (options, arguments) = (BasicConsumeOptions::default(), self.arguments()?);
        let consume = channel.basic_consume(short(&queue)?, "".into(), options, arguments);
        self.answer(feed, &format!("queue {queue}"), consume).await
    }

    /// The arguments of the consumer. Brokers that know no such time-out ignore it.
    fn arguments(&self) -> Result<FieldTable, Error> {
        let mut arguments = FieldTable::default();
        let kind = lock(&self.known.traits).as_ref().map(|traits| traits.kind);
        if kind != Some(Kind::Classic) && !self.known.refuses_timeout {
            let timeout = i64::try_from(CONSUMER_TIMEOUT.as_millis()).unwrap_or(i64::MAX);
            arguments.insert(short(TIMEOUT)?, AMQPValue::LongLongInt(timeout));
        }
        Ok(arguments)
    }

    /// Waits for the broker's answer within a time-out, which does not run while bodies are cut.
    async fn answer<T>(
        &self,
        feed: &Feed,
        what: &str,
        answer: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<T, Error> {
        read_timeout::answer(&feed.admissions, &self.closing, what, answer).await
    }

    /// Hands on a delivery. Returns false if there is no room for it: then it is given back.
    ///
    /// # Errors
    /// The queue is a stream.
    fn hand_on(&mut self, feed: &Feed, mut delivery: lapin::message::Delivery) -> Result<bool, Error> {
        let Feed { subscription, admission, may_be_stream, .. } = feed;
        let offset = delivery.properties.headers().as_ref().and_then(|headers| headers.inner().get(OFFSET));
        if *may_be_stream && matches!(offset, Some(AMQPValue::LongLongInt(_))) {
            self.known.is_stream_until = Some(Instant::now() + STREAM);
            return Err(Error::Stream { queue: self.queue_name() });
        }
        let tag = delivery.delivery_tag;
        subscription.acker.delivered(tag);
        let malformed = match take_mark(&mut delivery.properties) {
            Some(Mark::Cut(body)) => {
                self.sizes.note_returned(least(body));
                self.reports.cut.increment(1);
                subscription.acker.give_back(tag);
                return Ok(false);
            }
            mark => mark.and_then(Mark::malformed),
        };
        let length = delivery.data.len() as u64;
        let bytes = weight(delivery.data.len(), &delivery.properties);
        self.sizes.note(bytes, least(length));
        let body = Bytes::from(delivery.data);
        let (mut routing_key, mut stay) = (delivery.routing_key, None);
        if self.queue == Queue::Home {
            failpoint::reached("home:taken");
            // On the other queue these headers may be a producer's, and do not count.
            stay = letter::stay(&delivery.properties);
            routing_key = letter::parked_key(&delivery.properties).unwrap_or(routing_key);
        }
        let message = message(routing_key.as_str(), &delivery.properties, body.clone(), malformed);
        let ticket = AmqpTicket {
            subscription: Arc::clone(subscription),
            settlement: Arc::clone(&self.settlement),
            tag,
            redelivered: delivery.redelivered,
            routing_key,
            properties: delivery.properties,
            body,
            charge: admission.arrived(length, bytes),
        };
        // If the source was dropped, nobody receives the delivery, and its ticket gives it back.
        let _ = self.arrivals.send(Box::new(Delivery { message, ticket: Box::new(ticket), stay }));
        Ok(true)
    }

    /// Logs a trouble once, until it changes.
    fn log_trouble(&self, trouble: &mut Episode<String>, reason: String) {
        if trouble.note(reason.clone()) {
            let address = &self.settlement.options.address;
            warn!(downstream = %self.name(), %address, reason, "not consuming; trying again");
        }
    }

    fn queue_name(&self) -> String {
        let Settlement { options, downstream, .. } = &*self.settlement;
        match self.queue {
            Queue::Jobs => options.names().queue(downstream),
            Queue::Home => options.names().home_queue(&downstream.name),
        }
    }

    fn name(&self) -> &str {
        &self.settlement.downstream.name
    }
}

/// Whether the broker refuses a consumer with a time-out, in words such as "invalid arg 'x-consumer-timeout' for queue 'q'".
fn is_about_timeout(error: &Error) -> bool {
    matches!(error, Error::Inequivalent { detail, .. } if detail.contains(TIMEOUT))
}
