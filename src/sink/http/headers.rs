//! The headers of every request, which are read again when their files change.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use super::HttpError;
use crate::files::{Stamps, Watch};
use crate::job::shown;

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

/// How long is waited for files of which the answer depends.
const LONGEST_READ: Duration = Duration::from_secs(5);

/// Where the headers of every request are read again.
#[derive(Clone)]
pub struct HeaderFiles {
    /// What the log calls them, such as the name of the downstream.
    pub name: String,
    /// The files. They are read again when one of them was replaced or rewritten, also through a symbolic link.
    pub files: Vec<PathBuf>,
    /// Reads all headers, those without a file too.
    pub read: ReadHeaders,
}

/// Reads the headers of every request again from their files. It may block. The error is a text for people, without any
/// secret.
pub type ReadHeaders = Arc<dyn Fn() -> Result<Vec<(String, String)>, String> + Send + Sync>;

/// The headers of every request of one sink. It is cheap to clone, and all clones are of the same headers.
///
/// While the files cannot be read, or hold no headers, those that were read before stay in use, and an error is logged
/// once. A file system that does not answer keeps one thread, and nobody who sends.
#[derive(Clone)]
pub struct Headers(Arc<Shared>);

struct Shared {
    /// The header for the base URL's user information.
    authorization: Option<HeaderValue>,
    in_use: RwLock<InUse>,
    /// Held by the one that looks at the files, which may take long.
    looks: Arc<Mutex<Looks>>,
}

struct InUse {
    headers: Arc<HeaderMap>,
    files: Option<Arc<HeaderFiles>>,
}

/// What is known of the files.
#[derive(Default)]
struct Looks {
    /// The files that this is about.
    files: Option<Arc<HeaderFiles>>,
    watch: Watch,
    /// When the files were last begun to be read.
    last_read: Option<Instant>,
}

impl Headers {
    pub(super) fn new(
        authorization: Option<HeaderValue>,
        given: Vec<(String, String)>,
    ) -> Result<Self, HttpError> {
        let headers = Arc::new(headers(authorization.as_ref(), given)?);
        let in_use = RwLock::new(InUse { headers, files: None });
        Ok(Self(Arc::new(Shared { authorization, in_use, looks: Arc::default() })))
    }

    /// The headers for a request, which take precedence over a job's.
    pub(super) fn current(&self) -> Arc<HeaderMap> {
        Arc::clone(&self.0.in_use().headers)
    }

    /// Whether later requests have others than these.
    pub(super) fn has_replaced(&self, headers: &Arc<HeaderMap>) -> bool {
        let in_use = self.0.in_use();
        !Arc::ptr_eq(&in_use.headers, headers) && in_use.headers != *headers
    }

    /// Sets where they are read again.
    pub(super) fn follow(&self, files: HeaderFiles) {
        self.0.in_use.write().unwrap_or_else(PoisonError::into_inner).files = Some(Arc::new(files));
    }

    /// Replaces the headers of later requests, and where they are read again.
    ///
    /// # Errors
    /// [`HttpError`] when a header cannot be sent; then nothing changes.
    pub fn replace(&self, given: Vec<(String, String)>, files: Option<HeaderFiles>) -> Result<(), HttpError> {
        let new = Arc::new(headers(self.0.authorization.as_ref(), given)?);
        let mut in_use = self.0.in_use.write().unwrap_or_else(PoisonError::into_inner);
        (in_use.headers, in_use.files) = (new, files.map(Arc::new));
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

    /// Reads the files now, even if none has changed; returns whether the headers have. The error is for people, without
    /// any secret.
    ///
    /// Cancel safe.
    pub(super) async fn read(&self) -> Result<bool, String> {
        let Some(files) = self.0.files() else { return Ok(false) };
        match timeout(LONGEST_READ, self.read_files(files)).await {
            Ok(read) => read,
            Err(_) => Err(format!("their file system does not answer within {LONGEST_READ:?}")),
        }
    }

    async fn read_files(&self, files: Arc<HeaderFiles>) -> Result<bool, String> {
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

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values may be secrets.
        let headers = self.current();
        f.debug_set().entries(headers.keys()).finish()
    }
}

impl Shared {
    fn in_use(&self) -> RwLockReadGuard<'_, InUse> {
        self.in_use.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> Option<Arc<HeaderFiles>> {
        self.in_use().files.clone()
    }

    /// Reads the files if one has changed. It blocks while it does.
    fn look(&self, files: &Arc<HeaderFiles>, mut looks: OwnedMutexGuard<Looks>) {
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
    fn read(&self, files: &Arc<HeaderFiles>) -> Result<bool, String> {
        let given = (files.read)()?;
        let new = headers(self.authorization.as_ref(), given).map_err(|error| error.to_string())?;
        let mut in_use = self.in_use.write().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = in_use.files.as_ref().is_some_and(|now| Arc::ptr_eq(now, files));
        if !is_wanted || *in_use.headers == new {
            return Ok(false);
        }
        in_use.headers = Arc::new(new);
        drop(in_use);
        tracing::info!(downstream = files.name, "secrets read again: requests have the new ones from now on");
        Ok(true)
    }
}

impl Looks {
    /// Begins a look at these files.
    fn begin(&mut self, files: &Arc<HeaderFiles>) {
        if !self.files.as_ref().is_some_and(|known| Arc::ptr_eq(known, files)) {
            *self = Self { files: Some(Arc::clone(files)), ..Self::default() };
        }
    }
}

/// The headers of every request: the given ones take precedence over the base URL's user information.
fn headers(
    authorization: Option<&HeaderValue>,
    given: Vec<(String, String)>,
) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::with_capacity(given.len() + 1);
    if let Some(value) = authorization {
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
