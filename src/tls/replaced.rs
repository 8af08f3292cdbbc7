//! Something that is made of files, and made anew when one of them changes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

use super::error::TlsError;
use crate::files::{Stamps, Watch};

/// What is in use of the files, and what is known of them.
pub(super) struct Replaced<C> {
    files: Vec<PathBuf>,
    /// What was made last; `None` until it is needed for the first time.
    current: RwLock<Option<Arc<C>>>,
    /// Held by the one that looks at the files, which may take long.
    watch: Mutex<Watch>,
}

impl<C> Replaced<C> {
    /// Nothing is made yet.
    pub(super) fn new(files: Vec<PathBuf>) -> Self {
        Self { files, current: RwLock::default(), watch: Mutex::default() }
    }

    /// Whether it depends on any file.
    pub(super) const fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// What is in use, if it was made.
    pub(super) fn current(&self) -> Option<Arc<C>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is in use. It is made the first time, which blocks while the files are read.
    pub(super) fn get(&self, make: impl FnOnce() -> Result<C, TlsError>) -> Result<Arc<C>, TlsError> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let stamps = Stamps::of(&self.files);
        let made = Arc::new(make()?);
        watch.note_loaded(stamps);
        self.replace(Arc::clone(&made));
        Ok(made)
    }

    /// Makes it anew if a file has changed since it was made; what was made before stays in use if the files cannot be
    /// used. Both are logged. It blocks while the files are read.
    pub(super) fn look(&self, make: impl FnOnce() -> Result<C, TlsError>) {
        let mut watch = match self.watch.try_lock() {
            Ok(watch) => watch,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is looking, perhaps at a file system that does not answer.
            Err(TryLockError::WouldBlock) => return,
        };
        let stamps = Stamps::of(&self.files);
        if self.current().is_none() || !watch.has_changed(&stamps) {
            return;
        }
        match make() {
            Ok(made) => {
                self.replace(Arc::new(made));
                watch.note_loaded(stamps);
                tracing::info!(files = self.shown(), "certificates read again: new connections use them");
            }
            Err(error) => {
                if watch.note_failure(stamps) {
                    tracing::error!(
                        %error,
                        "certificates cannot be read again: those read before stay in use until they can"
                    );
                }
            }
        }
    }

    fn replace(&self, made: Arc<C>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(made);
    }

    fn shown(&self) -> String {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        files.join(", ")
    }
}
