//! Errors of the broker, and what to do about them.

use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};

/// Why the broker could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no connection.
    #[error("cannot reach RabbitMQ at {address}: {detail}; is it running, and is amqp.url right?")]
    Unreachable {
        /// The address, without credentials.
        address: String,
        /// The error of the system.
        detail: String,
    },
    /// The broker refuses the login.
    #[error("RabbitMQ at {address} refuses the login: {detail}; check user, password and vhost in amqp.url")]
    Login {
        /// The address, without credentials.
        address: String,
        /// The broker's error text.
        detail: String,
    },
    /// The user lacks a permission.
    #[error(
        "not allowed to use {what}: {detail}; grant the user the permission, or set amqp.declare = false \
         where the topology exists already"
    )]
    Refused {
        /// The exchange or queue.
        what: String,
        /// The broker's error text.
        detail: String,
    },
    /// An exchange or queue is missing, and it may not or must not be declared.
    #[error(
        "{what} does not exist; create it, or let `paced run` or `paced publish` declare it with \
         amqp.declare = true"
    )]
    NotFound {
        /// The exchange or queue.
        what: String,
    },
    /// An exchange or queue exists with other arguments, which cannot be changed.
    #[error(
        "{what} exists with other arguments: {detail}; delete it once it is empty, or use another amqp.prefix"
    )]
    Inequivalent {
        /// The exchange or queue.
        what: String,
        /// The broker's error text, which names the argument that differs.
        detail: String,
    },
    /// The queue is a stream.
    #[error(
        "queue {queue} is a stream, which keeps what was settled and forgets how far it was read, so its jobs would be \
         skipped or sent again; bind a quorum queue to the exchange that feeds the stream, and set queue.name to that"
    )]
    Stream {
        /// `queue.name`.
        queue: String,
    },
    /// The broker did not answer in time.
    #[error("RabbitMQ did not answer within {} s: {what}", after.as_secs())]
    TimedOut {
        /// The call that was made.
        what: String,
        /// The time-out.
        after: Duration,
    },
    /// Any other error, such as the loss of the connection.
    #[error("{what} failed: {detail}")]
    Failed {
        /// The call that was made.
        what: String,
        /// The error text.
        detail: String,
    },
    /// The name is longer than AMQP allows.
    #[error("the name `{0}` is longer than 255 bytes; shorten it")]
    NameTooLong(String),
    /// The downstream has a source already.
    #[error("the downstream `{0}` is consumed already; one source is enough")]
    Consumed(String),
    /// The options have no downstream of this name.
    #[error("no downstream is called `{0}`")]
    UnknownDownstream(String),
}

/// A name that is longer than AMQP allows.
pub(super) struct NameTooLong(pub(super) String);

impl From<NameTooLong> for Error {
    fn from(NameTooLong(name): NameTooLong) -> Self {
        Self::NameTooLong(name)
    }
}

impl Error {
    /// True where the broker could not be reached or did not answer: exit code 69.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Failed { .. })
    }

    /// True where the error stays until somebody changes the broker or the user's permissions.
    pub(super) const fn is_final(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::NotFound { .. } | Self::Inequivalent { .. })
    }

    /// True where credentials or permissions are wrong: exit code 77.
    pub const fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Login { .. } | Self::Refused { .. })
    }

    /// Classifies an error of a call on a channel; `what` names the exchange, the queue or the call.
    pub(super) fn of(what: &str, error: &lapin::Error) -> Self {
        let what = what.to_owned();
        let detail = text(error);
        match soft(error) {
            Some(AMQPSoftError::ACCESSREFUSED) => Self::Refused { what, detail },
            Some(AMQPSoftError::NOTFOUND) => Self::NotFound { what },
            Some(AMQPSoftError::PRECONDITIONFAILED) => Self::Inequivalent { what, detail },
            _ => Self::Failed { what, detail },
        }
    }

    /// Classifies an error of connecting.
    pub(super) fn connecting(address: String, error: &lapin::Error) -> Self {
        let detail = text(error);
        let login = match error.kind() {
            ErrorKind::ProtocolError(error) => matches!(
                error.kind(),
                AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
                    | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)
            ),
            _ => false,
        };
        if login { Self::Login { address, detail } } else { Self::Unreachable { address, detail } }
    }
}

/// The code of a channel error, if it is one.
pub(super) fn soft(error: &lapin::Error) -> Option<AMQPSoftError> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft.clone()),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

/// The text of the broker or the system, without that of lapin around it.
pub(super) fn text(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
