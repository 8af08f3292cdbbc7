//! Waiters that can have no slot for long, and wait elsewhere.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Engine;
use crate::limit::Limit;
use crate::pace::{LaneId, OnLimit, Waiter, limit_delay, slots_within};

impl<W: Waiter> Engine<W> {
    /// Returns an estimate of how long the waiter waits that waits longest for anything but a slot of the downstream: for
    /// a time of its own, if it may wait elsewhere, or for its plan's limits.
    pub(crate) fn longest_wait(&self, now: Instant) -> Duration {
        let due = self.backlog.last_due().map_or(now, |due| due.max(now));
        let plans = self.plan_lanes().filter_map(|lane| {
            let last = self.backlog.ready(lane).checked_sub(1)?;
            let limits: Vec<&Limit> = self.settings.own_limits(lane).collect();
            (!limits.is_empty()).then(|| self.lane_begins(lane, now) + limit_delay(&limits, last as u64))
        });
        let shared = now + self.shared_wait();
        plans.filter(|last| *last > shared).max().map_or(due, |last| last.max(due)) - now
    }

    /// Takes out at most this many waiters that wait for longer than `patience` for anything but a slot of the downstream,
    /// with the instant until which each waits, in their order: for a time, those that wait longest, and of plans, the
    /// last ones. Their plan is used up, or releases fewer in that time than wait for it here.
    ///
    /// Those that would give up before that are refused.
    ///
    /// The instants of those of plans are estimates by the number of those taken before: other replicas may have waiters of
    /// the same plan. Waiters of the downstream's own lane stay, since they stand before nobody who could go.
    pub(crate) fn take_unreachable(
        &mut self,
        now: Instant,
        patience: Duration,
        most: usize,
    ) -> Vec<(Instant, W)> {
        let (mut taken, mut ended) = (self.backlog.take_last(now + patience, most), Vec::new());
        let (settings, version) = (Arc::clone(&self.settings), self.limits_version());
        let patience = patience.max(self.shared_wait());
        for lane in self.plan_lanes().collect::<Vec<_>>() {
            // Waiters that the downstream's own limits hold up stand before nobody who could go.
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
                // One that has waited elsewhere has its place among those that were passed on.
                let expected = waiter.expected(version.as_deref()).filter(|until| *until > now + patience);
                let due = expected
                    .unwrap_or_else(|| start + limit_delay(&limits, place + passed_on.before(waiter.seq())));
                if waiter.end().is_some_and(|end| end.is_early && end.at < due) {
                    // It stands before nobody.
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

    /// Returns how long the downstream's own limits hold up those who are ready, at least: so long no plan has its waiters
    /// stand before others who could go.
    fn shared_wait(&self) -> Duration {
        let lanes = (0..=self.settings.plans.len()).map(|row| LaneId::of_plan(row.checked_sub(1)));
        let ready: usize = lanes.map(|lane| self.backlog.ready(lane)).sum();
        let limits: Vec<&Limit> = self.settings.limits.iter().collect();
        limit_delay(&limits, ready.saturating_sub(1) as u64)
    }

    /// The lanes of plans whose limits shape, as far as this replica follows the shared pace; none in a pause, in which
    /// nobody stands before others who could go.
    fn plan_lanes(&self) -> impl Iterator<Item = LaneId> + use<W> {
        let is_paused = self.terms.pauses().is_paused();
        let shapes = !self.is_absent() && !is_paused && self.settings.on_limit != OnLimit::Reject;
        let plans = if shapes { self.settings.plans.len() } else { 0 };
        (0..plans).map(|plan| LaneId::of_plan(Some(plan)))
    }

    /// When the slots of a lane begin, as far as is known.
    fn lane_begins(&self, lane: LaneId, now: Instant) -> Instant {
        self.schedule.sleeps_until(lane).map_or(now, |until| until.max(now))
    }

    /// Takes out the waiters without a slot that `is_meant` selects. One that is part of a call in flight stays.
    pub(crate) fn take_waiting_if(&mut self, is_meant: impl Fn(&W) -> bool) -> Vec<W> {
        self.backlog.take(is_meant)
    }

    /// Returns an estimate of the next slot of a lane; it may be in the past.
    pub(crate) fn next_slot(&self, lane: LaneId) -> Instant {
        self.schedule.next_slot(lane)
    }
}
