//! Publishes with confirms.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use lapin::options::BasicPublishOptions;
use lapin::protocol::AMQPSoftError;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::connection::confirming;
use super::error::{NameTooLong, soft, text};
use super::letter;
use super::supervisor::{ConnectionWatch, up};
use super::topology::short;
use crate::failpoint;
use crate::lock::lock;

/// The time-out for one publish: a quorum queue under load takes seconds, a blocked connection for ever.
const PUBLISH: Duration = Duration::from_secs(30);

/// The most publishes in flight that must reach a queue.
const ROUTED: usize = 8;

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
}

/// The kind of channel that a message is published on.
#[derive(Clone, Copy)]
enum ChannelKind {
    /// A channel with many publishes in flight.
    Bulk,
    /// A channel with one publish at a time, which must reach a queue.
    Routed,
}

/// Exchange and routing key.
type Destination = (ShortString, ShortString);

/// The channels of one connection.
struct Open {
    connection: Arc<Connection>,
    /// The channel for many publishes at once, none of which can be returned.
    bulk: Channel,
    /// lapin numbers a publish and queues its frames in two steps; if two threads interleaved there, each would get the
    /// other's confirm.
    order: Mutex<()>,
    /// Channels for one publish at a time, because lapin hands a returned message to the next confirm, whichever it is.
    idle: Mutex<Vec<Channel>>,
    routed: Semaphore,
}

/// The reason why the broker has not, or may not have, accepted a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no connection.
    #[error("not connected to RabbitMQ")]
    Unavailable,
    /// There was no confirm in time; the message may have arrived all the same.
    #[error("RabbitMQ did not confirm within {} s{}", after.as_secs(), if *blocked { ": it blocks publishers over a memory or disk alarm" } else { "" })]
    TimedOut {
        /// The time-out.
        after: Duration,
        /// Whether the broker has reported that it accepts nothing at the moment.
        blocked: bool,
    },
    /// The channel or the connection was lost; the message may have arrived all the same.
    #[error("lost the channel to RabbitMQ: {0}")]
    Lost(String),
    /// The broker does not accept it now: the queue is full, or has no leader.
    #[error("RabbitMQ rejected the message: the queue is full or not available")]
    Rejected,
    /// The message was returned, as no queue takes it.
    #[error("no queue `{0}`; create it, or let paced declare its own with amqp.declare = true")]
    Unroutable(String),
    /// The exchange is missing.
    #[error("no exchange `{0}`; create it, or let paced declare its own with amqp.declare = true")]
    NoExchange(String),
    /// The user lacks a permission.
    #[error("not allowed to publish: {0}; grant the user write permission on the exchange")]
    Refused(String),
    /// A name is longer than 255 bytes.
    #[error("the name `{0}` is longer than 255 bytes")]
    NameTooLong(String),
    /// The dead letter is no job: its properties could not be parsed as they are.
    #[error("a dead letter is malformed: {0}; read its body, publish it as a new job, and purge the letter")]
    Malformed(String),
    /// The headers do not fit one frame.
    #[error("the headers take {size} bytes and must fit {max}; send less in headers, more in the body")]
    HeadersTooLarge {
        /// The approximate size of the headers.
        size: usize,
        /// The most that the connection allows.
        max: usize,
    },
}

impl From<NameTooLong> for PublishError {
    fn from(NameTooLong(name): NameTooLong) -> Self {
        Self::NameTooLong(name)
    }
}

impl PublishError {
    /// True where the same message may be accepted a little later.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable | Self::TimedOut { .. } | Self::Lost(_) | Self::Rejected)
    }
}

