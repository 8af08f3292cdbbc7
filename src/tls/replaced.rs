//! Something that is made of files, and made anew when one of them changes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use std::time::Duration;

use tokio::time::Instant;

use super::error::TlsError;
use crate::files::Stamp;

/// How long files may be unusable before that is logged: they are rarely replaced all at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is in use of the files, and what is known of them.
pub(super) struct Replaced<C> {
    files: Vec<PathBuf>,
    current: RwLock<Arc<C>>,
    /// Held by the one that looks at the files, which may take long.
    watch: Mutex<Watch>,
}

struct Watch {
    /// The stamps of the files when they were read into what is in use.
    loaded: Stamps,
    /// The files that cannot be used, if what is there now cannot.
    failed: Option<Failed>,
}

/// Files that cannot be used.
struct Failed {
    stamps: Stamps,
    since: Instant,
    is_logged: bool,
}

/// The stamp of each file; `None` where there is no such file.
type Stamps = Vec<Option<Stamp>>;

impl<C> Replaced<C> {
    /// Makes it for the first time. It blocks while the files are read.
    pub(super) fn load(
        files: Vec<PathBuf>,
        make: impl FnOnce() -> Result<C, TlsError>,
    ) -> Result<Self, TlsError> {
        // A file that changes while it is read has another stamp at the next look.
        let watch = Watch { loaded: stamps(&files), failed: None };
        let current = RwLock::new(Arc::new(make()?));
        Ok(Self { files, current, watch: Mutex::new(watch) })
    }

    /// What is in use.
    pub(super) fn current(&self) -> Arc<C> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes it anew if a file has changed; what was made before stays in use if the files cannot be used. Both are
    /// logged. It blocks while the files are read.
    pub(super) fn look(&self, make: impl FnOnce() -> Result<C, TlsError>) {
        let mut watch = match self.watch.try_lock() {
            Ok(watch) => watch,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is looking, perhaps at a file system that does not answer.
            Err(TryLockError::WouldBlock) => return,
        };
        let stamps = stamps(&self.files);
        if stamps == watch.loaded {
            watch.failed = None;
            return;
        }
        match make() {
            Ok(made) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(made);
                *watch = Watch { loaded: stamps, failed: None };
                tracing::info!(files = self.shown(), "certificates read again: new connections use them");
            }
            Err(error) => watch.fail(stamps, &error),
        }
    }

    fn shown(&self) -> String {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        files.join(", ")
    }
}

impl Watch {
    /// Records that these files cannot be used, and logs it once it has been so for a while.
    fn fail(&mut self, stamps: Stamps, error: &TlsError) {
        let known = self.failed.take().filter(|failed| failed.stamps == stamps);
        let mut failed = known.unwrap_or_else(|| Failed { stamps, since: Instant::now(), is_logged: false });
        if !failed.is_logged && failed.since.elapsed() >= PATIENCE {
            failed.is_logged = true;
            tracing::error!(
                %error,
                "certificates cannot be read again: those read before stay in use until they can"
            );
        }
        self.failed = Some(failed);
    }
}

fn stamps(files: &[PathBuf]) -> Stamps {
    files.iter().map(|file| Stamp::of(file).ok()).collect()
}
