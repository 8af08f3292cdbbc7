//! One HTTP/1.1 request per job, to one base URL.

mod guard;
mod options;
mod request;
mod response;
mod retry_after;

use std::fmt;
use std::time::Duration;

use reqwest::Client;
use reqwest::redirect::Policy;

use super::{Outcome, Sink};
use crate::job::{Job, Reason, shown};
use crate::store::BoxFuture;

use options::Target;
pub use options::{HttpError, HttpOptions};

/// Shorter than the keep-alive of common servers (5 s: Node, Apache, uvicorn), so that a request
/// does not meet a connection that its server is closing.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// A host that does not answer within it is away; the rest of a long time-out is for the answer.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// The longest error text of a failed attempt, in characters.
const MAX_ERROR: usize = 200;

/// Sends jobs to the downstream below one base URL.
///
/// It follows no redirect, reads no proxy from the environment, keeps connections alive, and never
/// connects to a link-local or metadata address. Cloning is not needed: share it by reference.
pub struct HttpSink {
    client: Client,
    target: Target,
}

impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The base has lost its user information; header values may be secrets.
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
        Self::with_lookup(options, guard::system)
    }

    fn with_lookup(options: HttpOptions, lookup: guard::Lookup) -> Result<Self, HttpError> {
        let timeout = options.timeout;
        let target = Target::new(options)?;
        install_crypto_provider();
        let mut builder = Client::builder()
            .http1_only()
            .redirect(Policy::none())
            .referer(false)
            .no_proxy()
            .retry(reqwest::retry::never())
            .tcp_nodelay(true)
            .timeout(timeout)
            .connect_timeout(timeout.min(LONGEST_CONNECT))
            .pool_idle_timeout(POOL_IDLE)
            .dns_resolver(guard::Resolver::new(lookup));
        if target.base.scheme() == "http" {
            // Never used then: a container without certificates can still send.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| HttpError::Client(chain(error)))?;
        Ok(Self { client, target })
    }

    async fn attempt(&self, job: &Job) -> Outcome {
        let request = match self.target.request(job) {
            Ok(request) => request,
            Err((reason, detail)) => return Outcome::Dead { reason, detail, status: None, response: None },
        };
        match self.client.execute(request).await {
            Ok(answer) => response::outcome(answer, job.reply.is_some()).await,
            Err(error) => failed(error),
        }
    }
}

impl Sink for HttpSink {
    fn send<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Outcome> {
        Box::pin(self.attempt(job))
    }
}

/// Makes ring the process's provider of cryptography for TLS, unless there is one already.
pub fn install_crypto_provider() {
    // An error means that one was installed before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// What an attempt without an answer comes to.
fn failed(error: reqwest::Error) -> Outcome {
    if error.is_builder() {
        let detail = format!("the request cannot be built: {}", chain(error));
        return Outcome::Dead { reason: Reason::ForbiddenPath, detail, status: None, response: None };
    }
    let reason = if error.is_connect() {
        "connect"
    } else if error.is_timeout() {
        "timeout"
    } else {
        "connection"
    };
    Outcome::Retry { reason, detail: chain(error), status: None, after: None, response: None }
}

/// An error and its causes on one line, without the URL: its query may hold a token.
fn chain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
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
