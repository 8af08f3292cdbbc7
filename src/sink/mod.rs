//! Sinks, to which jobs are released. A sink's outcome is data: nothing here acks or retries.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::job::{Job, Reason};

mod answers;
#[cfg(feature = "http")]
pub mod http;
mod statuses;

pub use answers::{AnswerPolicy, AnswerRule, BodyMatch, HeaderMatch, Meaning, RuleWait, is_pointer};
pub use statuses::Statuses;

/// Sends released jobs to their downstream.
pub trait Sink: Send + Sync + fmt::Debug + 'static {
    /// Sends the job once, within the sink's own time-out, if [`Handover::look`] allows it directly before the
    /// hand-over: during the wait for a connection the job may have missed its slot. If the credentials were refused,
    /// this may take the time-out once more and 5 s, until the sink knows whether there are new credentials.
    ///
    /// Not cancel safe: a dropped future may or may not have reached the downstream.
    fn release<'a>(&'a self, job: &'a Job, handover: Handover<'a>) -> BoxFuture<'a, Outcome>;

    /// Announces what will be sent soon: the sink prepares connections beyond those in use, so that no send needs to wait
    /// for one. Returns at once; costs next to nothing when they are ready.
    ///
    /// Connects in the background, within the runtime that it is called in. A failure is silent: the send will report
    /// it. The returned future ends once none of them is being opened any more; it is `None` if none is.
    fn warm(&self, soon: Soon) -> Option<BoxFuture<'static, ()>> {
        let _ = soon;
        None
    }

    /// Tests without a job whether the downstream can be reached: opens a connection, which the next send uses. The
    /// error is for people.
    ///
    /// Cancel safe.
    fn try_connection(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Reads the secrets that it sends again, if it knows their files; returns whether they have changed. Later
    /// requests have the new ones. The error is for people, without any secret.
    ///
    /// Cancel safe.
    fn read_secrets(&self) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(std::future::ready(Ok(false)))
    }
}

/// What will be sent soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soon {
    /// The number of jobs.
    pub jobs: usize,
    /// The number of connections, beyond those in use, that the jobs need at one time, if one connection serves one
    /// job after another.
    pub at_once: usize,
}

/// Why an attempt may be repeated: the downstream's status, no answer in time, no connection to it, a
/// connection that broke, a downstream that asks its callers to slow down, or one that refuses this
/// replica's credentials.
pub const RETRY_REASONS: [&str; 7] =
    ["status", "timeout", "connect", "connection", "throttled", "unauthorized", "answer"];

/// How a job is to be handed over.
#[derive(Clone, Copy)]
pub struct Handover<'a> {
    /// The last check before the job is sent.
    pub look: LastLook<'a>,
    /// What the answers mean.
    pub answers: &'a AnswerPolicy,
    /// Whether an earlier attempt at the job, by this replica, ended without an answer.
    pub repeats_unanswered: bool,
    /// Where the sink notes which host it connects to.
    pub peer: &'a Peer,
    /// When the sink stops waiting for the rest of a successful answer.
    pub closing: &'a Closing,
}

/// Makes the sends of a dispatcher that ends stop waiting for the rest of successful answers. A job whose answer was
/// left in this way counts as delivered: if it were handed over again, its work would be done twice.
#[derive(Clone, Debug, Default)]
pub struct Closing {
    streams: CancellationToken,
    answers: CancellationToken,
}

impl Closing {
    /// From now on no send waits for the end of a stream of events.
    pub fn end_streams(&self) {
        self.streams.cancel();
    }

    /// From now on no send waits for the end of an answer.
    pub fn end_answers(&self) {
        self.answers.cancel();
        self.streams.cancel();
    }

    /// Returns once a send need not wait for the end of its answer any longer; `is_stream` says whether that is a
    /// stream of events.
    ///
    /// Cancel safe.
    pub async fn wait(&self, is_stream: bool) {
        let token = if is_stream { &self.streams } else { &self.answers };
        token.cancelled().await;
    }
}

/// The host that an attempt went to, as `HOST:PORT`: failures without an answer are counted by it. It has no user information,
/// path or query.
#[derive(Debug, Default)]
pub struct Peer(OnceLock<Arc<str>>);

impl Peer {
    /// Notes the host. The first one of an attempt counts.
    pub fn set(&self, address: &Arc<str>) {
        let _ = self.0.set(Arc::clone(address));
    }

    /// The host, if the sink has noted one.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.0.get().map(|address| &**address)
    }
}

/// Called when a job is about to be handed over: returns false if its slot is missed. It may be called again when the
/// first hand-over failed.
pub type LastLook<'a> = &'a (dyn Fn() -> bool + Send + Sync);

