//! Parks the jobs of one downstream: their copies wait in the broker until shortly before their time.

use std::fmt;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::BasicProperties;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::connection::Backoff;
use super::error::Error;
use super::letter;
use super::publish_error::PublishError;
use super::publisher::{Ordering, Publisher, Turn};
use super::rungs::{Own, RETRY, Rungs, Wait};
use super::supervisor::ConnectionWatch;
use super::{Downstream, Options};
use crate::bounded_log::BoundedLog;
use crate::dispatch::{Parked, Stay, Ticket};
use crate::episode::Episode;
use crate::failpoint;
use crate::lock::lock;

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
    /// Jobs cannot be parked. If there is an instant, parking is tried again from then on.
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

    /// Records that jobs cannot be parked, for this reason, until parking is tried again or [`Parking::open`] is
    /// called.
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
    /// Boxed, since the channel allocates room for some from the start.
    orders: mpsc::UnboundedSender<Box<Order>>,
    /// Requests that the jobs that wait for a limit come home, except those that were parked under these versions of
    /// the limits.
    pub(super) unpark: watch::Sender<Option<String>>,
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
    pub(super) own: Own,
    /// The log of publishes that fail: each job may cause several lines.
    pub(super) log: Arc<BoundedLog>,
    pub(super) misfits: Misfits,
}

/// Decides when the log names jobs whose headers do not fit a frame once they are parked.
pub(super) struct Misfits(StdMutex<Episode>);

impl Default for Misfits {
    /// Logs at once, and every ten minutes while there are any.
    fn default() -> Self {
        Self(StdMutex::new(Episode::at_interval(Duration::from_secs(600))))
    }
}

