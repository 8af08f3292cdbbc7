//! Where requests go and the headers that all of them have, which are read again when their files change.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderMap;
use tokio::time::timeout;

use super::connect::{Connector, Route};
use super::endpoint::{Endpoint, headers};
use super::guard::Lookup;
use super::pool::Pool;
use super::{HttpError, HttpOptions};
use crate::files::{Log, Reloaded, Source};
use crate::tls::Tls;

/// How long a request waits for files on which its answer depends.
const LONGEST_READ: Duration = Duration::from_secs(5);

/// Source for reloading base URL, proxy and headers.
#[derive(Clone)]
pub struct TargetFiles {
    /// What the log calls them, such as the name of the downstream.
    pub name: String,
    /// The files. They are read again when one of them was replaced or rewritten, also through a symbolic link.
    pub files: Vec<PathBuf>,
    /// Reads everything again, including what is in no file.
    pub read: ReadTarget,
}

/// Reads base URL, proxy and headers again from their files. It may block. The error is a text for people, without any secret.
pub type ReadTarget = Arc<dyn Fn() -> Result<TargetTexts, String> + Send + Sync>;

/// Base URL, proxy and headers, as [`HttpOptions`] have them.
#[derive(Clone)]
pub struct TargetTexts {
    /// See [`HttpOptions::base_url`].
    pub base_url: String,
    /// See [`HttpOptions::proxy`].
    pub proxy: Option<String>,
    /// See [`HttpOptions::headers`].
    pub headers: Vec<(String, String)>,
}

impl fmt::Debug for TargetTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URLs and the values may hold credentials.
        f.debug_struct("TargetTexts").finish_non_exhaustive()
    }
}

/// Where the requests of one sink go, by which proxy, and with which headers. It is cheap to clone, and all clones
/// share the target.
///
/// While the files cannot be read, or hold nothing that can be used, what was read before stays in use, and an error
/// is logged once. A file system that does not answer blocks one thread, but no request.
#[derive(Clone)]
pub struct Target {
    dialling: Arc<Dialling>,
    in_use: Reloaded<Current>,
}

/// The options of connections that do not depend on the host.
struct Dialling {
    timeout: Duration,
    max_age: Duration,
    tls: Option<Tls>,
    lookup: Lookup,
}

/// Settings for new requests.
pub(super) struct Current {
    pub(super) endpoint: Arc<Endpoint>,
    /// The connections to that endpoint.
    pub(super) pool: Pool,
    /// The headers of every request, which take precedence over a job's.
    pub(super) headers: HeaderMap,
}

impl Target {
    /// The target of these options. Nothing is connected or looked up.
    pub(super) fn new(options: &HttpOptions, timeout: Duration, lookup: Lookup) -> Result<Self, HttpError> {
        let (max_age, tls) = (options.max_connection_age, options.tls.clone());
        let dialling = Dialling { timeout, max_age, tls, lookup };
        let endpoint = Endpoint::new(&options.base_url, options.proxy.as_deref())?;
        let headers = headers(&endpoint, options.headers.clone())?;
        let pool = dialling.pool(&endpoint)?;
        let current = Current { endpoint: Arc::new(endpoint), pool, headers };
        Ok(Self { dialling: Arc::new(dialling), in_use: Reloaded::new(current, None) })
    }

    /// Settings for a request that is made now.
    pub(super) fn current(&self) -> Arc<Current> {
        self.in_use.current()
    }

    /// Whether later requests go elsewhere, or have other headers. The proxy does not count, since the downstream
    /// that answers does not depend on it.
    pub(super) fn has_replaced(&self, used: &Arc<Current>) -> bool {
        let now = self.current();
        !Arc::ptr_eq(&now, used) && (now.endpoint.base != used.endpoint.base || now.headers != used.headers)
    }

    /// Sets the source for reloading.
    pub(super) fn follow(&self, files: TargetFiles) {
        self.in_use.follow(self.source(files));
    }

    /// Replaces the settings of later requests, all at once, and their source.
    ///
    /// # Errors
    /// [`HttpError`] when no request can be made with them; then nothing changes.
    pub fn replace(&self, texts: TargetTexts, files: Option<TargetFiles>) -> Result<(), HttpError> {
        let new = self.dialling.updated(&self.current(), texts)?;
        self.in_use.replace(new, files.map(|files| self.source(files)));
        Ok(())
    }

    fn source(&self, TargetFiles { name, files, read }: TargetFiles) -> Source<Current> {
        let dialling = Arc::clone(&self.dialling);
        let read = Box::new(move |now: &Current| {
            let new = dialling.updated(now, read()?).map_err(|error| error.to_string())?;
            Ok((now.endpoint != new.endpoint || now.headers != new.headers).then_some(new))
        });
        let log: Log = Box::new(move |read| match read {
            Ok(()) => tracing::info!(
                downstream = name,
                "secrets read again: requests have the new ones from now on"
            ),
            Err(error) => tracing::error!(
                downstream = name,
                error,
                "secrets cannot be read again: the old ones stay in use until they can be read"
            ),
        });
        Source { files, read, log }
    }

    /// Whether any of it is read from files.
    #[must_use]
    pub fn has_files(&self) -> bool {
        self.in_use.has_files()
    }

    /// Whether the files cannot be used, so the old contents stay in use.
    pub fn is_failing(&self) -> bool {
        self.in_use.is_failing()
    }

    /// Reads the files again if one has changed, for later requests; the result is logged.
    ///
    /// Cancel safe. It may take as long as the file system takes.
    pub async fn refresh(&self) {
        self.in_use.refresh().await;
    }

    /// Reads the files now, even if none has changed; returns whether that changed the settings of later requests. The
    /// error is for people, without any secret.
    ///
    /// Cancel safe.
    pub(super) async fn read(&self) -> Result<bool, String> {
        let late = || Err(format!("their file system does not answer within {LONGEST_READ:?}"));
        timeout(LONGEST_READ, self.in_use.read()).await.unwrap_or_else(|_| late())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current();
        // The path may be a secret, and so may be the values.
        let origin = current.endpoint.base.origin();
        let names: Vec<_> = current.headers.keys().collect();
        f.debug_struct("Target").field("origin", &origin).field("headers", &names).finish_non_exhaustive()
    }
}

impl Dialling {
    /// The connections to this endpoint, of which none is open yet.
    fn pool(&self, endpoint: &Endpoint) -> Result<Pool, HttpError> {
        let route = Route { tls: self.tls.clone(), proxy: endpoint.proxy.clone() };
        let connector = Connector::new(endpoint.base.url(), self.timeout, self.lookup, route)?;
        Ok(Pool::new(connector, self.max_age))
    }

    /// These settings, with what the texts change. The connections are kept if they still lead where requests go.
    fn updated(&self, old: &Current, texts: TargetTexts) -> Result<Current, HttpError> {
        let TargetTexts { base_url, proxy, headers: given } = texts;
        let endpoint = Endpoint::new(&base_url, proxy.as_deref())?;
        let headers = headers(&endpoint, given)?;
        let pool = match old.endpoint.can_share_connections(&endpoint) {
            true => old.pool.clone(),
            false => self.pool(&endpoint)?,
        };
        Ok(Current { endpoint: Arc::new(endpoint), pool, headers })
    }
}
