//! Where jobs are released to. A sink's outcome is data: nothing here acks or retries.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::job::{Job, Reason};
use crate::store::BoxFuture;

#[cfg(feature = "http")]
pub mod http;

/// Takes released jobs to their downstream.
pub trait Sink: Send + Sync + fmt::Debug + 'static {
    /// Sends the job once, within the sink's own time-out, if `look` says so directly before the
    /// hand-over: waiting for a connection may have cost the job its slot.
    ///
    /// Not cancel safe: a dropped future may or may not have reached the downstream.
    fn release<'a>(&'a self, job: &'a Job, look: LastLook<'a>) -> BoxFuture<'a, Outcome>;

    /// [`Sink::release`] of a job that has no slot to miss.
    ///
    /// Not cancel safe, as that.
    fn send<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Outcome> {
        self.release(job, &|| true)
    }

    /// Jobs will be sent soon, and will use so many connections at one time: has as many ready beyond those that are in
    /// use, so that no send need wait for one. Returns at once; costs next to nothing when they are ready.
    ///
    /// Connects in the background, within the runtime that it is called in. A failure is silent: the
    /// send will tell.
    fn warm(&self, connections: usize) {
        let _ = connections;
    }

    /// Tries whether the downstream can be reached, without a job: opens a connection, which the next send
    /// uses. The error is for people.
    ///
    /// Cancel safe.
    fn try_connection(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Reads again the secrets that it sends, where it knows where they are kept; whether they have changed.
    /// What is sent from then on has the new ones. The error is for people, without any secret.
    ///
    /// Cancel safe.
    fn read_secrets(&self) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(std::future::ready(Ok(false)))
    }
}

/// Why an attempt may be repeated: the downstream's status, no answer in time, no connection to it, a
/// connection that broke, a downstream that asks its callers to slow down, or one that refuses this
/// replica's credentials.
pub const RETRY_REASONS: [&str; 7] =
    ["status", "timeout", "connect", "connection", "throttled", "unauthorized", "answer"];

/// Asked when a job is about to be handed over: false where its slot is missed. It may be asked again
/// when the first hand-over came to nothing.
pub type LastLook<'a> = &'a (dyn Fn() -> bool + Send + Sync);

/// What became of one attempt.
#[derive(Debug)]
pub enum Outcome {
    /// The downstream has it.
    Delivered(Receipt),
    /// The last look said no: nothing was sent, and no attempt was made.
    Missed,
    /// The downstream was not reached: not a byte of a request was written (refused, unresolved, no TLS, no
    /// connection in time, no file descriptor). Says nothing about the job, and is no attempt at it.
    Unreachable {
        /// For people.
        detail: String,
    },
    /// The downstream has too much to do for all its callers (429, and 503 with `Retry-After`). Says nothing
    /// about the job: worth another attempt, at a new slot.
    Throttled {
        /// For people.
        detail: String,
        /// The status.
        status: u16,
        /// How long nothing is to be released to the downstream (`Retry-After`), where it said so.
        after: Option<Duration>,
        /// The response, for `reply_to`, when no attempt is left.
        response: Option<Response>,
    },
    /// It answered, and nobody can tell what: it may have done the work. Worth one more attempt, at a new slot,
    /// and no second one.
    Unreadable {
        /// For people.
        detail: String,
    },
    /// Worth another attempt, at a new slot.
    Retry {
        /// One of [`RETRY_REASONS`], for a metric.
        reason: &'static str,
        /// For people.
        detail: String,
        /// The status, where there was one.
        status: Option<u16>,
        /// How long the downstream asked to wait with this job (`Retry-After`).
        after: Option<Duration>,
        /// The response, for `reply_to`, when no attempt is left.
        response: Option<Response>,
    },
    /// Never worth another attempt.
    Dead {
        /// Why, for `paced-reason`.
        reason: Reason,
        /// For people, for `paced-detail`.
        detail: String,
        /// The status, where there was one.
        status: Option<u16>,
        /// The response, for `reply_to`.
        response: Option<Response>,
    },
}

/// The proof that a sink delivered a job: without one, nothing is acked as delivered.
#[derive(Debug)]
pub struct Receipt {
    /// What the downstream answered.
    pub response: Response,
}

impl Receipt {
    /// For sinks, on delivery.
    #[must_use]
    pub const fn new(response: Response) -> Self {
        Self { response }
    }
}

/// What a downstream answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status; 0 where there was none.
    pub status: u16,
    /// Name and value, names in lower case; filled only for jobs that want a reply.
    pub headers: Vec<(String, String)>,
    /// The body, as far as it was read; filled only for jobs that want a reply.
    pub body: Bytes,
}

impl Response {
    /// An answer of which only the status is known, or not even that.
    #[must_use]
    pub fn without_body(status: Option<u16>) -> Self {
        Self { status: status.unwrap_or(0), ..Self::default() }
    }
}
