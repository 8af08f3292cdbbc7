//! What waits for a slot: first in, first out within each priority.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::source::Ticket;
use crate::job::Job;

/// A job in this replica's hands, with the right to settle it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Job,
    pub(super) ticket: Box<dyn Ticket>,
    /// Handed to the sink so often.
    pub(super) attempts: u32,
    /// When it could have gone, had there been a slot.
    pub(super) since: Instant,
    /// Its place in the order of arrival, which it keeps when it comes back.
    pub(super) seq: u64,
}

/// The jobs of one downstream that may go now, and those that may go later.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// By falling priority, then arrival: a job that comes back takes its old place.
    ready: BTreeMap<(u8, u64), Entry>,
    /// Retries in backoff and `paced-not-before`, by when they are due.
    later: BTreeMap<(Instant, u64), Entry>,
}

impl Lane {
    pub(super) fn push(&mut self, entry: Entry) {
        self.ready.insert((9 - entry.job.priority.min(9), entry.seq), entry);
    }

    pub(super) fn push_later(&mut self, due: Instant, mut entry: Entry) {
        entry.since = due;
        self.later.insert((due, entry.seq), entry);
    }

    /// Moves what is due by `now` to where it may go.
    pub(super) fn promote(&mut self, now: Instant) {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let entry = first.remove();
            self.push(entry);
        }
    }

    /// When the next job is due that may not go yet.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((due, _), _)| *due)
    }

    /// Takes the job whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        self.ready.pop_first().map(|(_, entry)| entry)
    }

    /// How many may go now.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// How many there are, ready or not.
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.later.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets the jobs whose connection is gone.
    pub(super) fn drop_stale(&mut self) {
        self.ready.retain(|_, entry| entry.ticket.is_live());
        self.later.retain(|_, entry| entry.ticket.is_live());
    }

    /// Empties the lane.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        let ready = std::mem::take(&mut self.ready).into_values();
        ready.chain(std::mem::take(&mut self.later).into_values())
    }
}
