//! The engine while the store is unavailable: the local pace, or none, and the return to the shared one. The
//! transitions are those of [`State`](crate::pace::pacing::State).

use std::time::Duration;

use tokio::time::Instant;

use super::{Admission, Effect, Engine};
use crate::pace::meters::Abandoned;
use crate::pace::pacing::{Answer, Fallback, LocalPace, Probed, Reply};
use crate::pace::release::Held;
use crate::pace::{OnUnavailable, Waiter};
use crate::store::StoreError;
use crate::time::{Deadline, wall_now};

/// The pause with which the shared pace starts again, until all replicas have noticed. Because of the pause it starts
/// without a burst.
const HANDOVER: Duration = Duration::from_millis(150);

impl<W: Waiter> Engine<W> {
    /// Handles a failed call.
    pub(super) fn on_failure(&mut self, error: &StoreError) {
        let (now, downstream) = (Instant::now(), self.settings.downstream.clone());
        self.driver.effects.push(Effect::Failing(error.clone()));
        self.schedule.turns_mut().on_failure();
        self.pacing.renew_lease(now);
        // A store that refuses a call is available, and will refuse it again (a wrong password, a missing
        // permission).
        let refuses = !error.is_away();
        self.meters.connected(false);
        if refuses {
            self.end_fallback();
        } else if self.fall_back(error) {
            return;
        }
        let (before, at_most) = self.pacing.on_failure();
        match (before, refuses) {
            (0, true) => {
                tracing::error!(downstream, %error, "the store refuses the call; jobs are held");
            }
            (0, false) => {
                tracing::warn!(downstream, %error, "no slots while the store is away; jobs are held");
            }
            _ => tracing::debug!(downstream, %error, "the store still gives no slots"),
        }
        self.pacing.reserve_at(now + at_most.mul_f64(0.5 + 0.5 * fastrand::f64()));
    }

    /// Begins the fallback for an unavailable store. Returns false if the settings have none, or it is not possible.
    fn fall_back(&mut self, error: &StoreError) -> bool {
        if self.pacing.on_away_again() {
            return true;
        }
        if self.settings.on_unavailable != OnUnavailable::Hold {
            self.follow_without_expired();
        }
        let downstream = self.settings.downstream.clone();
        let replicas = self.pacing.last_shared().replicas();
        let local = match self.settings.on_unavailable {
            OnUnavailable::Hold => return false,
            OnUnavailable::Local => {
                let Some(local) = self.local_pace() else { return false };
                tracing::warn!(downstream, %error, replicas, "the store is away: pacing alone, with a part of the limits");
                self.schedule.follow(&local.settings, false);
                self.schedule.set_replicas(1);
                Some(local)
            }
            OnUnavailable::Open => {
                tracing::warn!(downstream, %error, "the store is away: releasing without limits");
                // The lanes sleep until slots that are void now.
                self.forget_estimates_and_turn();
                None
            }
        };
        let leases = self.pacing.last_shared().leases();
        self.pacing.begin_fallback(Fallback { local, leases }, Instant::now());
        self.pause_local();
        true
    }

    /// Creates a local pace that continues the shared one as last seen, if that is known.
    fn local_pace(&self) -> Option<LocalPace> {
        let pacing = &self.pacing;
        let reach = self.schedule.turns().farthest();
        let known = self.terms.agreement().is_usable();
        known
            .then(|| LocalPace::behind(pacing.last_shared(), &self.settings, pacing.slots(), reach))
            .flatten()
    }

    /// Applies the known pause to the local pace too.
    pub(super) fn pause_local(&self) {
        if let (Some(local), Some(end)) = (self.pacing.state().local(), self.terms.pauses().end()) {
            local.pause_until(end);
        }
    }

