//! The settings once they are known to be right.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::dispatch::RetryPolicy;
use crate::limit::LimitSet;

/// All of `paced.toml`, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `[amqp]`
    pub amqp: Amqp,
    /// `[store]`
    pub store: Store,
    /// `[shutdown]`
    pub shutdown: Shutdown,
    /// `[downstreams.NAME]`, by name.
    pub downstreams: BTreeMap<String, Downstream>,
}

/// `[amqp]`
#[derive(Clone, Debug)]
pub struct Amqp {
    /// `amqp://` or `amqps://`.
    pub url: Secret,
    /// Of every exchange and queue.
    pub prefix: String,
    /// False: exchanges and queues are checked passively only.
    pub declare: bool,
}

/// `[store]`
#[derive(Clone, Debug)]
pub struct Store {
    /// `memory:`, `redis://` or `rediss://`.
    pub url: Secret,
    /// Of every key.
    pub key_prefix: String,
}

/// `[shutdown]`
#[derive(Clone, Copy, Debug)]
pub struct Shutdown {
    /// How long sends in flight may take to end after SIGTERM.
    pub drain_timeout: Duration,
}

/// `[downstreams.NAME]`
#[derive(Clone, Debug)]
pub struct Downstream {
    /// `rate` and `limits`.
    pub limits: LimitSet,
    /// How far ahead of now a slot may be granted.
    pub horizon: Duration,
    /// Sends in flight per replica.
    pub concurrency: usize,
    /// `[downstreams.NAME.queue]`
    pub queue: Queue,
    /// `[downstreams.NAME.http]`
    pub http: Http,
    /// `[downstreams.NAME.retry]`
    pub retry: RetryPolicy,
}

/// `[downstreams.NAME.queue]`
#[derive(Clone, Debug)]
pub struct Queue {
    /// An existing queue instead of `PREFIX.jobs.NAME`.
    pub name: Option<String>,
    /// The window: messages unacked at once.
    pub prefetch: u16,
}

/// `[downstreams.NAME.http]`
#[derive(Clone, Debug)]
pub struct Http {
    /// `http://` or `https://`, ending in `/`.
    pub base_url: Secret,
    /// For one request, connecting included.
    pub timeout: Duration,
    /// The longest body of a job, in bytes.
    pub max_body: usize,
    /// Request headers that a job may set, in lower case.
    pub allow_headers: Vec<String>,
    /// Request headers of every request; names in lower case.
    pub headers: Vec<(String, Secret)>,
}

/// A text that may hold credentials: shown as `***`, or as a URL without its user information.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself: for the connection, never for a log.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == "memory:" {
            return f.write_str(&self.0);
        }
        let Some((scheme, rest)) = self.0.split_once("://") else { return f.write_str("***") };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let path = rest[authority.len()..].split(['?', '#']).next().unwrap_or_default();
        write!(f, "{scheme}://{host}{path}")
    }
}
