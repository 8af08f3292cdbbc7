//! Keeps one queue of a downstream consumed.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Route, Slot};
use crate::amqp::attached::Attached;
use crate::amqp::connection::{ANSWER, Backoff, STABLE, close};
use crate::amqp::error::Error;
use crate::amqp::guard::take_mark;
use crate::amqp::letter;
use crate::amqp::links::SeparationReason;
use crate::amqp::message::message;
use crate::amqp::parking;
use crate::amqp::supervisor::up;
use crate::amqp::ticket::{AmqpTicket, Settlement, Subscription};
use crate::amqp::topology::short;
use crate::amqp::weight::weight;
use crate::amqp::window::{Bounds, Consuming, Sizes};
use crate::dispatch::Delivery;
use crate::episode::Episode;
use crate::failpoint;
use crate::lock::lock;
use crate::metric;
use pump::Pump;
use read_timeout::ReadTimeout;

mod attach;
mod pump;
mod read_timeout;

/// How long a message may be unacked before the broker takes it back, where the broker lets each consumer say so;
/// others have one time for all. The jobs of a slow limit are held for longer than the 30 minutes that are usual.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The argument that says so. RabbitMQ knows it from 4.3 on, for quorum queues.
const TIMEOUT: &str = "x-consumer-timeout";

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
    pub(super) arrivals: mpsc::UnboundedSender<Delivery>,
    /// The number of messages that the dispatcher wants unsettled at most; 0 stands for a pause.
    pub(super) window: watch::Receiver<u16>,
    pub(super) sizes: Sizes,
    pub(super) closing: CancellationToken,
    pub(super) reports: Reports,
    /// The connection that the downstream is consumed over.
    pub(super) route: Route,
    /// Whether the consumer is to have a time-out of its own, until the broker refuses that: it does so for what is no
    /// quorum queue, and of which kind a queue is that others declared is not known before.
    pub(super) has_timeout: bool,
}

/// The state that a subscriber reports.
pub(super) struct Reports {
    /// Whether there is no consumer.
    pub(super) idle: watch::Sender<bool>,
    /// Whether the queue is consumed as well as it can be.
    pub(super) attached: Attached,
    /// The subscriptions whose messages may still be settled.
    pub(super) slot: Slot,
}

/// How long jobs are not consumed after a connection is up, while it is not known whether they can be parked.
const DECISION: Duration = Duration::from_secs(15);

/// The reason why a consumer ended.
enum End {
    /// The subscriber closed it; messages that had arrived were handed on.
    Closed,
    Lost(String),
    /// The downstream needs a connection of its own; messages that had arrived stay valid.
    Moved(SeparationReason),
}

/// The result of an attempt to attach.
enum Attempt {
    Consuming(Arc<Subscription>, Consumer, Consuming),
    /// The downstream has repeatedly ended the shared connection.
    Guilty,
    /// The subscriber is stopping.
    Over,
}

/// When the next attempt to attach is made.
enum After {
    /// After a time that grows with each failure.
    Backoff,
    /// After this time.
    Delay(Duration),
}

impl Subscriber {
    pub(in crate::amqp) async fn run(mut self) {
        self.consume_on().await;
        // Messages that still arrive are given back: they must not hold up the last answers.
        self.route.link.meter.disarm();
    }

