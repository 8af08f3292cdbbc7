//! A value that is made from files, and made again when one of them changes.

use std::fmt::Display;
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::{Stamps, stamps};
use crate::episode::Episode;
use crate::failpoint;
use crate::lock::lock;

/// How often files are read in one turn if one changes during the read: the result may mix old and new contents.
const MOST_READS: usize = 3;

/// How long files must have been unusable before that is logged: they are rarely replaced all at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reads the files; `None` if that makes the same value as the one in use. It may block, and one thread at a time
/// calls it. The error is a text for people, without any secret.
pub type Read<T> = Box<dyn Fn(&T) -> Result<Option<T>, String> + Send + Sync>;

/// Logs that the new contents are in use, or why the files cannot be used, so the old contents stay in use.
pub type Log = Box<dyn Fn(Result<(), &str>) + Send + Sync>;

/// The files from which a `T` is made.
pub struct Source<T> {
    /// The files. They are read again when one of them was replaced or rewritten, also through a symbolic link.
    pub files: Vec<PathBuf>,
    /// Reads them.
    pub read: Read<T>,
    /// Logs the result when another value is in use, and once when the files cannot be used.
    pub log: Log,
}

/// A `T` that is made from files, and made again when one of them changes. Clones share it.
///
/// While the files cannot be read, or their contents cannot be used, the old value stays in use, and an error is
/// logged once. A file system that does not answer blocks one thread, but no reader of the value.
pub struct Reloaded<T> {
    in_use: Arc<StdMutex<InUse<T>>>,
    /// Held by the thread that reads the files, which may take long.
    progress: Arc<Mutex<Progress<T>>>,
}

struct InUse<T> {
    value: Arc<T>,
    source: Option<Arc<Source<T>>>,
    /// Whether the log has named the files as unusable, and they were not read since.
    is_failing: bool,
}

/// The state of reading the files of one source again.
struct Progress<T> {
    source: Option<Arc<Source<T>>>,
    /// The stamps with which the value in use was read; `None` if the files are to be read anyway.
    loaded: Option<Stamps>,
    failure: Episode<Stamps>,
    /// When the last read of the files began, and its result.
    last: Option<(Instant, Result<bool, String>)>,
}

/// The turn of one thread to read the files.
struct Turn<T> {
    in_use: Arc<StdMutex<InUse<T>>>,
    source: Arc<Source<T>>,
    progress: OwnedMutexGuard<Progress<T>>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Begins with this value; the first refresh reads the files. Without a source the value stays.
    pub fn new(value: T, source: Option<Source<T>>) -> Self {
        Self::with(value, source.map(Arc::new), Progress::new(None, None))
    }

    /// Begins with the value that `read` makes from the files. A change of the files makes it again. It blocks while
    /// it reads.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn load<E, R>(files: Vec<PathBuf>, read: R, log: Log) -> Result<Self, E>
    where
        E: Display,
        R: Fn() -> Result<T, E> + Send + Sync + 'static,
    {
        // The stamps come before the read: a file that changes meanwhile has another stamp at the next refresh.
        let (stamps, value) = (stamps(&files), read()?);
        let read = Box::new(move |_: &T| read().map(Some).map_err(|error| error.to_string()));
        let source = Some(Arc::new(Source { files, read, log }));
        Ok(Self::with(value, source.clone(), Progress::new(source, Some(stamps))))
    }

    fn with(value: T, source: Option<Arc<Source<T>>>, progress: Progress<T>) -> Self {
        let in_use = InUse { value: Arc::new(value), source, is_failing: false };
        Self { in_use: Arc::new(StdMutex::new(in_use)), progress: Arc::new(Mutex::new(progress)) }
    }

