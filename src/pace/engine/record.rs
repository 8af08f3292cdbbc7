//! The engine's handling of the state that all replicas share: the limits in force, and pauses.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Effect, Engine};
use crate::pace::meters::Abandoned;
use crate::pace::terms::{Adopted, Circumstances, PauseChange, Paused, Purpose, RecordReply};
use crate::pace::{LaneId, OnLimit, Settings, Waiter};
use crate::store::{Observed, RecordState, Status};
use crate::time::{Deadline, Micros};

impl<W: Waiter> Engine<W> {
    /// Returns the state of the other parts that matters for calls about the record.
    pub(super) fn circumstances(&self) -> Circumstances {
        let asks = !self.backlog.is_empty() && self.release.free() > 0 && self.may_ask();
        let asks = asks && !self.terms.pauses().is_paused();
        // While reserve calls fail, their repetition shows when the store is available again.
        let state = self.pacing.state();
        let will_retry = state.is_failing() && asks;
        Circumstances {
            is_away: state.is_away(),
            are_slots_requested: self.pacing.is_calling() || will_retry,
            somebody_waits: !self.backlog.is_empty() || self.release.held() > 0,
            probe_from: self.probe_from(),
        }
    }

    /// Handles the notice that the record of the downstream was changed.
    pub(super) fn on_change(&mut self) {
        let replicas = self.schedule.batching(LaneId::DOWNSTREAM).replicas();
        self.terms.on_change(Instant::now(), replicas, self.pacing.state().is_failing());
    }

    /// Handles the reply to a call about the record.
    pub(super) fn on_record_reply(&mut self, purpose: &Purpose, reply: RecordReply) {
        let RecordReply { sent, received, answer } = reply;
        match answer {
            Ok(RecordState { now, epoch, status, terms, cool_down, .. }) => {
                self.meters.record_answered(received - sent);
                self.on_store_there(received);
                let observed = self.observe(sent, now, epoch, received);
                self.terms.on_confirmed(purpose);
                if matches!(purpose, Purpose::Recall(_)) {
                    // The estimates of the next slots come from a record that had lost a pause, or the end of one.
                    self.schedule.forget();
                    self.pacing.reserve_by(received);
                }
                let is_newest = self.on_status(status, now, epoch, observed);
                // Answers about the record alone have it, and they arrive in order.
                if !self.terms.agreement().is_lost() {
                    self.follow_cool_down(cool_down, received);
                }
                if is_newest && let Some(adopted) = self.terms.on_record(status, terms, now) {
                    self.adopt(adopted);
                }
            }
            Err(error) => {
                self.meters.record_failed();
                self.on_failure(&error);
                self.terms.on_failure(purpose, self.pacing.next_reserve_at());
            }
        }
    }

    /// Applies the limits that all replicas agree on.
    fn adopt(&mut self, Adopted { settings, is_override, has_replaced }: Adopted) {
        self.meters.pace_in_force(settings.limits.pace(), is_override);
        // The first terms that a replica learns may have been in force for long.
        let is_sooner = has_replaced.unwrap_or_else(|| settings.may_release_sooner(&self.settings));
        self.schedule.forget_passed_on();
        self.follow(settings);
        if is_sooner {
            self.ease();
        }
    }

    /// Returns a text that changes with each change of the limits in force, each reset of their counts, and each loss
    /// of the store's record. All replicas that know the same changes have the same text. `None` while these are not
    /// known.
    pub(crate) fn limits_version(&self) -> Option<String> {
        let version = self.terms.agreement().version().filter(|_| !self.pacing.state().is_away());
        let (Micros(epoch), reset) = (self.terms.pauses().epoch(), self.terms.pauses().last_reset());
        version.map(|(generation, fingerprint)| format!("{epoch}.{generation}.{fingerprint:x}.{reset}"))
    }

    /// Returns the version of the limits, followed by a dot and that of pauses.
    pub(crate) fn versions(&self) -> Option<String> {
        self.limits_version().map(|limits| self.versions_with(&limits))
    }

    /// Returns this version of the limits, followed by a dot and that of pauses.
    pub(crate) fn versions_with(&self, limits: &str) -> String {
        format!("{limits}.{}", self.terms.pauses().version())
    }

    /// Brings back the waiters that wait elsewhere for a limit.
    fn ease(&mut self) {
        self.driver.effects.push(Effect::Eased);
    }

    /// Applies other settings: all but the limits at once, and the limits once all replicas agree on them.
    pub(crate) fn reload(&mut self, given: Settings) {
        let settings = self.terms.give(given, self.pacing.slots());
        self.follow(settings);
    }

    /// Ends the rates of operators that have expired. The replica that notices first reports that to the store.
    pub(super) fn expire_rates(&mut self) {
        if let Some(settings) = self.terms.expire(self.pacing.slots(), self.pacing.state().is_away()) {
            self.follow_and_ease(settings);
        }
    }

    /// Applies the terms without expired rates, since no report reaches the store while it is unavailable.
    pub(super) fn follow_without_expired(&mut self) {
        if let Some(settings) = self.terms.without_expired(self.pacing.slots()) {
            self.follow_and_ease(settings);
        }
    }

