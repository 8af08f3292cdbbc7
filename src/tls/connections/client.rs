//! The handle by which connections are opened, and the replacement of what it read.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::error::TlsError;
use super::load;
use super::replaced::{self, Read};
use super::validity::Validity;
use crate::files::Reloaded;
use crate::lock::lock;
use crate::tls::TlsOptions;

/// The least time between two checks of the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// What connections over TLS are opened with. It is cheap to clone, and all clones use the same files.
///
/// When a connection is opened, the files are checked, once a second at most, and read again if one of them was
/// replaced or rewritten; [`Tls::refresh`] does so at once. While what they hold cannot be used, as between the
/// replacement of a certificate and that of its key, what was read before stays in use, and an error is logged once.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    options: TlsOptions,
    /// Empty until the first connection is opened where there are no options.
    current: OnceLock<Reloaded<Read<ClientConfig>>>,
    /// When the files are to be checked next.
    next_check: Mutex<Instant>,
}

impl Tls {
    /// Reads the files. It blocks while it does.
    ///
    /// # Errors
    /// [`TlsError`] where a file cannot be read or used, or the system has no authorities and there is no `ca_file`.
    pub fn load(options: TlsOptions) -> Result<Self, TlsError> {
        read(&options, &[]).map(|read| Self::with(options, OnceLock::from(read)))
    }

    /// As [`Tls::load`], for HTTP/1.1.
    ///
    /// # Errors
    /// As of [`Tls::load`].
    pub fn load_for_http(options: TlsOptions) -> Result<Self, TlsError> {
        read(&options, &[b"http/1.1"]).map(|read| Self::with(options, OnceLock::from(read)))
    }

    /// Trusts the system's authorities, which are read when the first connection is opened.
    pub(crate) fn system() -> Self {
        Self::with(TlsOptions::default(), OnceLock::new())
    }

    fn with(options: TlsOptions, current: OnceLock<Reloaded<Read<ClientConfig>>>) -> Self {
        Self(Arc::new(Shared { options, current, next_check: Mutex::new(Instant::now()) }))
    }

    /// The options that it was made with.
    #[must_use]
    pub fn options(&self) -> &TlsOptions {
        &self.0.options
    }

    /// When the certificate in use is valid, and those with it that lead to its authority; `None` if it shows none.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        self.0.current.get()?.current().validity
    }

    /// Whether the files cannot be used, so the old contents stay in use.
    pub fn is_failing(&self) -> bool {
        self.0.current.get().is_some_and(Reloaded::is_failing)
    }

    /// Checks the files, reads them again if one has changed, and logs the result. It blocks meanwhile.
    pub fn refresh(&self) {
        self.0.refresh();
    }

    /// The configuration of the next connection. The files are checked first if that was not done for a while.
    pub(super) async fn current(&self) -> io::Result<Arc<ClientConfig>> {
        let shared = Arc::clone(&self.0);
        if shared.is_due() {
            // Only a runtime that shuts down does not run it.
            let _ = spawn_blocking(move || shared.refresh()).await;
        }
        if let Some(read) = self.0.current.get() {
            return Ok(Arc::clone(&read.current().config));
        }
        // What was read stays, even if the caller gives up meanwhile.
        let shared = Arc::clone(&self.0);
        let first = move || -> Result<_, TlsError> {
            let read = read(&shared.options, &[])?;
            Ok(Arc::clone(&shared.current.get_or_init(|| read).current().config))
        };
        spawn_blocking(first).await.map_err(io::Error::other)?.map_err(io::Error::other)
    }
}

/// Reads the files; `alpn` are the protocols that are offered to servers.
fn read(
    options: &TlsOptions,
    alpn: &'static [&'static [u8]],
) -> Result<Reloaded<Read<ClientConfig>>, TlsError> {
    let files = options.files().map(Path::to_owned).collect();
    let options = options.clone();
    replaced::load(files, move || load::client_config(&options, alpn))
}

impl Shared {
    fn refresh(&self) {
        self.current.get().iter().for_each(|read| read.try_refresh());
    }

    /// Whether the files are to be checked now; true for one caller only.
    fn is_due(&self) -> bool {
        if self.options.files().next().is_none() {
            return false;
        }
        let now = Instant::now();
        let mut next = lock(&self.next_check);
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
