//! State that survives the process, in one file.
//!
//! It is the store in memory, of which a file is kept. Grants are written ahead: what is on disk is each state charged with
//! half a second of units more than it is (its *lease*, [`Limit::leased`](crate::Limit)), and a grant that the lease covers
//! needs no write. A lease that is half used is renewed in the background, by a thread of its own; only a grant that no
//! lease covers waits, as the first after a rest does, and each of a limit that releases less than one unit in that time.
//! So what is granted is always on disk before it is known to be granted: a process that is killed, or a machine that loses
//! power, costs the rest of the leases, at most a second of slots for each state, and never adds any. An orderly end writes
//! the states as they are.
//!
//! A second thread refuses calls while a write does not return, as on a disk that hangs.
//!
//! Pauses, terms, tombstones and histories are written before the call that changes them is answered. Which replicas live,
//! and whose turn it is, is not written: they are all of this process.
//!
//! The file is a list of batches, each synced before the next is begun; it is replaced as a whole, by a rename, when it has
//! grown to four times its contents, after each error, and at each start, so that it is known to be writable before
//! anything is granted. What an embedded database would add (pages, indices, transactions of readers) nobody needs here:
//! all states are in memory anyway, and they are read once.
//!
//! States are instants on the wall clock, so a file may stay unused for a year. If the machine has not restarted
//! since the last run, its uptime distinguishes a clock that was set from time that has passed, and the states move
//! with the clock; otherwise only a clock that is behind is noticed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::fleet::HistoryEntry;
use super::journal::Journal;
use super::memory::{Decided, MemoryStore};
use super::{
    Answer, Cancel, Change, Changes, Check, Checked, ParkedGroup, ParkedGroups, RecordState, Reserve,
    Reserved, Scope, Served, ServedReply, Store, StoreError, TombstoneCall, TombstoneReply, sealed,
};
use crate::failpoint;
use crate::limit::LimitSet;
use crate::time::{Clock, Micros, SystemClock};

mod clocks;
mod disk;
mod format;
mod lock;
mod writer;

use disk::Probe;
use writer::Writer;

/// How long a store that waits for its file keeps its caller until it has tried.
const TRY: Duration = Duration::from_secs(2);

/// Keeps state in memory and in a file, so that it survives the process: restarts, `kill -9` and a loss of power lose at
/// most a second of slots, and never add any.
///
/// One process at a time uses a file, through one store, which all shapers and limiters of the process share; another
/// process gets an error that names the first. Files on network disks such as NFS cannot be relied upon. A process that
/// forks must not use the store in the child, which would grant the same slots once more.
///
/// A call waits for the disk when it takes what is not written ahead: the first one of a state after a rest, and each one of
/// a limit of less than two units a second. What was charged for a call that is dropped while it waits, or that fails, is
/// given back, unless others have taken more behind it. While the file cannot be written (a full disk), or its disk does
/// not answer for five seconds, calls fail with [`StoreError::File`], and nothing is granted.
///
/// ```
/// use std::sync::Arc;
/// use paced::{FileStore, Limit, Limiter, Store as _};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("pace");
/// let store = Arc::new(FileStore::open(&path)?);
/// let limit = || Limit::gcra("calls", "10/d".parse().unwrap(), 10);
/// let limiter = Limiter::builder("api").limit(limit()?).store(Arc::clone(&store)).build()?;
/// assert!(limiter.check("tenant-42").await?.allowed);
/// store.finish().await?;
/// # drop((limiter, store));
///
/// // In the next process:
/// let store = FileStore::open(&path)?;
/// let limiter = Limiter::builder("api").limit(limit()?).store(store).build()?;
/// assert_eq!(limiter.check("tenant-42").await?.remaining, 8);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct FileStore {
    memory: Arc<MemoryStore>,
    journal: Arc<Journal>,
    path: PathBuf,
}

