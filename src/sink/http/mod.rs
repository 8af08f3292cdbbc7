//! An HTTP sink: one HTTP/1.1 request per job, to one base URL.

mod base;
mod body;
mod coding;
mod connect;
mod connection;
mod credentials;
mod endpoint;
mod error;
mod guard;
mod meaning;
mod oauth2;
mod options;
mod pool;
mod proxy;
mod request;
mod response;
mod target;
mod throttling;
mod upload;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::header::HeaderValue;
use tokio::time::{Instant, timeout_at};

use super::{Handover, LastLook, Meaning, Outcome, Sink, Soon};
use crate::job::{Job, shown};
use crate::tls;

use body::Answer;
use connect::Unconnected;
use connection::Outgoing;
pub use error::HttpError;
pub use meaning::{Answered, By, Decision, decide};
use oauth2::Replacement;
pub use oauth2::{ClientAuth, OAuth2Client, OAuth2Options, check_token_url};
pub use options::HttpOptions;
use pool::Pool;
use request::Basis;
use response::Wanted;
pub use target::{ReadTarget, Target, TargetFiles, TargetTexts};

/// The second in which the time limits of connections are written. In unit tests it is 1 000 s, so that these limits pass
/// only when a test advances the clock (`warm::pass`), and never because the machine stood still.
const SECOND: Duration = Duration::from_secs(if cfg!(test) { 1000 } else { 1 });

/// The `User-Agent` of requests.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("paced/", env!("CARGO_PKG_VERSION")));

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
    target: Target,
    /// The client whose token every request has.
    tokens: Option<OAuth2Client>,
    timeout: Duration,
    keep_response: bool,
}

impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSink").field("target", &self.target).finish_non_exhaustive()
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

    /// Sets the source from which the base URL, the proxy and the headers of every request are reloaded: for
    /// [`Sink::read_secrets`], for requests that are refused (401), and for [`Target::refresh`].
    #[must_use]
    pub fn reading_again(self, files: TargetFiles) -> Self {
        self.target.follow(files);
        self
    }

    /// Sets the client whose token every request has, as `Authorization: Bearer`.
    #[must_use]
    pub fn with_tokens_of(mut self, client: OAuth2Client) -> Self {
        self.tokens = Some(client);
        self
    }

    /// The target of requests, and the headers that all of them have. Both may be replaced while the sink sends.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target.clone()
    }

    fn with(options: HttpOptions, lookup: guard::Lookup) -> Result<Self, HttpError> {
        options.check_timeout()?;
        let timeout = options.timeout.min(LONGEST_TIMEOUT);
        let target = Target::new(&options, timeout, lookup)?;
        let keep_response = options.keep_response;
        Ok(Self { target, tokens: None, timeout, keep_response })
    }

    async fn attempt(&self, job: &Job, handover: Handover<'_>) -> Outcome {
        let deadline = Instant::now() + self.timeout;
        let basis = match self.basis(deadline).await {
            Ok(basis) => basis,
            Err(detail) => {
                self.tokens.iter().for_each(|tokens| handover.peer.set(&tokens.address()));
                return Outcome::Unreachable { detail };
            }
        };
        let request = match basis.request(job) {
            Ok(request) => request,
            Err((reason, detail)) => return Outcome::Dead { reason, detail, status: None, response: None },
        };
        let pool = &basis.current.pool;
        let exchanged = self.exchange(pool, request, handover.look, deadline).await;
        let is_by_proxy = |answer: &Answer| basis.current.endpoint.is_refused_by_proxy(answer.head.status());
        handover.peer.set(match &exchanged {
            Err(Failed::Unreachable(error)) => &error.peer,
            Ok(Some(answer)) if is_by_proxy(answer) => pool.dialled(),
            _ => pool.target(),
        });
        match exchanged {
            Ok(None) => Outcome::Missed,
            Ok(Some(answer)) if is_by_proxy(&answer) => {
                let detail = "the proxy refuses the credentials (407); correct the user and the password in http.proxy";
                Outcome::Unreachable { detail: detail.to_owned() }
            }
            Ok(Some(answer)) => {
                let wanted = Wanted {
                    reply: job.reply.is_some(),
                    excerpt: self.keep_response,
                    answers: handover.answers,
                    repeats_unanswered: handover.repeats_unanswered,
                    closing: handover.closing,
                };
                let (outcome, reusable) = response::outcome(answer, wanted).await;
                pool.on_answered(reusable);
                match outcome {
                    // Its future is large, and few requests need it.
                    Outcome::Unauthorized { .. }
                    | Outcome::Throttled { status: 401, .. }
                    | Outcome::Retry { status: Some(401), .. }
                    | Outcome::Dead { status: Some(401), .. } => {
                        Box::pin(self.judge_refusal(outcome, &basis)).await
                    }
                    outcome => outcome,
                }
            }
            Err(Failed::Unreachable(error)) => Outcome::Unreachable { detail: error.detail },
            Err(Failed::Unreadable(detail)) => Outcome::Unreadable { detail },
            Err(Failed::Sent { reason, detail }) => {
                Outcome::Retry { reason, detail, status: None, after: None, response: None }
            }
        }
    }

    /// The settings of a request that is made now. The error says why there is no token, for people.
    async fn basis(&self, deadline: Instant) -> Result<Basis, String> {
        let token = match self.tokens.as_ref().map(|tokens| (tokens, tokens.current())) {
            None => None,
            Some((_, Some(token))) => Some(token),
            Some((tokens, None)) => {
                let token = timeout_at(deadline, tokens.wait()).await;
                Some(token.map_err(|_| self.too_late("no OAuth2 token"))??)
            }
        };
        Ok(Basis { current: self.target.current(), token })
    }

    /// Decides whether a refusal (401) is about the credentials alone. It is if they were replaced meanwhile, or can
    /// be replaced now: this reads the files, and replaces a token of OAuth2.
    async fn judge_refusal(&self, outcome: Outcome, used: &Basis) -> Outcome {
        let Some(replaced) = self.replace(used).await else { return outcome };
        let (is, mut detail, status, response) = match outcome {
            Outcome::Unauthorized { detail, status, response } => {
                (Meaning::Unauthorized, detail, status, response)
            }
            Outcome::Throttled { detail, status, response, .. } => {
                (Meaning::Throttled, detail, status, response)
            }
            Outcome::Retry { detail, status: Some(status), response, .. } => {
                (Meaning::Retry, detail, status, response)
            }
            Outcome::Dead { detail, status: Some(status), response, .. } => {
                (Meaning::Dead, detail, status, response)
            }
            outcome => return outcome,
        };
        detail.push_str(match replaced {
            true => "; the credentials that it refused have been replaced since",
            false => "; and there is no new OAuth2 token",
        });
        Outcome::Outdated { detail, status, replaced, is, response }
    }

    /// Replaces credentials that were refused, if possible. Returns true if there are other credentials now, false if
    /// no new token could be fetched, and `None` if the refused ones are the present ones.
    async fn replace(&self, used: &Basis) -> Option<bool> {
        if self.target.has_replaced(&used.current) {
            // The refusal says nothing about the token, which may be right for the new target.
            return Some(true);
        }
        if let (Some(tokens), Some(token)) = (&self.tokens, &used.token) {
            match timeout_at(Instant::now() + self.timeout, tokens.replace(token)).await {
                Ok(Replacement::Done) => return Some(true),
                Ok(Replacement::Failed) | Err(_) => return Some(false),
                Ok(Replacement::Useless) => {}
            }
        }
        // The task that watches the files logs what is wrong with them.
        let _ = self.target.read().await;
        self.target.has_replaced(&used.current).then_some(true)
    }

    /// Sends the request, and waits for the head of its answer; `None` when the last check refuses.
    async fn exchange(
        &self,
        pool: &Pool,
        mut request: Outgoing,
        look: LastLook<'_>,
        deadline: Instant,
    ) -> Result<Option<Answer>, Failed> {
        loop {
            let taken = timeout_at(deadline, pool.take()).await;
            let (mut aging, reused) = taken
                .map_err(|_| Failed::unreachable(pool.dialled(), self.too_late("no connection")))?
                .map_err(Failed::Unreachable)?;
            if !look() {
                pool.put(aging);
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
                    Some(_) => {
                        return Err(Failed::unreachable(pool.target(), chain(&error.into_error())));
                    }
                    None => return Err(Failed::after_sending(pool, &error.into_error())),
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
    Unreachable(Unconnected),
    /// The downstream has the request, and its answer is not HTTP.
    Unreadable(String),
    /// The downstream may have the request.
    Sent { reason: &'static str, detail: String },
}

impl Failed {
    fn unreachable(peer: &Arc<str>, detail: String) -> Self {
        Self::Unreachable(Unconnected { peer: Arc::clone(peer), detail })
    }

    /// Classifies an error that occurred after a part of the request was written.
    fn after_sending(pool: &Pool, error: &hyper::Error) -> Self {
        let detail = chain(error);
        // In TLS 1.3 the server checks the client's certificate when the first request may be under way.
        if tls::refusal(error).is_some_and(tls::Refusal::is_of_client) {
            return Self::unreachable(pool.target(), detail);
        }
        if error.is_parse() {
            return Self::Unreadable(format!("the answer cannot be parsed: {detail}"));
        }
        Self::Sent { reason: "connection", detail }
    }
}

impl Sink for HttpSink {
    fn release<'a>(&'a self, job: &'a Job, handover: Handover<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(self.attempt(job, handover))
    }

    fn warm(&self, soon: Soon) -> Option<BoxFuture<'static, ()>> {
        if let Some(tokens) = &self.tokens {
            // The token is requested before a job has to wait for it.
            let _ = tokens.current();
        }
        self.target.current().pool.warm(soon)
    }

    fn try_connection(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            if let Some(tokens) = &self.tokens {
                tokens.check().await?;
            }
            self.target.current().pool.open_another().await
        })
    }

    fn read_secrets(&self) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(async move {
            let read = self.target.read().await;
            let Some(tokens) = &self.tokens else { return read };
            match (read, tokens.renew().await) {
                (Ok(true), _) | (_, Ok(true)) => Ok(true),
                (Err(error), _) | (_, Err(error)) => Err(error),
                (Ok(false), Ok(false)) => Ok(false),
            }
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
