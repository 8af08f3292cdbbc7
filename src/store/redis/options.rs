//! What a store in Redis is opened with.

use std::time::Duration;

/// How to talk to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What all keys begin with; without braces.
    pub key_prefix: String,
    /// For connecting: name resolution, TLS and authentication included.
    pub connect_timeout: Duration,
    /// For one answer. A reservation whose answer comes later is lost, never taken twice.
    pub response_timeout: Duration,
}

impl Options {
    /// The same with another prefix of all keys.
    #[must_use]
    pub fn with_key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// The same with this time-out for connecting, and for one answer.
    #[must_use]
    pub const fn with_timeouts(mut self, connect: Duration, response: Duration) -> Self {
        (self.connect_timeout, self.response_timeout) = (connect, response);
        self
    }
}

impl Default for Options {
    /// Prefix `paced`, and half a second for each timeout: a call returns within a second. Where sentinels or
    /// nodes of a cluster must first be asked for the server, that may take as long again, and 100 ms for each
    /// that is silent.
    fn default() -> Self {
        let half = Duration::from_millis(500);
        Self { key_prefix: "paced".to_owned(), connect_timeout: half, response_timeout: half }
    }
}
