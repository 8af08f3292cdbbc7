//! The waiters without a slot, first in, first out within each lane and priority.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{End, LaneId, Waiter};

/// Below this number of waiters, stale ones are not purged.
const PURGE_THRESHOLD: usize = 1024;

/// The position of a waiter in its lane: by descending priority, then by arrival.
type Place = (u8, u64);

/// The waiters of one downstream that have no slot yet: those that may have one now, and those that may have one later.
#[derive(Debug)]
pub(crate) struct Backlog<W> {
    /// The ready waiters of each lane. A waiter that returns takes its old position.
    ready: Vec<BTreeMap<Place, W>>,
    /// The waiters that are not ready yet, by the instant at which they become ready.
    later: BTreeMap<(Instant, u64), W>,
    /// Those of them that may wait elsewhere.
    movable: BTreeSet<(Instant, u64)>,
    /// The waiters that wait for the end of a window while cheaper ones are granted slots, by the end of the window.
    aside: BTreeMap<(Instant, u64), W>,
    /// When the waiters give up that do and are ready, or were put aside, with their positions and the rows of their
    /// lanes.
    ends: BTreeSet<(Instant, Place, usize)>,
    /// The length from which on stale waiters are to be purged.
    purge_threshold: usize,
    /// Whether waiters have left, rather than being taken to request slots for them.
    has_left: bool,
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
        }
    }

    /// Records that a waiter has left that was taken to request a slot for it.
    pub(crate) const fn note_left(&mut self) {
        self.has_left = true;
    }

    /// Returns whether waiters have left since the last call.
    pub(crate) const fn take_left(&mut self) -> bool {
        std::mem::replace(&mut self.has_left, false)
    }

    /// Whether any waiter is ready, or was put aside until a window ends.
    pub(crate) fn has_ready(&self) -> bool {
        !self.aside.is_empty() || self.ready.iter().any(|lane| !lane.is_empty())
    }

    /// Adds a waiter that is ready now.
    pub(crate) fn push(&mut self, waiter: W) {
        // Every plan that a decoded job can have has a lane.
        let row = waiter.lane().row().min(self.ready.len() - 1);
        let (place, end) = (place(&waiter), waiter.end());
        // A stale waiter may have the same place.
        let replaced = self.ready[row].insert(place, waiter);
        drop(self.taken(row, replaced));
        self.ends.extend(end.map(|end| (end.at, place, row)));
    }

    /// Adds a waiter that becomes ready at `due`, or when it gives up.
    pub(crate) fn push_later(&mut self, due: Instant, mut waiter: W) {
        let due = or_end(due, &waiter);
        waiter.request_mut().since = due;
        let place = (due, waiter.seq());
        self.movable.extend(waiter.may_wait_elsewhere().then_some(place));
        self.later.insert(place, waiter);
    }

    /// Returns when the last of the waiters becomes ready that are not ready yet and may wait elsewhere.
    pub(crate) fn last_due(&self) -> Option<Instant> {
        self.movable.last().map(|(due, _)| *due)
    }

    /// Takes the last of these waiters, at most this many, that become ready after `after`, in their order.
    pub(crate) fn take_last(&mut self, after: Instant, most: usize) -> Vec<(Instant, W)> {
        let mut taken = Vec::new();
        while taken.len() < most && self.last_due().is_some_and(|due| due > after) {
            let Some(place) = self.movable.pop_last() else { break };
            taken.extend(self.later.remove(&place).map(|waiter| (place.0, waiter)));
        }
        taken.reverse();
        taken
    }

    /// Puts a waiter aside until its window ends; others may have slots meanwhile.
    pub(crate) fn put_aside(&mut self, ends: Instant, waiter: W) {
        let row = waiter.lane().row().min(self.ready.len() - 1);
        self.ends.extend(waiter.end().map(|end| (end.at, place(&waiter), row)));
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
            let (place, waiter) = first.remove_entry();
            self.movable.remove(&place);
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

    /// Takes a waiter that has given up by `now` and is ready, or was put aside.
    pub(crate) fn take_ended(&mut self, now: Instant) -> Option<W> {
        while self.ends.first().is_some_and(|(at, ..)| *at <= now) {
            let (_, place, row) = self.ends.pop_first()?;
            let ready = self.ready[row].remove(&place);
            let ended = ready.or_else(|| remove_seq(&mut self.aside, place.1));
            if ended.is_some() {
                self.has_left = true;
                return ended;
            }
        }
        None
    }

    /// Whether any ready waiter gives up at some time.
    pub(crate) fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Returns when the last ready waiter of this lane gives up, if it does.
    pub(crate) fn end_of_last(&self, lane: LaneId) -> Option<End> {
        self.ready[lane.row()].last_key_value().and_then(|(_, waiter)| waiter.end())
    }

    /// Forgets when a waiter gives up that was taken out of this row.
    fn taken(&mut self, row: usize, waiter: Option<W>) -> Option<W> {
        if let Some((end, place)) = waiter.as_ref().and_then(|waiter| Some((waiter.end()?, place(waiter)))) {
            self.ends.remove(&(end.at, place, row));
        }
        waiter
    }

    /// Returns the position of the first ready waiter of this lane.
    pub(crate) fn first(&self, lane: LaneId) -> Option<Place> {
        self.ready[lane.row()].first_key_value().map(|(place, _)| *place)
    }

    /// Takes the first ready waiter of this lane.
    pub(crate) fn pop(&mut self, lane: LaneId) -> Option<W> {
        let first = self.ready[lane.row()].pop_first().map(|(_, waiter)| waiter);
        self.taken(lane.row(), first)
    }

    /// Takes the last ready waiter of this lane.
    pub(crate) fn pop_last(&mut self, lane: LaneId) -> Option<W> {
        let last = self.ready[lane.row()].pop_last().map(|(_, waiter)| waiter);
        self.has_left |= last.is_some();
        self.taken(lane.row(), last)
    }

    /// Drops the stale waiters at the head of this lane.
    pub(crate) fn drop_stale_first(&mut self, lane: LaneId) {
        while self.pop_if(lane, |first| !first.is_live()).is_some() {}
    }

    /// Takes the first ready waiter of this lane, if it satisfies the condition.
    pub(crate) fn pop_if(&mut self, lane: LaneId, is_meant: impl FnOnce(&W) -> bool) -> Option<W> {
        let first = self.ready[lane.row()].first_entry()?;
        let meant = is_meant(first.get()).then(|| first.remove());
        self.has_left |= meant.is_some();
        self.taken(lane.row(), meant)
    }

    /// Takes the waiter with this lane, priority and position in the order of arrival, if it is in the backlog.
    pub(crate) fn remove(&mut self, lane: LaneId, priority: u8, seq: u64) -> Option<W> {
        let row = lane.row().min(self.ready.len() - 1);
        let ready = self.ready[row].remove(&(9 - priority.min(9), seq));
        let found = ready.or_else(|| remove_seq(&mut self.later, seq));
        let found = found.or_else(|| remove_seq(&mut self.aside, seq));
        self.has_left |= found.is_some();
        self.taken(row, found)
    }

    /// Returns the number of ready waiters of this lane.
    pub(crate) fn ready(&self, lane: LaneId) -> usize {
        self.ready[lane.row()].len()
    }

    /// Returns the number of all waiters, ready or not.
    pub(crate) fn len(&self) -> usize {
        self.ready.iter().map(BTreeMap::len).sum::<usize>() + self.later.len() + self.aside.len()
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

    /// Whether the backlog is so long that stale waiters are to be purged.
    pub(crate) fn is_crowded(&self) -> bool {
        self.len() >= self.purge_threshold
    }

    /// Drops all stale waiters.
    pub(crate) fn drop_stale(&mut self) {
        self.ready.iter_mut().for_each(|lane| lane.retain(|_, waiter| waiter.is_live()));
        self.later.retain(|_, waiter| waiter.is_live());
        self.aside.retain(|_, waiter| waiter.is_live());
        self.forget_missing();
        self.has_left = true;
        self.purge_threshold = (2 * self.len()).max(PURGE_THRESHOLD);
    }

    /// Forgets when waiters give up, and which may wait elsewhere, that are not here any more.
    fn forget_missing(&mut self) {
        self.movable.retain(|place| self.later.contains_key(place));
        let (ready, aside): (_, BTreeSet<u64>) =
            (&self.ready, self.aside.keys().map(|(_, seq)| *seq).collect());
        self.ends.retain(|(_, place, row)| ready[*row].contains_key(place) || aside.contains(&place.1));
    }

    /// Takes the waiters that `is_meant` selects, ready or not.
    pub(crate) fn take(&mut self, is_meant: impl Fn(&W) -> bool) -> Vec<W> {
        let mut taken = Vec::new();
        self.ready.iter_mut().for_each(|lane| take(lane, &is_meant, &mut taken));
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
        let ready = self.ready.iter_mut().flat_map(|lane| std::mem::take(lane).into_values());
        let later = std::mem::take(&mut self.later).into_values();
        ready.chain(later).chain(std::mem::take(&mut self.aside).into_values()).collect()
    }
}

/// Returns the positions in the order of arrival of the first waiter of each priority of a lane.
fn first_of_each_priority<W>(lane: &BTreeMap<Place, W>) -> impl Iterator<Item = u64> {
    let mut from = Some(0);
    std::iter::from_fn(move || {
        let ((priority, seq), _) = lane.range((from?, 0)..).next()?;
        from = priority.checked_add(1);
        Some(*seq)
    })
}

/// Returns the position of a waiter in its lane.
fn place(waiter: &impl Waiter) -> Place {
    (9 - waiter.priority().min(9), waiter.seq())
}

/// Removes the waiter with this position in the order of arrival.
fn remove_seq<W>(waiters: &mut BTreeMap<(Instant, u64), W>, seq: u64) -> Option<W> {
    let place = waiters.keys().find(|(_, other)| *other == seq).copied()?;
    waiters.remove(&place)
}

/// Returns `due`, or the instant at which the waiter gives up if that is earlier.
fn or_end(due: Instant, waiter: &impl Waiter) -> Instant {
    waiter.end().map_or(due, |end| end.at.min(due))
}

/// Moves the waiters that `is_meant` selects into `taken`.
fn take<K: Copy + Ord, W>(waiters: &mut BTreeMap<K, W>, is_meant: impl Fn(&W) -> bool, taken: &mut Vec<W>) {
    let meant = waiters.iter().filter(|(_, waiter)| is_meant(waiter)).map(|(place, _)| *place);
    for place in meant.collect::<Vec<K>>() {
        taken.extend(waiters.remove(&place));
    }
}

#[cfg(test)]
mod tests;
