//! The waiters without a slot, first in, first out within each lane and priority.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{End, LaneId, Waiter};

mod leaving;

/// Below this number of waiters, stale ones are not purged.
const PURGE_THRESHOLD: usize = 1024;

/// The position of a waiter in its lane: by descending priority, then by arrival.
type Position = (u8, u64);

/// The waiters of one downstream that have no slot yet: those that may have one now, and those that may have one
/// later.
#[derive(Debug)]
pub(crate) struct Backlog<W> {
    /// The ready waiters of each lane. A waiter that returns takes its old position.
    ready: Vec<BTreeMap<Position, W>>,
    /// The waiters that are not ready yet, by the instant at which they become ready.
    later: BTreeMap<(Instant, u64), W>,
    /// Those of them that may wait elsewhere.
    movable: BTreeSet<(Instant, u64)>,
    /// The waiters that wait for the end of a window while cheaper ones are granted slots, by the end of the window.
    aside: BTreeMap<(Instant, u64), W>,
    /// When the waiters give up that are ready or were put aside, with their positions and the rows of their lanes.
    /// Waiters that never give up are not in it.
    ends: BTreeSet<(Instant, Position, usize)>,
    /// The length from which stale waiters are purged.
    purge_threshold: usize,
    /// Whether waiters have left without a request of slots for them.
    has_left: bool,
    rows: Rows,
}

/// Where a waiter is in a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// It may have a slot now.
    Ready,
    /// It may have one from this instant on.
    Later(Instant),
    /// It waits for the end of a window at this instant, while cheaper ones are granted slots.
    Aside(Instant),
}

/// The rows of a backlog.
#[derive(Debug, Default)]
struct Rows {
    /// Whether there is a row for each lane that has had waiters, however many these are. Otherwise only the
    /// downstream and each plan have one.
    grow: bool,
    /// The number of waiters in all of them.
    ready: usize,
    /// The rows to which waiters were added, or whose last waiter has left, since the last call of
    /// [`Backlog::take_touched`], if rows grow.
    touched: BTreeSet<usize>,
}

impl<W: Waiter> Backlog<W> {
    /// Creates an empty backlog with the downstream's own lane and one lane for each plan.
    pub(crate) fn new(plans: usize) -> Self {
        Self {
            ready: (0..=plans).map(|_| BTreeMap::new()).collect(),
            later: BTreeMap::new(),
            movable: BTreeSet::new(),
            aside: BTreeMap::new(),
            ends: BTreeSet::new(),
            purge_threshold: PURGE_THRESHOLD,
            has_left: false,
            rows: Rows::default(),
        }
    }

    /// Adds a row for each lane that gets waiters.
    pub(crate) fn with_rows_for_lanes(mut self) -> Self {
        self.rows.grow = true;
        self
    }

