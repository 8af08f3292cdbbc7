//! An HTTP sink: one HTTP/1.1 request per job, to one base URL.

mod connect;
mod connection;
mod guard;
mod headers;
mod oauth2;
mod options;
mod pool;
mod proxy;
mod request;
mod response;
mod retry_after;
mod upload;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use hyper::StatusCode;
use tokio::time::{Instant, timeout_at};

use super::{BodyMatch, LastLook, Outcome, Sink};
use crate::job::{Job, Reason, shown};
use crate::store::BoxFuture;
use crate::tls;

use connect::{Connector, Route};
use connection::Outgoing;
pub use headers::{HeaderFiles, Headers, ReadHeaders};
use oauth2::Replacement;
pub use oauth2::{ClientAuth, OAuth2Client, OAuth2Options, check_token_url};
use options::Target;
pub use options::{HttpError, HttpOptions};
use pool::Pool;
use request::Credentials;
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
    target: Target,
    /// Whose token every request has.
    tokens: Option<OAuth2Client>,
    timeout: Duration,
    throttled_when: Option<BodyMatch>,
    keep_response: bool,
}

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

    /// Sets where the headers of every request can be read again: for [`Sink::read_secrets`], for requests that are
    /// refused (401), and for [`Headers::refresh`].
    #[must_use]
    pub fn reading_headers_again(self, files: HeaderFiles) -> Self {
        self.target.headers.follow(files);
        self
    }

    /// Sets the client whose token every request has, as `Authorization: Bearer`.
    #[must_use]
    pub fn with_tokens_of(mut self, client: OAuth2Client) -> Self {
        self.tokens = Some(client);
        self
    }

    /// The headers of every request, which may be replaced while it sends.
    #[must_use]
    pub fn headers(&self) -> Headers {
        self.target.headers.clone()
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
        Ok(Self { pool, target, tokens: None, timeout, throttled_when, keep_response })
    }

    async fn attempt(&self, job: &Job, look: LastLook<'_>) -> Outcome {
        let deadline = Instant::now() + self.timeout;
        let credentials = match self.credentials(deadline).await {
            Ok(credentials) => credentials,
            Err(detail) => return Outcome::Unreachable { detail },
        };
        let request = match self.target.request(job, &credentials) {
            Ok(request) => request,
            Err((reason, detail)) => return Outcome::Dead { reason, detail, status: None, response: None },
        };
        match self.exchange(request, look, deadline).await {
            Ok(None) => Outcome::Missed,
            Ok(Some(answer)) if self.target.is_refused_by_proxy(answer.head.status()) => {
                let detail = "the proxy refuses the credentials (407); correct the user and the password in http.proxy";
                Outcome::Unreachable { detail: detail.to_owned() }
            }
            Ok(Some(answer)) => {
                let is_refused = answer.head.status() == StatusCode::UNAUTHORIZED;
                let wanted = Wanted {
                    reply: job.reply.is_some(),
                    excerpt: self.keep_response,
                    throttled_when: self.throttled_when.as_ref(),
                };
                let (outcome, reusable) = response::outcome(answer, wanted).await;
                if let Some(aging) = reusable {
                    self.pool.put(aging);
                }
                // Its future is large, and few requests need it.
                if is_refused { Box::pin(self.judge_refusal(outcome, &credentials)).await } else { outcome }
            }
            Err(Failed::Unreachable(detail)) => Outcome::Unreachable { detail },
            Err(Failed::Unreadable(detail)) => Outcome::Unreadable { detail },
            Err(Failed::Sent { reason, detail }) => {
                Outcome::Retry { reason, detail, status: None, after: None, response: None }
            }
        }
    }

    /// What a request is authorized with now; the error is why there is no token, for people.
    async fn credentials(&self, deadline: Instant) -> Result<Credentials, String> {
        let token = match self.tokens.as_ref().map(|tokens| (tokens, tokens.current())) {
            None => None,
            Some((_, Some(token))) => Some(token),
            Some((tokens, None)) => {
                let token = timeout_at(deadline, tokens.wait()).await;
                Some(token.map_err(|_| self.too_late("no OAuth2 token"))??)
            }
        };
        Ok(Credentials { headers: self.target.headers.current(), token })
    }

    /// Decides whether a refusal (401) is about the credentials alone, since they were replaced meanwhile, or should be:
    /// the files of the headers are read now, and a token of OAuth2 is replaced.
    async fn judge_refusal(&self, outcome: Outcome, used: &Credentials) -> Outcome {
        let Outcome::Dead { status: Some(status), .. } = outcome else { return outcome };
        let is_replaced = self.replace(used).await;
        let Outcome::Dead { mut detail, response, .. } = outcome else { return outcome };
        let Some(replaced) = is_replaced else {
            return Outcome::Dead { reason: Reason::Status, detail, status: Some(status), response };
        };
        detail.push_str(match replaced {
            true => "; the credentials that it refused have been replaced since",
            false => "; and there is no new OAuth2 token",
        });
        Outcome::Outdated { detail, status, replaced, response }
    }

    /// Replaces credentials that were refused, if that can be done: returns whether there are others now, or `None` if
    /// they are what is to be used.
    async fn replace(&self, used: &Credentials) -> Option<bool> {
        if let (Some(tokens), Some(token)) = (&self.tokens, &used.token) {
            match timeout_at(Instant::now() + self.timeout, tokens.replace(token)).await {
                Ok(Replacement::Done) => return Some(true),
                Ok(Replacement::Failed) | Err(_) => return Some(false),
                Ok(Replacement::Useless) => {}
            }
        }
        let headers = &self.target.headers;
        if !headers.has_replaced(&used.headers) {
            // What is wrong with the files is logged by whoever looks at them all the time.
            let _ = headers.read().await;
        }
        headers.has_replaced(&used.headers).then_some(true)
    }

    /// Sends the request up to the head of its answer; `None` when the last look refuses.
    async fn exchange(
        &self,
        mut request: Outgoing,
        look: LastLook<'_>,
        deadline: Instant,
    ) -> Result<Option<Answer>, Failed> {
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
        if let Some(tokens) = &self.tokens {
            // It is asked for before a job has to wait for it.
            let _ = tokens.current();
        }
        self.pool.warm(connections);
    }

    fn try_connection(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            if let Some(tokens) = &self.tokens {
                tokens.check().await?;
            }
            self.pool.open_another().await
        })
    }

    fn read_secrets(&self) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(async move {
            let read = self.target.headers.read().await;
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
