//! What holds a slot and waits for it, in the order of the slots: pure.

use std::collections::VecDeque;
use std::time::Duration;

use super::lane::Entry;
use crate::time::{Deadline, Micros};

/// A job with its slot.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) entry: Entry,
    /// On the store's clock.
    pub(super) slot: Micros,
    /// The slot on this process's clock, never early.
    pub(super) deadline: Deadline,
}

/// The jobs of one downstream that hold a slot.
///
/// Slots are granted in rising order, so a job nearly always goes to the back.
#[derive(Debug, Default)]
pub(super) struct Queue(VecDeque<Held>);

impl Queue {
    pub(super) fn push(&mut self, held: Held) {
        let deadline = held.deadline;
        let place = match self.0.back() {
            Some(last) if last.deadline > deadline => {
                self.0.partition_point(|other| other.deadline <= deadline)
            }
            _ => self.0.len(),
        };
        self.0.insert(place, held);
    }

    /// When the first slot comes.
    pub(super) fn next_due(&self) -> Option<Deadline> {
        self.0.front().map(|held| held.deadline)
    }

    /// Takes the first job if its slot has come by `now`.
    pub(super) fn pop_due(&mut self, now: Deadline) -> Option<Held> {
        self.next_due().filter(|due| *due <= now).and_then(|_| self.0.pop_front())
    }

    /// How many slots lie within `span` of the last one: the jobs that will be in flight together if
    /// each takes that long.
    pub(super) fn within(&self, span: Duration) -> usize {
        let Some(last) = self.0.back() else { return 0 };
        let together = |held: &Held| last.deadline.since(held.deadline) >= span;
        self.0.len() - self.0.partition_point(together)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets the jobs whose connection is gone; how many.
    pub(super) fn drop_stale(&mut self) -> usize {
        let before = self.0.len();
        self.0.retain(|held| held.entry.ticket.is_live());
        before - self.0.len()
    }

    /// Takes those that are to be given up, in the order of their slots.
    pub(super) fn take(&mut self, given_up: impl Fn(&Held) -> bool) -> Vec<Entry> {
        let mut taken = Vec::new();
        if self.0.iter().any(&given_up) {
            for held in std::mem::take(&mut self.0) {
                if given_up(&held) {
                    taken.push(held.entry);
                } else {
                    self.0.push_back(held);
                }
            }
        }
        taken
    }

    /// Takes all, in the order of their slots.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        self.0.drain(..).map(|held| held.entry)
    }
}
