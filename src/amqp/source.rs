//! The messages of one downstream, over one connection after another.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::acker::Acker;
use super::budget::Account;
use super::connection::{ANSWER, Backoff, CloseUnlessUsed, STABLE, channel, close, closed};
use super::error::Error;
use super::guard::take_mark;
use super::links::{Link, SeparationReason};
use super::message::message;
use super::supervisor::up;
use super::ticket::{AmqpTicket, Settlement, Subscription};
use super::topology::short;
use super::weight::weight;
use super::window::{Bounds, Consuming, Sizes};
use crate::dispatch::{Delivery, Source};
use crate::metric;
use crate::store::BoxFuture;
use pump::Pump;
use read_timeout::ReadTimeout;

pub(super) use route::Route;

mod pump;
mod read_timeout;
mod route;

/// The subscriptions of one downstream whose messages may still be settled, for the last flush.
pub(super) type Slot = Arc<Mutex<Vec<Arc<Subscription>>>>;

/// The messages of one downstream.
///
/// When dropped, it consumes no more; tickets that were handed out stay valid.
#[derive(Debug)]
pub struct AmqpSource {
    arrivals: mpsc::UnboundedReceiver<Delivery>,
    /// The window in force; 0 while it is paused.
    window: watch::Sender<u16>,
    /// The window while it is not paused.
    wanted: u16,
    is_paused: bool,
    /// True while there is no consumer.
    idle: watch::Receiver<bool>,
    /// The account of the bytes that it holds.
    account: Arc<Account>,
    closing: CancellationToken,
}

impl AmqpSource {
    fn set_window(&self) {
        let window = if self.is_paused { 0 } else { self.wanted.max(1) };
        self.window.send_if_modified(|known| std::mem::replace(known, window) != window);
    }
}

impl Source for AmqpSource {
    async fn next(&mut self) -> Option<Delivery> {
        loop {
            let delivery = self.arrivals.recv().await?;
            // A message of a lost connection is delivered again over the next one.
            if delivery.ticket.is_live() {
                return Some(delivery);
            }
        }
    }

    /// Messages that are unsettled stay so, and count for the new window: none is delivered until fewer are unsettled.
    fn resize(&mut self, window: u16) {
        self.wanted = window;
        self.set_window();
    }

    /// Cancels the consumer. The channel stays open, and its messages stay unsettled.
    fn pause(&mut self) -> BoxFuture<'static, ()> {
        self.is_paused = true;
        self.set_window();
        let mut idle = self.idle.clone();
        Box::pin(async move {
            // Without a sender the source has ended, and hands out nothing more.
            let _ = idle.wait_for(|idle| *idle).await;
        })
    }

    fn resume(&mut self) {
        self.is_paused = false;
        self.set_window();
    }

    fn is_full(&self) -> bool {
        self.account.is_full(0)
    }

    async fn close(&mut self) {
        self.closing.cancel();
    }
}

impl Drop for AmqpSource {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Waits until the broker has processed a downstream's settlements, and closes its channel; false where that failed.
pub(super) async fn flush(slot: &Slot) -> bool {
    let subscriptions = std::mem::take(&mut *slot.lock().unwrap_or_else(PoisonError::into_inner));
    let mut all = true;
    for subscription in subscriptions {
        // The messages of a lost connection are delivered again in any case.
        if subscription.is_live() {
            all &= subscription.acker.flush().await.is_ok();
            close(subscription.acker.channel()).await;
            subscription.end();
        }
    }
    all
}

/// Keeps one downstream consumed, over one connection after another.
pub(super) struct Subscriber {
    settlement: Arc<Settlement>,
    arrivals: mpsc::UnboundedSender<Delivery>,
    /// The number of messages that the dispatcher wants unsettled at most; 0 stands for a pause.
    window: watch::Receiver<u16>,
    /// Reports whether there is no consumer.
    idle: watch::Sender<bool>,
    sizes: Sizes,
    closing: CancellationToken,
    attached: watch::Sender<bool>,
    slot: Slot,
    /// The connection that the downstream is consumed over.
    route: Route,
    /// Whether messages far beyond its bytes are given back, since all that is in transit must be read.
    gives_back: bool,
}

/// The reason why a consumer ended.
enum End {
    /// The subscriber closed it; messages that had arrived were handed on.
    Closed,
    Lost(String),
    /// The downstream needs a connection of its own; messages that had arrived stay valid.
    Moved(SeparationReason),
}

/// The result of an attempt to attach.
enum Attached {
    Consuming(Arc<Subscription>, Consumer, Consuming),
    /// The downstream has repeatedly ended the shared connection.
    Guilty,
    /// The subscriber is stopping.
    Over,
}

impl Subscriber {
    pub(super) fn new(
        settlement: Settlement,
        route: Route,
        closing: CancellationToken,
        attached: watch::Sender<bool>,
        slot: Slot,
    ) -> (Self, AmqpSource) {
        let (sender, arrivals) = mpsc::unbounded_channel();
        let wanted = settlement.downstream.prefetch;
        let (tell, window) = watch::channel(wanted.max(1));
        let (idle, is_idle) = watch::channel(true);
        let source = AmqpSource {
            arrivals,
            window: tell,
            wanted,
            is_paused: false,
            idle: is_idle,
            account: Arc::clone(&settlement.account),
            closing: closing.clone(),
        };
        let subscriber = Self {
            settlement: Arc::new(settlement),
            arrivals: sender,
            window,
            idle,
            sizes: Sizes::default(),
            closing,
            attached,
            slot,
            route,
            gives_back: false,
        };
        (subscriber, source)
    }

