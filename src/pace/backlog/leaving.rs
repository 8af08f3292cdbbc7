//! The waiters that leave a backlog without a request of slots for them.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{Backlog, PURGE_THRESHOLD, Position};
use crate::pace::{LaneId, Waiter};

impl<W: Waiter> Backlog<W> {
    /// Records that a waiter which was taken out to request a slot for it has left.
    pub(crate) const fn note_left(&mut self) {
        self.has_left = true;
    }

    /// Returns whether waiters have left since the last call.
    pub(crate) const fn take_left(&mut self) -> bool {
        std::mem::replace(&mut self.has_left, false)
    }

    /// Takes a waiter that has given up by `now`, among those that are ready or were put aside.
    pub(crate) fn take_ended(&mut self, now: Instant) -> Option<W> {
        while self.ends.first().is_some_and(|(at, ..)| *at <= now) {
            let (_, position, row) = self.ends.pop_first()?;
            let ready = self.ready[row].remove(&position);
            let ready = self.left(row, ready);
            let ended = ready.or_else(|| remove_seq(&mut self.aside, position.1));
            if ended.is_some() {
                self.has_left = true;
                return ended;
            }
        }
        None
    }

    /// Takes the last ready waiter of this lane.
    pub(crate) fn pop_last(&mut self, lane: LaneId) -> Option<W> {
        let last = self.ready.get_mut(lane.row())?.pop_last().map(|(_, waiter)| waiter);
        self.left(lane.row(), last)
    }

    /// Drops the stale waiters at the head of this lane.
    pub(crate) fn drop_stale_first(&mut self, lane: LaneId) {
        while self.pop_if(lane, |first| !first.is_live()).is_some() {}
    }

    /// Takes the first ready waiter of this lane, if it satisfies the condition.
    pub(crate) fn pop_if(&mut self, lane: LaneId, is_meant: impl FnOnce(&W) -> bool) -> Option<W> {
        let first = self.ready.get_mut(lane.row())?.first_entry()?;
        let meant = is_meant(first.get()).then(|| first.remove());
        self.left(lane.row(), meant)
    }

    /// Takes the waiter with this lane, priority and position in the order of arrival, if it is in the backlog.
    pub(crate) fn remove(&mut self, lane: LaneId, priority: u8, seq: u64) -> Option<W> {
        let row = self.row(lane);
        let ready = self.ready[row].remove(&(9 - priority.min(9), seq));
        if ready.is_some() {
            return self.left(row, ready);
        }
        let found = remove_seq(&mut self.later, seq);
        let found = found.or_else(|| remove_seq(&mut self.aside, seq));
        self.has_left |= found.is_some();
        self.forget_end(row, found)
    }

    /// Drops all stale waiters.
    pub(crate) fn drop_stale(&mut self) {
        self.change_all(|lane| lane.retain(|_, waiter| waiter.is_live()));
        self.later.retain(|_, waiter| waiter.is_live());
        self.aside.retain(|_, waiter| waiter.is_live());
        self.forget_missing();
        self.has_left = true;
        self.purge_threshold = (2 * self.len()).max(PURGE_THRESHOLD);
    }

    /// Takes the waiters that `is_meant` selects, ready or not.
    pub(crate) fn take(&mut self, is_meant: impl Fn(&W) -> bool) -> Vec<W> {
        let mut taken = Vec::new();
        self.change_all(|lane| take(lane, &is_meant, &mut taken));
        [&mut self.later, &mut self.aside].into_iter().for_each(|others| take(others, &is_meant, &mut taken));
        if !taken.is_empty() {
            self.has_left = true;
            self.forget_missing();
        }
        taken
    }

    /// Takes all waiters.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        self.ends.clear();
        self.movable.clear();
        self.has_left = true;
        let mut all = Vec::with_capacity(self.len());
        self.change_all(|lane| all.extend(std::mem::take(lane).into_values()));
        all.extend(std::mem::take(&mut self.later).into_values());
        all.extend(std::mem::take(&mut self.aside).into_values());
        all
    }

    /// Counts a waiter that was taken out of this row and has left, and forgets when it gives up.
    fn left(&mut self, row: usize, waiter: Option<W>) -> Option<W> {
        self.has_left |= waiter.is_some();
        if self.rows.grow && self.ready[row].is_empty() {
            self.rows.touched.insert(row);
        }
        self.taken(row, waiter)
    }

    /// Takes waiters out of each row, without a request of slots for them.
    fn change_all(&mut self, mut change: impl FnMut(&mut BTreeMap<Position, W>)) {
        for (row, lane) in self.ready.iter_mut().enumerate().filter(|(_, lane)| !lane.is_empty()) {
            change(lane);
            self.rows.touched.extend((self.rows.grow && lane.is_empty()).then_some(row));
        }
        self.rows.ready = self.ready.iter().map(BTreeMap::len).sum();
    }

    /// Forgets the ends of waiters that are not here any more, and whether these may wait elsewhere.
    fn forget_missing(&mut self) {
        self.movable.retain(|position| self.later.contains_key(position));
        let (ready, aside): (_, BTreeSet<u64>) =
            (&self.ready, self.aside.keys().map(|(_, seq)| *seq).collect());
        self.ends
            .retain(|(_, position, row)| ready[*row].contains_key(position) || aside.contains(&position.1));
    }
}

/// Removes the waiter with this position in the order of arrival.
fn remove_seq<W>(waiters: &mut BTreeMap<(Instant, u64), W>, seq: u64) -> Option<W> {
    let position = waiters.keys().find(|(_, other)| *other == seq).copied()?;
    waiters.remove(&position)
}

/// Moves the waiters that `is_meant` selects into `taken`.
fn take<K: Copy + Ord, W>(waiters: &mut BTreeMap<K, W>, is_meant: impl Fn(&W) -> bool, taken: &mut Vec<W>) {
    let meant = waiters.iter().filter(|(_, waiter)| is_meant(waiter)).map(|(position, _)| *position);
    for position in meant.collect::<Vec<K>>() {
        taken.extend(waiters.remove(&position));
    }
}
