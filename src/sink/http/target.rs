//! Where requests go and the headers that all of them have, which are read again when their files change.

use std::fmt;
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};
use url::Position;

use super::connect::{Connector, Route};
use super::guard::Lookup;
use super::options::Endpoint;
use super::pool::Pool;
use super::{HttpError, HttpOptions};
use crate::files::{Stamps, Watch};
use crate::job::shown;
use crate::tls::Tls;

/// Headers that are set from the connection, the body or the job; another value would break requests.
const OWN: [&str; 8] = [
    "connection",
    "content-length",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// How long is waited for files on which an answer depends.
const LONGEST_READ: Duration = Duration::from_secs(5);

/// Where what requests go by is read again.
#[derive(Clone)]
pub struct TargetFiles {
    /// What the log calls them, such as the name of the downstream.
    pub name: String,
    /// The files. They are read again when one of them was replaced or rewritten, also through a symbolic link.
    pub files: Vec<PathBuf>,
    /// Reads all of it, what has no file too.
    pub read: ReadTarget,
}

/// Reads what requests go by again from its files. It may block. The error is a text for people, without any secret.
pub type ReadTarget = Arc<dyn Fn() -> Result<TargetTexts, String> + Send + Sync>;

/// What requests go by, as [`HttpOptions`] have it.
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

/// Where the requests of one sink go, by which proxy, and with which headers. It is cheap to clone, and all clones are of
/// the same target.
///
/// While the files cannot be read, or hold nothing that can be used, what was read before stays in use, and an error is
/// logged once. A file system that does not answer keeps one thread, and nobody who sends.
#[derive(Clone)]
pub struct Target(Arc<Shared>);

struct Shared {
    dialling: Dialling,
    in_use: RwLock<InUse>,
    /// Held by the one that looks at the files, which may take long.
    looks: Arc<Mutex<Looks>>,
}

/// How connections are opened, wherever they lead.
struct Dialling {
    timeout: Duration,
    max_age: Duration,
    tls: Option<Tls>,
    lookup: Lookup,
}

struct InUse {
    current: Arc<Current>,
    files: Option<Arc<TargetFiles>>,
}

/// What a request goes by that is made now.
pub(super) struct Current {
    pub(super) endpoint: Arc<Endpoint>,
    /// The connections to that endpoint.
    pub(super) pool: Pool,
    /// The headers of every request, which take precedence over a job's.
    pub(super) headers: HeaderMap,
}

/// What is known of the files.
#[derive(Default)]
struct Looks {
    /// The files that this is about.
    files: Option<Arc<TargetFiles>>,
    watch: Watch,
    /// When the files were last begun to be read.
    last_read: Option<Instant>,
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
        let in_use = RwLock::new(InUse { current: Arc::new(current), files: None });
        Ok(Self(Arc::new(Shared { dialling, in_use, looks: Arc::default() })))
    }

    /// What a request goes by that is made now.
    pub(super) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.0.in_use().current)
    }

    /// Whether later requests go elsewhere, or have other headers. By which proxy they go is no matter of the one that
    /// answers.
    pub(super) fn has_replaced(&self, used: &Arc<Current>) -> bool {
        let now = self.current();
        !Arc::ptr_eq(&now, used) && (now.endpoint.base != used.endpoint.base || now.headers != used.headers)
    }

    /// Sets where all is read again.
    pub(super) fn follow(&self, files: TargetFiles) {
        self.0.in_use_mut().files = Some(Arc::new(files));
    }

    /// Replaces what later requests go by, all at once, and where it is read again.
    ///
    /// # Errors
    /// [`HttpError`] when no request can go by it; then nothing changes.
    pub fn replace(&self, texts: TargetTexts, files: Option<TargetFiles>) -> Result<(), HttpError> {
        let new = InUse { current: Arc::new(self.0.updated(texts)?), files: files.map(Arc::new) };
        let old = mem::replace(&mut *self.0.in_use_mut(), new);
        // Connections may end with it, which is done outside the lock.
        drop(old);
        Ok(())
    }

    /// Looks at the files, and reads them again if one has changed; what comes of it is logged. Later requests have what
    /// was read.
    ///
    /// Cancel safe. It may take as long as the file system takes.
    pub async fn refresh(&self) {
        let Some(files) = self.0.files() else { return };
        let looks = Arc::clone(&self.0.looks).lock_owned().await;
        let shared = Arc::clone(&self.0);
        // Only a runtime that shuts down does not run it.
        let _ = tokio::task::spawn_blocking(move || shared.look(&files, looks)).await;
    }

    /// Reads the files now, even if none has changed; returns whether what requests go by has. The error is for people,
    /// without any secret.
    ///
    /// Cancel safe.
    pub(super) async fn read(&self) -> Result<bool, String> {
        let Some(files) = self.0.files() else { return Ok(false) };
        match timeout(LONGEST_READ, self.read_files(files)).await {
            Ok(read) => read,
            Err(_) => Err(format!("their file system does not answer within {LONGEST_READ:?}")),
        }
    }

    async fn read_files(&self, files: Arc<TargetFiles>) -> Result<bool, String> {
        let asked = Instant::now();
        let mut looks = Arc::clone(&self.0.looks).lock_owned().await;
        if looks.last_read.is_some_and(|last| last > asked) {
            // Somebody else has read them meanwhile: many requests may be refused at once.
            return Ok(false);
        }
        let shared = Arc::clone(&self.0);
        let read = tokio::task::spawn_blocking(move || {
            looks.begin(&files);
            looks.last_read = Some(Instant::now());
            let stamps = Stamps::of(&files.files);
            let changed = shared.read(&files)?;
            looks.watch.note_loaded(stamps);
            Ok(changed)
        });
        read.await.map_err(|error| format!("reading was broken off: {error}"))?
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current();
        // The path may be a secret, and so may be the values.
        let origin = &current.endpoint.base[..Position::BeforePath];
        let names: Vec<_> = current.headers.keys().collect();
        f.debug_struct("Target").field("origin", &origin).field("headers", &names).finish_non_exhaustive()
    }
}

