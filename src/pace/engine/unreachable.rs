//! Waiters that can have no slot for long, and wait elsewhere.

use std::time::Duration;

use tokio::time::Instant;

use super::Engine;
use crate::limit::Limit;
use crate::pace::{LaneId, OnLimit, Waiter, limit_delay, slots_within};

impl<W: Waiter> Engine<W> {
    /// Takes out the ready waiters of plans that can have no slot within `patience`, with the instant at which each may
    /// have one, in their order. Their plan is used up, or releases fewer in that time than wait for it here.
    ///
    /// Those that would give up before that are refused.
    ///
    /// The instants are estimates by the number of those taken before: other replicas may have waiters of the same plan.
    /// Waiters of the downstream's own lane stay, since they stand before nobody who could go.
    pub(crate) fn take_unreachable(&mut self, now: Instant, patience: Duration) -> Vec<(Instant, W)> {
        let (mut taken, mut ended) = (Vec::new(), Vec::new());
        if self.is_absent() || self.settings.on_limit == OnLimit::Reject {
            return taken;
        }
        let plans = 0..self.settings.plans.len();
        for lane in plans.map(|plan| LaneId::of_plan(Some(plan))) {
            let ready = self.backlog.ready(lane);
            if ready == 0 {
                continue;
            }
            // Waiters that the downstream's own limits hold up stand before nobody who could go.
            let own = self.settings.limits_of(lane).iter().skip(self.settings.limits.len());
            let limits: Vec<&Limit> = own.collect();
            let Some(slowest) = limits.iter().map(|limit| limit.rate().interval()).max() else { continue };
            let start = self.schedule.sleeps_until(lane).map_or(now, |until| until.max(now));
            let room = match patience.checked_sub(start - now) {
                Some(rest) => {
                    usize::try_from(slots_within(limits.iter().copied(), rest)).unwrap_or(usize::MAX)
                }
                None => 0,
            };
            let mut beyond: Vec<W> = (room..ready).map_while(|_| self.backlog.pop_last(lane)).collect();
            beyond.reverse();
            for waiter in beyond {
                let place = room as u64 + self.schedule.pass_place(lane, start, slowest);
                let due = start + limit_delay(&limits, place);
                if waiter.end().is_some_and(|end| end.is_early && end.at < due) {
                    // It stands before nobody.
                    self.schedule.return_place(lane);
                    ended.push(waiter);
                    continue;
                }
                taken.push((due.max(now + patience), waiter));
            }
        }
        ended.into_iter().for_each(|waiter| self.end(waiter, true));
        taken
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
