//! Publishes with confirms.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Connection};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

use super::channels::{Channels, Pooled};
use super::connection::{close, confirming};
use super::letter;
use super::publish_error::{PublishError, lost, outcome};
use super::supervisor::{ConnectionWatch, Up, up};
use super::targets::{Permit, Targets};
use super::topology::short;
use crate::failpoint;
use crate::lock::lock;

/// The time-out for one publish: a quorum queue under load takes seconds, a blocked connection for ever.
const PUBLISH: Duration = Duration::from_secs(30);

/// The most publishes to one queue that are outstanding and must reach it: each has a channel.
const ROUTED: usize = 8;

/// The most publishes to one queue that are outstanding in order. With 32, the channel of a quorum queue blocks the
/// connection until they are processed.
const ORDERED: usize = 24;

/// How often a connection that the broker blocks is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Publishes with confirms over a connection that consumes nothing. Cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    shared: Arc<Shared>,
}

struct Shared {
    current: ConnectionWatch,
    timeout: Duration,
    open: tokio::sync::Mutex<Option<Arc<Open>>>,
    targets: Targets,
}

/// How the publishes to a queue use channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ordering {
    /// They share a channel, and arrive in order. One that no queue takes is confirmed too.
    Kept,
    /// Each has a channel to itself, and fails if no queue takes it: lapin attaches a returned message to the next
    /// confirm, even if that is of another publish.
    Free,
}

/// The right to publish one message to a queue at once.
pub(super) struct Turn {
    open: Arc<Open>,
    permit: Permit,
    turn_channel: TurnChannel,
}

/// The channel of a [`Turn`].
enum TurnChannel {
    Shared(OwnedMutexGuard<Option<Pooled>>),
    Own(Pooled),
}

/// Exchange and routing key.
type Destination = (ShortString, ShortString);

/// The channels of one connection.
struct Open {
    connection: Arc<Up>,
    /// The channel for many publishes at once, none of which can be returned.
    bulk: Channel,
    /// lapin numbers a publish and queues its frames in two steps; if two threads interleaved there, each would get the
    /// other's confirm.
    order: Mutex<()>,
    channels: Channels,
}

impl Publisher {
    pub(super) fn new(current: ConnectionWatch, targets: Targets) -> Self {
        let (timeout, open) = (failpoint::limit(PUBLISH), tokio::sync::Mutex::default());
        Self { shared: Arc::new(Shared { current, timeout, open, targets }) }
    }

