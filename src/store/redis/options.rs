//! The options of a store in Redis.

use std::time::Duration;

use tokio::runtime::Handle;

use crate::files::ReadSecret;
use crate::home::Home;
use crate::tls::Tls;

/// The key prefix, the time-outs and the TLS of a store in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The prefix of all keys; it must not contain braces.
    pub key_prefix: String,
    /// The time-out for connecting, which includes name resolution, TLS and authentication.
    pub connect_timeout: Duration,
    /// The time-out for one answer. A reservation whose answer comes later is lost, never taken twice.
    pub response_timeout: Duration,
    /// Whom to trust, and the certificate to show, for URLs with `rediss`. By default the system's authorities are
    /// trusted, and no certificate is shown.
    pub tls: Option<Tls>,
    /// Reads the URL again for each connection: the users and the passwords are taken from it. By default they stay.
    pub read_url: Option<ReadSecret>,
    /// The runtime of its connections.
    pub(crate) home: Home,
}

impl Options {
    /// The same options with another prefix of all keys.
    #[must_use]
    pub fn with_key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// The same options with this TLS, for URLs with `rediss`.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The same options with other time-outs, for connecting and for one answer.
    #[must_use]
    pub const fn with_timeouts(mut self, connect: Duration, response: Duration) -> Self {
        (self.connect_timeout, self.response_timeout) = (connect, response);
        self
    }

    /// The same options, with connections that run on this runtime, which has to be driven as long as the store is used. By
    /// default the process has one of its own for them, which a thread drives: so they do not stand still when a caller's
    /// runtime does.
    #[must_use]
    pub fn with_runtime(mut self, runtime: Handle) -> Self {
        self.home = Home::at(runtime);
        self
    }

    /// The same options, with a way to read the URL again for each connection.
    #[must_use]
    pub fn reading_login_again(mut self, read: ReadSecret) -> Self {
        self.read_url = Some(read);
        self
    }
}

impl Default for Options {
    /// Returns the prefix `paced` and half a second for each time-out, so that a call returns within a second. Where
    /// sentinels or nodes of a cluster must first be asked for the server, that may take as long again, and 100 ms for
    /// each that is silent.
    fn default() -> Self {
        let half = Duration::from_millis(500);
        Self {
            key_prefix: "paced".to_owned(),
            connect_timeout: half,
            response_timeout: half,
            tls: None,
            read_url: None,
            home: Home::of_process(),
        }
    }
}
