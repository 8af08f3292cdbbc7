//! Parks the jobs of one downstream: their copies wait in the broker until it is nearly time.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::{BasicProperties, Connection};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::connection::{Backoff, channel, close};
use super::error::Error;
use super::ladder::Rung;
use super::letter;
use super::publisher::{PublishError, Publisher};
use super::supervisor::ConnectionWatch;
use super::topology::ensure_rung;
use super::{Downstream, Options};
use crate::bounded_log::BoundedLog;
use crate::dispatch::{Parked, Stay, Ticket};
use crate::failpoint;
use crate::time::wall_now;

/// The rungs that exist, for all downstreams of a process.
#[derive(Debug, Default)]
pub(super) struct Rungs(Mutex<BTreeSet<Rung>>);

impl Rungs {
    /// Ensures that a rung exists, unless that was done before. Fails where there is no connection.
    async fn ensure(&self, current: &ConnectionWatch, options: &Options, rung: Rung) -> Result<(), Error> {
        let mut known = self.0.lock().await;
        if known.contains(&rung) {
            return Ok(());
        }
        let lost = || Error::Failed { what: options.names().park(rung), detail: "not connected".to_owned() };
        let connection = current.borrow().clone().ok_or_else(lost)?;
        self.add(&mut known, &connection, options, rung).await
    }

    /// Ensures that all rungs exist.
    pub(super) async fn ensure_all(&self, connection: &Connection, options: &Options) -> Result<(), Error> {
        let mut known = self.0.lock().await;
        for rung in Rung::all() {
            if !known.contains(&rung) {
                self.add(&mut known, connection, options, rung).await?;
            }
        }
        Ok(())
    }

    async fn add(
        &self,
        known: &mut BTreeSet<Rung>,
        connection: &Connection,
        options: &Options,
        rung: Rung,
    ) -> Result<(), Error> {
        // The broker closes the channel over a declaration that it refuses.
        let channel = channel(connection).await?;
        let ensured = ensure_rung(&channel, options, rung).await;
        close(&channel).await;
        ensured?;
        known.insert(rung);
        Ok(())
    }

    /// Has each rung ensured again, since one does not exist any more.
    async fn forget_all(&self) {
        self.0.lock().await.clear();
    }
}

/// How long after jobs could not be parked it is tried again whether they can.
pub(super) const RETRY: Duration = Duration::from_secs(60);

/// Whether the jobs of a downstream can be parked.
#[derive(Clone, Debug)]
struct Available {
    downstream: String,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Open,
    /// Jobs cannot be parked. If there is an instant, it is tried again from then on.
    Shut(Option<Instant>),
}

impl Available {
    fn is_open(&self) -> bool {
        match *self.state.borrow() {
            State::Open => true,
            State::Unknown | State::Shut(None) => false,
            State::Shut(Some(until)) => until <= Instant::now(),
        }
    }

    /// Notes that jobs cannot be parked, for this reason, until it is tried again or [`Parking::open`] is called.
    fn shut(&self, why: &dyn fmt::Display, retry: Option<Duration>) {
        let until = retry.map(|retry| Instant::now() + retry);
        if !matches!(self.state.send_replace(State::Shut(until)), State::Shut(_)) {
            let downstream = &self.downstream;
            warn!(downstream, %why, "jobs cannot be parked: those that must wait for long are held here");
        }
    }
}

/// Parks the jobs of one downstream, in order.
#[derive(Debug)]
pub(super) struct Parking {
    available: Available,
    pub(super) rungs: Arc<Rungs>,
    orders: mpsc::UnboundedSender<Order>,
}

/// A message of which a copy can be parked.
pub(super) trait Parkable: Ticket {
    fn properties(&self) -> &BasicProperties;

    fn routing_key(&self) -> &str;

    fn body(&self) -> &Bytes;

    /// Acks the message, whose copy is parked.
    fn ack_parked(&self);
}

/// A job to park.
struct Order {
    ticket: Box<dyn Parkable>,
    stay: Stay,
    done: oneshot::Sender<Parked>,
}

/// The worker of a [`Parking`].
///
/// It publishes without waiting for confirms, in the order in which jobs were handed over, so that jobs that were
/// parked for the same time come back in that order.
pub(super) struct Parker {
    pub(super) options: Arc<Options>,
    pub(super) downstream: Downstream,
    pub(super) publisher: Publisher,
    /// The consuming connection, for declarations.
    pub(super) current: ConnectionWatch,
    pub(super) rungs: Arc<Rungs>,
    /// The log of publishes that fail: each job may cause several lines.
    pub(super) log: Arc<BoundedLog>,
}

impl Parking {
    /// Starts the worker, which ends with the last handle. Must be called on a tokio runtime.
    pub(super) fn start(parker: Parker) -> Arc<Self> {
        let (orders, receiver) = mpsc::unbounded_channel();
        let (downstream, state) = (parker.downstream.name.clone(), watch::Sender::new(State::Unknown));
        let available = Available { downstream, state };
        let rungs = Arc::clone(&parker.rungs);
        tokio::spawn(parker.run(available.clone(), receiver));
        Arc::new(Self { available, rungs, orders })
    }

