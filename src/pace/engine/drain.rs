//! The end of an engine.

use tokio::time::Instant;

use super::{Effect, Engine};
use crate::pace::Waiter;
use crate::pace::meters::Abandoned;
use crate::pace::release::{Held, Unused};
use crate::time::Deadline;

impl<W: Waiter> Engine<W> {
    /// Requests no more slots, since this replica ends at this instant, except those of a turn that comes before:
    /// nobody else would take them in time. Held slots may still come.
    pub(crate) const fn end_at(&mut self, end: Instant) {
        self.driver.ends_at = Some(end);
    }

    /// Whether a slot comes by this instant, or may be granted until then.
    pub(crate) fn has_slots_by(&self, until: Instant) -> bool {
        self.pacing.is_calling()
            || self.release.first_due().is_some_and(|due| due <= Deadline::at(until))
            || (self.may_use_turn_by(until) && self.ask_wake_at().is_some_and(|at| at <= until))
    }

    /// Whether this replica does not end, or its turn comes before.
    pub(super) fn is_to_ask(&self) -> bool {
        self.driver.ends_at.is_none_or(|end| self.may_use_turn_by(end))
    }

    fn may_use_turn_by(&self, end: Instant) -> bool {
        self.schedule.turns().comes_by(end) && !self.pacing.is_suspended() && self.backlog.has_ready()
    }

    /// Ends the engine: takes all waiters, with or without a slot. Their slots go back to the store if it can still use
    /// them. Sends in progress may end.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        let mut unused = self.release.unused();
        unused.extend(self.pacing.take_unused().into_iter().map(|(unused, _)| unused));
        unused.extend(self.driver.effects.iter().filter_map(|effect| match effect {
            Effect::Release(held) => Some(Unused::of(held)),
            _ => None,
        }));
        // The last slot is given back first, since only the last slot can go back to the store.
        unused.sort_by_key(|unused| unused.slot);
        for Unused { lane, cost, slot, .. } in unused.into_iter().rev() {
            self.pacing.give_back(lane, cost, slot, &self.store);
        }
        self.meters.abandoned(self.release.held(), Abandoned::Stopped);
        let mut waiters = self.backlog.drain();
        for effect in self.driver.effects.drain(..) {
            match effect {
                Effect::Release(Held { waiter, .. }) | Effect::Refuse(waiter, _) => waiters.push(waiter),
                Effect::Prepare { .. }
                | Effect::Follow
                | Effect::Eased
                | Effect::DropStale
                | Effect::Cancelled
                | Effect::Failing(_)
                | Effect::Recheck { .. } => {}
            }
        }
        waiters.extend(self.release.give_up_all());
        waiters.extend(self.pacing.drain());
        waiters
    }
}
