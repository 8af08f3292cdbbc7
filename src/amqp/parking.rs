//! Parks the jobs of one downstream: their copies wait in the broker until it is nearly time.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::Connection;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tracing::{info, warn};

use super::connection::{Backoff, channel, close};
use super::error::Error;
use super::ladder::Rung;
use super::letter;
use super::publisher::{PublishError, Publisher};
use super::supervisor::{ConnectionWatch, up};
use super::ticket::AmqpTicket;
use super::topology::ensure_rung;
use super::{Downstream, Options};
use crate::bounded_log::BoundedLog;
use crate::dispatch::{Parked, Stay};
use crate::time::wall_now;

/// The rungs that exist, for all downstreams of a process.
#[derive(Debug, Default)]
pub(super) struct Rungs(Mutex<BTreeSet<Rung>>);

impl Rungs {
    /// Ensures that a rung exists, unless that was done before.
    async fn ensure(&self, current: &ConnectionWatch, options: &Options, rung: Rung) -> Result<(), Error> {
        let mut known = self.0.lock().await;
        if known.contains(&rung) {
            return Ok(());
        }
        let lost = || Error::Failed { what: options.names().park(rung), detail: "not connected".to_owned() };
        let connection = up(&mut current.clone()).await.ok_or_else(lost)?;
        self.add(&mut known, &connection, options, rung).await
    }

    /// Ensures that all rungs exist that waits of more than a downstream's `hold_max` need.
    pub(super) async fn ensure_all(
        &self,
        connection: &Connection,
        options: &Options,
        downstream: &Downstream,
    ) -> Result<(), Error> {
        let mut known = self.0.lock().await;
        for rung in Rung::above(downstream.hold_max, options.rung_unit) {
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

    /// Forgets that a rung exists, since it does not any more.
    async fn forget(&self, rung: Rung) {
        self.0.lock().await.remove(&rung);
    }
}

/// Whether the jobs of a downstream can be parked; `None` while that is not known.
#[derive(Clone, Debug)]
struct Available {
    downstream: String,
    state: watch::Sender<Option<bool>>,
}

impl Available {
    fn is_open(&self) -> bool {
        *self.state.borrow() == Some(true)
    }

    /// Notes that jobs cannot be parked, for this reason.
    fn shut(&self, error: &dyn fmt::Display) {
        if self.state.send_replace(Some(false)) != Some(false) {
            let downstream = &self.downstream;
            warn!(downstream, %error, "jobs cannot be parked: those that must wait for long are held here");
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

/// A job to park.
struct Order {
    ticket: Box<AmqpTicket>,
    stay: Stay,
    done: oneshot::Sender<Parked>,
}

/// The worker of a [`Parking`].
///
/// It publishes without waiting for confirms, in the order in which jobs were handed over, so that jobs that were
/// parked for the same time come back in that order.
pub(super) struct Parker {
    pub(super) options: Arc<Options>,
    pub(super) downstream: String,
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
        let available = Available { downstream: parker.downstream.clone(), state: watch::Sender::new(None) };
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
        let _ = self.available.state.subscribe().wait_for(Option::is_some).await;
    }

    /// Notes that jobs that are parked come back.
    pub(super) fn open(&self) {
        if self.available.state.send_replace(Some(true)) == Some(false) {
            let downstream = &self.available.downstream;
            info!(downstream, "jobs that must wait for long are parked from now on");
        }
    }

    /// Notes that jobs cannot be parked, for this reason.
    pub(super) fn shut(&self, error: &Error) {
        self.available.shut(error);
    }

    /// Takes the job over at once. The future only waits for the result.
    pub(super) fn park(
        &self,
        ticket: Box<AmqpTicket>,
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
        let (downstream, mut backoff, mut troubled) = (&self.downstream, Backoff::default(), false);
        let properties = letter::parked(&ticket.properties, ticket.routing_key.as_str(), &stay);
        let parked = loop {
            if !ticket.is_current() {
                break Parked::Lost;
            }
            let rung = Rung::below(stay.until.since(wall_now()), self.options.rung_unit);
            match self.publish(available, rung, properties.clone(), &ticket).await {
                Ok(()) => {
                    ticket.ack_parked();
                    break Parked::Done;
                }
                Err(error) => {
                    let is_gone = matches!(error, PublishError::NoExchange(_));
                    if let Some(rung) = rung.filter(|_| is_gone && available.is_open()) {
                        // It was deleted; the next attempt declares it.
                        self.rungs.forget(rung).await;
                    } else if !error.is_retryable() {
                        // A refused publish costs the channel, which the jobs of others are parked on too.
                        if matches!(error, PublishError::Refused(_) | PublishError::NoExchange(_)) {
                            available.shut(&error);
                        }
                        self.log.line("not-parked", || {
                            warn!(downstream, %error, "cannot park a job: it is held here");
                        });
                        break Parked::Refused(ticket);
                    }
                    if !std::mem::replace(&mut troubled, true) {
                        self.log.line("trying-on", || {
                            warn!(downstream, %error, "cannot park a job; trying on");
                        });
                    }
                    tokio::time::sleep(backoff.next()).await;
                }
            }
        };
        // The flight that waits for the result may have been given up.
        let _ = done.send(parked);
    }

    async fn publish(
        &self,
        available: &Available,
        rung: Option<Rung>,
        properties: lapin::BasicProperties,
        ticket: &AmqpTicket,
    ) -> Result<(), PublishError> {
        let names = self.options.names();
        let exchange = match rung {
            Some(rung) => {
                let ensured = self.rungs.ensure(&self.current, &self.options, rung).await;
                ensured.map_err(|error| {
                    if !error.is_final() {
                        return PublishError::Lost(error.to_string());
                    }
                    available.shut(&error);
                    PublishError::NoExchange(names.park(rung))
                })?;
                names.park(rung)
            }
            None => names.home(),
        };
        // Both exchanges have an alternate one, so that the copy reaches a queue.
        self.publisher.publish(&exchange, &self.downstream, properties, &ticket.body).await
    }
}
