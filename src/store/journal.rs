//! What a store in a file has still to write. Callers submit entries, and wait until these are written where their
//! answers depend on it; one writer takes all that have come since it began to write the last ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{CoolDown, HistoryEntry, Status, Tombstone};
use crate::limit::State;
use crate::lock::lock;
use crate::time::Micros;

#[cfg(test)]
mod tests;

/// How long entries may wait that no caller waits for.
const UNHURRIED: Duration = Duration::from_secs(1);

/// A part of what a store keeps, as it is from now on.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry {
    /// The state of a limit; none stands for one that was discarded.
    State { downstream: String, limit: String, key: String, kept: Option<KeptState> },
    /// The record of a downstream.
    Record(Box<KeptRecord>),
    /// A tombstone, and the version by which it was changed.
    Tombstone { downstream: String, version: u64, tombstone: Tombstone },
    /// How many jobs of a downstream are parked.
    Parked { downstream: String, jobs: i64 },
    /// One more entry of a downstream's history.
    History { downstream: String, entry: HistoryEntry },
    /// When a downstream was served last; none stands for one that was forgotten.
    Served { prefix: String, name: String, at: Option<Micros> },
}

/// The state of a limit, with the steps back of the clock until then, and the instant from which it equals absence.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptState {
    pub(super) state: State,
    pub(super) shift: i64,
    pub(super) whole: Micros,
}

/// The record of a downstream.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptRecord {
    pub(super) downstream: String,
    pub(super) epoch: Micros,
    pub(super) shift: i64,
    pub(super) status: Status,
    pub(super) terms: Option<String>,
    /// The note on an operator's pause, and the version of the pause.
    pub(super) note: Option<(u64, String)>,
    pub(super) cool_down: Option<CoolDown>,
}

/// Where an entry was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of its batch.
    pub(super) batch: u64,
    /// Its index there.
    pub(super) index: usize,
}

/// The entries to write, and how far they are written. Batches are numbered; 0 is always written.
#[derive(Debug)]
pub(super) struct Journal {
    pending: Mutex<Pending>,
    wake: Condvar,
    /// Notified when it is closed, for those who wait for nothing else.
    closed: Condvar,
    /// When the disk was asked for what has not returned yet.
    writing_since: Mutex<Option<Instant>>,
    /// The latest batch that is written, for callers that must not wait.
    written: AtomicU64,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct Pending {
    /// The number of the batch that the next entry belongs to.
    batch: u64,
    entries: Vec<Entry>,
    /// Whether somebody waits for it.
    is_urgent: bool,
    is_closed: bool,
}

/// How far the writer is.
#[derive(Clone, Debug)]
struct Progress {
    written: u64,
    /// Why nothing can be written at the moment.
    problem: Option<Arc<str>>,
    /// How it has ended.
    end: Option<Result<(), Arc<str>>>,
}

/// Why calls are refused once a store is closed.
const CLOSED: &str = "it was closed";

/// What the writer is to write at once.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) entries: Vec<Entry>,
    /// It is the last one: nothing is decided any more.
    pub(super) is_last: bool,
}

impl Journal {
    /// A journal that takes nothing yet, because of this problem.
    pub(super) fn new(problem: &str) -> Self {
        let pending = Pending { batch: 1, entries: Vec::new(), is_urgent: false, is_closed: false };
        Self {
            pending: Mutex::new(pending),
            wake: Condvar::new(),
            closed: Condvar::new(),
            writing_since: Mutex::default(),
            written: AtomicU64::new(0),
            progress: watch::Sender::new(Progress { written: 0, problem: Some(problem.into()), end: None }),
        }
    }

    /// # Errors
    /// Why nothing can be written at the moment, so that nothing may be decided either.
    pub(super) fn ready(&self) -> Result<(), Arc<str>> {
        self.progress.borrow().problem.clone().map_or(Ok(()), Err)
    }

    /// Adds an entry that the caller waits for, and returns its batch.
    pub(super) fn submit(&self, entry: Entry) -> u64 {
        self.add(entry, None, true).batch
    }

    /// Adds an entry that the caller waits for, in the place of an older one of the same thing unless that is written already,
    /// or is just being written. So what waits for a slow disk does not grow with the number of calls.
    pub(super) fn submit_over(&self, entry: Entry, older: Option<Place>) -> Place {
        self.add(entry, older, true)
    }

    /// Adds an entry that is written soon, and that nobody waits for.
    pub(super) fn submit_unhurried(&self, entry: Entry) {
        self.add(entry, None, false);
    }

    fn add(&self, entry: Entry, older: Option<Place>, is_urgent: bool) -> Place {
        let mut pending = lock(&self.pending);
        let is_news = pending.entries.is_empty() || (is_urgent && !pending.is_urgent);
        let older = older.filter(|older| older.batch == pending.batch);
        let place = older.unwrap_or_else(|| Place { batch: pending.batch, index: pending.entries.len() });
        match pending.entries.get_mut(place.index) {
            Some(older) => *older = entry,
            None => pending.entries.push(entry),
        }
        pending.is_urgent |= is_urgent;
        drop(pending);
        if is_news {
            self.wake.notify_all();
        }
        place
    }

