//! Those who hold a slot and wait for it, in the order of the slots: pure.

use std::collections::VecDeque;
use std::time::Duration;

use crate::pace::Waiter;
use crate::time::{Deadline, Micros};

/// A waiter with its slot.
#[derive(Debug)]
pub(crate) struct Held<W> {
    pub(crate) waiter: W,
    /// On the store's clock.
    pub(crate) slot: Micros,
    /// The slot on this process's clock, never early.
    pub(crate) deadline: Deadline,
}

/// Those who hold a slot of one downstream.
///
/// Slots are granted in rising order, so that a waiter nearly always goes to the back.
#[derive(Debug)]
pub(crate) struct HeldQueue<W>(VecDeque<Held<W>>);

impl<W> Default for HeldQueue<W> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<W: Waiter> HeldQueue<W> {
    pub(crate) fn push(&mut self, held: Held<W>) {
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
    pub(crate) fn next_due(&self) -> Option<Deadline> {
        self.0.front().map(|held| held.deadline)
    }

    /// Takes the first one if its slot has come by `now`.
    pub(crate) fn pop_due(&mut self, now: Deadline) -> Option<Held<W>> {
        self.next_due().filter(|due| *due <= now).and_then(|_| self.0.pop_front())
    }

    /// How many slots lie within `span` of the last one: those that will be in flight together if each takes that
    /// long.
    pub(crate) fn within(&self, span: Duration) -> usize {
        let Some(last) = self.0.back() else { return 0 };
        let together = |held: &Held<W>| last.deadline.since(held.deadline) >= span;
        self.0.len() - self.0.partition_point(together)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Drops those for whom nobody waits any more; returns how many.
    pub(crate) fn drop_stale(&mut self) -> usize {
        let before = self.0.len();
        self.0.retain(|held| held.waiter.is_live());
        before - self.0.len()
    }

    /// Takes those whose slots are to be given up, in the order of their slots.
    pub(crate) fn take(&mut self, given_up: impl Fn(&Held<W>) -> bool) -> Vec<W> {
        let mut taken = Vec::new();
        if self.0.iter().any(&given_up) {
            for held in std::mem::take(&mut self.0) {
                if given_up(&held) {
                    taken.push(held.waiter);
                } else {
                    self.0.push_back(held);
                }
            }
        }
        taken
    }

    /// Takes all, in the order of their slots.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = W> {
        self.0.drain(..).map(|held| held.waiter)
    }
}
