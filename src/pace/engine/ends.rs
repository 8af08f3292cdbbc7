//! Waiters that give up before they are granted a slot.

use std::time::Duration;

use tokio::time::Instant;

use super::{Effect, Engine, Refusal};
use crate::limit::Limit;
use crate::pace::{LaneId, OnLimit, Waiter, limit_delay};

impl<W: Waiter> Engine<W> {
    /// Refuses the waiters that have given up. It also refuses those that give up early, because too many wait before
    /// them to have a slot in time.
    pub(super) fn end_waits(&mut self, now: Instant) {
        while let Some(waiter) = self.backlog.take_ended(now) {
            self.end(waiter, false);
        }
        // If the limits police, the store decides on each waiter when it arrives. And the local pace is not the pace
        // of the limits.
        if self.is_absent() || self.settings.on_limit == OnLimit::Reject || !self.backlog.has_ends() {
            return;
        }
        if self.schedule.keyed().is_some() {
            // With lanes, nobody knows before slots are granted which waiters get them last.
            return;
        }
        for row in 0..=self.settings.plans.len() {
            self.end_hopeless(LaneId::at(row), now);
        }
    }

    /// Refuses a waiter that has given up, unless it is stale.
    pub(super) fn end(&mut self, waiter: W, is_early: bool) {
        if waiter.is_live() {
            self.driver.effects.push(Effect::Refuse(waiter, Refusal::Ended { is_early }));
        }
    }

    /// Refuses the last waiters of a lane while more wait there than its limits release before the last one gives up,
    /// even if no other replica and no other lane used these limits.
    fn end_hopeless(&mut self, lane: LaneId, now: Instant) {
        let start = self.schedule.sleeps_until(lane).map_or(now, |until| until.max(now));
        let mut is_purged = false;
        while let Some(end) = self.backlog.end_of_last(lane).filter(|end| end.is_early) {
            let span = end.at.saturating_duration_since(start);
            let room = self.settings.limits_of(lane).iter().map(|limit| limit.most_within(span)).min();
            if room.is_none_or(|room| self.backlog.ready(lane) as u64 <= room) {
                return;
            }
            if !is_purged {
                // Stale waiters block nobody.
                is_purged = true;
                self.drop_stale();
                self.driver.effects.push(Effect::DropStale);
                continue;
            }
            let Some(last) = self.backlog.pop_last(lane) else { return };
            self.end(last, true);
        }
    }

    /// Returns the least time that a waiter that joined a lane now would wait for its slot.
    pub(crate) fn expected_wait(&self, lane: LaneId) -> Duration {
        let limits: Vec<&Limit> = self.settings.limits_of(lane).iter().collect();
        let now = Instant::now();
        let asleep = self.schedule.sleeps_until(lane).map(|until| until.saturating_duration_since(now));
        let pause = self.terms.pauses().end().map(|end| end.left());
        let start = asleep.max(pause).unwrap_or_default();
        start.saturating_add(limit_delay(&limits, self.backlog.ready(lane) as u64))
    }
}
