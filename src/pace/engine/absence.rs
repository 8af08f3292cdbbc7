//! While the store is away: a pace of one's own, or none, and the way back to the shared one. What
//! [`State`](crate::pace::pacing::State) decides is done here.

use std::time::Duration;

use tokio::time::Instant;

use super::{Admission, Effect, Engine};
use crate::pace::meters::Abandoned;
use crate::pace::pacing::{Answer, Fallback, LocalPace, Probed, Reply};
use crate::pace::release::Held;
use crate::pace::{OnUnavailable, Waiter};
use crate::store::StoreError;
use crate::time::{Deadline, wall_now};

/// How long nothing is released when the shared pace begins anew: until all others have noticed. The pause leaves the
/// pace without a burst.
const HANDOVER: Duration = Duration::from_millis(150);

impl<W: Waiter> Engine<W> {
    /// A call failed.
    pub(super) fn on_failure(&mut self, error: &StoreError) {
        let (now, downstream) = (Instant::now(), self.settings.downstream.clone());
        self.effects.push(Effect::Failing(error.clone()));
        self.pacing.renew_lease(now);
        // A store that refuses a call is there, and will say the same again (a wrong password, a missing right).
        let refuses = !error.is_away();
        if refuses {
            self.hold_on();
        } else {
            self.meters.connected(false);
            if self.leave(error) {
                return;
            }
        }
        let (before, at_most) = self.pacing.state.on_failure();
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

    /// The store is away: goes on without it, if that is wanted and possible.
    fn leave(&mut self, error: &StoreError) -> bool {
        if self.pacing.state.on_away_again() {
            return true;
        }
        if self.settings.on_unavailable != OnUnavailable::Hold {
            self.end_rates();
        }
        let downstream = self.settings.downstream.clone();
        let replicas = self.pacing.last_shared.replicas();
        let local = match self.settings.on_unavailable {
            OnUnavailable::Hold => return false,
            OnUnavailable::Local => {
                let Some(local) = self.local_pace() else { return false };
                tracing::warn!(downstream, %error, replicas, "the store is away: pacing alone, by a part of the limits");
                self.schedule.follow(&local.settings);
                self.schedule.set_replicas(1);
                Some(local)
            }
            OnUnavailable::Open => {
                tracing::warn!(downstream, %error, "the store is away: releasing without limits");
                // Nobody sleeps until a slot any more.
                self.schedule.forget();
                None
            }
        };
        self.pacing.leave(Fallback { local, replicas }, Instant::now());
        self.pause_local();
        true
    }

    /// A pace of one's own, behind what is known of the shared one; none where nothing is known of it.
    fn local_pace(&self) -> Option<LocalPace> {
        let pacing = &self.pacing;
        let known = self.terms.agreement.is_usable();
        known.then(|| LocalPace::behind(&pacing.last_shared, &self.settings, &pacing.slots)).flatten()
    }

    /// Has a pause count in a pace of one's own too.
    pub(super) fn pause_local(&self) {
        if let (Some(local), Some(end)) = (self.pacing.state.local(), self.terms.pauses.end()) {
            local.pause_until(end);
        }
    }

    /// Releases those who wait without a slot, where nothing paces.
    pub(super) fn release_openly(&mut self, now: Instant, admission: &impl Admission<W>) {
        let is_open = self.pacing.state.is_open() && !self.is_ahead_of_driver();
        if !is_open || self.terms.pauses.is_paused() {
            return;
        }
        let slot = self.pacing.slots.store_now().unwrap_or_else(wall_now);
        let deadline = Deadline::at(now);
        if self.pacing.is_suspended() {
            if let Some(waiter) = self.take_trial(now, admission) {
                self.release.hold_at_once(Held { waiter, slot, deadline });
            }
            return;
        }
        while self.release.free() > 0 {
            let Some(next) = self.schedule.next(&self.backlog, now) else { break };
            let batch = self.pick(next, self.release.free(), admission);
            if batch.is_empty() {
                break;
            }
            for waiter in batch {
                self.schedule.on_granted(next.lane, waiter.cost().into(), None);
                self.meters.granted(now.saturating_duration_since(waiter.since()), Duration::ZERO);
                self.release.hold_at_once(Held { waiter, slot, deadline });
            }
        }
    }

    /// Learns from a probe whether the store is there.
    pub(super) fn on_probe_reply(&mut self, Reply { sent, received, answer }: Reply) {
        self.pacing.on_probed(received, self.schedule.lease());
        let reserved = match answer {
            Ok(Answer::Reserved(reserved)) => reserved,
            Ok(Answer::Checked(_)) => return,
            Err(error) => {
                self.meters.reserve_failed();
                return self.on_failure(&error);
            }
        };
        let is_back = self.pacing.state.on_probe_answer(received);
        self.on_store_there(received);
        if is_back {
            self.on_store_back(received);
        }
        let observed = self.observe(sent, reserved.now, reserved.epoch, received);
        self.on_status(reserved.status, reserved.now, reserved.epoch, observed);
        if !self.pacing.state.is_absent() {
            return self.pacing.last_shared.set_replicas(reserved.replicas.unwrap_or(1));
        }
        let probed = Probed {
            replicas: reserved.replicas,
            is_paused: reserved.status.penalty > reserved.now,
            is_in_use: reserved.next > reserved.now,
        };
        if let Some(goes_on) = self.pacing.state.rejoins(received, probed) {
            self.rejoin(goes_on, reserved.replicas);
        }
    }

    /// Goes back to the shared pace.
    fn rejoin(&mut self, goes_on: bool, replicas: Option<u32>) {
        self.pacing.state.rejoin();
        self.give_up_own();
        self.schedule.follow(&self.settings);
        if let Some(replicas) = replicas {
            self.pacing.last_shared.set_replicas(replicas);
            self.schedule.set_replicas(replicas);
        }
        let now = Instant::now();
        self.pacing.reserve_at(now);
        self.pacing.renew_lease(now);
        if !goes_on {
            self.penalize(Deadline::at(now + HANDOVER));
        }
        tracing::info!(downstream = self.settings.downstream, "back to the pace that all replicas share");
    }

    /// The store is there, but of no use: nothing is released.
    fn hold_on(&mut self) {
        if self.pacing.state.take_fallback().is_some() {
            self.give_up_own();
            self.schedule.follow(&self.settings);
            self.schedule.set_replicas(self.pacing.last_shared.replicas());
        }
    }

    /// Slots of one's own count for nobody else.
    fn give_up_own(&mut self) {
        let given_up = self.release.give_up_all();
        self.put_back(given_up, Abandoned::StoreBack);
    }

    /// Other settings count: also for a pace of one's own.
    pub(super) fn follow_alone(&mut self) {
        if !self.pacing.state.is_absent() {
            return;
        }
        let wanted = self.settings.on_unavailable;
        let local = if wanted == OnUnavailable::Local { self.local_pace() } else { None };
        if self.pacing.state.local().is_some() || (local.is_none() && wanted != OnUnavailable::Open) {
            self.give_up_own();
        }
        if local.is_none() && wanted != OnUnavailable::Open {
            // As if the store had been away under these settings from the start.
            let _ = self.pacing.state.take_fallback();
            return;
        }
        if let Some(local) = &local {
            self.schedule.follow(&local.settings);
            self.schedule.set_replicas(1);
        }
        self.pacing.state.replace_local(local);
        self.pause_local();
    }
}
