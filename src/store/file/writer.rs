//! Writes what a journal has: batches behind each other, and everything anew where the file has grown, or may not hold all.

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::clocks::Clocks;
use super::disk::{Disk, LockedFile, OpenError};
use super::format::{BatchId, add, begin, decode, encode, end};
use super::lock::LockError;
use crate::store::journal::{Batch, Journal};
use crate::store::memory::MemoryStore;
use crate::time::Micros;

/// The delay before a failed write, or a file that another process uses, is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// The same delay for a file that people must repair.
const UNUSABLE: Duration = Duration::from_secs(5);

/// How long a write may take before calls are refused.
const STUCK: Duration = Duration::from_secs(5);

/// How often the time that a write takes is checked.
const CHECK: Duration = Duration::from_secs(1);

/// A shorter file is not rewritten.
const LEAST: usize = 256 << 10;

/// A file is rewritten once it is this many times as long as after its last rewrite.
const GROWTH: usize = 4;

/// Writes the changes of a store in memory.
pub(super) struct Writer {
    memory: Arc<MemoryStore>,
    journal: Arc<Journal>,
    disk: Box<dyn Disk>,
    /// The next batch in the file.
    batch: BatchId,
    /// The length of the file, and what it was when it was written anew.
    length: usize,
    base: usize,
    /// Whether the file holds all that was to be written before. After an error that is not known.
    is_whole: bool,
}

impl Writer {
    /// Locks the file, and has the store take what it holds.
    pub(super) fn open(
        path: &Path,
        memory: &Arc<MemoryStore>,
        journal: &Arc<Journal>,
    ) -> Result<Self, OpenError> {
        Self::on(Box::new(LockedFile::lock(path)?), memory, journal)
    }

    /// Has the store take what a disk holds.
    pub(super) fn on(
        mut disk: Box<dyn Disk>,
        memory: &Arc<MemoryStore>,
        journal: &Arc<Journal>,
    ) -> Result<Self, OpenError> {
        if let Some(bytes) = disk.read()? {
            let contents = decode(&bytes)?;
            if contents.is_torn {
                tracing::info!(
                    "the last write of the store's file was not completed; no caller got an answer that depends on it"
                );
            }
            let resumed = contents.clocks.resumed(&Clocks::at_start(&**memory.clock()));
            if resumed.back != 0 {
                tracing::warn!(
                    back_us = resumed.back,
                    "the clock was set since the last run; what was used of limits moves with it"
                );
            }
            memory.restore(contents.entries, resumed);
        }
        let (memory, journal, batch) = (Arc::clone(memory), Arc::clone(journal), BatchId::first(Micros(0)));
        Ok(Self { memory, journal, disk, batch, length: 0, base: 0, is_whole: false })
    }

    /// Writes one batch, and reports whether it could.
    pub(super) fn step(&mut self, batch: &Batch) -> io::Result<()> {
        let written = self.write(batch);
        self.journal.returned();
        match &written {
            Ok(()) => self.journal.succeed(batch.number),
            Err(error) => self.journal.fail(&problem(error)),
        }
        written
    }

    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        let appends = self.is_whole && !batch.is_last && self.length < LEAST.max(GROWTH * self.base);
        if appends && batch.entries.is_empty() {
            return Ok(());
        }
        self.is_whole = false;
        let clock = &**self.memory.clock();
        if appends {
            let bytes = encode(self.batch, &batch.entries, &Clocks::at_write(clock))?;
            self.journal.begin_disk();
            self.disk.append(&bytes)?;
            (self.batch, self.length) = (self.batch.next(), self.length + bytes.len());
        } else {
            // The batch is part of it: it was taken from the journal before.
            let first = BatchId::first(clock.now());
            let mut bytes = begin(first.begun)?;
            let leased = (!batch.is_last).then_some(batch.number);
            self.memory.each_part(leased, |entries| add(&mut bytes, entries))?;
            end(&mut bytes, first, &Clocks::at_write(clock))?;
            // The time of the disk alone: a large store is encoded for some seconds.
            self.journal.begin_disk();
            self.disk.replace(&bytes)?;
            (self.batch, self.length, self.base) = (first.next(), bytes.len(), bytes.len());
        }
        self.is_whole = true;
        Ok(())
    }

    /// Writes until the journal is closed.
    fn run(mut self, path: &Path) {
        let mut is_failing = false;
        loop {
            if is_failing {
                self.journal.pause(RETRY);
            }
            let batch = if self.is_whole { self.journal.next() } else { self.journal.take() };
            let written = self.step(&batch);
            if written.is_err() != is_failing {
                is_failing = !is_failing;
                log(path, &written);
            }
            if batch.is_last {
                let journal = Arc::clone(&self.journal);
                // Once the end is reported, a caller may open the file again.
                drop(self);
                return journal.end(written.map_err(|error| problem(&error).into()));
            }
        }
    }
}