    /// The latest batch that is written.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Waits until a batch is written.
    ///
    /// # Errors
    /// Why it cannot be written at the moment.
    pub(super) async fn durable(&self, batch: u64) -> Result<(), Arc<str>> {
        if batch <= self.written() {
            return Ok(());
        }
        let mut progress = self.progress.subscribe();
        let done = |progress: &Progress| progress.written >= batch || progress.problem.is_some();
        match progress.wait_for(done).await {
            Ok(progress) if progress.written >= batch => Ok(()),
            Ok(progress) => Err(progress.problem.clone().unwrap_or_default()),
            // The sender is a part of this.
            Err(_) => Err("the store was dropped".into()),
        }
    }

    /// Closes the journal: calls are refused from now on, and the writer gets the last batch.
    pub(super) fn close(&self) {
        let mut pending = lock(&self.pending);
        pending.is_closed = true;
        // Before the writer can take the last batch.
        self.fail(CLOSED);
        drop(pending);
        self.wake.notify_all();
        self.closed.notify_all();
    }

    /// Waits until the writer has ended, after [`Journal::close`].
    ///
    /// # Errors
    /// Why the last batch is not written.
    pub(super) async fn ended(&self) -> Result<(), Arc<str>> {
        let mut progress = self.progress.subscribe();
        let end = progress.wait_for(|progress| progress.end.is_some()).await;
        end.map_or(Ok(()), |progress| progress.end.clone().unwrap_or(Ok(())))
    }

    /// Reports that the writer has ended, unless it was reported before.
    pub(super) fn end(&self, result: Result<(), Arc<str>>) {
        self.progress.send_modify(|progress| {
            progress.end.get_or_insert(result);
            progress.problem.get_or_insert_with(|| "nothing writes it any more".into());
        });
    }

    /// Whether the journal was closed.
    pub(super) fn is_closed(&self) -> bool {
        lock(&self.pending).is_closed
    }

    /// Waits until there is something to write, and takes it.
    pub(super) fn next(&self) -> Batch {
        let mut pending = lock(&self.pending);
        while !pending.is_urgent && !pending.is_closed {
            if pending.entries.is_empty() {
                pending = self.wake.wait(pending).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.wake.wait_timeout(pending, UNHURRIED).unwrap_or_else(PoisonError::into_inner);
            pending = waited.0;
            if waited.1.timed_out() {
                break;
            }
        }
        pending.take()
    }

    /// Takes what there is to write now.
    pub(super) fn take(&self) -> Batch {
        lock(&self.pending).take()
    }

    /// Waits for this time, or until the journal is closed.
    pub(super) fn pause(&self, span: Duration) {
        let pending = lock(&self.pending);
        let ended = self.wake.wait_timeout_while(pending, span, |pending| !pending.is_closed);
        drop(ended);
    }

    /// Waits for this time, and reports whether the journal is in use: neither closed nor without its writer.
    pub(super) fn is_used_after(&self, span: Duration) -> bool {
        let pending = lock(&self.pending);
        let waited = self.closed.wait_timeout_while(pending, span, |pending| !pending.is_closed);
        let is_closed = waited.unwrap_or_else(PoisonError::into_inner).0.is_closed;
        !is_closed && self.progress.borrow().end.is_none()
    }

    /// Reports that the disk is asked to write, or to read, of which [`Journal::returned`] reports the end.
    pub(super) fn begin_disk(&self) {
        *lock(&self.writing_since) = Some(Instant::now());
    }

    /// Reports that it has returned, with success or an error.
    pub(super) fn returned(&self) {
        *lock(&self.writing_since) = None;
    }

    /// Refuses new and waiting calls if the disk has not returned for this long. Returns whether it refuses them.
    pub(super) fn refuse_after(&self, longest: Duration) -> bool {
        let since = lock(&self.writing_since);
        let is_stuck = since.is_some_and(|since| since.elapsed() >= longest);
        if is_stuck {
            // Before the write can be reported as returned, and with it as done.
            self.fail(&format!("its disk has not answered for {} s; check that disk", longest.as_secs()));
        }
        is_stuck
    }

    /// Waits until calls are decided.
    #[cfg(test)]
    pub(super) async fn until_ready(&self) {
        let mut progress = self.progress.subscribe();
        let _ = progress.wait_for(|progress| progress.problem.is_none()).await;
    }

    /// Reports that everything up to this batch is written.
    pub(super) fn succeed(&self, batch: u64) {
        let pending = lock(&self.pending);
        self.written.store(batch, Ordering::Release);
        self.progress.send_modify(|progress| {
            progress.written = batch;
            progress.problem = progress.problem.take().filter(|_| pending.is_closed);
        });
    }

    /// Reports that nothing can be written: calls are refused until [`Journal::succeed`].
    pub(super) fn fail(&self, problem: &str) {
        self.progress.send_modify(|progress| progress.problem = Some(problem.into()));
    }
}

impl Pending {
    fn take(&mut self) -> Batch {
        let number = self.batch;
        self.batch += 1;
        self.is_urgent = false;
        Batch { number, entries: std::mem::take(&mut self.entries), is_last: self.is_closed }
    }
}