    pub(super) fn is_available(&self) -> bool {
        self.available.is_open()
    }

    /// Waits until it is known whether jobs can be parked.
    ///
    /// Cancel safe.
    pub(super) async fn decided(&self) {
        // The sender is our own, so it cannot be gone.
        let _ = self.available.state.subscribe().wait_for(|state| *state != State::Unknown).await;
    }

    /// Notes that jobs that are parked come back.
    pub(super) fn open(&self) {
        if matches!(self.available.state.send_replace(State::Open), State::Shut(_)) {
            let downstream = &self.available.downstream;
            info!(downstream, "jobs that must wait for long are parked from now on");
        }
    }

    /// Notes that jobs cannot be parked, for this reason, until it is tried again or [`Parking::open`] is called.
    pub(super) fn shut(&self, why: &dyn fmt::Display, retry: Option<Duration>) {
        self.available.shut(why, retry);
    }

    /// Takes the job over at once. The future only waits for the result.
    pub(super) fn park(
        &self,
        ticket: Box<dyn Parkable>,
        stay: Stay,
    ) -> impl Future<Output = Parked> + Send + use<> {
        let (done, result) = oneshot::channel();
        // Without a worker the ticket is dropped, which gives its message back.
        let _ = self.orders.send(Order { ticket, stay, done });
        async move { result.await.unwrap_or(Parked::Lost) }
    }
}

impl Parker {
    async fn run(self, available: Available, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut publishing = FuturesUnordered::new();
        loop {
            // A future is polled first in the order in which they were added.
            tokio::select! {
                biased;
                Some(()) = publishing.next() => {}
                order = orders.recv() => match order {
                    Some(order) => publishing.push(self.park(&available, order)),
                    None => break,
                },
            }
        }
        while publishing.next().await.is_some() {}
    }

    /// Publishes the copy until it is confirmed, and acks the message.
    async fn park(&self, available: &Available, Order { ticket, stay, done }: Order) {
        let (downstream, mut backoff) = (&self.downstream.name, Backoff::default());
        let (mut troubled, mut refusals) = (false, 0);
        let properties = letter::parked(ticket.properties(), ticket.routing_key(), &stay);
        let parked = loop {
            let exchange = self.exchange(&stay).await;
            // The connection may have been lost meanwhile.
            if !ticket.is_live() {
                break Parked::Lost;
            }
            failpoint::reached("park:publish");
            let published = match exchange {
                Ok(exchange) => self.publish(&exchange, properties.clone(), ticket.body()).await,
                Err(error) if error.is_final() => Err(PublishError::NoExchange(error.to_string())),
                Err(error) => Err(PublishError::Lost(error.to_string())),
            };
            let Err(error) = published else {
                failpoint::reached("park:confirmed");
                ticket.ack_parked();
                failpoint::reached("park:acked");
                break Parked::Done;
            };
            refusals += u32::from(!error.is_retryable());
            let is_the_jobs = matches!(error, PublishError::HeadersTooLarge { .. });
            // All downstreams park on one channel, which a refusal costs: the first one may be that of another order.
            if is_the_jobs || refusals > 1 {
                if !is_the_jobs {
                    available.shut(&error, Some(RETRY));
                }
                self.log
                    .line("not-parked", || warn!(downstream, %error, "cannot park a job: it is held here"));
                break Parked::Refused(ticket);
            }
            if !std::mem::replace(&mut troubled, true) {
                self.log.line("trying-on", || warn!(downstream, %error, "cannot park a job; trying on"));
            }
            tokio::time::sleep(backoff.next()).await;
        };
        // The flight that waits for the result may have been given up.
        let _ = done.send(parked);
    }

    /// The exchange for a stay: that of a rung, which is ensured to exist, or the home exchange.
    async fn exchange(&self, stay: &Stay) -> Result<String, Error> {
        let rung = Rung::below(stay.until.since(wall_now()), self.options.rung_unit);
        let Some(rung) = rung else { return Ok(self.options.names().home()) };
        self.rungs.ensure(&self.current, &self.options, rung).await?;
        Ok(self.options.names().park(rung))
    }

    async fn publish(
        &self,
        exchange: &str,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        let key = &self.downstream.name;
        let published = if self.options.declare {
            // The exchange that paced declares has an alternate one, so that the copy reaches a queue.
            self.publisher.publish(exchange, key, properties, body).await
        } else {
            self.publisher.publish_routed(exchange, key, properties, body).await
        };
        if matches!(published, Err(PublishError::NoExchange(_))) {
            // It was deleted; the next attempt declares it.
            self.rungs.forget_all().await;
        }
        published
    }
}