    /// Returns the rows to which waiters were added, or whose last waiter has left, since the last call, if there is
    /// one for each lane.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<usize> {
        std::mem::take(&mut self.rows.touched)
    }

    /// Whether [`Backlog::take_touched`] has any.
    pub(crate) fn has_touched(&self) -> bool {
        !self.rows.touched.is_empty()
    }

    /// The row of a lane. Every plan that a decoded job can have has one.
    fn row(&mut self, lane: LaneId) -> usize {
        if self.rows.grow && lane.row() >= self.ready.len() {
            self.ready.resize_with(lane.row() + 1, BTreeMap::new);
        }
        lane.row().min(self.ready.len() - 1)
    }

    /// Whether any waiter is ready, or was put aside until a window ends.
    pub(crate) fn has_ready(&self) -> bool {
        !self.aside.is_empty() || self.rows.ready > 0
    }

    /// Adds a waiter that is ready now.
    pub(crate) fn push(&mut self, waiter: W) {
        let row = self.row(waiter.lane());
        let (position, end) = (position(&waiter), waiter.end());
        // A stale waiter may have the same position.
        let replaced = self.ready[row].insert(position, waiter);
        self.rows.ready += 1;
        if self.rows.grow {
            self.rows.touched.insert(row);
        }
        drop(self.taken(row, replaced));
        self.ends.extend(end.map(|end| (end.at, position, row)));
    }

    /// Adds a waiter that becomes ready at `due`, or when it gives up.
    pub(crate) fn push_later(&mut self, due: Instant, mut waiter: W) {
        let due = or_end(due, &waiter);
        waiter.request_mut().since = due;
        let position = (due, waiter.seq());
        self.movable.extend(waiter.may_wait_elsewhere().then_some(position));
        self.later.insert(position, waiter);
    }

    /// Returns when the last waiter becomes ready, among those that are not ready yet and may wait elsewhere.
    pub(crate) fn last_due(&self) -> Option<Instant> {
        self.movable.last().map(|(due, _)| *due)
    }

    /// Takes the last of these waiters, at most this many, that become ready after `after`, in their order.
    pub(crate) fn take_last(&mut self, after: Instant, most: usize) -> Vec<(Instant, W)> {
        let mut taken = Vec::new();
        while taken.len() < most && self.last_due().is_some_and(|due| due > after) {
            let Some(position) = self.movable.pop_last() else { break };
            taken.extend(self.later.remove(&position).map(|waiter| (position.0, waiter)));
        }
        taken.reverse();
        taken
    }

    /// Puts a waiter aside until its window ends; others may have slots meanwhile.
    pub(crate) fn put_aside(&mut self, ends: Instant, waiter: W) {
        let row = self.row(waiter.lane());
        self.ends.extend(waiter.end().map(|end| (end.at, position(&waiter), row)));
        self.aside.insert((ends, waiter.seq()), waiter);
    }

    /// Makes the waiters ready whose windows end by this instant.
    pub(crate) fn take_back(&mut self, by: Instant) {
        while let Some(first) = self.aside.first_entry().filter(|first| first.key().0 <= by) {
            let waiter = first.remove();
            self.push(waiter);
        }
    }

    /// Makes all waiters ready that were put aside.
    pub(crate) fn take_all_back(&mut self) {
        std::mem::take(&mut self.aside).into_values().for_each(|waiter| self.push(waiter));
    }

    /// Makes the waiters ready that are due at `now`, and those whose window ends at most `early` later.
    pub(crate) fn tick(&mut self, now: Instant, early: Duration) {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let (position, waiter) = first.remove_entry();
            self.movable.remove(&position);
            self.push(waiter);
        }
        self.take_back(now + early);
    }

    /// Returns the instant at which [`Backlog::tick`] makes the next waiter ready.
    pub(crate) fn wake_at(&self, early: Duration) -> Option<Instant> {
        let later = self.later.first_key_value().map(|((due, _), _)| *due);
        let aside =
            self.aside.first_key_value().map(|((ends, _), _)| ends.checked_sub(early).unwrap_or(*ends));
        let ends = self.ends.first().map(|(at, ..)| *at);
        later.into_iter().chain(aside).chain(ends).min()
    }

    /// Whether any ready waiter gives up at some time.
    pub(crate) fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Returns when the last ready waiter of this lane gives up, if it does.
    pub(crate) fn end_of_last(&self, lane: LaneId) -> Option<End> {
        self.ready.get(lane.row())?.last_key_value().and_then(|(_, waiter)| waiter.end())
    }

    /// Counts a waiter that was taken out of this row, and forgets when it gives up.
    fn taken(&mut self, row: usize, waiter: Option<W>) -> Option<W> {
        self.rows.ready -= usize::from(waiter.is_some());
        self.forget_end(row, waiter)
    }

    /// Forgets when a waiter that was taken out gives up.
    fn forget_end(&mut self, row: usize, waiter: Option<W>) -> Option<W> {
        if let Some((end, position)) =
            waiter.as_ref().and_then(|waiter| Some((waiter.end()?, position(waiter))))
        {
            self.ends.remove(&(end.at, position, row));
        }
        waiter
    }

    /// Returns the position of the first ready waiter of this lane.
    pub(crate) fn first(&self, lane: LaneId) -> Option<Position> {
        self.ready.get(lane.row())?.first_key_value().map(|(position, _)| *position)
    }

    /// Takes the first ready waiter of this lane.
    pub(crate) fn pop(&mut self, lane: LaneId) -> Option<W> {
        let first = self.ready.get_mut(lane.row())?.pop_first().map(|(_, waiter)| waiter);
        self.taken(lane.row(), first)
    }

    /// Returns the number of ready waiters of this lane.
    pub(crate) fn ready(&self, lane: LaneId) -> usize {
        self.ready.get(lane.row()).map_or(0, BTreeMap::len)
    }

    /// Returns the number of ready waiters of all lanes.
    pub(crate) const fn all_ready(&self) -> usize {
        self.rows.ready
    }

    /// Returns the number of all waiters, ready or not.
    pub(crate) fn len(&self) -> usize {
        self.rows.ready + self.later.len() + self.aside.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the waiters that are not ready yet.
    pub(crate) fn later(&self) -> impl Iterator<Item = &W> {
        self.later.values()
    }

    /// Returns the instant at which the next of these becomes ready.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((due, _), _)| *due)
    }

    /// Returns the lowest position in the order of arrival of the waiters that are ready or were put aside.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let ready = self.ready.iter().flat_map(first_of_each_priority);
        ready.chain(self.aside.keys().map(|(_, seq)| *seq)).min()
    }

    /// Returns the lowest position in the order of arrival of the ready waiters of this lane.
    pub(crate) fn oldest_of(&self, lane: LaneId) -> Option<u64> {
        self.ready.get(lane.row()).and_then(|row| first_of_each_priority(row).min())
    }

    /// Returns the number of ready waiters of this lane with a higher priority than this rank, which is 0 for the highest one,
    /// and of those with the same priority.
    pub(crate) fn ranks(&self, lane: LaneId, rank: u8) -> (usize, usize) {
        let Some(row) = self.ready.get(lane.row()) else { return (0, 0) };
        let is_other = |end: Option<(&Position, &W)>| end.is_some_and(|((other, _), _)| *other != rank);
        if !is_other(row.first_key_value()) && !is_other(row.last_key_value()) {
            return (0, row.len());
        }
        (row.range(..(rank, 0)).count(), row.range((rank, 0)..(rank + 1, 0)).count())
    }

    /// Returns the number of ready waiters in the lane of this one that go before it: those with a higher priority, and those
    /// with the same one.
    pub(crate) fn before(&self, waiter: &W) -> (usize, usize) {
        let Some(row) = self.ready.get(waiter.lane().row()) else { return (0, 0) };
        let position = position(waiter);
        (row.range(..(position.0, 0)).count(), row.range((position.0, 0)..position).count())
    }

    /// Returns the first ready waiter of this lane.
    pub(crate) fn first_waiter(&self, lane: LaneId) -> Option<&W> {
        self.ready.get(lane.row())?.first_key_value().map(|(_, waiter)| waiter)
    }

    /// Returns all waiters, and where each is.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Spot, &W)> {
        let ready = self.ready.iter().flat_map(BTreeMap::values).map(|waiter| (Spot::Ready, waiter));
        let later = self.later.iter().map(|((due, _), waiter)| (Spot::Later(*due), waiter));
        let aside = self.aside.iter().map(|((ends, _), waiter)| (Spot::Aside(*ends), waiter));
        ready.chain(later).chain(aside)
    }

    /// Whether the backlog is so long that stale waiters are to be purged.
    pub(crate) fn is_crowded(&self) -> bool {
        self.len() >= self.purge_threshold
    }
}

/// Returns the positions in the order of arrival of the first waiter of each priority of a lane.
fn first_of_each_priority<W>(lane: &BTreeMap<Position, W>) -> impl Iterator<Item = u64> {
    let mut from = Some(0);
    std::iter::from_fn(move || {
        let ((priority, seq), _) = lane.range((from?, 0)..).next()?;
        from = priority.checked_add(1);
        Some(*seq)
    })
}

/// Returns the position of a waiter in its lane.
fn position(waiter: &impl Waiter) -> Position {
    (9 - waiter.priority().min(9), waiter.seq())
}

/// Returns `due`, or the instant at which the waiter gives up if that is earlier.
fn or_end(due: Instant, waiter: &impl Waiter) -> Instant {
    waiter.end().map_or(due, |end| end.at.min(due))
}

#[cfg(test)]
mod tests;
