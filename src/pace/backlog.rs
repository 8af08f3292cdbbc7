//! The waiters without a slot, first in, first out within each lane and priority.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{LaneId, Waiter};

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
    /// The waiters that wait for the end of a window while cheaper ones are granted slots, by the end of the window.
    aside: BTreeMap<(Instant, u64), W>,
    /// The length from which on stale waiters are to be purged.
    purge_threshold: usize,
}

impl<W: Waiter> Backlog<W> {
    /// Creates an empty backlog with the downstream's own lane and one lane for each plan.
    pub(crate) fn new(plans: usize) -> Self {
        Self {
            ready: (0..=plans).map(|_| BTreeMap::new()).collect(),
            later: BTreeMap::new(),
            aside: BTreeMap::new(),
            purge_threshold: PURGE_THRESHOLD,
        }
    }

    /// Adds a waiter that is ready now.
    pub(crate) fn push(&mut self, waiter: W) {
        // Every plan that a decoded job can have has a lane.
        let row = waiter.lane().row().min(self.ready.len() - 1);
        self.ready[row].insert((9 - waiter.priority().min(9), waiter.seq()), waiter);
    }

    /// Adds a waiter that becomes ready at `due`.
    pub(crate) fn push_later(&mut self, due: Instant, mut waiter: W) {
        waiter.request_mut().since = due;
        self.later.insert((due, waiter.seq()), waiter);
    }

