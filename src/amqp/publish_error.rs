//! Why something could not be published.

use std::time::Duration;

use lapin::Confirmation;
use lapin::protocol::AMQPSoftError;
use lapin::types::ShortString;

use super::error::{NameTooLong, soft, text};

/// The reason why the broker has not, or may not have, accepted a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no connection.
    #[error("not connected to RabbitMQ")]
    Unavailable,
    /// There was no confirm in time; the message may still have arrived.
    #[error("RabbitMQ did not confirm within {} s{}", after.as_secs(), if *blocked { ": it blocks publishers over a memory or disk alarm" } else { "" })]
    TimedOut {
        /// The time-out.
        after: Duration,
        /// Whether the broker has reported that it accepts nothing at the moment.
        blocked: bool,
    },
    /// It was published, and has not been confirmed for so long that nobody waits for it any more.
    #[error("RabbitMQ does not confirm the message: its queue may be without a leader")]
    Unconfirmed,
    /// The channel or the connection was lost; the message may still have arrived.
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

/// The result that a confirm reports; a message that was returned is named by its routing key.
pub(super) fn outcome(confirmation: Confirmation, key: &ShortString) -> Result<(), PublishError> {
    match confirmation {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => {
            Err(PublishError::Unroutable(key.to_string()))
        }
        Confirmation::Nack(None) => Err(PublishError::Rejected),
        Confirmation::NotRequested => Err(PublishError::Lost("the channel does not confirm".to_owned())),
    }
}

/// Why a publish to this exchange was lost with its channel.
pub(super) fn lost(error: &lapin::Error, exchange: &ShortString) -> PublishError {
    match soft(error) {
        Some(AMQPSoftError::NOTFOUND) => PublishError::NoExchange(exchange.to_string()),
        Some(AMQPSoftError::ACCESSREFUSED) => PublishError::Refused(text(error)),
        _ => PublishError::Lost(text(error)),
    }
}
