//! The counts of a pipe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

use super::resume::Done;

/// The values of `outcome`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Delivered,
    Dead,
    Rejected,
    Cancelled,
}

/// Counts that grow while jobs end.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    settled: SettledCounts,
    before: BeforeCounts,
    skipped: AtomicU64,
    returned: AtomicU64,
    /// Jobs that the source has handed out.
    handed_out: AtomicU64,
    /// Outcomes that are written.
    written: AtomicU64,
    input: Input,
}

/// Jobs that have an outcome.
#[derive(Debug, Default)]
struct SettledCounts {
    delivered: AtomicU64,
    dead: AtomicU64,
    rejected: AtomicU64,
    cancelled: AtomicU64,
}

/// Jobs that are not sent, since earlier runs were done with them.
#[derive(Debug, Default)]
struct BeforeCounts {
    delivered: AtomicU64,
    cancelled: AtomicU64,
}

/// The state of the input.
#[derive(Debug, Default)]
struct Input {
    unreadable: AtomicBool,
    mismatched: AtomicBool,
    /// Whether it was read to its end.
    ended: AtomicBool,
    /// The rows without any text.
    blank: AtomicU64,
    /// Jobs that were read and wait for their time.
    later: AtomicU64,
    /// Whether one was read that waits for room.
    held: AtomicBool,
}

impl Progress {
    /// The counts now.
    pub fn totals(&self) -> Totals {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let Counts { settled, before, skipped, returned, input, .. } = &*self.0;
        Totals {
            delivered: read(&settled.delivered),
            dead: read(&settled.dead),
            rejected: read(&settled.rejected),
            cancelled: read(&settled.cancelled),
            skipped: read(skipped),
            returned: read(returned),
            before: Before { delivered: read(&before.delivered), cancelled: read(&before.cancelled) },
            blank: read(&input.blank),
            bad_input: match (is(&input.mismatched), is(&input.unreadable)) {
                (true, _) => Some(BadInput::Mismatched),
                (false, true) => Some(BadInput::Unreadable),
                (false, false) => None,
            },
        }
    }

    /// Jobs that were read, and neither have an outcome nor were given up.
    pub fn open(&self) -> u64 {
        let totals = self.totals();
        let ended = totals.settled() + totals.returned;
        self.0.handed_out.load(Ordering::Relaxed).saturating_sub(ended)
    }

    /// Jobs that were read and wait for their time, or for room.
    pub fn waiting(&self) -> u64 {
        let held = self.0.input.held.load(Ordering::Relaxed);
        self.0.input.later.load(Ordering::Relaxed) + u64::from(held)
    }

    /// The number of entries of the input, once it was read to its end.
    pub fn entries(&self) -> Option<u64> {
        let totals = self.totals();
        let taken = self.0.handed_out.load(Ordering::Relaxed) + self.waiting();
        let read = taken + totals.before.all() + totals.skipped;
        self.0.input.ended.load(Ordering::Relaxed).then_some(read)
    }

    /// Whether the outcome of every job that has one is written.
    pub fn is_written(&self) -> bool {
        self.0.written.load(Ordering::Relaxed) >= self.totals().settled()
    }

    pub(super) fn settled(&self, kind: Kind) {
        let count = match kind {
            Kind::Delivered => &self.0.settled.delivered,
            Kind::Dead => &self.0.settled.dead,
            Kind::Rejected => &self.0.settled.rejected,
            Kind::Cancelled => &self.0.settled.cancelled,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn skipped(&self) {
        self.0.skipped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn returned(&self) {
        self.0.returned.fetch_add(1, Ordering::Relaxed);
    }

    /// A job that an earlier run was done with.
    pub(super) fn done_before(&self, done: Done) {
        let count = match done {
            Done::Delivered => &self.0.before.delivered,
            Done::Cancelled => &self.0.before.cancelled,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn handed_out(&self) {
        self.0.handed_out.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn written(&self, outcomes: usize) {
        self.0.written.fetch_add(outcomes as u64, Ordering::Relaxed);
    }

    pub(super) fn blank(&self, rows: u64) {
        self.0.input.blank.store(rows, Ordering::Relaxed);
    }

    pub(super) fn later(&self, jobs: u64) {
        self.0.input.later.store(jobs, Ordering::Relaxed);
    }

    pub(super) fn held(&self, is_held: bool) {
        self.0.input.held.store(is_held, Ordering::Relaxed);
    }

    /// A job that was read, and is lost to this run.
    pub(super) fn lost(&self) {
        self.handed_out();
        self.returned();
    }

    pub(super) fn ended(&self) {
        self.0.input.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn mismatched(&self) {
        self.0.input.mismatched.store(true, Ordering::Relaxed);
    }

    pub(super) fn unreadable(&self) {
        self.0.input.unreadable.store(true, Ordering::Relaxed);
    }
}

/// The counts of the outcomes of all lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Jobs that were delivered.
    pub delivered: u64,
    /// Jobs whose failure is final.
    pub dead: u64,
    /// Jobs that were refused, either before any release or by limits that police.
    pub rejected: u64,
    /// Jobs that an operator cancelled.
    pub cancelled: u64,
    /// Lines that are no job.
    pub skipped: u64,
    /// Jobs that were read and then given up, because the pipe was stopped: some of them may have
    /// been sent.
    pub returned: u64,
    /// Jobs that are not sent, since earlier runs were done with them.
    pub before: Before,
    /// Rows of a table without any text, which are passed over.
    pub blank: u64,
    /// What is wrong with the input as a whole.
    pub bad_input: Option<BadInput>,
}

/// Jobs that earlier runs were done with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Jobs that were delivered.
    pub delivered: u64,
    /// Jobs that an operator cancelled.
    pub cancelled: u64,
}

impl Before {
    const fn all(self) -> u64 {
        self.delivered + self.cancelled
    }
}

/// What is wrong with an input as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadInput {
    /// It broke off.
    Unreadable,
    /// It is not that of the outcomes to continue from.
    Mismatched,
}

impl Totals {
    /// Jobs that have an outcome.
    pub const fn settled(&self) -> u64 {
        self.delivered + self.dead + self.rejected + self.cancelled
    }

    /// Lines that are done with: they have an outcome of this run, or one that an earlier run was done with, or are no job.
    pub const fn done(&self) -> u64 {
        self.settled() + self.before.all() + self.skipped
    }

    /// Whether every line was a job, and this run delivered every job that no earlier run was done with.
    pub const fn is_clean(&self) -> bool {
        let Self {
            delivered: _,
            dead,
            rejected,
            cancelled,
            skipped,
            returned,
            before: _,
            blank: _,
            bad_input,
        } = *self;
        let failed = dead + rejected + cancelled + skipped + returned;
        failed == 0 && bad_input.is_none()
    }
}