    /// Publishes and waits for the confirm; thousands may be in flight, which the caller bounds.
    ///
    /// A message that no queue takes is confirmed too, where the exchange has no alternate: see
    /// [`Publisher::publish_routed`].
    ///
    /// Not cancel safe: a dropped future may or may not have published.
    ///
    /// # Errors
    /// [`PublishError::is_retryable`] says which errors may be temporary.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        let to = (short(exchange)?, short(routing_key)?);
        let publish = async { self.open().await?.send(to, properties, body).await };
        self.in_time(publish).await
    }

    /// Publishes a message that must reach a queue, and waits for the confirm; a few are in flight at
    /// a time.
    ///
    /// Not cancel safe: a dropped future may or may not have published.
    ///
    /// # Errors
    /// [`PublishError::Unroutable`] where no queue took it, and those of [`Publisher::publish`].
    pub async fn publish_routed(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        let queue = if exchange.is_empty() { routing_key } else { exchange };
        let publish = async {
            let turn = self.turn(queue, Ordering::Free).await?;
            turn.publish(exchange, routing_key, properties, body).await
        };
        self.in_time(publish).await
    }

    /// Waits until a message may be published to this queue at once: few are outstanding there, and the broker
    /// accepts messages. Turns that keep the order come in the order of the callers.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// It takes too long, or there is no connection.
    pub(super) async fn turn(&self, queue: &str, order: Ordering) -> Result<Turn, PublishError> {
        self.in_time(async {
            let targets = &self.shared.targets;
            let (open, permit, turn_channel) = match order {
                Ordering::Kept => {
                    let (permit, mut shared) = targets.enter_in_order(queue, ORDERED).await;
                    let open = self.open().await?;
                    if !shared.as_ref().is_some_and(|pooled| pooled.channel.status().connected()) {
                        *shared = Some(open.channel().await?);
                    }
                    (open, permit, TurnChannel::Shared(shared))
                }
                Ordering::Free => {
                    let permit = targets.enter(queue, ROUTED).await;
                    let open = self.open().await?;
                    let own = open.channel().await?;
                    (open, permit, TurnChannel::Own(own))
                }
            };
            open.unblocked().await;
            Ok(Turn { open, permit, turn_channel })
        })
        .await
    }

    /// The time-out of a publish.
    pub(super) fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// Whether the broker has reported that it accepts nothing at the moment.
    #[doc(hidden)]
    pub fn is_blocked(&self) -> bool {
        self.shared.current.borrow().as_ref().is_some_and(|connection| connection.status().blocked())
    }

    /// The largest frame, which the headers must fit.
    pub(super) fn frame_max(&self) -> usize {
        let current = self.shared.current.borrow();
        current.as_ref().map_or(FRAME_MAX, |connection| frame_max(connection))
    }

    async fn in_time<T>(
        &self,
        publish: impl Future<Output = Result<T, PublishError>>,
    ) -> Result<T, PublishError> {
        let after = self.shared.timeout;
        let published = timeout_at(Instant::now() + after, publish).await;
        published.unwrap_or_else(|_| {
            let is_connected = self.shared.current.borrow().is_some();
            let timed_out = PublishError::TimedOut { after, blocked: self.is_blocked() };
            Err(if is_connected { timed_out } else { PublishError::Unavailable })
        })
    }

    /// The channels of the current connection; opens them if there are none.
    async fn open(&self) -> Result<Arc<Open>, PublishError> {
        let mut slot = self.shared.open.lock().await;
        if let Some(open) = slot.as_ref().filter(|open| open.bulk.status().connected()) {
            return Ok(Arc::clone(open));
        }
        *slot = None;
        let mut current = self.shared.current.clone();
        let connection = up(&mut current).await.ok_or(PublishError::Unavailable)?;
        let bulk = confirming(&connection).await.map_err(|error| PublishError::Lost(error.to_string()))?;
        let channels = Channels::new(&connection);
        let open = Arc::new(Open { connection, bulk, order: Mutex::default(), channels });
        *slot = Some(Arc::clone(&open));
        Ok(open)
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

impl Turn {
    /// Publishes a message, and waits for the outcome for as long as the channel lives: until then nobody knows
    /// whether the queue has it, so publishing it again could create a copy. After 20 minutes the channel is closed.
    ///
    /// Cancel safe: the first poll publishes, and after a drop only the outcome stays unknown.
    ///
    /// # Errors
    /// Those of [`Publisher::publish`], except a time-out.
    pub(super) async fn publish(
        self,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        let to = (short(exchange)?, short(routing_key)?);
        let Self { open, mut permit, turn_channel } = self;
        open.check_headers(&properties)?;
        let (channel, mandatory) = match &turn_channel {
            TurnChannel::Shared(shared) => (shared.as_ref().map(|pooled| pooled.channel.clone()), false),
            TurnChannel::Own(pooled) => (Some(pooled.channel.clone()), true),
        };
        let channel = channel.ok_or(PublishError::Unavailable)?;
        let (sender, body) = (channel.clone(), body.clone());
        let mut sent = Box::pin(async move { send(&sender, mandatory, to, properties, &body).await });
        // The first poll numbers the publish and queues its frames, while nobody else has the channel.
        let first = poll_fn(|cx| Poll::Ready(sent.as_mut().poll(cx))).await;
        // Others may publish in order now; a channel of its own is kept until the outcome is known.
        let own = match turn_channel {
            TurnChannel::Shared(turn) => {
                drop(turn);
                None
            }
            TurnChannel::Own(own) => Some(own),
        };
        let outcome = async move {
            match first {
                Poll::Ready(sent) => sent,
                Poll::Pending => sent.await,
            }
        };
        let awaited = tokio::spawn(async move {
            let state = || channel.status().connected().then(|| !open.connection.status().blocked());
            let outcome = permit.outcome(outcome, state).await;
            if outcome.is_none() {
                close(&channel).await;
            }
            // Others may take the channel only now: then no abandoned publish is outstanding on it.
            drop((own, permit));
            outcome
        });
        let lost = || Err(PublishError::Lost("the channel is gone".to_owned()));
        awaited.await.ok().flatten().unwrap_or_else(lost)
    }
}

impl Open {
    async fn send(
        &self,
        to: Destination,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        self.check_headers(&properties)?;
        self.unblocked().await;
        let mut publish = pin!(send(&self.bulk, false, to, properties, body));
        // The first poll numbers the publish and queues its frames.
        let first = poll_fn(|cx| {
            let _ordered = lock(&self.order);
            Poll::Ready(publish.as_mut().poll(cx))
        })
        .await;
        match first {
            Poll::Ready(sent) => sent,
            Poll::Pending => publish.await,
        }
    }

    async fn channel(&self) -> Result<Pooled, PublishError> {
        self.channels.take(&self.connection).await.map_err(|error| PublishError::Lost(error.to_string()))
    }

    /// Waits while the broker accepts nothing: lapin would keep even the frames of an abandoned publish, and each
    /// further attempt would become another copy.
    async fn unblocked(&self) {
        while self.connection.status().blocked() && self.connection.status().connected() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Headers that do not fit a frame would make the broker close the connection, and end all publishes in progress
    /// on it.
    fn check_headers(&self, properties: &BasicProperties) -> Result<(), PublishError> {
        let (size, max) = (letter::size(properties), frame_max(&self.connection));
        if size > max { Err(PublishError::HeadersTooLarge { size, max }) } else { Ok(()) }
    }
}

/// Publishes over this channel, and waits for the confirm.
async fn send(
    channel: &Channel,
    mandatory: bool,
    to: Destination,
    properties: BasicProperties,
    body: &Bytes,
) -> Result<(), PublishError> {
    let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
    let (exchange, key) = to.clone();
    let confirm = channel.basic_publish(exchange, key, options, body, properties).await;
    let confirmation = confirm.map_err(|error| lost(&error, &to.0))?.await;
    outcome(confirmation.map_err(|error| lost(&error, &to.0))?, &to.1)
}

/// RabbitMQ's default.
const FRAME_MAX: usize = 131_072;

fn frame_max(connection: &Connection) -> usize {
    usize::try_from(connection.configuration().frame_max()).unwrap_or(FRAME_MAX)
}