    async fn consume_on(&mut self) {
        let mut backoff = Backoff::default();
        let mut trouble = Episode::default();
        // Why jobs cannot be parked, although those that are come back.
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
            let attached = tokio::select! {
                () = self.closing.cancelled() => return,
                attached = self.attach(&mut trouble, &mut without) => attached,
            };
            let wait = match attached {
                Ok(Attempt::Over) => return,
                Ok(Attempt::Guilty) => {
                    self.separate(SeparationReason::Losses);
                    continue;
                }
                Ok(Attempt::Consuming(subscription, consumer, consuming)) => {
                    if trouble.end() {
                        info!(downstream = %self.name(), "consuming again");
                    }
                    let since = Instant::now();
                    match self.pump(Arc::clone(&subscription), (consumer, consuming), without.take()).await {
                        End::Closed => return,
                        End::Moved(why) => {
                            self.separate(why);
                            continue;
                        }
                        End::Lost(reason) => self.give_back(&subscription, &mut trouble, reason).await,
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

    /// Hands on the deliveries of a consumer until it ends. `without` is why jobs cannot be parked.
    async fn pump(
        &mut self,
        subscription: Arc<Subscription>,
        (consumer, consuming): (Consumer, Consuming),
        without: Option<Error>,
    ) -> End {
        self.reports.attached.set(true);
        if self.queue == Queue::Home {
            match without {
                Some(error) => self.settlement.parking.shut(&error, Some(parking::RETRY)),
                None => self.settlement.parking.open(),
            }
        }
        let end = Pump::new(self, subscription, consumer, consuming).run().await;
        self.reports.attached.set(false);
        end
    }

    /// Handles an error of an attempt to attach. Returns the time until the next attempt; `None` if it is made at once.
    fn on_error(&mut self, error: &Error, trouble: &mut Episode<String>) -> Option<After> {
        if self.has_timeout && is_about_timeout(error) {
            self.has_timeout = false;
            return None;
        }
        if self.queue == Queue::Home && error.is_final() {
            self.settlement.parking.shut(error, None);
            // The downstream is consumed as well as it can be.
            self.reports.attached.set(true);
            return Some(After::Delay(parking::RETRY));
        }
        let gate = &self.route.link.gate;
        if gate.existing.note(error) {
            return None;
        }
        if !gate.goes_on_without(self.name(), error) {
            self.log_trouble(trouble, error.to_string());
        }
        Some(After::Backoff)
    }

    /// Waits until it is known whether jobs can be parked, since those that must wait for long would otherwise be held.
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

    /// Ends the subscription of a consumer that was lost, and returns its unacked messages to the queue.
    async fn give_back(&self, subscription: &Subscription, trouble: &mut Episode<String>, reason: String) {
        // Settlements made just before still count where the channel is open.
        subscription.acker.write_now();
        subscription.end();
        self.log_trouble(trouble, reason);
        // Where only the consumer is gone, the broker returns its messages when the channel is closed.
        tokio::select! {
            () = self.closing.cancelled() => {}
            () = close(subscription.acker.channel()) => {}
        }
    }

    /// Switches to a connection of its own.
    fn separate(&mut self, why: SeparationReason) {
        self.route.gives_back = false;
        self.reports.idle.send_replace(true);
        let name = self.settlement.downstream.name.clone();
        let what = match self.queue {
            Queue::Jobs => name.clone(),
            Queue::Home => format!("{name}, parked"),
        };
        if self.route.separate(&what, &self.settlement.account) {
            warn!(
                downstream = name,
                reason = why.text(),
                "consuming over a connection of its own from now on"
            );
            let labels = [("downstream", name), ("reason", why.label().to_owned())];
            metrics::counter!(metric::AMQP_SEPARATIONS.name, &labels).increment(1);
        }
    }

    /// The reason why this downstream must not be consumed over the shared connection any more, if there is one.
    fn unfit(&self) -> Option<SeparationReason> {
        let account = &self.settlement.account;
        if self.route.is_own {
            None
        } else if self.sizes.are_long(account.most(), *self.window.borrow()) {
            Some(SeparationReason::Long)
        } else {
            account.overruns(0).then_some(SeparationReason::Overrun)
        }
    }

    /// The present bounds of the messages that are unsettled.
    fn bounds(&self) -> Bounds {
        let (wanted, bytes) = (*self.window.borrow(), self.settlement.account.allowance());
        Bounds { wanted, bytes, shared: !self.route.is_own }
    }

    /// The number of unsettled messages that were delivered over other channels than this one.
    fn elsewhere(&self, current: Option<&Arc<Subscription>>) -> usize {
        let slot = lock(&self.reports.slot);
        let others = slot.iter().filter(|other| current.is_none_or(|current| !Arc::ptr_eq(current, other)));
        others.filter(|other| other.is_live()).map(|other| other.acker.unsettled().all).sum()
    }

    /// Starts a consumer with this prefetch.
    async fn subscribe(&self, channel: &Channel, prefetch: u16) -> Result<Consumer, Error> {
        let queue = self.queue_name();
        // With a prefetch of 0 RabbitMQ would not bound the deliveries.
        let qos = channel.basic_qos(prefetch.max(1), BasicQosOptions::default());
        self.answer("setting the prefetch", ANSWER, qos).await?;
        // At shutdown, answers must not queue behind messages that are not read.
        if !self.closing.is_cancelled() {
            self.route.link.meter.arm();
        }
        let (options, arguments) = (BasicConsumeOptions::default(), self.arguments()?);
        let consume = channel.basic_consume(short(&queue)?, "".into(), options, arguments);
        self.answer(&format!("queue {queue}"), ANSWER, consume).await
    }

    /// The arguments of the consumer. Brokers that know no such time-out ignore it.
    fn arguments(&self) -> Result<FieldTable, Error> {
        let mut arguments = FieldTable::default();
        if self.has_timeout {
            let timeout = i64::try_from(CONSUMER_TIMEOUT.as_millis()).unwrap_or(i64::MAX);
            arguments.insert(short(TIMEOUT)?, AMQPValue::LongLongInt(timeout));
        }
        Ok(arguments)
    }

    /// Waits for the broker's answer within a time-out, which does not run while nothing is read.
    async fn answer<T>(
        &self,
        what: &str,
        within: Duration,
        answer: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<T, Error> {
        let mut answer = pin!(answer);
        let mut timeout = ReadTimeout::new(&self.route.link.meter, &self.closing, within);
        tokio::select! {
            answer = &mut answer => answer.map_err(|error| Error::of(what, &error)),
            () = timeout.elapsed() => Err(Error::TimedOut { what: what.to_owned(), after: within }),
        }
    }

    fn hand_on(&mut self, subscription: &Arc<Subscription>, mut delivery: lapin::message::Delivery) {
        let malformed = take_mark(&mut delivery.properties);
        let tag = delivery.delivery_tag;
        subscription.acker.delivered(tag);
        let bytes = weight(delivery.data.len(), &delivery.properties);
        self.route.link.meter.claim(delivery.data.len() as u64);
        self.sizes.note(bytes);
        if (self.route.gives_back || self.closing.is_cancelled()) && self.settlement.account.overruns(bytes) {
            // There is no other way: the rest of the window is in transit over a connection that others need, that is
            // to be closed, or on which an answer comes after it.
            subscription.acker.give_back(tag);
            return;
        }
        let body = Bytes::from(delivery.data);
        let (mut routing_key, mut stay) = (delivery.routing_key, None);
        if self.queue == Queue::Home {
            failpoint::reached("home:taken");
            // From anywhere else these headers mean nothing.
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
            charge: self.settlement.account.charge(bytes),
        };
        // If the source was dropped nobody receives it, and its ticket gives it back.
        let _ = self.arrivals.send(Delivery { message, ticket: Box::new(ticket), stay });
    }

    /// Logs a trouble once, until it changes.
    fn log_trouble(&self, trouble: &mut Episode<String>, reason: String) {
        if trouble.note(reason.clone()) {
            warn!(downstream = %self.name(), reason, "not consuming; trying on");
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
