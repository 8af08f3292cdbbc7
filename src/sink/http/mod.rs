//! An HTTP sink: one HTTP/1.1 request per job, to one base URL.

mod connect;
mod connection;
mod guard;
mod options;
mod pool;
mod proxy;
mod request;
mod response;
mod retry_after;
mod upload;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{BodyMatch, LastLook, Outcome, Sink};
use crate::job::{Job, shown};
use crate::store::BoxFuture;
use crate::tls;

use connect::{Connector, Route};
use connection::Outgoing;
use options::Target;
pub use options::{HttpError, HttpOptions};
use pool::Pool;
use response::{Answer, Wanted};

/// The longest time-out, which can be added to any instant.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(366 * 86_400);

/// The longest error text of a failed attempt, in characters.
const MAX_ERROR: usize = 200;

/// Sends jobs to the downstream below one base URL.
///
/// It follows no redirect, reads no proxy from the environment, keeps connections alive, and never connects to a
/// link-local or metadata address; where there is a proxy, it is the proxy that resolves the host. It need not be
/// cloned: share it by reference.
pub struct HttpSink {
    pool: Pool,
    read_headers: Option<ReadHeaders>,
    target: Target,
    timeout: Duration,
    throttled_when: Option<BodyMatch>,
    keep_response: bool,
}

/// Reads the headers of every request again from their files. It may block. The error is a text for people, without any
/// secret.
pub type ReadHeaders = Arc<dyn Fn() -> Result<Vec<(String, String)>, String> + Send + Sync>;

impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The base URL has no user information any more; header values may be secrets.
        f.debug_struct("HttpSink").field("base_url", &self.target.base.as_str()).finish_non_exhaustive()
    }
}

impl HttpSink {
    /// A sink with its own pool of connections. Nothing is connected yet.
    ///
    /// # Errors
    /// [`HttpError`] when an option is wrong, or the system has no certificate authorities and the
    /// base URL is `https`.
    pub fn new(options: HttpOptions) -> Result<Self, HttpError> {
        Self::with(options, guard::system)
    }

    /// Sets how the headers of every request can be read again, for [`Sink::read_secrets`].
    #[must_use]
    pub fn reading_headers_again(mut self, read: ReadHeaders) -> Self {
        self.read_headers = Some(read);
        self
    }

    fn with(options: HttpOptions, lookup: guard::Lookup) -> Result<Self, HttpError> {
        let timeout = options.timeout.min(LONGEST_TIMEOUT);
        let max_age = options.max_connection_age;
        let (throttled_when, keep_response) = (options.throttled_when.clone(), options.keep_response);
        let tls = options.tls.clone();
        let target = Target::new(options)?;
        let route = Route { tls, proxy: target.proxy.clone() };
        let connector = Connector::new(&target.base, timeout, lookup, route)?;
        let pool = Pool::new(connector, max_age);
        Ok(Self { pool, target, timeout, read_headers: None, throttled_when, keep_response })
    }

    async fn attempt(&self, job: &Job, look: LastLook<'_>) -> Outcome {
        let request = match self.target.request(job) {
            Ok(request) => request,
            Err((reason, detail)) => return Outcome::Dead { reason, detail, status: None, response: None },
        };
        match self.exchange(request, look).await {
            Ok(None) => Outcome::Missed,
            Ok(Some(answer)) if self.target.is_refused_by_proxy(answer.head.status()) => {
                let detail = "the proxy refuses the credentials (407); correct the user and the password in http.proxy";
                Outcome::Unreachable { detail: detail.to_owned() }
            }
            Ok(Some(answer)) => {
                let wanted = Wanted {
                    reply: job.reply.is_some(),
                    excerpt: self.keep_response,
                    throttled_when: self.throttled_when.as_ref(),
                };
                let (outcome, reusable) = response::outcome(answer, wanted).await;
                if let Some(aging) = reusable {
                    self.pool.put(aging);
                }
                outcome
            }
            Err(Failed::Unreachable(detail)) => Outcome::Unreachable { detail },
            Err(Failed::Unreadable(detail)) => Outcome::Unreadable { detail },
            Err(Failed::Sent { reason, detail }) => {
                Outcome::Retry { reason, detail, status: None, after: None, response: None }
            }
        }
    }

    /// Sends the request up to the head of its answer; `None` when the last look refuses.
    async fn exchange(&self, mut request: Outgoing, look: LastLook<'_>) -> Result<Option<Answer>, Failed> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let taken = timeout_at(deadline, self.pool.take()).await;
            let (mut aging, reused) = taken
                .map_err(|_| Failed::Unreachable(self.too_late("no connection")))?
                .map_err(Failed::Unreachable)?;
            if !look() {
                self.pool.put(aging);
                return Ok(None);
            }
            let sent = timeout_at(deadline, aging.connection.send(request)).await;
            let sent =
                sent.map_err(|_| Failed::Sent { reason: "timeout", detail: self.too_late("no answer") })?;
            match sent {
                Ok(head) => return Ok(Some(Answer { head, aging, deadline })),
                // If the error contains the request, nothing of it was written: the server had closed the connection.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if reused => request = unsent,
                    Some(_) => return Err(Failed::Unreachable(chain(&error.into_error()))),
                    None => return Err(Failed::after_sending(&error.into_error())),
                },
            }
        }
    }

    fn too_late(&self, what: &str) -> String {
        format!("{what} within {:?}", self.timeout)
    }
}

/// The ways in which an attempt can fail without an answer.
enum Failed {
    /// Nothing of the request was written.
    Unreachable(String),
    /// The downstream has the request, and its answer is not HTTP.
    Unreadable(String),
    /// The downstream may have the request.
    Sent { reason: &'static str, detail: String },
}

impl Failed {
    /// Classifies an error that occurred after a part of the request was written.
    fn after_sending(error: &hyper::Error) -> Self {
        let detail = chain(error);
        // In TLS 1.3 the server looks at the client's certificate when the first request may be under way.
        if tls::refusal(error).is_some_and(tls::Refusal::is_of_client) {
            return Self::Unreachable(detail);
        }
        if error.is_parse() {
            return Self::Unreadable(format!("the answer cannot be parsed: {detail}"));
        }
        Self::Sent { reason: "connection", detail }
    }
}

impl Sink for HttpSink {
    fn release<'a>(&'a self, job: &'a Job, look: LastLook<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(self.attempt(job, look))
    }

    fn warm(&self, connections: usize) {
        self.pool.warm(connections);
    }

    fn try_connection(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.pool.open_another())
    }

    fn read_secrets(&self) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(async move {
            let Some(read) = self.read_headers.clone() else { return Ok(false) };
            let read = tokio::task::spawn_blocking(move || read()).await;
            let headers = read.map_err(|error| format!("reading was broken off: {error}"))??;
            self.target.replace_headers(headers).map_err(|error| error.to_string())
        })
    }
}

/// An error and its causes on one line. None of them contains the request.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    shown(text.as_bytes(), MAX_ERROR)
}

#[cfg(test)]
mod tests;
