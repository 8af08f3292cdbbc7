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
    /// The waiters that wait for the end of a window while cheaper ones are granted slots, by the end of the window.
    aside: BTreeMap<(Instant, u64), W>,
    /// When the waiters give up that do and are ready, or were put aside, with their positions and the rows of their
    /// lanes.
    ends: BTreeSet<(Instant, Place, usize)>,
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
            ends: BTreeSet::new(),
            purge_threshold: PURGE_THRESHOLD,
        }
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
        self.later.insert((due, waiter.seq()), waiter);
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
        self.taken(lane.row(), meant)
    }

    /// Takes the waiter with this lane, priority and position in the order of arrival, if it is in the backlog.
    pub(crate) fn remove(&mut self, lane: LaneId, priority: u8, seq: u64) -> Option<W> {
        let row = lane.row().min(self.ready.len() - 1);
        let ready = self.ready[row].remove(&(9 - priority.min(9), seq));
        let found = ready.or_else(|| remove_seq(&mut self.later, seq));
        let found = found.or_else(|| remove_seq(&mut self.aside, seq));
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

    /// Whether the backlog is so long that stale waiters are to be purged.
    pub(crate) fn is_crowded(&self) -> bool {
        self.len() >= self.purge_threshold
    }

    /// Drops all stale waiters.
    pub(crate) fn drop_stale(&mut self) {
        self.ready.iter_mut().for_each(|lane| lane.retain(|_, waiter| waiter.is_live()));
        self.later.retain(|_, waiter| waiter.is_live());
        self.aside.retain(|_, waiter| waiter.is_live());
        self.retain_ends();
        self.purge_threshold = (2 * self.len()).max(PURGE_THRESHOLD);
    }

    /// Forgets when waiters give up that are not here any more.
    fn retain_ends(&mut self) {
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
            self.retain_ends();
        }
        taken
    }

    /// Takes all waiters.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        self.ends.clear();
        let ready = self.ready.iter_mut().flat_map(|lane| std::mem::take(lane).into_values());
        let later = std::mem::take(&mut self.later).into_values();
        ready.chain(later).chain(std::mem::take(&mut self.aside).into_values()).collect()
    }
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
    async fn who_gives_up_is_found_in_time_wherever_it_is() {
        let (mut backlog, start, plan) = (Backlog::new(1), Instant::now(), LaneId::of_plan(Some(0)));
        let caller = |seq, end: u32| Caller::new(seq).end(start + end * MS, false);
        let ended = |backlog: &mut Backlog<Caller>, at: u32| {
            backlog.tick(start + at * MS, Duration::ZERO);
            seqs(std::iter::from_fn(|| backlog.take_ended(start + at * MS)).collect())
        };
        assert!(!backlog.has_ends());
        backlog.push(caller(0, 30).priority(9));
        backlog.push(caller(1, 20).lane(plan));
        backlog.push(caller(2, 40));
        backlog.push(Caller::new(3));
        backlog.push_later(start + 500 * MS, caller(4, 50));
        backlog.put_aside(start + 500 * MS, caller(5, 60));
        assert_eq!(backlog.wake_at(Duration::ZERO), Some(start + 20 * MS));
        assert_eq!(ended(&mut backlog, 19), [0; 0]);
        assert_eq!(ended(&mut backlog, 30), [1, 0]);
        assert_eq!(backlog.end_of_last(LaneId::DOWNSTREAM), None, "that one waits as long as it takes");
        assert_eq!(popped(&mut backlog, LaneId::DOWNSTREAM), [2, 3]);
        assert_eq!(backlog.wake_at(Duration::ZERO), Some(start + 50 * MS), "who has a slot gives up no more");
        assert_eq!(ended(&mut backlog, 55), [4]);
        assert_eq!(ended(&mut backlog, 60), [5]);
        assert!(backlog.is_empty() && !backlog.has_ends());
        (6..10).for_each(|seq| backlog.push(Caller { is_live: seq == 7, ..caller(seq, 70) }));
        backlog.drop_stale();
        assert_eq!(ended(&mut backlog, 70), [7]);
        backlog.push(caller(10, 80));
        backlog.push(caller(10, 90));
        assert_eq!(ended(&mut backlog, 80), [0; 0], "the later one of the same place counts");
        assert_eq!(
            (backlog.wake_at(Duration::ZERO), ended(&mut backlog, 90)),
            (Some(start + 90 * MS), vec![10])
        );
        backlog.put_aside(start + 500 * MS, caller(11, 100));
        backlog.take_back(start + 500 * MS);
        assert_eq!((backlog.ready(LaneId::DOWNSTREAM), ended(&mut backlog, 100)), (1, vec![11]));
        backlog.push(caller(12, 110));
        backlog.put_aside(start + 500 * MS, caller(13, 110));
        assert_eq!((backlog.drain().len(), backlog.has_ends()), (2, false));
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_are_taken_wherever_they_are() {
        let (mut backlog, later) = (Backlog::new(1), Instant::now() + MS);
        backlog.push(Caller::new(0));
        backlog.push(Caller::new(1).lane(LaneId::of_plan(Some(0))).end(later, false));
        backlog.push_later(later, Caller::new(2));
        backlog.put_aside(later, Caller::new(3));
        backlog.push(Caller::new(4));
        assert_eq!(seqs(backlog.take(|caller| caller.seq() > 0 && caller.seq() < 4)), [1, 2, 3]);
        assert!(!backlog.has_ends());
        assert_eq!(seqs(backlog.drain()), [0, 4]);
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
