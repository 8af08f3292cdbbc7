//! Suspension while this replica cannot use the downstream: no slots are requested, except for one trial waiter at a
//! time, which tests whether the downstream can be used again.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::ask::Bounds;
use super::{Admission, Effect, Engine, Refusal};
use crate::pace::meters::Abandoned;
use crate::pace::pacing::Call;
use crate::pace::release::Unused;
use crate::pace::{LaneId, Waiter};

impl<W: Waiter> Engine<W> {
    /// Stops requests for slots, for this reason, and gives up held slots. One waiter at a time may be tried; see
    /// [`Engine::try_one`].
    pub(crate) fn suspend(&mut self, reason: Abandoned) {
        self.driver.is_suspended = true;
        self.terms.cooling_mut().give_back(Instant::now());
        self.hold_back(reason);
    }

    /// As [`Engine::suspend`], also where the driver does not suspend.
    pub(super) fn hold_back(&mut self, reason: Abandoned) {
        // The last slot is given back first, since only the last slot can go back to the store.
        for Unused { lane, cost, slot, .. } in self.release.unused().into_iter().rev() {
            self.give_back_unused((lane, cost, slot));
        }
        let given_up = self.release.give_up_all();
        self.put_back(given_up, reason);
        let now = Instant::now();
        let trial = self.pacing.suspend(&self.settings, reason, now);
        if !self.pacing.is_calling() {
            self.give_back_turn(now);
        }
        trial.into_iter().for_each(|waiter| self.backlog.push(waiter));
    }

    /// Requests slots for all waiters again, unless the downstream is cooling down.
    pub(crate) fn resume(&mut self) {
        self.driver.is_suspended = false;
        if self.terms.cooling().is_on() {
            return self.hold_back(Abandoned::CoolingDown);
        }
        self.go_on();
    }

    pub(super) fn go_on(&mut self) {
        if let Some(waiter) = self.pacing.resume(Instant::now()) {
            self.backlog.push(waiter);
        }
        self.schedule.forget();
    }

    /// Makes this waiter the trial: a slot is requested for it alone during the suspension.
    pub(crate) fn try_one(&mut self, waiter: W) {
        if let Some(waiter) = self.pacing.try_one(waiter) {
            self.backlog.push(waiter);
        }
    }

    /// Returns the instant from which another waiter can be tried; `None` while none can.
    pub(crate) fn try_at(&self) -> Option<Instant> {
        let is_free = !self.pacing.is_calling() && !self.pacing.has_trial();
        self.trial_from().filter(|_| self.pacing.is_suspended() && is_free)
    }

    /// Returns the instant from which the trial waiter may have a slot, or be released without one; `None` while it may
    /// not.
    pub(super) fn trial_from(&self) -> Option<Instant> {
        let may =
            if self.pacing.state().is_open() { !self.terms.pauses().is_paused() } else { self.may_ask() };
        (may && self.is_quiet()).then(|| self.ask_from())
    }

    /// Returns the instant at which [`Engine::ask`] requests a slot for the trial waiter.
    pub(super) fn trial_wake_at(&self) -> Option<Instant> {
        self.trial_from().filter(|_| self.pacing.has_trial())
    }

    /// Takes the trial waiter, if it may be tried now.
    pub(super) fn take_trial(&mut self, now: Instant, admission: &impl Admission<W>) -> Option<W> {
        self.trial_from().filter(|from| *from <= now)?;
        let waiter = self.pacing.take_trial().filter(Waiter::is_live)?;
        if !admission.admits(&waiter) {
            self.driver.effects.push(Effect::Refuse(waiter, Refusal::NotAdmitted));
            return None;
        }
        Some(waiter)
    }

    /// Makes a call for the trial waiter, if it may be tried now.
    pub(super) fn call_for_trial(&mut self, now: Instant, admission: &impl Admission<W>) -> Option<Call<W>> {
        let waiter = if self.may_ask() { self.take_trial(now, admission) } else { None }?;
        let lane = match self.schedule.keyed_mut() {
            Some(lanes) => {
                // No slot is requested for what was chosen before.
                lanes.end();
                LaneId::DOWNSTREAM
            }
            None => waiter.lane(),
        };
        let bounds = Bounds { lane, ahead: self.settings.horizon, most: 1 };
        Some(self.call(bounds, VecDeque::from([waiter]), None, now))
    }
}