impl FileStore {
    /// Opens the store in the file at `path`, or begins one there if there is no file. Its directory must be there: beside
    /// the file there are two more, PATH.paced-lock and at times PATH.paced-new. It blocks while the file is read.
    ///
    /// A store that is dropped is closed in its own time. To open the file again in the same process, await
    /// [`finish`](Store::finish) before.
    ///
    /// # Errors
    /// [`StoreError::File`] when another process uses the file, or it cannot be read or written, or is something else.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::with_clock(path, Arc::new(SystemClock::new()))
    }

    /// Opens a store on the given clock. A clock that steps back while the store is open is noticed by each downstream when
    /// it is used; one that is not used between such a step and a kill may stall in the next run for as long as the step.
    ///
    /// # Errors
    /// As [`FileStore::open`].
    pub fn with_clock(path: impl AsRef<Path>, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let store = Self::new(path.as_ref(), clock);
        let mut writer = Writer::open(&store.path, &store.memory, &store.journal)
            .map_err(|error| store.error(&error.to_string()))?;
        writer.step(&store.journal.take()).map_err(|error| store.error(&writer::problem(&error)))?;
        writer::spawn(writer, &store.path).map_err(|error| store.no_thread(&error))?;
        Ok(store)
    }

    /// A store that opens its file as soon as it can, such as when another process has ended. Until then its calls fail with
    /// [`StoreError::File`], which says why, and the log does too. It blocks until it has tried, for two seconds at most.
    ///
    /// # Errors
    /// [`StoreError::File`] when no thread can be started.
    pub fn waiting(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let store = Self::new(path.as_ref(), Arc::new(SystemClock::new()));
        let (memory, journal) = (Arc::clone(&store.memory), Arc::clone(&store.journal));
        let tried = writer::spawn_waiting(&store.path, memory, journal);
        // Whether it has succeeded or not. A disk that hangs does not keep the process from its start.
        let _ = tried.map_err(|error| store.no_thread(&error))?.recv_timeout(TRY);
        Ok(store)
    }

    /// Checks whether a store could be opened in the file at `path`, and written there, and changes nothing. It blocks while the
    /// file is read.
    ///
    /// # Errors
    /// As [`FileStore::open`].
    pub fn probe(path: impl AsRef<Path>) -> Result<(), StoreError> {
        let path = path.as_ref();
        let error = |detail| StoreError::File { path: path.display().to_string(), detail };
        let probe = Probe::read(path).map_err(|problem| error(problem.to_string()))?;
        let decoded = probe.bytes.as_deref().map(format::decode).transpose();
        decoded.map_err(|problem| error(problem.to_string()))?;
        probe.try_write().map_err(|problem| error(writer::problem(&problem)))
    }

    fn new(path: &Path, clock: Arc<dyn Clock>) -> Self {
        let journal = Arc::new(Journal::new("it is being opened"));
        let memory = Arc::new(MemoryStore::lasting(clock, Arc::clone(&journal)));
        Self { memory, journal, path: path.to_owned() }
    }

    fn error(&self, problem: &str) -> StoreError {
        StoreError::File { path: self.path.display().to_string(), detail: problem.to_owned() }
    }

    fn no_thread(&self, error: &io::Error) -> StoreError {
        self.error(&format!(
            "no thread can be started to write it: {error}; raise the limits of this process"
        ))
    }

    /// # Errors
    /// Nothing can be written, so that nothing may be decided.
    fn ready(&self) -> Result<(), StoreError> {
        self.journal.ready().map_err(|problem| self.error(&problem))
    }

    /// Decides in memory, and answers once what was taken is on disk.
    async fn kept<T>(
        &self,
        decide: impl FnOnce(&MemoryStore) -> Result<Decided<T>, StoreError>,
    ) -> Result<T, StoreError> {
        self.ready()?;
        // What was charged for a call that fails or is dropped here is given back, since its caller gets no answer.
        let Decided { answer, batch, charged } = decide(&self.memory)?;
        self.journal.durable(batch).await.map_err(|problem| self.error(&problem))?;
        // One that was closed in between has written the states before this decision, perhaps.
        self.ready()?;
        charged.answered();
        Ok(answer)
    }

    /// As [`FileStore::kept`], of a change whose answer a test may lose.
    async fn changed<T>(
        &self,
        decide: impl FnOnce(&MemoryStore) -> Result<Decided<T>, StoreError>,
    ) -> Result<T, StoreError> {
        let answer = self.kept(decide).await?;
        if failpoint::loses_answers() { Err(self.error("the answer was lost")) } else { Ok(answer) }
    }

    /// The record of the downstream and the states of the limits, as text. It serves tests.
    #[cfg(any(test, feature = "failpoints"))]
    #[doc(hidden)]
    #[must_use]
    pub fn dump(&self, scope: Scope<'_>, limits: &LimitSet) -> Vec<String> {
        self.memory.dump(scope, limits)
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.journal.close();
    }
}