    pub(super) async fn run(mut self) {
        self.consume_on().await;
        // Messages that still arrive are given back: they must not hold up the last answers.
        self.route.link.meter.disarm();
    }

    async fn consume_on(&mut self) {
        let mut backoff = Backoff::default();
        let mut troubled = None;
        while !self.closing.is_cancelled() {
            tokio::select! {
                () = self.closing.cancelled() => return,
                // Without a sender there is nobody to hand messages to. Later changes of the window are applied once
                // there is a consumer.
                wanted = self.window.wait_for(|window| *window > 0) => if wanted.is_err() { return },
            }
            self.idle.send_replace(false);
            let attached = tokio::select! {
                () = self.closing.cancelled() => return,
                attached = self.attach(&mut troubled) => attached,
            };
            match attached {
                Ok(Attached::Over) => return,
                Ok(Attached::Guilty) => {
                    self.separate(SeparationReason::Losses);
                    continue;
                }
                Ok(Attached::Consuming(subscription, consumer, consuming)) => {
                    if troubled.take().is_some() {
                        info!(downstream = %self.name(), "consuming again");
                    }
                    let since = Instant::now();
                    self.attached.send_replace(true);
                    let pump = Pump::new(self, Arc::clone(&subscription), consumer, consuming);
                    let end = pump.run().await;
                    self.attached.send_replace(false);
                    let reason = match end {
                        End::Closed => return,
                        End::Moved(why) => {
                            self.separate(why);
                            continue;
                        }
                        End::Lost(reason) => reason,
                    };
                    // Settlements made just before still count where the channel is open.
                    subscription.acker.write_now();
                    subscription.end();
                    self.log_trouble(&mut troubled, &reason);
                    // Where only the consumer is gone, its unacked messages must return to the queue.
                    tokio::select! {
                        () = self.closing.cancelled() => return,
                        () = close(subscription.acker.channel()) => {}
                    }
                    if since.elapsed() >= STABLE {
                        backoff.reset();
                    }
                }
                Err(error) if self.route.link.gate.goes_on_without(self.name(), &error) => {}
                Err(error) => self.log_trouble(&mut troubled, &error.to_string()),
            }
            self.idle.send_replace(true);
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }

    /// Switches to a connection of its own.
    fn separate(&mut self, why: SeparationReason) {
        self.gives_back = false;
        self.idle.send_replace(true);
        let name = self.settlement.downstream.name.clone();
        if self.route.separate(&name, &self.settlement.account) {
            warn!(
                downstream = name,
                reason = why.text(),
                "consuming over a connection of its own from now on"
            );
            let labels = [("downstream", name), ("reason", why.label().to_owned())];
            metrics::counter!(metric::AMQP_SEPARATIONS.name, &labels).increment(1);
        }
    }

    /// Waits for a connection and for a place at the gate, and consumes on a channel of its own.
    async fn attach(&self, troubled: &mut Option<String>) -> Result<Attached, Error> {
        let Settlement { options, downstream, .. } = &*self.settlement;
        let Link { current, gate, meter } = &self.route.link;
        let mut current = current.clone();
        // Until it consumes, the bytes that are held do not matter.
        meter.disarm();
        let (connection, place) = loop {
            let connection = tokio::select! {
                biased;
                () = self.route.guilty() => return Ok(Attached::Guilty),
                connection = up(&mut current) => connection,
            };
            let Some(connection) = connection else { return Ok(Attached::Over) };
            let place = tokio::select! {
                biased;
                () = self.route.guilty() => return Ok(Attached::Guilty),
                place = gate.enter() => place,
            };
            // If the connection was lost during the wait for a place, that is no trouble of this downstream.
            if connection.status().connected() {
                break (connection, place);
            }
        };
        gate.share(&connection, options, downstream).await?;
        let channel = channel(&connection).await?;
        meter.assign(channel.id(), &downstream.name);
        let unused = CloseUnlessUsed::new(channel.clone());
        match self.consume(&channel).await {
            Ok((queue, consumer, consuming)) => {
                unused.used();
                let subscription = Arc::new(Subscription::new(Acker::new(channel, queue)));
                let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
                slot.retain(|subscription| subscription.is_live());
                slot.push(Arc::clone(&subscription));
                Ok(Attached::Consuming(subscription, consumer, consuming))
            }
            Err(error) => {
                // A slow broker is busy with this channel until it has closed it: another one each time would overload
                // it, and use up the channels of the connection.
                let mut closed = pin!(closed(&channel));
                if tokio::time::timeout(ANSWER, &mut closed).await.is_err() {
                    self.log_trouble(troubled, &error.to_string());
                    // The others need not wait for one queue that does not answer.
                    drop(place);
                    tokio::select! {
                        () = closed => {}
                        _ = current.changed() => {}
                    }
                }
                Err(error)
            }
        }
    }

    /// Ensures the downstream's queues and consumes, all on one channel.
    async fn consume(&self, channel: &Channel) -> Result<(String, Consumer, Consuming), Error> {
        let Settlement { options, downstream, .. } = &*self.settlement;
        self.route.link.gate.own(channel, options, downstream).await?;
        let target = self.sizes.target(self.bounds());
        // Messages of an earlier connection count too.
        let elsewhere = u16::try_from(self.elsewhere(None)).unwrap_or(u16::MAX);
        let prefetch = target.saturating_sub(elsewhere).max(1);
        let consumer = self.subscribe(channel, prefetch).await?;
        Ok((options.names().queue(downstream), consumer, Consuming { prefetch, target }))
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
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let others = slot.iter().filter(|other| current.is_none_or(|current| !Arc::ptr_eq(current, other)));
        others.filter(|other| other.is_live()).map(|other| other.acker.unsettled().all).sum()
    }

    /// Starts a consumer with this prefetch.
    async fn subscribe(&self, channel: &Channel, prefetch: u16) -> Result<Consumer, Error> {
        let Settlement { options, downstream, .. } = &*self.settlement;
        let queue = options.names().queue(downstream);
        // With a prefetch of 0 RabbitMQ would not bound the deliveries.
        let qos = channel.basic_qos(prefetch.max(1), BasicQosOptions::default());
        self.answer("setting the prefetch", ANSWER, qos).await?;
        // At shutdown, answers must not queue behind messages that are not read.
        if !self.closing.is_cancelled() {
            self.route.link.meter.arm();
        }
        let consume = channel.basic_consume(
            short(&queue)?,
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        self.answer(&format!("queue {queue}"), ANSWER, consume).await
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
        if (self.gives_back || self.closing.is_cancelled()) && self.settlement.account.overruns(bytes) {
            // There is no other way: the rest of the window is in transit over a connection that others need, that is
            // to be closed, or on which an answer comes after it.
            subscription.acker.give_back(tag);
            return;
        }
        let body = Bytes::from(delivery.data);
        let message = message(delivery.routing_key.as_str(), &delivery.properties, body.clone(), malformed);
        let ticket = AmqpTicket {
            subscription: Arc::clone(subscription),
            settlement: Arc::clone(&self.settlement),
            tag,
            redelivered: delivery.redelivered,
            routing_key: delivery.routing_key,
            properties: delivery.properties,
            body,
            charge: self.settlement.account.charge(bytes),
        };
        // If the source was dropped nobody receives it, and its ticket gives it back.
        let _ = self.arrivals.send(Delivery { message, ticket: Box::new(ticket) });
    }

    /// Logs a trouble once, until it changes.
    fn log_trouble(&self, troubled: &mut Option<String>, reason: &str) {
        if troubled.as_deref() != Some(reason) {
            warn!(downstream = %self.name(), reason, "not consuming; trying on");
            *troubled = Some(reason.to_owned());
        }
    }

    fn name(&self) -> &str {
        &self.settlement.downstream.name
    }
}
