//! The handling of a slot whose waiter does not want it any more: it goes to the next waiter of its lane, or back to
//! the store.

use tokio::time::Instant;

use super::Engine;
use crate::pace::meters::Abandoned;
use crate::pace::release::{Held, Unused};
use crate::pace::{LaneId, Waiter};
use crate::time::Deadline;

impl<W: Waiter> Engine<W> {
    /// Withdraws the waiter with this lane, priority and position in the order of arrival, since its caller is gone.
    pub(crate) fn withdraw(&mut self, (lane, priority, seq): (LaneId, u8, u64)) {
        if self.backlog.remove(lane, priority, seq).is_none() {
            self.withdraw_held(seq);
        }
        // A waiter of the call in flight is found to be stale when the answer comes.
    }

    /// Drops all stale waiters.
    pub(crate) fn drop_stale(&mut self) {
        self.backlog.drop_stale();
        self.pacing.drop_stale_trial();
        // The last one goes first, since only the last slot can go back to the store.
        for seq in self.release.positions(|waiter| !waiter.is_live()).into_iter().rev() {
            self.withdraw_held(seq);
        }
    }

    /// Removes a waiter that holds a slot and does not want it any more, and passes the slot on.
    pub(super) fn withdraw_held(&mut self, seq: u64) {
        if let Some(held) = self.release.remove(seq) {
            self.pass_on(Unused::of(&held));
        }
    }

    /// Gives a slot to the next waiter of its lane if the cost is the same, and otherwise back to the store.
    pub(crate) fn pass_on(&mut self, unused: Unused) {
        self.pass_on_for(unused, Abandoned::Stale);
    }

    /// [`Engine::pass_on`], where the slot is unused for this reason.
    pub(super) fn pass_on_for(&mut self, unused: Unused, reason: Abandoned) {
        let Unused { lane, cost, slot, deadline } = unused;
        self.backlog.drop_stale_first(lane);
        let may_use = |next: &W| next.cost() == cost;
        let next = if self.pacing.is_suspended() { None } else { self.backlog.pop_if(lane, may_use) };
        let Some(waiter) = next else {
            self.meters.abandoned(1, reason);
            return self.pacing.give_back(lane, cost, slot, &self.store);
        };
        let now = Instant::now();
        let waited = now.saturating_duration_since(waiter.since());
        match self.release.hold(Held { waiter, slot, deadline }) {
            Ok(()) => self.meters.granted(waited, deadline.since(Deadline::at(now))),
            Err(waiter) => self.put_back(vec![waiter], Abandoned::Paused),
        }
    }

    /// Handles a slot that was missed by more than the tolerance.
    pub(crate) fn on_missed(&mut self, Unused { lane, cost, slot, .. }: Unused) {
        self.meters.abandoned(1, Abandoned::Late);
        // If slots lie far apart, a late waiter does not have to wait for a whole interval, unless a later slot was
        // taken.
        if self.settings.limits_of(lane).spacing() > self.settings.horizon {
            self.pacing.give_back(lane, cost, slot, &self.store);
        }
    }

    /// Waits until no slot is on its way back to the store.
    pub(crate) async fn end_returns(&mut self) {
        while self.pacing.has_returns() {
            self.pacing.next_return().await;
        }
    }
}
