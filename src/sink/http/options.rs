//! The options of an HTTP sink, checked once.

use std::fmt;
use std::time::Duration;

use super::endpoint::{self, Endpoint};
use super::error::HttpError;
use crate::tls::Tls;

/// The options of an HTTP sink.
#[derive(Clone)]
pub struct HttpOptions {
    /// `http://` or `https://`, without a fragment; user information becomes an `Authorization` header. A job without a path
    /// goes to it, and a path of a job is appended behind one slash. A query stays, before that of a job, which can have
    /// none of its names.
    pub base_url: String,
    /// The time-out for one request, from connecting to the end of the answer.
    pub timeout: Duration,
    /// Headers of every request; they win over a job's.
    pub headers: Vec<(String, String)>,
    /// The age above which a connection takes no more requests; it is shortened by up to a fifth at random, so that the
    /// connections of many sinks end one by one, and new ones follow changes of the host's address. Zero stands for no
    /// bound.
    pub max_connection_age: Duration,
    /// Whether the beginning of an answer that is no delivery is kept, for the dead letter
    /// ([`Response::excerpt`](crate::sink::Response::excerpt)).
    pub keep_response: bool,
    /// Whom to trust, and the certificate to show, for `https`: made by [`Tls::load_for_http`]. By default the system's
    /// authorities are trusted, and no certificate is shown.
    pub tls: Option<Tls>,
    /// `http://[USER:PASSWORD@]HOST:PORT`, by which the host is reached. By default it is reached directly: the
    /// variables of the environment do not count.
    pub proxy: Option<String>,
}

impl HttpOptions {
    /// Options with a time-out of 30 s, connections of at most 90 s, no headers and no proxy. The beginnings of answers
    /// are kept.
    #[must_use]
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            timeout: Duration::from_secs(30),
            headers: Vec::new(),
            max_connection_age: Duration::from_secs(90),
            keep_response: true,
            tls: None,
            proxy: None,
        }
    }

    /// Whether [`HttpSink::new`](super::HttpSink::new) would take these options; it may still miss
    /// the system's certificates. Nothing is connected or looked up.
    ///
    /// # Errors
    /// [`HttpError`] when an option is wrong.
    pub fn check(self) -> Result<(), HttpError> {
        self.check_timeout()?;
        let endpoint = Endpoint::new(&self.base_url, self.proxy.as_deref())?;
        endpoint::headers(&endpoint, self.headers).map(drop)
    }

    pub(super) const fn check_timeout(&self) -> Result<(), HttpError> {
        if self.timeout.is_zero() { Err(HttpError::NoTimeout) } else { Ok(()) }
    }
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let mut out = f.debug_struct("HttpOptions");
        // The URL and the values may hold credentials.
        out.field("timeout", &self.timeout).field("headers", &names).finish_non_exhaustive()
    }
}
