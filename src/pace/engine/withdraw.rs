//! What happens to a slot: it comes, or its waiter leaves. In the second case the next waiter of its lane gets it, or
//! the store gets it back.

use std::time::Duration;

use tokio::time::Instant;

use super::{Effect, Engine};
use crate::limit::JobCost;
use crate::pace::meters::Abandoned;
use crate::pace::release::{Due, Held, Unused};
use crate::pace::{LaneId, Waiter};
use crate::store::Asker;
use crate::time::{Deadline, Micros};

/// A slot that came longer ago is of no use to waiters that hold later ones.
const LATE: Duration = Duration::from_millis(1);

impl<W: Waiter> Engine<W> {
    /// Hands the waiters whose slots have come to the driver.
    pub(super) fn release_due(&mut self, now: Deadline) {
        if self.is_held_up() {
            return;
        }
        while let Some(due) = self.release.pop_due(now) {
            match due {
                Due::Now(held) if self.is_paused_alone(held.waiter.lane(), now.instant()) => {
                    self.release.sent(None);
                    let Unused { lane, cost, slot, .. } = Unused::of(&held);
                    self.give_back_unused((lane, cost, slot));
                    self.put_back(vec![held.waiter], Abandoned::Paused);
                }
                Due::Now(held) => {
                    self.driver.connections.on_release(now.instant());
                    self.terms.cooling_mut().on_sent();
                    self.driver.effects.push(Effect::Release(held));
                }
                Due::Missed(held) => {
                    self.on_missed(Unused::of(&held));
                    self.backlog.push(held.waiter);
                }
            }
        }
    }

    /// Withdraws the waiter with this lane, priority and position in the order of arrival, since its caller is gone.
    pub(crate) fn withdraw(&mut self, (lane, priority, seq): (LaneId, u8, u64)) {
        if self.backlog.remove(lane, priority, seq).is_none() {
            self.withdraw_held(seq);
        }
        // A waiter of the call in flight is found to be stale when the answer arrives.
    }

    /// Drops all stale waiters.
    pub(crate) fn drop_stale(&mut self) {
        self.backlog.drop_stale();
        self.pacing.drop_stale_trial();
        // The last slot is withdrawn first, since only the last slot can go back to the store.
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

    /// As [`Engine::pass_on`], where the slot is unused for this reason.
    pub(super) fn pass_on_for(&mut self, unused: Unused, reason: Abandoned) {
        let Unused { lane, cost, slot, deadline } = unused;
        let is_late = deadline.late() > LATE;
        self.backlog.drop_stale_first(lane);
        let may_use = |next: &W| next.cost() == cost;
        let next = if self.pacing.is_suspended() { None } else { self.backlog.pop_if(lane, may_use) };
        let Some(waiter) = next else {
            if self.pacing.is_calling() && !is_late {
                // The call may take a slot behind it, whose waiter can move up.
                self.pacing.keep_unused(unused, reason);
                return;
            }
            let Unused { slot, .. } = if is_late { unused } else { self.release.close_up(unused) };
            self.meters.abandoned(1, reason);
            return self.pacing.give_back(lane, cost, slot, &self.store);
        };
        let now = Instant::now();
        let request = *waiter.request();
        match self.release.hold(Held { waiter, slot, deadline }) {
            Ok(()) => self.meters.granted(&request, now, deadline.since(Deadline::at(now))),
            Err(waiter) => self.put_back(vec![waiter], Abandoned::Paused),
        }
    }

    /// Passes on the slots that were not used during a call.
    pub(super) fn pass_on_all(&mut self) {
        let mut unused = self.pacing.take_unused();
        // The last slot is passed on first, since only the last slot can go back to the store.
        unused.sort_by_key(|(unused, _)| std::cmp::Reverse(unused.slot));
        unused.into_iter().for_each(|(unused, reason)| self.pass_on_for(unused, reason));
    }

    /// Handles a slot that was missed by more than the tolerance.
    pub(crate) fn on_missed(&mut self, Unused { lane, cost, slot, .. }: Unused) {
        self.meters.abandoned(1, Abandoned::Late);
        self.give_back_unused((lane, cost, slot));
    }

    /// Gives back a slot that has come without a send.
    pub(crate) fn give_back_unused(&mut self, (lane, cost, slot): (LaneId, JobCost, Micros)) {
        // If slots lie far apart, the next waiter does not have to wait for a whole interval, unless a later slot was
        // taken.
        if self.settings.limits_of(lane).spacing() > self.settings.horizon {
            self.pacing.give_back(lane, cost, slot, &self.store);
        }
    }

    /// Gives the turn back to the store, since this replica does not need it any more.
    pub(super) fn give_back_turn(&mut self, now: Instant) {
        let asker = self.take_turn(now);
        if asker.turn.is_some() {
            self.pacing.give_back_turn(asker, now);
        }
    }

    /// Gives a long turn back once the waiters for it have left. For a short turn the call would cost more than it
    /// saves.
    pub(super) fn give_back_unneeded_turn(&mut self, now: Instant) {
        if self.pacing.is_calling() || !self.backlog.take_left() {
            return;
        }
        if !self.backlog.has_ready() && self.schedule.turns().holds_long_turn() {
            self.give_back_turn(now);
        }
    }

    /// Drops the turn. Returns the part of a call that gives it back; it has no turn if there was none.
    fn take_turn(&mut self, now: Instant) -> Asker {
        let asker = self.schedule.turns().asker_at(now, 0, &self.settings.limits);
        self.schedule.turns_mut().drop_turn();
        asker
    }

    /// Gives back what the store can still use, before the engine ends: slots that are being given back, the turn,
    /// and this replica's lease. It waits for the store. Cancel safe: what is not given back then is lost.
    pub(crate) async fn leave(&mut self) {
        self.end_cooling().await;
        let asker = self.take_turn(Instant::now());
        self.pacing.leave(asker, (&self.store, &self.settings)).await;
    }
}