/// The outcome of one attempt.
#[derive(Debug)]
pub enum Outcome {
    /// The downstream accepted the job.
    Delivered(Receipt),
    /// The last check refused: nothing was sent, and no attempt was made.
    Missed,
    /// The downstream was not reached. Either not a byte of a request was written (refused, unresolved, no TLS, no
    /// connection in time, no file descriptor). Or the other side refused the client before it read the request: the
    /// downstream refused its certificate, or the proxy its credentials. This says nothing about the job, and does
    /// not count as an attempt.
    Unreachable {
        /// The error, for people.
        detail: String,
    },
    /// The downstream asks all its callers to slow down. This says nothing about the job, which may be tried again, at a new
    /// slot.
    Throttled {
        /// The error, for people.
        detail: String,
        /// The status.
        status: u16,
        /// How long nothing is to be released to the downstream, if it said so.
        after: Option<Duration>,
        /// Whether the job must not be tried again, although the error is temporary.
        is_final: bool,
        /// The response, for `reply_to` and the dead letter, when no attempt is left.
        response: Option<Response>,
    },
    /// The downstream answered unintelligibly: it may have done the work. The job is tried once more, at a new slot,
    /// and no second time.
    Unreadable {
        /// The error, for people.
        detail: String,
    },
    /// The downstream refused the credentials of the request (401), and that says nothing about the job: they have been
    /// replaced since, or they are not known to be good any more. The job is tried again at a new slot.
    Outdated {
        /// The error, for people.
        detail: String,
        /// The status.
        status: u16,
        /// Whether other credentials are in use now. Otherwise they were to be replaced, and could not be.
        replaced: bool,
        /// What the answer means if it is about the job.
        is: Meaning,
        /// The response, for `reply_to` and the dead letter, when no attempt is left.
        response: Option<Response>,
    },
    /// The downstream may refuse this replica's credentials, for every job.
    Unauthorized {
        /// The error, for people.
        detail: String,
        /// The status.
        status: u16,
        /// The response, for `reply_to` and the dead letter, when no attempt is left.
        response: Option<Response>,
    },
    /// The job may be tried again, at a new slot.
    Retry {
        /// One of [`RETRY_REASONS`], for a metric.
        reason: &'static str,
        /// The error, for people.
        detail: String,
        /// The status, where there was one.
        status: Option<u16>,
        /// How long the downstream asked to wait before this job is tried again (`Retry-After`).
        after: Option<Duration>,
        /// The response, for `reply_to` and the dead letter, when no attempt is left.
        response: Option<Response>,
    },
    /// The job must not be tried again.
    Dead {
        /// The reason, for `paced-reason`.
        reason: Reason,
        /// The error, for people, for `paced-detail`.
        detail: String,
        /// The status, where there was one.
        status: Option<u16>,
        /// The response, for `reply_to` and the dead letter.
        response: Option<Response>,
    },
}

/// The proof that a sink delivered a job: without one, nothing is acked as delivered.
#[derive(Debug)]
pub struct Receipt {
    /// The answer of the downstream.
    pub response: Response,
    /// How long nothing more may be released to the downstream, if the answer says that no requests are left and the
    /// settings heed that.
    pub rest: Option<Duration>,
    /// What people should know of the answer, such as that it had not ended.
    pub remark: Option<String>,
}

impl Receipt {
    /// A receipt, which only sinks create, on delivery.
    pub const fn new(response: Response) -> Self {
        Self { response, rest: None, remark: None }
    }
}

/// The most bytes that are kept of the body of an answer.
pub const MAX_ANSWER: usize = 64 * 1024;

/// The most bytes of the body of an answer that a dead letter has.
pub const MAX_EXCERPT: usize = 1024;

/// The answer of a downstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status; 0 where there was none.
    pub status: u16,
    /// Names in lower case, and values; filled only for jobs that want a reply.
    pub headers: Vec<(String, String)>,
    /// The body, as far as it was read, which is [`MAX_ANSWER`] at most; filled only for jobs that want a reply.
    pub body: Bytes,
    /// The beginning of the body, which is [`MAX_EXCERPT`] at most, for the dead letter of any job; filled only where
    /// the answer was no delivery.
    pub excerpt: Bytes,
}

impl Response {
    /// An answer of which at most the status is known.
    pub fn without_body(status: Option<u16>) -> Self {
        Self { status: status.unwrap_or(0), ..Self::default() }
    }
}

/// How many bytes of this body, or of its beginning, are an excerpt: [`MAX_EXCERPT`] at most, without a character of
/// UTF-8 that would be cut there.
pub fn excerpt_len(body: &[u8]) -> usize {
    let Some(start) = body.get(..MAX_EXCERPT) else { return body.len() };
    match std::str::from_utf8(start) {
        // All of it is text, except the last character, which is cut off.
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => MAX_EXCERPT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_ends_at_a_character_if_the_body_is_text() {
        assert_eq!(excerpt_len(b""), 0);
        assert_eq!(excerpt_len(b"short, with half of a character: \xc3"), 34);
        assert_eq!(excerpt_len(&[b'x'; 5000]), MAX_EXCERPT);
        assert_eq!(excerpt_len("é".repeat(5000).as_bytes()), MAX_EXCERPT);
        assert_eq!(excerpt_len(format!("x{}", "é".repeat(5000)).as_bytes()), MAX_EXCERPT - 1);
        assert_eq!(excerpt_len(format!("x{}", "👩".repeat(5000)).as_bytes()), MAX_EXCERPT - 3);
        assert_eq!(excerpt_len(&[0xff; 5000]), MAX_EXCERPT, "that is no text, and goes as it is");
    }
}