impl Publisher {
    pub(super) fn new(current: ConnectionWatch) -> Self {
        let shared =
            Shared { current, timeout: failpoint::limit(PUBLISH), open: tokio::sync::Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Publishes and waits for the confirm; thousands may be in flight, which the caller bounds.
    ///
    /// A message that no queue takes is confirmed too, where the exchange has no alternate: see
    /// [`Publisher::publish_routed`].
    ///
    /// Not cancel safe: a dropped future may or may not have published.
    ///
    /// # Errors
    /// [`PublishError::is_retryable`] tells what may be tried again.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        self.send(ChannelKind::Bulk, exchange, routing_key, properties, body).await
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
        self.send(ChannelKind::Routed, exchange, routing_key, properties, body).await
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

    async fn send(
        &self,
        kind: ChannelKind,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        let to = (short(exchange)?, short(routing_key)?);
        let deadline = Instant::now() + self.shared.timeout;
        let open = tokio::time::timeout_at(deadline, self.open()).await;
        let open = open.unwrap_or(Err(PublishError::Unavailable))?;
        let publish = async {
            match kind {
                ChannelKind::Bulk => open.send(to, properties, body).await,
                ChannelKind::Routed => open.send_routed(to, properties, body).await,
            }
        };
        let published = tokio::time::timeout_at(deadline, publish).await;
        published.unwrap_or_else(|_| {
            let blocked = open.connection.status().blocked();
            Err(PublishError::TimedOut { after: self.shared.timeout, blocked })
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
        let open = Arc::new(Open {
            connection,
            bulk,
            order: Mutex::default(),
            idle: Mutex::default(),
            routed: Semaphore::new(ROUTED),
        });
        *slot = Some(Arc::clone(&open));
        Ok(open)
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
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
        let (exchange, key) = to.clone();
        let options = BasicPublishOptions::default();
        let mut publish = pin!(self.bulk.basic_publish(exchange, key, options, body, properties));
        // The first poll numbers the publish and queues its frames.
        let first = poll_fn(|cx| {
            let _ordered = lock(&self.order);
            Poll::Ready(publish.as_mut().poll(cx))
        })
        .await;
        let sent = match first {
            Poll::Ready(sent) => sent,
            Poll::Pending => publish.await,
        };
        let confirm = sent.map_err(|error| lost(&error, &to.0))?;
        outcome(confirm.await.map_err(|error| lost(&error, &to.0))?, &to.1)
    }

    async fn send_routed(
        &self,
        to: Destination,
        properties: BasicProperties,
        body: &Bytes,
    ) -> Result<(), PublishError> {
        self.check_headers(&properties)?;
        let _permit = self.routed.acquire().await.map_err(|_| PublishError::Unavailable)?;
        self.unblocked().await;
        let channel = match self.take_idle() {
            Some(channel) => channel,
            None => confirming(&self.connection).await.map_err(|e| PublishError::Lost(e.to_string()))?,
        };
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = to.clone();
        let sent = channel.basic_publish(exchange, key, options, body, properties).await;
        let confirm = sent.map_err(|error| lost(&error, &to.0))?;
        // A channel is dropped, and so closed, if this future is dropped halfway.
        let confirmation = confirm.await.map_err(|error| lost(&error, &to.0))?;
        lock(&self.idle).push(channel);
        outcome(confirmation, &to.1)
    }

    /// Waits while the broker accepts nothing: lapin would keep even the frames of a publish that is given up, and each
    /// further attempt would become another copy.
    async fn unblocked(&self) {
        while self.connection.status().blocked() && self.connection.status().connected() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Headers that do not fit a frame would cost the connection, and all in flight with it.
    fn check_headers(&self, properties: &BasicProperties) -> Result<(), PublishError> {
        let (size, max) = (letter::size(properties), frame_max(&self.connection));
        if size > max { Err(PublishError::HeadersTooLarge { size, max }) } else { Ok(()) }
    }

    fn take_idle(&self) -> Option<Channel> {
        let mut idle = lock(&self.idle);
        std::iter::from_fn(|| idle.pop()).find(|channel| channel.status().connected())
    }
}

/// RabbitMQ's default.
const FRAME_MAX: usize = 131_072;

fn frame_max(connection: &Connection) -> usize {
    usize::try_from(connection.configuration().frame_max()).unwrap_or(FRAME_MAX)
}

fn outcome(confirmation: Confirmation, key: &ShortString) -> Result<(), PublishError> {
    match confirmation {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => {
            Err(PublishError::Unroutable(key.to_string()))
        }
        Confirmation::Nack(None) => Err(PublishError::Rejected),
        Confirmation::NotRequested => Err(PublishError::Lost("the channel does not confirm".to_owned())),
    }
}

fn lost(error: &lapin::Error, exchange: &ShortString) -> PublishError {
    match soft(error) {
        Some(AMQPSoftError::NOTFOUND) => PublishError::NoExchange(exchange.to_string()),
        Some(AMQPSoftError::ACCESSREFUSED) => PublishError::Refused(text(error)),
        _ => PublishError::Lost(text(error)),
    }
}