/// Why a file cannot be written, and what to do.
pub(super) fn problem(error: &io::Error) -> String {
    match error.kind() {
        // It says what to do.
        io::ErrorKind::Other => format!("it cannot be written: {error}"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("it cannot be written: {error}; make room on its disk")
        }
        _ => format!("it cannot be written: {error}; check its disk, and the rights of its directory"),
    }
}

fn log(path: &Path, written: &io::Result<()>) {
    let file = path.display();
    match written {
        Ok(()) => tracing::info!(%file, "the store's file is written again"),
        Err(error) => {
            let problem = problem(error);
            tracing::error!(%file, problem, "the store decides nothing until its file can be written");
        }
    }
}

/// Refuses calls while the disk does not return: they would wait for a disk that hangs as long as that does.
fn watch(path: &Path, journal: &Journal) {
    let (file, mut is_stuck) = (path.display(), false);
    while journal.is_used_after(CHECK) {
        if journal.refuse_after(STUCK) == is_stuck {
            continue;
        }
        is_stuck = !is_stuck;
        if is_stuck {
            tracing::error!(%file, "the disk of the store's file does not answer; the store decides nothing until it does");
        } else {
            tracing::info!(%file, "the disk of the store's file answers again");
        }
    }
}

/// Reports to the callers that the thread of a writer has ended, for any reason.
struct Ends(Arc<Journal>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end(Err("the thread that writes it has ended".into()));
    }
}

/// Starts the threads of a writer.
pub(super) fn spawn(writer: Writer, path: &Path) -> io::Result<()> {
    let owned = path.to_owned();
    start(path, Arc::clone(&writer.journal), move || writer.run(&owned))
}

/// Starts the threads of a writer that waits until there is a file to write. What is returned receives something, or is
/// disconnected, once it has tried.
pub(super) fn spawn_waiting(
    path: &Path,
    memory: Arc<MemoryStore>,
    journal: Arc<Journal>,
) -> io::Result<mpsc::Receiver<()>> {
    let (owned, waiting) = (path.to_owned(), Arc::clone(&journal));
    let (tries, tried) = mpsc::channel();
    start(path, journal, move || {
        let Some(mut writer) = wait(&owned, &memory, &waiting, &tries) else { return };
        // If it fails, so does the next one, which is logged.
        let _ = writer.step(&waiting.take());
        drop(tries);
        writer.run(&owned);
    })?;
    Ok(tried)
}

/// Waits until the file is there for this process; `None` if the store was closed before.
fn wait(
    path: &Path,
    memory: &Arc<MemoryStore>,
    journal: &Arc<Journal>,
    tries: &mpsc::Sender<()>,
) -> Option<Writer> {
    let mut reported = String::new();
    while !journal.is_closed() {
        journal.begin_disk();
        let opened = Writer::open(path, memory, journal);
        journal.returned();
        let pause = match opened {
            Ok(writer) => return Some(writer),
            Err(error) => {
                let problem = error.to_string();
                if problem != reported {
                    let file = path.display();
                    tracing::warn!(%file, problem, "the store decides nothing until it has its file");
                }
                journal.fail(&problem);
                // The other end listens for the first one only.
                let _ = tries.send(());
                reported = problem;
                if matches!(error, OpenError::Lock(LockError::Held { .. })) { RETRY } else { UNUSABLE }
            }
        };
        journal.pause(pause);
    }
    journal.end(Ok(()));
    None
}

/// Starts a thread that writes, and one that watches it; it ends once the journal is closed.
fn start(path: &Path, journal: Arc<Journal>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    };
    let (path, watched) = (path.to_owned(), Arc::clone(&journal));
    spawn("paced-disk", Box::new(move || watch(&path, &watched)))?;
    let work = move || {
        let _ends = Ends(journal);
        work();
    };
    spawn("paced-store", Box::new(work))
}