impl sealed::Sealed for FileStore {}

impl Store for FileStore {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> Answer<'a, Reserved> {
        Box::pin(self.kept(move |memory| memory.reserved(call)))
    }

    fn check<'a>(&'a self, call: Check<'a>) -> Answer<'a, Checked> {
        Box::pin(self.kept(move |memory| memory.checked(call)))
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> Answer<'a, bool> {
        Box::pin(self.kept(move |memory| memory.cancelled(call)))
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> Answer<'a, ()> {
        Box::pin(self.kept(move |memory| memory.discarded(scope, limits)))
    }

    fn read_record<'a>(&'a self, downstream: &'a str) -> Answer<'a, RecordState> {
        Box::pin(self.kept(move |memory| memory.record(downstream, None)))
    }

    fn update_record<'a>(&'a self, downstream: &'a str, change: Change<'a>) -> Answer<'a, RecordState> {
        Box::pin(self.changed(move |memory| memory.record(downstream, Some(change))))
    }

    fn tombstones<'a>(&'a self, downstream: &'a str, call: TombstoneCall<'a>) -> Answer<'a, TombstoneReply> {
        Box::pin(async move {
            let decide = move |memory: &MemoryStore| memory.call_tombstones(downstream, call);
            // Every dispatcher reads them again and again.
            let is_read = matches!(call, TombstoneCall::Read { .. });
            if is_read { self.kept(decide).await } else { self.changed(decide).await }
        })
    }

    // Summaries are not written. They still fail while no write works, so `paced status` shows the store as away.
    fn leave_summary<'a>(&'a self, replica: &'a str, summary: &'a str, ttl: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            self.ready()?;
            self.memory.leave_summary(replica, summary, ttl).await
        })
    }

    fn summaries(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async move {
            self.ready()?;
            self.memory.summaries().await
        })
    }

    fn served<'a>(&'a self, call: Served<'a>) -> Answer<'a, ServedReply> {
        Box::pin(async move {
            self.ready()?;
            self.memory.served(call).await
        })
    }

    fn note_parked<'a>(&'a self, downstream: &'a str, jobs: i64) -> Answer<'a, i64> {
        Box::pin(async move {
            self.ready()?;
            self.memory.note_parked(downstream, jobs).await
        })
    }

    fn parked_groups<'a>(
        &'a self,
        downstream: &'a str,
        call: ParkedGroups<'a>,
    ) -> Answer<'a, Vec<ParkedGroup>> {
        Box::pin(async move {
            self.ready()?;
            self.memory.parked_groups(downstream, call).await
        })
    }

    fn history<'a>(&'a self, downstream: &'a str, text: Option<&'a str>) -> Answer<'a, Vec<HistoryEntry>> {
        Box::pin(self.kept(move |memory| memory.noted(downstream, text)))
    }

    fn changes(&self, downstream: &str) -> Changes {
        self.memory.changes(downstream)
    }

    fn ping(&self) -> Answer<'_, Micros> {
        Box::pin(async move {
            self.ready()?;
            self.memory.ping().await
        })
    }

    fn finish(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.journal.close();
            self.journal.ended().await.map_err(|problem| self.error(&problem))
        })
    }
}

#[cfg(test)]
mod tests;