impl Parking {
    /// Starts the worker, which ends with the last handle. Must be called on a tokio runtime.
    pub(super) fn start(parker: Parker) -> Arc<Self> {
        let (orders, receiver) = mpsc::unbounded_channel();
        let (downstream, state) = (parker.downstream.name.clone(), watch::Sender::new(State::Unknown));
        let available = Available { downstream, state };
        let rungs = Arc::clone(&parker.rungs);
        tokio::spawn(parker.run(available.clone(), receiver));
        Arc::new(Self { available, rungs, orders, unpark: watch::Sender::new(None) })
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

    /// Records that parked jobs come back.
    pub(super) fn open(&self) {
        if matches!(self.available.state.send_replace(State::Open), State::Shut(_)) {
            let downstream = &self.available.downstream;
            info!(downstream, "jobs that must wait for long are parked from now on");
        }
    }

    /// Records that jobs cannot be parked, for this reason, until parking is tried again or [`Parking::open`] is
    /// called.
    pub(super) fn shut(&self, why: &dyn fmt::Display, retry: Option<Duration>) {
        self.available.shut(why, retry);
    }

    /// Accepts the job at once. The future only waits for the result.
    pub(super) fn park(
        &self,
        ticket: Box<dyn Parkable>,
        stay: Stay,
    ) -> impl Future<Output = Parked> + Send + use<> {
        let (done, result) = oneshot::channel();
        // Without a worker the ticket is dropped, which gives its message back.
        let _ = self.orders.send(Box::new(Order { ticket, stay, done }));
        async move { result.await.unwrap_or(Parked::Lost) }
    }
}

impl Parker {
    async fn run(self, available: Available, mut orders: mpsc::UnboundedReceiver<Box<Order>>) {
        let mut publishing = FuturesUnordered::new();
        loop {
            // The futures get their first polls in the order in which they were added.
            tokio::select! {
                biased;
                Some(()) = publishing.next() => {}
                order = orders.recv() => match order {
                    // Boxed, since the collection allocates room for one from the start.
                    Some(order) => publishing.push(Box::pin(self.park(&available, *order))),
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
        let parked = loop {
            let turn = self.turn(&stay).await;
            // The connection may have been lost meanwhile.
            if !ticket.is_live() {
                break Parked::Lost;
            }
            let is_own = matches!(turn, Ok((Wait::Own(_), ..)));
            let published = match turn {
                Ok((_, exchange, turn)) => {
                    let Some(properties) = self.properties(&*ticket, &stay) else {
                        break Parked::Refused(ticket);
                    };
                    failpoint::reached("park:publish");
                    self.publish(turn, &exchange, properties, ticket.body()).await
                }
                Err(error) => Err(error),
            };
            let Err(error) = published else {
                failpoint::reached("park:confirmed");
                if !ticket.is_live() {
                    break Parked::Unacked;
                }
                ticket.ack_parked();
                failpoint::reached("park:acked");
                break Parked::Done;
            };
            // An exchange that was deleted is declared again before the downstream's own rungs are given up.
            let may_exist = !matches!(error, PublishError::NoExchange(_)) || refusals > 0;
            if is_own && is_refusal(&error) && may_exist {
                // The job waits on a rung that downstreams share.
                self.own.refuse(downstream, &error);
                refusals = 0;
                continue;
            }
            refusals += u32::from(!error.is_retryable());
            // All jobs that are parked there share a channel, which a refusal closes: the first refusal may be that
            // of another order.
            if refusals > 1 {
                available.shut(&error, Some(RETRY));
                self.log
                    .line("not-parked", || warn!(downstream, %error, "cannot park a job: it is held here"));
                break Parked::Refused(ticket);
            }
            if !std::mem::replace(&mut troubled, true) {
                self.log
                    .line("trying-again", || warn!(downstream, %error, "cannot park a job; trying again"));
            }
            tokio::time::sleep(backoff.next()).await;
        };
        // The flight that waits for the result may have been given up.
        let _ = done.send(parked);
    }

    async fn publish(
        &self,
        turn: Turn,
        exchange: &str,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        let published = turn.publish(exchange, &self.downstream.name, properties, body).await;
        if matches!(published, Err(PublishError::NoExchange(_))) {
            // It was deleted; the next attempt declares it.
            self.rungs.forget_all();
        }
        published
    }

    /// The properties of the copy; `None` if its headers do not fit a frame, so that the job is held.
    fn properties(&self, ticket: &dyn Parkable, stay: &Stay) -> Option<BasicProperties> {
        let max = self.publisher.frame_max();
        let properties = letter::parked(ticket.properties(), ticket.routing_key(), stay, max);
        if properties.is_none() && lock(&self.misfits.0).note(()) {
            let downstream = &self.downstream.name;
            warn!(
                downstream,
                max,
                "a job cannot be parked: the headers that its request is made from, and those that parking adds, do \
                 not fit one frame; it is held here, and so are others like it; send less in headers, more in the body"
            );
        }
        properties
    }

    /// The exchange for a stay, and the right to publish there: the exchange of a rung, which is ensured to exist, or the
    /// home exchange.
    async fn turn(&self, stay: &Stay) -> Result<(Wait, String, Turn), PublishError> {
        let (names, name) = (self.options.names(), &self.downstream.name);
        // The exchange that paced declares has an alternate one, so that the copy reaches a queue.
        let order = if self.options.declare { Ordering::Kept } else { Ordering::Free };
        loop {
            let wait = self.own.wait(stay, &self.options);
            let (exchange, queue) = match wait {
                Wait::Home => (names.home(), names.home_queue(name)),
                Wait::Shared(rung) => {
                    let delay = names.park(rung);
                    let ensured =
                        self.rungs.ensure(&self.current, &self.options, std::slice::from_ref(&delay)).await;
                    ensured.map_err(unensured)?;
                    (delay.name.clone(), delay.name)
                }
                Wait::Own(rung) => {
                    let ensured = self.own.ensure(&self.rungs, &self.current, &self.options, name).await;
                    let is_ensured = ensured.map_err(unensured)?;
                    let Some(delay) = self.own.delay(rung).filter(|_| is_ensured) else { continue };
                    (delay.name.clone(), delay.name.clone())
                }
            };
            let turn = self.publisher.turn(&queue, order).await?;
            // After the wait for the turn, the stay may be too long.
            if self.own.wait(stay, &self.options) == wait {
                return Ok((wait, exchange, turn));
            }
        }
    }
}

/// Whether the broker refused the message, so that no queue has it.
const fn is_refusal(error: &PublishError) -> bool {
    matches!(error, PublishError::Refused(_) | PublishError::NoExchange(_) | PublishError::Unroutable(_))
}

/// The error of a publish whose exchange could not be ensured.
fn unensured(error: Error) -> PublishError {
    match error.is_final() {
        true => PublishError::NoExchange(error.to_string()),
        false => PublishError::Lost(error.to_string()),
    }
}
