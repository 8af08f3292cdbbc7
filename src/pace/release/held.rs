//! The waiters that hold a slot, in the order of the slots. It is pure.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limit::JobCost;
use crate::pace::{LaneId, Waiter};
use crate::time::{Deadline, Micros};

/// A waiter with its slot.
#[derive(Debug)]
pub(crate) struct Held<W> {
    pub(crate) waiter: W,
    /// The slot on the store's clock.
    pub(crate) slot: Micros,
    /// The slot on this process's clock, never early.
    pub(crate) deadline: Deadline,
}

/// A slot that its waiter does not use, with the lane and cost that it was granted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unused {
    pub(crate) lane: LaneId,
    pub(crate) cost: JobCost,
    pub(crate) slot: Micros,
    pub(crate) deadline: Deadline,
}

impl Unused {
    /// Returns the slot of this held waiter.
    pub(crate) fn of<W: Waiter>(held: &Held<W>) -> Self {
        let (lane, cost) = (held.waiter.lane(), held.waiter.cost());
        Self { lane, cost, slot: held.slot, deadline: held.deadline }
    }
}

/// The waiters that hold a slot of one downstream.
///
/// Slots are granted in ascending order, so a waiter is nearly always added at the back.
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
        let index = match self.0.back() {
            Some(last) if last.deadline > deadline => {
                self.0.partition_point(|other| other.deadline <= deadline)
            }
            _ => self.0.len(),
        };
        self.0.insert(index, held);
    }

    /// Returns the waiter with the first slot.
    pub(crate) fn first(&self) -> Option<&Held<W>> {
        self.0.front()
    }

    /// Returns the instant of the first slot.
    pub(crate) fn next_due(&self) -> Option<Deadline> {
        self.0.front().map(|held| held.deadline)
    }

    /// Takes the first waiter if its slot has come by `now`.
    pub(crate) fn pop_due(&mut self, now: Deadline) -> Option<Held<W>> {
        self.next_due().filter(|due| *due <= now).and_then(|_| self.0.pop_front())
    }

    /// Returns how many slots lie within `span` of the last one. Those will be in flight together if each send takes
    /// that long.
    pub(crate) fn within(&self, span: Duration) -> usize {
        let Some(last) = self.0.back() else { return 0 };
        let together = |held: &Held<W>| last.deadline.since(held.deadline) >= span;
        self.0.len() - self.0.partition_point(together)
    }

    /// Returns all slots, in their order.
    pub(crate) fn unused(&self) -> Vec<Unused>
    where
        W: Waiter,
    {
        self.0.iter().map(Unused::of).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the waiters with their slots, in the order of the slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held<W>> {
        self.0.iter()
    }

    /// Returns the positions in the order of arrival of the waiters that `is_meant` selects, in the order of their
    /// slots.
    pub(crate) fn positions(&self, is_meant: impl Fn(&W) -> bool) -> Vec<u64> {
        let meant = self.0.iter().filter(|held| is_meant(&held.waiter));
        meant.map(|held| held.waiter.seq()).collect()
    }

    /// Takes out the waiter with this position in the order of arrival. The waiters behind it with the same lane and
    /// cost each move up to the preceding slot; the last of these slots is returned with the waiter.
    pub(crate) fn remove(&mut self, seq: u64) -> Option<Held<W>> {
        let index = self.0.iter().position(|held| held.waiter.seq() == seq)?;
        let removed = self.0.remove(index)?;
        let Unused { slot, deadline, .. } = self.close_up(Unused::of(&removed));
        Some(Held { slot, deadline, ..removed })
    }

    /// Moves each waiter behind a slot, with the same lane and cost, up to the preceding slot. Returns the last of
    /// these slots.
    pub(crate) fn close_up(&mut self, mut unused: Unused) -> Unused {
        let Unused { lane, cost, slot: from, .. } = unused;
        let mut behind = false;
        for held in &mut self.0 {
            if held.slot > from && (held.waiter.lane(), held.waiter.cost()) == (lane, cost) {
                std::mem::swap(&mut held.slot, &mut unused.slot);
                std::mem::swap(&mut held.deadline, &mut unused.deadline);
                behind = true;
            }
        }
        if behind {
            // The sort is stable: waiters of other lanes keep their order.
            self.0.make_contiguous().sort_by_key(|held| held.deadline);
        }
        unused
    }

    /// Takes the waiters whose slots are to be given up, in the order of their slots.
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

    /// Takes all waiters, in the order of their slots.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = W> {
        self.0.drain(..).map(|held| held.waiter)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::pace::{Caller, LaneId};

    const MS: Duration = Duration::from_millis(1);

    /// Returns the number of each waiter with its slot, in µs on the store's clock.
    fn held(queue: &HeldQueue<Caller>) -> Vec<(u64, i64)> {
        queue.0.iter().map(|held| (held.waiter.seq(), held.slot.0)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn those_behind_one_that_is_taken_out_move_up() {
        let (start, mut queue, plan) = (Instant::now(), HeldQueue::default(), LaneId::of_plan(Some(0)));
        for (seq, cost, lane) in [
            (0, 1, LaneId::DOWNSTREAM),
            (1, 1, LaneId::DOWNSTREAM),
            (2, 5, LaneId::DOWNSTREAM),
            (3, 1, plan),
            (4, 1, LaneId::DOWNSTREAM),
            (5, 1, LaneId::DOWNSTREAM),
        ] {
            let slot = 10 * seq;
            let deadline = Deadline::at(start + MS * u32::try_from(slot).unwrap());
            let waiter = Caller::new(seq).cost(cost).lane(lane);
            queue.push(Held { waiter, slot: Micros(slot.cast_signed()), deadline });
        }
        let left = queue.remove(1).unwrap();
        assert_eq!(
            (left.waiter.seq(), left.slot),
            (1, Micros(50)),
            "the last slot that others could not use"
        );
        assert_eq!(left.deadline, Deadline::at(start + 50 * MS));
        assert_eq!(held(&queue), [(0, 0), (4, 10), (2, 20), (3, 30), (5, 40)]);
        assert!(queue.0.iter().all(|held| held.deadline == Deadline::at(start + MS * held.slot.0 as u32)));
        let left = queue.remove(2).unwrap();
        assert_eq!((left.waiter.seq(), left.slot), (2, Micros(20)), "nobody else costs as much");
        assert_eq!(held(&queue), [(0, 0), (4, 10), (3, 30), (5, 40)]);
        assert!(queue.remove(1).is_none());
    }
}
