//! The messages of one downstream, over as many connections as it takes.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::acker::Acker;
use super::connection::{ANSWER, Backoff, CloseUnlessUsed, STABLE, ask, channel, close, closed};
use super::error::Error;
use super::guard::take_mark;
use super::message::message;
use super::supervisor::up;
use super::ticket::{AmqpTicket, Desk, Subscription};
use super::topology::short;
use super::weight::weight;
use super::window::{Bounds, Consuming, Sizes};
use crate::dispatch::{Delivery, Source};
use crate::store::BoxFuture;
use pump::Pump;

mod pump;

/// The current generation of one downstream, for the last flush.
pub(super) type Slot = Arc<Mutex<Option<Arc<Subscription>>>>;

/// The messages of one downstream.
///
/// Dropped, it consumes no more; tickets that were handed out stay good.
#[derive(Debug)]
pub struct AmqpSource {
    arrivals: mpsc::UnboundedReceiver<Delivery>,
    /// 0 while it is paused.
    window: watch::Sender<u16>,
    /// The window while it is not paused.
    wanted: u16,
    is_paused: bool,
    /// True while nothing is consumed.
    idle: watch::Receiver<bool>,
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
            // What a lost connection had brought comes again over the next one.
            if delivery.ticket.is_live() {
                return Some(delivery);
            }
        }
    }

    /// What is unsettled stays so, and counts for the new window: nothing comes until less is unsettled.
    fn resize(&mut self, window: u16) {
        self.wanted = window;
        self.set_window();
    }

    /// Cancels the consumer. The channel stays, and what is unsettled with it.
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

    async fn close(&mut self) {
        self.closing.cancel();
    }
}

impl Drop for AmqpSource {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Waits until the broker has taken in what a downstream settled, and closes its channel; false where
/// that failed.
pub(super) async fn flush(slot: &Slot) -> bool {
    let subscription = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    // What a connection that is gone had brought comes again whatever we do.
    let Some(subscription) = subscription.filter(|last| last.is_live()) else { return true };
    let flushed = subscription.acker.flush().await.is_ok();
    close(subscription.acker.channel()).await;
    subscription.end();
    flushed
}

/// Keeps one downstream consumed.
pub(super) struct Subscriber {
    desk: Arc<Desk>,
    arrivals: mpsc::UnboundedSender<Delivery>,
    /// As many messages as the dispatcher wants unsettled at once; 0: nothing is to be consumed.
    window: watch::Receiver<u16>,
    /// Whether nothing is consumed.
    idle: watch::Sender<bool>,
    sizes: Sizes,
    closing: CancellationToken,
    attached: watch::Sender<bool>,
    slot: Slot,
}

/// How a consumer ended.
enum End {
    /// As we asked; what had arrived has been handed on.
    Closed,
    Lost(String),
}

impl Subscriber {
    pub(super) fn new(
        desk: Desk,
        closing: CancellationToken,
        attached: watch::Sender<bool>,
        slot: Slot,
    ) -> (Self, AmqpSource) {
        let (sender, arrivals) = mpsc::unbounded_channel();
        let wanted = desk.downstream.prefetch;
        let (tell, window) = watch::channel(wanted.max(1));
        let (idle, is_idle) = watch::channel(true);
        let source = AmqpSource {
            arrivals,
            window: tell,
            wanted,
            is_paused: false,
            idle: is_idle,
            closing: closing.clone(),
        };
        (
            Self {
                desk: Arc::new(desk),
                arrivals: sender,
                window,
                idle,
                sizes: Sizes::default(),
                closing,
                attached,
                slot,
            },
            source,
        )
    }

    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut troubled = None;
        while !self.closing.is_cancelled() {
            let mut window = self.window.clone();
            tokio::select! {
                () = self.closing.cancelled() => return,
                // Without a sender there is nobody to hand messages to.
                wanted = window.wait_for(|window| *window > 0) => if wanted.is_err() { return },
            }
            // What changes from here on is changed once there is a consumer.
            self.window.mark_unchanged();
            self.idle.send_replace(false);
            let attached = tokio::select! {
                () = self.closing.cancelled() => return,
                attached = self.attach(&mut troubled) => attached,
            };
            match attached {
                Ok(None) => return,
                Ok(Some((subscription, consumer, consuming))) => {
                    if troubled.take().is_some() {
                        info!(downstream = %self.name(), "consuming again");
                    }
                    let since = Instant::now();
                    self.attached.send_replace(true);
                    let pump = Pump::new(&mut self, Arc::clone(&subscription), consumer, consuming);
                    let end = pump.run().await;
                    self.attached.send_replace(false);
                    let End::Lost(reason) = end else { return };
                    // What was settled just now still counts where the channel is there.
                    subscription.acker.write_now();
                    subscription.end();
                    self.say(&mut troubled, &reason);
                    // Where only the consumer is gone, its unacked messages must go back to the queue.
                    close(subscription.acker.channel()).await;
                    if since.elapsed() >= STABLE {
                        backoff.reset();
                    }
                }
                Err(error) if self.desk.gate.goes_on_without(self.name(), &error) => {}
                Err(error) => self.say(&mut troubled, &error.to_string()),
            }
            self.idle.send_replace(true);
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }

    /// Waits for a connection and for its turn, and consumes on a channel of its own. `None`: all is
    /// over.
    async fn attach(
        &self,
        troubled: &mut Option<String>,
    ) -> Result<Option<(Arc<Subscription>, Consumer, Consuming)>, Error> {
        let Desk { options, downstream, line, gate, .. } = &*self.desk;
        let mut line = line.clone();
        let (connection, place) = loop {
            let Some(connection) = up(&mut line).await else { return Ok(None) };
            let place = gate.enter().await;
            // Lost while we waited for our turn, it is no trouble of this downstream.
            if connection.status().connected() {
                break (connection, place);
            }
        };
        gate.share(&connection, options, downstream).await?;
        let channel = channel(&connection).await?;
        let unused = CloseUnlessUsed::new(channel.clone());
        match self.consume(&channel).await {
            Ok((queue, consumer, consuming)) => {
                unused.used();
                let subscription = Arc::new(Subscription::new(Acker::new(channel, queue)));
                *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&subscription));
                Ok(Some((subscription, consumer, consuming)))
            }
            Err(error) => {
                // A broker that is late is busy with this channel until it has closed it: one more each
                // time would overload it, and use up the channels of the connection.
                let mut closed = pin!(closed(&channel));
                if tokio::time::timeout(ANSWER, &mut closed).await.is_err() {
                    self.say(troubled, &error.to_string());
                    // The others need not wait for one queue that does not answer.
                    drop(place);
                    tokio::select! {
                        () = closed => {}
                        _ = line.changed() => {}
                    }
                }
                Err(error)
            }
        }
    }

    /// Makes sure of the downstream's queues and consumes, all on one channel.
    async fn consume(&self, channel: &Channel) -> Result<(String, Consumer, Consuming), Error> {
        let Desk { options, downstream, gate, .. } = &*self.desk;
        gate.own(channel, options, downstream).await?;
        let target = self.sizes.target(self.bounds());
        let consumer = self.subscribe(channel, target).await?;
        Ok((options.names().queue(downstream), consumer, Consuming { prefetch: target, target }))
    }

    /// What bounds the messages that are unsettled, as things are.
    fn bounds(&self) -> Bounds {
        Bounds { wanted: *self.window.borrow(), bytes: self.desk.account.allowance(), shared: true }
    }

    /// Consumes with this prefetch.
    async fn subscribe(&self, channel: &Channel, prefetch: u16) -> Result<Consumer, Error> {
        let Desk { options, downstream, .. } = &*self.desk;
        let queue = options.names().queue(downstream);
        // Where it is 0 RabbitMQ gives as many as it likes.
        let qos = channel.basic_qos(prefetch.max(1), BasicQosOptions::default());
        ask("setting the prefetch", qos).await?;
        let consume = channel.basic_consume(
            short(&queue)?,
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        ask(&format!("queue {queue}"), consume).await
    }

    fn hand_on(&mut self, subscription: &Arc<Subscription>, mut delivery: lapin::message::Delivery) {
        let malformed = take_mark(&mut delivery.properties);
        let tag = delivery.delivery_tag;
        subscription.acker.delivered(tag);
        let bytes = weight(delivery.data.len(), &delivery.properties);
        self.sizes.note(bytes);
        let body = Bytes::from(delivery.data);
        let message = message(delivery.routing_key.as_str(), &delivery.properties, body.clone(), malformed);
        let ticket = AmqpTicket {
            subscription: Arc::clone(subscription),
            desk: Arc::clone(&self.desk),
            tag,
            redelivered: delivery.redelivered,
            routing_key: delivery.routing_key,
            properties: delivery.properties,
            body,
            charge: self.desk.account.charge(bytes),
        };
        // Nobody takes it where the source was dropped: then its ticket gives it back.
        let _ = self.arrivals.send(Delivery { message, ticket: Box::new(ticket) });
    }

    /// Logs a trouble once, until it changes.
    fn say(&self, troubled: &mut Option<String>, reason: &str) {
        if troubled.as_deref() != Some(reason) {
            warn!(downstream = %self.name(), reason, "not consuming; trying on");
            *troubled = Some(reason.to_owned());
        }
    }

    fn name(&self) -> &str {
        &self.desk.downstream.name
    }
}