impl Dialling {
    /// The connections to this endpoint, of which none is open yet.
    fn pool(&self, endpoint: &Endpoint) -> Result<Pool, HttpError> {
        let route = Route { tls: self.tls.clone(), proxy: endpoint.proxy.clone() };
        let connector = Connector::new(&endpoint.base, self.timeout, self.lookup, route)?;
        Ok(Pool::new(connector, self.max_age))
    }
}

impl Shared {
    fn in_use(&self) -> RwLockReadGuard<'_, InUse> {
        self.in_use.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_use_mut(&self) -> RwLockWriteGuard<'_, InUse> {
        self.in_use.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> Option<Arc<TargetFiles>> {
        self.in_use().files.clone()
    }

    /// Reads the files if one has changed. It blocks while it does.
    fn look(&self, files: &Arc<TargetFiles>, mut looks: OwnedMutexGuard<Looks>) {
        looks.begin(files);
        let stamps = Stamps::of(&files.files);
        if !looks.watch.has_changed(&stamps) {
            return;
        }
        looks.last_read = Some(Instant::now());
        match self.read(files) {
            Ok(_) => looks.watch.note_loaded(stamps),
            Err(error) => {
                if looks.watch.note_failure(stamps) {
                    tracing::error!(
                        downstream = files.name,
                        error,
                        "secrets cannot be read again: those read before stay in use until they can"
                    );
                }
            }
        }
    }

    /// Reads the files into what is in use, and returns whether that has changed. It blocks while it does.
    fn read(&self, files: &Arc<TargetFiles>) -> Result<bool, String> {
        let new = self.updated((files.read)()?).map_err(|error| error.to_string())?;
        let mut in_use = self.in_use_mut();
        let is_wanted = in_use.files.as_ref().is_some_and(|now| Arc::ptr_eq(now, files));
        let now = &in_use.current;
        if !is_wanted || now.endpoint == new.endpoint && now.headers == new.headers {
            return Ok(false);
        }
        let old = mem::replace(&mut in_use.current, Arc::new(new));
        drop(in_use);
        // Connections may end with it, which is done outside the lock.
        drop(old);
        tracing::info!(downstream = files.name, "secrets read again: requests have the new ones from now on");
        Ok(true)
    }

    /// What is in use, with what these texts change. The connections are kept if they still lead where requests go.
    fn updated(&self, texts: TargetTexts) -> Result<Current, HttpError> {
        let TargetTexts { base_url, proxy, headers: given } = texts;
        let endpoint = Endpoint::new(&base_url, proxy.as_deref())?;
        let headers = headers(&endpoint, given)?;
        let old = Arc::clone(&self.in_use().current);
        let pool = match old.endpoint.can_share_connections(&endpoint) {
            true => old.pool.clone(),
            false => self.dialling.pool(&endpoint)?,
        };
        Ok(Current { endpoint: Arc::new(endpoint), pool, headers })
    }
}

impl Looks {
    /// Begins a look at these files.
    fn begin(&mut self, files: &Arc<TargetFiles>) {
        if !self.files.as_ref().is_some_and(|known| Arc::ptr_eq(known, files)) {
            *self = Self { files: Some(Arc::clone(files)), ..Self::default() };
        }
    }
}

/// The headers of every request: the given ones take precedence over the base URL's user information.
pub(super) fn headers(endpoint: &Endpoint, given: Vec<(String, String)>) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::with_capacity(given.len() + 1);
    if let Some(value) = &endpoint.authorization {
        headers.insert(AUTHORIZATION, value.clone());
    }
    for (name, value) in given {
        let (name, value) = header(name, &value)?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn header(name: String, value: &str) -> Result<(HeaderName, HeaderValue), HttpError> {
    let wrong = |why| HttpError::Header { name: shown(name.as_bytes(), 60), why };
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| wrong("is no name of a header; use letters, digits and `-`"))?;
    if OWN.contains(&parsed.as_str()) {
        return Err(wrong("is set by paced itself; leave it out"));
    }
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| wrong("has a value that no header may have; use visible ASCII"))?;
    value.set_sensitive(true);
    Ok((parsed, value))
}
