//! What waits for a slot: first in, first out within each plan and priority.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::retry::Tries;
use super::source::Ticket;
use crate::job::Job;

/// A job in this replica's hands, with the right to settle it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Arc<Job>,
    /// The job's id is its producer's. Otherwise it was made up here, and again with each delivery.
    pub(super) has_own_id: bool,
    pub(super) ticket: Box<dyn Ticket>,
    /// What became of the attempts at it so far.
    pub(super) tries: Tries,
    /// When it could have gone, had there been a slot.
    pub(super) since: Instant,
    /// Its place in the order of arrival, which it keeps when it comes back.
    pub(super) seq: u64,
}

/// The place of a job in its queue: by falling priority, then arrival.
type Place = (u8, u64);

/// The jobs of one downstream that may go now, and those that may go later.
#[derive(Debug)]
pub(super) struct Lane {
    /// A queue for the jobs without a plan, and one for each plan. A job that comes back takes its
    /// old place.
    ready: Vec<BTreeMap<Place, Entry>>,
    /// Retries in backoff and `paced-not-before`, by when they are due.
    later: BTreeMap<(Instant, u64), Entry>,
    /// Jobs that wait for the end of a window while jobs that cost less go, by when that is.
    aside: BTreeMap<(Instant, u64), Entry>,
}

impl Lane {
    /// With queues for so many plans.
    pub(super) fn new(plans: usize) -> Self {
        Self {
            ready: (0..=plans).map(|_| BTreeMap::new()).collect(),
            later: BTreeMap::new(),
            aside: BTreeMap::new(),
        }
    }

    pub(super) fn push(&mut self, entry: Entry) {
        // There is a queue for every plan that a job can be decoded with.
        let queue = entry.job.plan.map_or(0, |plan| plan + 1).min(self.ready.len() - 1);
        self.ready[queue].insert((9 - entry.job.priority.min(9), entry.seq), entry);
    }

    pub(super) fn push_later(&mut self, due: Instant, mut entry: Entry) {
        entry.since = due;
        self.later.insert((due, entry.seq), entry);
    }

    /// Puts a job aside until its window ends then: others go meanwhile.
    pub(super) fn put_aside(&mut self, ends: Instant, entry: Entry) {
        self.aside.insert((ends, entry.seq), entry);
    }

    /// Moves those whose windows end by then back to where they may go.
    pub(super) fn take_back(&mut self, by: Instant) {
        while let Some(first) = self.aside.first_entry().filter(|first| first.key().0 <= by) {
            let entry = first.remove();
            self.push(entry);
        }
    }

    /// Moves all that were put aside back to where they may go.
    pub(super) fn take_all_back(&mut self) {
        std::mem::take(&mut self.aside).into_values().for_each(|entry| self.push(entry));
    }

    /// Moves what is due by `now` to where it may go; what waits for the end of a window so much earlier.
    pub(super) fn promote(&mut self, now: Instant, early: Duration) {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let entry = first.remove();
            self.push(entry);
        }
        self.take_back(now + early);
    }

    /// When the next job is due that may not go yet, as [`Lane::promote`] has it.
    pub(super) fn next_due(&self, early: Duration) -> Option<Instant> {
        let later = self.later.first_key_value().map(|((due, _), _)| *due);
        let aside =
            self.aside.first_key_value().map(|((ends, _), _)| ends.checked_sub(early).unwrap_or(*ends));
        later.into_iter().chain(aside).min()
    }

    /// The place of the job in this queue whose turn it is.
    pub(super) fn first(&self, queue: usize) -> Option<Place> {
        self.ready[queue].first_key_value().map(|(place, _)| *place)
    }

    /// Takes the job in this queue whose turn it is.
    pub(super) fn pop(&mut self, queue: usize) -> Option<Entry> {
        self.ready[queue].pop_first().map(|(_, entry)| entry)
    }

    /// How many of this queue may go now.
    pub(super) fn ready(&self, queue: usize) -> usize {
        self.ready[queue].len()
    }

    /// How many there are, ready or not.
    pub(super) fn len(&self) -> usize {
        self.ready.iter().map(BTreeMap::len).sum::<usize>() + self.later.len() + self.aside.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets the jobs whose connection is gone.
    pub(super) fn drop_stale(&mut self) {
        self.ready.iter_mut().for_each(|queue| queue.retain(|_, entry| entry.ticket.is_live()));
        self.later.retain(|_, entry| entry.ticket.is_live());
        self.aside.retain(|_, entry| entry.ticket.is_live());
    }

    /// Empties the lane.
    pub(super) fn drain(&mut self) -> Vec<Entry> {
        let ready = self.ready.iter_mut().flat_map(|queue| std::mem::take(queue).into_values());
        let later = std::mem::take(&mut self.later).into_values();
        ready.chain(later).chain(std::mem::take(&mut self.aside).into_values()).collect()
    }
}
