//! Waiters that cannot have a slot for long, and wait elsewhere.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Engine;
use crate::limit::Limit;
use crate::pace::{LaneId, OnLimit, Waiter, limit_delay, slots_within};

/// A lane by keys that allows nothing for longer than this leaves the downstream's slots to others meanwhile. Limits
/// that lanes keep up with make them sleep for less.
const LONG_SLEEP: Duration = Duration::from_secs(2);

impl<W: Waiter> Engine<W> {
    /// Returns an estimate of the longest wait of any waiter for anything except a slot of the downstream: for a time
    /// of its own, if it may wait elsewhere, or for its plan's limits, or those of its lane.
    pub(crate) fn longest_wait(&mut self, now: Instant) -> Duration {
        // While no slots can be requested, nothing else adds new waiters to the lanes by keys.
        self.schedule.refresh(&mut self.backlog, now);
        let due = self.backlog.last_due().map_or(now, |due| due.max(now));
        let plans = self.limited_plans().filter_map(|lane| {
            let last = self.backlog.ready(lane).checked_sub(1)?;
            let limits: Vec<&Limit> = self.settings.own_limits(lane).collect();
            (!limits.is_empty()).then(|| self.lane_begins(lane, now) + limit_delay(&limits, last as u64))
        });
        let keyed = self.schedule.keyed().filter(|_| self.has_limits_that_shape());
        let of_lanes = keyed.and_then(|lanes| lanes.last_goes(&self.backlog, now));
        let shared = now + self.shared_wait(now);
        let last = plans.chain(of_lanes).filter(|last| *last > shared).max();
        last.map_or(due, |last| last.max(due)) - now
    }

    /// Takes out at most this many waiters that wait for longer than `patience` for anything except a slot of the
    /// downstream, with the instant until which each waits, in their order. Of those that wait for a time, these are
    /// the ones that wait longest; of plans and lanes, the last ones. Their limits are used up, or release fewer in
    /// that time than wait for them here.
    ///
    /// Waiters that would give up before that are refused. If the wait of a lane is only guessed, none of its waiters
    /// is refused; those that would give up wait elsewhere for half of the time that they have, which may be less
    /// than `patience`.
    ///
    /// The instants for plans and lanes are estimates by the number of waiters taken before: other replicas may have
    /// waiters of the same plans and lanes. Waiters of the downstream's own lane stay, since they block no runnable
    /// waiter.
    pub(crate) fn take_unreachable(
        &mut self,
        now: Instant,
        patience: Duration,
        most: usize,
    ) -> Vec<(Instant, W)> {
        if most == 0 {
            return vec![];
        }
        let (mut taken, mut ended) = (self.backlog.take_last(now + patience, most), Vec::new());
        let (settings, version) = (Arc::clone(&self.settings), self.limits_version());
        let patience = patience.max(self.shared_wait(now));
        let left = most.saturating_sub(taken.len());
        for (due, waiter) in self.take_beyond_of_lanes(now, now + patience, left) {
            match waiter.end().is_some_and(|end| end.is_early_for(due)) {
                true => ended.push(waiter),
                false => taken.push((due, waiter)),
            }
        }
        for lane in self.limited_plans() {
            // Waiters that the downstream's own limits hold back block no runnable waiter.
            let limits: Vec<&Limit> = settings.own_limits(lane).collect();
            let Some(slowest) = limits.iter().map(|limit| limit.rate().interval()).max() else { continue };
            let (start, ready) = (self.lane_begins(lane, now), self.backlog.ready(lane));
            let room = match patience.checked_sub(start - now) {
                Some(rest) => {
                    usize::try_from(slots_within(limits.iter().copied(), rest)).unwrap_or(usize::MAX)
                }
                None => 0,
            };
            let first = room.max(ready.saturating_sub(most.saturating_sub(taken.len())));
            let mut beyond: Vec<W> = (first..ready).map_while(|_| self.backlog.pop_last(lane)).collect();
            if beyond.is_empty() {
                continue;
            }
            beyond.reverse();
            let passed_on = self.schedule.passed_on(lane, start, slowest);
            let mut place = first as u64;
            for waiter in beyond {
                // A waiter that has waited elsewhere counts among those that were passed on.
                let expected = waiter.expected(version.as_deref()).filter(|until| *until > now + patience);
                let due = expected
                    .unwrap_or_else(|| start + limit_delay(&limits, place + passed_on.before(waiter.seq())));
                if waiter.end().is_some_and(|end| end.is_early_for(due)) {
                    // It blocks nobody.
                    ended.push(waiter);
                    continue;
                }
                if expected.is_none() {
                    place += 1;
                    self.schedule.pass_on(lane, waiter.seq());
                }
                taken.push((due.max(now + patience), waiter));
            }
        }
        ended.into_iter().for_each(|waiter| self.end(waiter, true));
        taken
    }

    /// Returns the least time for which the downstream's own limits hold back the ready waiters. During that time the
    /// waiters of a plan block no runnable waiter. Waiters of lanes that sleep do not keep the downstream busy.
    fn shared_wait(&self, now: Instant) -> Duration {
        let asleep = self.schedule.keyed().map_or(0, |lanes| lanes.asleep(&self.backlog, now + LONG_SLEEP));
        let ready = self.backlog.all_ready() - asleep;
        let limits: Vec<&Limit> = self.settings.limits.iter().collect();
        limit_delay(&limits, ready.saturating_sub(1) as u64)
    }

    /// Whether there may be too many lanes to examine them all the time.
    pub(crate) fn has_many_lanes(&self) -> bool {
        self.schedule.keyed().is_some()
    }

    /// Takes out at most this many waiters of lanes by keys that are released after `by`, with the instant for each.
    fn take_beyond_of_lanes(&mut self, now: Instant, by: Instant, most: usize) -> Vec<(Instant, W)> {
        if !self.has_limits_that_shape() {
            return vec![];
        }
        let Self { schedule, backlog, .. } = self;
        schedule.keyed_mut().map(|lanes| lanes.take_beyond(backlog, (now, by), most)).unwrap_or_default()
    }

    /// Whether limits of plans and lanes shape, as far as this replica follows the shared pace. In a pause none do,
    /// since then no waiter is runnable.
    fn has_limits_that_shape(&self) -> bool {
        let is_paused = self.terms.pauses().is_paused();
        !self.is_absent() && !is_paused && self.settings.on_limit != OnLimit::Reject
    }

    /// The plans whose own limits shape; none where lanes are made by keys.
    fn limited_plans(&self) -> impl Iterator<Item = LaneId> + use<W> {
        let has_plans = self.has_limits_that_shape() && self.schedule.keyed().is_none();
        let plans = if has_plans { self.settings.plans.len() } else { 0 };
        (0..plans).map(|plan| LaneId::of_plan(Some(plan)))
    }

    /// When the slots of a lane begin, as far as is known.
    fn lane_begins(&self, lane: LaneId, now: Instant) -> Instant {
        self.schedule.sleeps_until(lane).map_or(now, |until| until.max(now))
    }

    /// Takes out the waiters without a slot that `is_meant` selects. A waiter that is part of a call in flight stays.
    pub(crate) fn take_waiting_if(&mut self, is_meant: impl Fn(&W) -> bool) -> Vec<W> {
        self.backlog.take(is_meant)
    }

    /// Returns an estimate of the next slot of a lane; it may be in the past.
    pub(crate) fn next_slot(&self, lane: LaneId) -> Instant {
        self.schedule.next_slot(lane)
    }
}
