//! The handle by which connections are opened, and the replacement of what it read.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::error::TlsError;
use super::load;
use super::options::TlsOptions;
use super::refusal::Refusal;
use super::replaced::Replaced;
use super::stream::Stream;
use super::transport::{Transport, is_end};
use super::validity::Validity;

/// The least time between two looks at the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// What connections over TLS are opened with. It is cheap to clone, and all clones use the same files.
///
/// When a connection is opened, the files are looked at, once a second at most, and read again if one of them was
/// replaced or rewritten; [`Tls::refresh`] does so at once. While what they hold cannot be used, as between the
/// replacement of a certificate and that of its key, what was read before stays in use, and an error is logged once.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    options: TlsOptions,
    /// The protocols that are offered to servers (ALPN).
    alpn: &'static [&'static [u8]],
    current: Replaced<Read>,
    /// When the files are to be looked at next.
    next_look: Mutex<Instant>,
}

/// What was read of the files.
struct Read {
    config: Arc<ClientConfig>,
    /// When the certificate is valid that it shows, if it shows one.
    validity: Option<Validity>,
}

impl Tls {
    /// Reads the files. It blocks while it does.
    ///
    /// # Errors
    /// [`TlsError`] where a file cannot be read or used, or the system has no authorities and there is no `ca_file`.
    pub fn load(options: TlsOptions) -> Result<Self, TlsError> {
        let tls = Self::unread(options, &[]);
        tls.0.read().map(|_| tls)
    }

    /// As [`Tls::load`], for HTTP/1.1.
    ///
    /// # Errors
    /// As of [`Tls::load`].
    pub fn load_for_http(options: TlsOptions) -> Result<Self, TlsError> {
        let tls = Self::unread(options, &[b"http/1.1"]);
        tls.0.read().map(|_| tls)
    }

    /// Trusts the system's authorities, which are read when the first connection is opened.
    pub(crate) fn system() -> Self {
        Self::unread(TlsOptions::default(), &[])
    }

    fn unread(options: TlsOptions, alpn: &'static [&'static [u8]]) -> Self {
        let current = Replaced::new(options.files().map(Path::to_owned).collect());
        Self(Arc::new(Shared { options, alpn, current, next_look: Mutex::new(Instant::now()) }))
    }

    /// The options that it was made with.
    #[must_use]
    pub fn options(&self) -> &TlsOptions {
        &self.0.options
    }

    /// When the certificate in use is valid, and those with it that lead to its authority; `None` if it shows none.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        self.0.current.current()?.validity
    }

    /// Looks at the files, and reads them again if one has changed; what comes of it is logged. It blocks while it does.
    pub fn refresh(&self) {
        self.0.look();
    }

    /// Opens TLS over a connection to `host`.
    ///
    /// Cancel safe: a dropped future closes the connection.
    ///
    /// # Errors
    /// The connection ends, or one side refuses the other; [`super::Refused`] has the reason.
    #[doc(hidden)]
    pub async fn connect<S>(&self, host: &str, io: S) -> io::Result<Stream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.current().await?;
        let name = self.0.options.server_name.as_deref().unwrap_or(host);
        let Some(name) = load::server_name(name) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, Refusal::NoName));
        };
        let peer = Peer { tls: self.clone(), name: name.to_str().into_owned() };
        match TlsConnector::from(config).connect(name, Transport::new(io)).into_fallible().await {
            Ok(stream) => Ok(Stream::new(stream, peer)),
            Err((error, io)) if io.has_heard() => Err(peer.explain_end(error)),
            Err((error, _)) if is_end(error.kind()) => Err(io::Error::new(error.kind(), Refusal::Closed)),
            Err((error, _)) => Err(peer.explain(error)),
        }
    }

    /// What the next connection is opened with. The files are looked at first if that was not done for a while.
    async fn current(&self) -> io::Result<Arc<ClientConfig>> {
        if self.0.is_due() {
            let shared = Arc::clone(&self.0);
            // Only a runtime that shuts down does not run it.
            let _ = tokio::task::spawn_blocking(move || shared.look()).await;
        }
        let read = match self.0.current.current() {
            Some(read) => read,
            None => {
                let shared = Arc::clone(&self.0);
                let read = tokio::task::spawn_blocking(move || shared.read());
                read.await.map_err(io::Error::other)?.map_err(io::Error::other)?
            }
        };
        Ok(Arc::clone(&read.config))
    }
}

impl Shared {
    /// What is in use. It is read the first time, which blocks.
    fn read(&self) -> Result<Arc<Read>, TlsError> {
        self.current.get(|| self.load())
    }

    fn look(&self) {
        self.current.look(|| self.load());
    }

    fn load(&self) -> Result<Read, TlsError> {
        let (config, validity) = load::client_config(&self.options, self.alpn)?;
        Ok(Read { config: Arc::new(config), validity })
    }

    /// Whether the files are to be looked at now; true for one caller only.
    fn is_due(&self) -> bool {
        if !self.current.has_files() {
            return false;
        }
        let now = Instant::now();
        let mut next = self.next_look.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = *next <= now;
        if is_due {
            *next = now + INTERVAL;
        }
        is_due
    }
}

impl PartialEq for Tls {
    /// Whether both are clones of one handle.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Tls {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.options).finish()
    }
}

/// The server of a connection, for errors.
#[derive(Debug)]
pub(super) struct Peer {
    tls: Tls,
    name: String,
}

impl Peer {
    /// The same error, in words that tell what to do, if it is one of TLS.
    pub(super) fn explain(&self, error: io::Error) -> io::Error {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(inner) => io::Error::new(error.kind(), Refusal::of(inner, &self.tls.0.options, &self.name)),
            None => error,
        }
    }

    /// As [`Peer::explain`], on a connection on which the server has not accepted this client yet: if it ends, that may
    /// be the reason.
    pub(super) fn explain_end(&self, error: io::Error) -> io::Error {
        if !is_end(error.kind()) {
            return self.explain(error);
        }
        let shows_certificate = self.tls.0.options.cert_file.is_some();
        io::Error::new(error.kind(), Refusal::ended(&error, shows_certificate))
    }
}