    /// Puts a waiter aside until its window ends; others may have slots meanwhile.
    pub(crate) fn put_aside(&mut self, ends: Instant, waiter: W) {
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
            let waiter = first.remove();
            self.push(waiter);
        }
        self.take_back(now + early);
    }

    /// Returns the instant at which [`Backlog::tick`] makes the next waiter ready.
    pub(crate) fn wake_at(&self, early: Duration) -> Option<Instant> {
        let later = self.later.first_key_value().map(|((due, _), _)| *due);
        let aside =
            self.aside.first_key_value().map(|((ends, _), _)| ends.checked_sub(early).unwrap_or(*ends));
        later.into_iter().chain(aside).min()
    }

    /// Returns the position of the first ready waiter of this lane.
    pub(crate) fn first(&self, lane: LaneId) -> Option<Place> {
        self.ready[lane.row()].first_key_value().map(|(place, _)| *place)
    }

    /// Takes the first ready waiter of this lane.
    pub(crate) fn pop(&mut self, lane: LaneId) -> Option<W> {
        self.ready[lane.row()].pop_first().map(|(_, waiter)| waiter)
    }

    /// Takes the last ready waiter of this lane.
    pub(crate) fn pop_last(&mut self, lane: LaneId) -> Option<W> {
        self.ready[lane.row()].pop_last().map(|(_, waiter)| waiter)
    }

    /// Drops the stale waiters at the head of this lane.
    pub(crate) fn drop_stale_first(&mut self, lane: LaneId) {
        while let Some(first) = self.ready[lane.row()].first_entry().filter(|first| !first.get().is_live()) {
            first.remove();
        }
    }

    /// Takes the first ready waiter of this lane, if it satisfies the condition.
    pub(crate) fn pop_if(&mut self, lane: LaneId, is_meant: impl FnOnce(&W) -> bool) -> Option<W> {
        let first = self.ready[lane.row()].first_entry()?;
        is_meant(first.get()).then(|| first.remove())
    }

    /// Takes the waiter with this lane, priority and position in the order of arrival, if it is in the backlog.
    pub(crate) fn remove(&mut self, lane: LaneId, priority: u8, seq: u64) -> Option<W> {
        let row = lane.row().min(self.ready.len() - 1);
        let ready = self.ready[row].remove(&(9 - priority.min(9), seq));
        let among = |others: &mut BTreeMap<(Instant, u64), W>| {
            let place = others.keys().find(|(_, other)| *other == seq).copied()?;
            others.remove(&place)
        };
        ready.or_else(|| among(&mut self.later)).or_else(|| among(&mut self.aside))
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

    /// Whether the backlog is so long that stale waiters are to be purged.
    pub(crate) fn is_crowded(&self) -> bool {
        self.len() >= self.purge_threshold
    }

    /// Drops all stale waiters.
    pub(crate) fn drop_stale(&mut self) {
        self.ready.iter_mut().for_each(|lane| lane.retain(|_, waiter| waiter.is_live()));
        self.later.retain(|_, waiter| waiter.is_live());
        self.aside.retain(|_, waiter| waiter.is_live());
        self.purge_threshold = (2 * self.len()).max(PURGE_THRESHOLD);
    }

    /// Takes all waiters.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        let ready = self.ready.iter_mut().flat_map(|lane| std::mem::take(lane).into_values());
        let later = std::mem::take(&mut self.later).into_values();
        ready.chain(later).chain(std::mem::take(&mut self.aside).into_values()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Caller;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn seqs(callers: Vec<Caller>) -> Vec<u64> {
        callers.into_iter().map(|caller| caller.seq()).collect()
    }

    fn popped(backlog: &mut Backlog<Caller>, lane: LaneId) -> Vec<u64> {
        seqs(std::iter::from_fn(|| backlog.pop(lane)).collect())
    }

    #[test]
    fn within_a_lane_the_higher_priority_goes_first_and_who_comes_back_takes_its_old_place() {
        let (mut backlog, plan) = (Backlog::new(1), LaneId::of_plan(Some(0)));
        for (seq, priority, lane) in [
            (0, 0, LaneId::DOWNSTREAM),
            (1, 9, LaneId::DOWNSTREAM),
            (2, 255, LaneId::DOWNSTREAM),
            (3, 9, plan),
            (4, 0, LaneId::DOWNSTREAM),
        ] {
            backlog.push(Caller::new(seq).priority(priority).lane(lane));
        }
        assert_eq!((backlog.ready(LaneId::DOWNSTREAM), backlog.ready(plan), backlog.len()), (4, 1, 5));
        let first = backlog.pop(LaneId::DOWNSTREAM).unwrap();
        assert_eq!(first.seq(), 1, "255 counts as 9, and came later");
        backlog.push(first);
        assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [1, 2, 0, 4]);
        assert_eq!(popped(&mut backlog, plan), [3]);
        assert!(backlog.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_go_later_and_who_waits_for_a_window_is_promoted_in_time() {
        let (mut backlog, start) = (Backlog::new(0), Instant::now());
        let early = 10 * MS;
        backlog.push_later(start + 50 * MS, Caller::new(0));
        backlog.put_aside(start + 55 * MS, Caller::new(1));
        assert_eq!(backlog.wake_at(early), Some(start + 45 * MS), "so much before the window ends");
        backlog.tick(start + 44 * MS, early);
        assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [0; 0]);
        backlog.tick(start + 45 * MS, early);
        assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [1]);
        assert_eq!(backlog.wake_at(early), Some(start + 50 * MS));
        backlog.tick(start + 50 * MS, early);
        let waited = backlog.pop(LaneId::DOWNSTREAM).unwrap();
        assert_eq!(waited.since(), start + 50 * MS, "it waits for a slot since it may go");
        assert_eq!(backlog.wake_at(early), None);
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_were_put_aside_come_back_together() {
        let (mut backlog, start) = (Backlog::new(0), Instant::now());
        (0..3).for_each(|seq| backlog.put_aside(start + 500 * MS, Caller::new(seq)));
        backlog.take_back(start + 499 * MS);
        assert_eq!(backlog.ready(LaneId::DOWNSTREAM), 0);
        backlog.take_all_back();
        assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [0, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_no_longer_is_found_wherever_it_is() {
        let (mut backlog, later) = (Backlog::new(1), Instant::now() + MS);
        let plan = LaneId::of_plan(Some(0));
        backlog.push(Caller::new(0).priority(4).lane(plan));
        backlog.push_later(later, Caller::new(1));
        backlog.put_aside(later, Caller::new(2));
        for (lane, priority, seq) in [(LaneId::DOWNSTREAM, 4, 0), (plan, 3, 0), (plan, 4, 1_000)] {
            assert!(backlog.remove(lane, priority, seq).is_none(), "another one");
        }
        for (lane, priority, seq) in [(plan, 4, 0), (LaneId::DOWNSTREAM, 0, 1), (LaneId::DOWNSTREAM, 0, 2)] {
            assert_eq!(backlog.remove(lane, priority, seq).map(|caller| caller.seq()), Some(seq));
        }
        assert!(backlog.is_empty());
        backlog.push(Caller::new(3).cost(2));
        assert!(backlog.pop_if(LaneId::DOWNSTREAM, |caller| caller.cost() == 1).is_none());
        assert!(backlog.pop_if(plan, |_| true).is_none());
        let popped = backlog.pop_if(LaneId::DOWNSTREAM, |caller| caller.cost() == 2);
        assert_eq!((popped.map(|caller| caller.seq()), backlog.len()), (Some(3), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn stale_waiters_are_dropped_wherever_they_are() {
        let (mut backlog, later) = (Backlog::new(0), Instant::now() + MS);
        for seq in 0..3000 {
            let caller = Caller { is_live: seq % 3 == 0, ..Caller::new(seq) };
            match seq % 5 {
                0 => backlog.push_later(later, caller),
                1 => backlog.put_aside(later, caller),
                _ => backlog.push(caller),
            }
            assert_eq!(backlog.is_crowded(), seq >= 1023);
        }
        backlog.drop_stale();
        assert_eq!((backlog.len(), backlog.is_crowded()), (1000, false));
        (3000..3999).for_each(|seq| backlog.push(Caller::new(seq)));
        assert!(!backlog.is_crowded(), "as many more, before it is looked again");
        backlog.push(Caller::new(4000));
        assert!(backlog.is_crowded());
        assert_eq!(backlog.drain().len(), 2000);
    }
}
