//! What becomes of a slot whose waiter does not want it any more: the next one in its lane has it, or the store.

use tokio::time::Instant;

use super::Engine;
use crate::pace::meters::Abandoned;
use crate::pace::release::Held;
use crate::pace::{LaneId, Waiter};
use crate::time::{Deadline, Micros};

/// A slot that its waiter does not use, and what it was granted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unused {
    pub(crate) lane: LaneId,
    pub(crate) cost: u32,
    pub(crate) slot: Micros,
    pub(crate) deadline: Deadline,
}

impl Unused {
    /// The slot of this one.
    pub(crate) fn of<W: Waiter>(held: &Held<W>) -> Self {
        let (lane, cost) = (held.waiter.lane(), held.waiter.cost());
        Self { lane, cost, slot: held.slot, deadline: held.deadline }
    }
}

impl<W: Waiter> Engine<W> {
    /// Nobody waits any more for the outcome of the one of this lane, priority and place in the order of arrival.
    pub(crate) fn withdraw(&mut self, (lane, priority, seq): (LaneId, u8, u64)) {
        if self.backlog.remove(lane, priority, seq).is_none() {
            self.withdraw_held(seq);
        }
        // One that a call under way asks for is found to have left when the answer comes.
    }

    /// Drops those for whom nobody waits any more.
    pub(crate) fn drop_stale(&mut self) {
        self.backlog.drop_stale();
        self.pacing.drop_stale_trial();
        // The last one first: only the last slot can go back to the store.
        for seq in self.release.stale().into_iter().rev() {
            self.withdraw_held(seq);
        }
    }

    /// Takes the slot from one that holds it and does not want it any more.
    pub(super) fn withdraw_held(&mut self, seq: u64) {
        if let Some(held) = self.release.remove(seq) {
            self.pass_on(Unused::of(&held));
        }
    }

    /// Gives a slot to the next one of its lane, if that costs as much, and else back to the store.
    pub(crate) fn pass_on(&mut self, unused: Unused) {
        let Unused { lane, cost, slot, deadline } = unused;
        self.backlog.drop_stale_first(lane);
        let may_use = |next: &W| next.cost() == cost;
        let next = if self.pacing.is_suspended() { None } else { self.backlog.pop_if(lane, may_use) };
        let Some(waiter) = next else {
            self.meters.abandoned(1, Abandoned::Stale);
            return self.pacing.give_back(lane, cost, slot, &self.store);
        };
        let now = Instant::now();
        let waited = now.saturating_duration_since(waiter.since());
        match self.release.hold(Held { waiter, slot, deadline }) {
            Ok(()) => self.meters.granted(waited, deadline.since(Deadline::at(now))),
            Err(waiter) => self.put_back(vec![waiter], Abandoned::Paused),
        }
    }

    /// A slot was missed by more than is tolerated.
    pub(crate) fn on_missed(&mut self, Unused { lane, cost, slot, .. }: Unused) {
        self.meters.abandoned(1, Abandoned::Late);
        // Where slots lie far apart, whoever was late need not wait for a whole interval, if nobody else took a later one.
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