    /// The value in use.
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&lock(&self.in_use).value)
    }

    /// Whether there are files that may be read again.
    pub fn has_files(&self) -> bool {
        lock(&self.in_use).source.is_some()
    }

    /// Whether the files cannot be used, so that the old value stays in use; the log has a line for that.
    pub fn is_failing(&self) -> bool {
        lock(&self.in_use).is_failing
    }

    /// Puts this value in use, and replaces its source. A read under way changes nothing any more, and the next refresh
    /// reads the new files.
    pub fn replace(&self, value: T, source: Option<Source<T>>) {
        let source = source.map(Arc::new);
        let new = InUse { value: Arc::new(value), source, is_failing: false };
        let old = mem::replace(&mut *lock(&self.in_use), new);
        // Connections may end when the old value is dropped. This happens outside the lock.
        drop(old);
    }

    /// Replaces the source alone, as [`Reloaded::replace`] does. The value stays until the next refresh.
    pub fn follow(&self, source: Source<T>) {
        lock(&self.in_use).source = Some(Arc::new(source));
    }

    /// Reads the files again if one of them has changed; the result is logged. It waits for another read that is under
    /// way, for as long as the file system takes.
    ///
    /// Cancel safe: a read that has begun continues.
    pub async fn refresh(&self) {
        if let Some(turn) = self.turn().await {
            // Only a runtime that shuts down does not run it.
            let _ = spawn_blocking(move || turn.refresh()).await;
        }
    }

    /// As [`Reloaded::refresh`], on this thread, which blocks. If another thread reads the files, nothing is done.
    pub fn try_refresh(&self) {
        if let Ok(progress) = Arc::clone(&self.progress).try_lock_owned()
            && let Some(turn) = Turn::begin(&self.in_use, progress)
        {
            turn.refresh();
        }
    }

    /// Reads the files even if none has changed, unless another caller began a read after this call. Returns whether
    /// another value is in use since.
    ///
    /// Cancel safe, as [`Reloaded::refresh`] is.
    ///
    /// # Errors
    /// Those of [`Source::read`]; they are not logged.
    pub async fn read(&self) -> Result<bool, String> {
        let asked = Instant::now();
        let Some(mut turn) = self.turn().await else { return Ok(false) };
        if let Some((begun, result)) = &turn.progress.last
            && *begun > asked
        {
            return result.clone();
        }
        let read = spawn_blocking(move || turn.read(stamps(&turn.source.files))).await;
        read.map_err(|error| format!("reading was broken off: {error}"))?
    }

    async fn turn(&self) -> Option<Turn<T>> {
        lock(&self.in_use).source.as_ref()?;
        let progress = Arc::clone(&self.progress).lock_owned().await;
        Turn::begin(&self.in_use, progress)
    }
}

impl<T> Clone for Reloaded<T> {
    fn clone(&self) -> Self {
        Self { in_use: Arc::clone(&self.in_use), progress: Arc::clone(&self.progress) }
    }
}

impl<T> Progress<T> {
    fn new(source: Option<Arc<Source<T>>>, loaded: Option<Stamps>) -> Self {
        Self { source, loaded, failure: Episode::after(failpoint::interval(PATIENCE)), last: None }
    }
}

impl<T> Turn<T> {
    /// The turn to read the files of the present source, if there is one.
    fn begin(in_use: &Arc<StdMutex<InUse<T>>>, mut progress: OwnedMutexGuard<Progress<T>>) -> Option<Self> {
        let source = lock(in_use).source.clone()?;
        if !progress.source.as_ref().is_some_and(|known| Arc::ptr_eq(known, &source)) {
            *progress = Progress::new(Some(Arc::clone(&source)), None);
        }
        Some(Self { in_use: Arc::clone(in_use), source, progress })
    }

    fn refresh(mut self) {
        let stamps = stamps(&self.source.files);
        if self.progress.loaded.as_ref() == Some(&stamps) {
            self.progress.failure.end();
            lock(&self.in_use).is_failing = false;
        } else if let Err(error) = self.read(stamps.clone())
            && self.progress.failure.note(stamps)
        {
            let mut in_use = lock(&self.in_use);
            // A reload may have replaced them meanwhile.
            in_use.is_failing |= in_use.source.as_ref().is_some_and(|now| Arc::ptr_eq(now, &self.source));
            drop(in_use);
            (self.source.log)(Err(&error));
        }
    }

    /// Reads the files, which had these stamps before.
    fn read(&mut self, mut stamps: Stamps) -> Result<bool, String> {
        let begun = Instant::now();
        let result = self.make(&mut stamps);
        if result.is_ok() {
            self.progress.loaded = Some(stamps);
            self.progress.failure.end();
            lock(&self.in_use).is_failing = false;
        }
        self.progress.last = Some((begun, result.clone()));
        result
    }

    /// Makes the value anew, and puts it in use unless its source was replaced meanwhile. `stamps` are those of the
    /// files before they were read. They are updated if the files are read again because one changed meanwhile.
    fn make(&self, stamps: &mut Stamps) -> Result<bool, String> {
        let old = Arc::clone(&lock(&self.in_use).value);
        let Some(value) = self.read_settled(&old, stamps)? else { return Ok(false) };
        let mut in_use = lock(&self.in_use);
        if !in_use.source.as_ref().is_some_and(|now| Arc::ptr_eq(now, &self.source)) {
            return Ok(false);
        }
        in_use.value = Arc::new(value);
        drop(in_use);
        // Connections may end when the old value is dropped. This happens outside the lock.
        drop(old);
        (self.source.log)(Ok(()));
        Ok(true)
    }

    /// Reads the files, again while one changes meanwhile, a few times at most.
    fn read_settled(&self, old: &T, before: &mut Stamps) -> Result<Option<T>, String> {
        let mut read = (self.source.read)(old);
        for _ in 1..MOST_READS {
            let after = stamps(&self.source.files);
            if after == *before {
                break;
            }
            *before = after;
            read = (self.source.read)(old);
        }
        read
    }
}

#[cfg(test)]
mod tests;