    fn follow_and_ease(&mut self, settings: Settings) {
        let is_sooner = settings.may_release_sooner(&self.settings);
        self.follow(settings);
        if is_sooner {
            self.ease();
        }
    }

    /// Applies these settings. Waiters that hold a slot keep it.
    fn follow(&mut self, settings: Settings) {
        self.release.follow(&settings);
        self.meters.paused_values(settings.of_jobs.lanes.as_ref().map_or(0, |rules| rules.paused.len()));
        // Where the limits stay, the slots and the turn stay too.
        let is_same = settings.paces_like(&self.settings) && !self.is_absent();
        if !is_same {
            let keeps_turn = !self.is_absent() && settings.limits == self.settings.limits;
            let keeps_turn = keeps_turn && settings.horizon == self.settings.horizon;
            self.schedule.follow(&settings, keeps_turn);
            self.store.set_horizon(&settings.downstream, self.schedule.turns().farthest());
        }
        self.settings = Arc::new(settings);
        self.driver.effects.push(Effect::Follow);
        self.follow_in_fallback();
        if !is_same {
            // The next slots have changed.
            self.pacing.reserve_at(Instant::now());
        }
        self.schedule.forget_batch_delay();
    }

    /// Pauses the downstream until `end`, as the downstream asked for.
    pub(crate) fn penalize(&mut self, end: Deadline) {
        if self.terms.penalize(end) {
            self.apply_pauses();
        }
    }

    /// Accepts the status of the downstream, and applies it at once. Returns false if a newer answer was accepted
    /// already.
    pub(super) fn on_status(
        &mut self,
        status: Status,
        now: Micros,
        epoch: Micros,
        observed: Observed,
    ) -> bool {
        let known = self.terms.pauses().epoch();
        let Some(news) = self.terms.on_status((status, now, epoch), observed, self.pacing.slots()) else {
            return false;
        };
        if self.terms.pauses().epoch() != known {
            // The version of the limits has changed, so waiters that come back are passed on again.
            self.schedule.forget_passed_on();
        }
        if news.is_reset {
            self.on_reset();
        }
        if news.counts {
            if observed == Observed::SteppedBack {
                // The held slots are of the clock before the step, so only their local instants can be compared.
                let end = self.terms.pauses().end();
                let given_up = self.release.give_up(|held| end.is_some_and(|end| held.deadline < end));
                self.put_back(given_up, Abandoned::Paused);
            }
            self.apply_pauses();
        }
        true
    }

    /// Handles a reset of the limits' counts to 0: the estimates of the next slots are void. Held slots stay valid.
    fn on_reset(&mut self) {
        self.pacing.forget_usage();
        self.schedule.forget();
        self.schedule.forget_passed_on();
        self.pacing.reserve_by(Instant::now());
        self.ease();
        tracing::info!(downstream = self.settings.downstream, "reset: the counts of limits start at 0 again");
    }

    /// Applies the known pauses: gives up the held slots that lie in one, and reports its begin and end.
    pub(super) fn apply_pauses(&mut self) {
        self.release.gate().set(self.terms.pauses().closed());
        self.pause_local();
        let given_up = self.release.give_up_paused();
        self.put_back(given_up, Abandoned::Paused);
        let (change, downstream) = (self.terms.take_pause_change(), &self.settings.downstream);
        if change.is_some() {
            self.driver.effects.push(Effect::Recheck { has_stepped: false });
        }
        match change {
            None => {}
            Some(PauseChange::Over) => {
                self.meters.paused(false);
                tracing::info!(downstream, "the pause is over");
            }
            Some(PauseChange::Resumed) => {
                self.meters.paused(false);
                tracing::info!(downstream, "resumed: the pause is over before its time");
                self.ease();
                // The estimates of the next slots lie behind the pause.
                self.schedule.forget();
                self.pacing.reserve_by(Instant::now());
            }
            Some(PauseChange::Until { end, until, why, is_news }) => {
                self.meters.paused(true);
                let is_operators = matches!(self.terms.pauses().current(), Some((Paused::Operator, _)));
                if is_news && (is_operators || !self.terms.cooling().is_on()) {
                    tracing::warn!(downstream, until, why, "paused: nothing is released");
                } else {
                    tracing::debug!(downstream, until, why, "the pause ends then");
                }
                // The estimates of the next slots date from before the pause.
                self.schedule.forget();
                let ask_from = self.ask_behind(end);
                self.terms.set_ask_from(ask_from);
            }
        }
    }

    /// Returns when to request the slots behind a pause: as early as other slots ahead. A policer asks at the end of
    /// the pause.
    fn ask_behind(&self, end: Deadline) -> Instant {
        let (end, ahead) = (end.instant(), self.settings.horizon / 2);
        match self.settings.on_limit {
            OnLimit::Wait => {
                let jitter = self.schedule.batching(LaneId::DOWNSTREAM).jitter(ahead / 2);
                end.checked_sub(ahead).unwrap_or(end) + jitter
            }
            OnLimit::Reject => end,
        }
    }
}