    /// Releases waiters without a slot while releases are not limited.
    pub(super) fn release_openly(&mut self, now: Instant, admission: &impl Admission<W>) {
        let is_open =
            self.pacing.state().is_open() && !self.is_ahead_of_driver() && self.driver.ends_at.is_none();
        if !is_open || self.terms.pauses().is_paused() {
            return;
        }
        let slot = self.pacing.slots().store_now().unwrap_or_else(wall_now);
        let deadline = Deadline::at(now);
        if self.pacing.is_suspended() {
            if let Some(waiter) = self.take_trial(now, admission) {
                self.release.hold_at_once(Held { waiter, slot, deadline });
            }
            return;
        }
        while self.release.free() > 0 {
            self.schedule.refresh(&mut self.backlog, now);
            let Some(next) = self.schedule.next(&self.backlog, now) else { break };
            let batch = self.pick(next, self.release.free(), admission);
            if batch.is_empty() {
                break;
            }
            if let Some(lanes) = self.schedule.keyed_mut() {
                lanes.grant_all();
            }
            for waiter in batch {
                let units = waiter.cost().units(self.settings.limits_of(next.lane));
                self.schedule.on_granted(next.lane, units.into(), None);
                self.meters.granted(waiter.request(), now, Duration::ZERO);
                self.release.hold_at_once(Held { waiter, slot, deadline });
            }
        }
    }

    /// Handles the reply to a probe.
    pub(super) fn on_probe_reply(&mut self, Reply { sent, received, answer }: Reply) {
        self.pacing.on_probed(received, received - sent, answer.is_ok(), self.schedule.lease());
        let reserved = match answer {
            Ok(Answer::Reserved(reserved)) => reserved,
            Ok(Answer::Checked(_)) => return,
            Err(error) => {
                self.meters.reserve_failed();
                return self.on_failure(&error);
            }
        };
        let is_back = self.pacing.on_probe_answer(received);
        self.on_store_there(received);
        if is_back {
            self.on_store_back(received);
        }
        self.on_stamp(sent, received, reserved.stamp);
        if !self.pacing.state().is_absent() {
            return self.pacing.set_replicas(reserved.replicas.unwrap_or(1));
        }
        let probed = Probed {
            replicas: reserved.replicas,
            is_paused: reserved.stamp.status.penalty > reserved.stamp.now,
            is_in_use: reserved.next > reserved.stamp.now,
        };
        if let Some(is_in_use) = self.pacing.state().rejoins(received, probed) {
            self.rejoin(is_in_use, reserved.replicas);
        }
    }

    /// Returns to the shared pace. `is_in_use` says whether that pace is already in use.
    fn rejoin(&mut self, is_in_use: bool, replicas: Option<u32>) {
        let now = Instant::now();
        self.pacing.rejoin(now);
        self.give_up_local_slots();
        self.schedule.follow(&self.settings, false);
        if let Some(replicas) = replicas {
            self.pacing.set_replicas(replicas);
            self.schedule.set_replicas(replicas);
        }
        if !is_in_use {
            self.penalize(Deadline::at(now + HANDOVER));
        }
        tracing::info!(downstream = self.settings.downstream, "back to the pace that all replicas share");
    }

    /// Ends the fallback, since the store is available but refuses calls; nothing is released.
    fn end_fallback(&mut self) {
        if self.pacing.take_fallback().is_some() {
            self.give_up_local_slots();
            self.schedule.follow(&self.settings, false);
            self.schedule.set_replicas(self.pacing.last_shared().leases());
        }
    }

    /// Gives up the slots of the local pace, which mean nothing to other replicas.
    fn give_up_local_slots(&mut self) {
        self.pacing.forget_unused();
        let given_up = self.release.give_up_all();
        self.put_back(given_up, Abandoned::StoreBack);
    }

    /// Applies other settings to the fallback.
    pub(super) fn follow_in_fallback(&mut self) {
        if !self.pacing.state().is_absent() {
            return;
        }
        let wanted = self.settings.on_unavailable;
        let local = if wanted == OnUnavailable::Local { self.local_pace() } else { None };
        if self.pacing.state().local().is_some() || (local.is_none() && wanted != OnUnavailable::Open) {
            self.give_up_local_slots();
        }
        if local.is_none() && wanted != OnUnavailable::Open {
            // The result is as if the store had become unavailable under these settings.
            let _ = self.pacing.take_fallback();
            return;
        }
        if let Some(local) = &local {
            self.schedule.follow(&local.settings, false);
            self.schedule.set_replicas(1);
        }
        self.pacing.replace_local(local);
        self.pause_local();
    }
}
