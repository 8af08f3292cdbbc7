//! What the engine does about what all replicas hold in common: the limits in force, and pauses.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Effect, Engine};
use crate::pace::meters::Abandoned;
use crate::pace::terms::{Adopted, Circumstances, PauseChange, Purpose, RecordReply};
use crate::pace::{LaneId, OnLimit, Settings, Waiter};
use crate::store::{Observed, RecordState, Status};
use crate::time::{Deadline, Micros};

impl<W: Waiter> Engine<W> {
    /// What matters for calls about the record.
    pub(super) fn circumstances(&self) -> Circumstances {
        let asks = !self.backlog.is_empty() && self.release.free() > 0 && self.may_ask();
        let asks = asks && !self.terms.pauses.is_paused();
        // While calls for slots fail, these tell when the store is there again.
        let is_told = self.pacing.state.is_failing() && asks;
        Circumstances {
            is_away: self.pacing.state.is_away(),
            are_slots_asked_for: self.pacing.is_calling() || is_told,
            somebody_waits: !self.backlog.is_empty() || self.release.held() > 0,
        }
    }

    /// Somebody changed what holds for the downstream.
    pub(super) fn on_change(&mut self) {
        let replicas = self.schedule.batching(LaneId::DOWNSTREAM).replicas();
        self.terms.calls.on_change(Instant::now(), replicas, self.pacing.state.is_failing());
    }

    /// Learns from a call about the record.
    pub(super) fn on_record_reply(&mut self, purpose: &Purpose, reply: RecordReply) {
        let RecordReply { sent, received, answer } = reply;
        match answer {
            Ok(RecordState { now, epoch, status, terms }) => {
                self.meters.record_answered(received - sent);
                self.on_store_there(received);
                let observed = self.observe(sent, now, epoch, received);
                match purpose {
                    Purpose::Penalize(end) => self.terms.pauses.on_told(*end),
                    Purpose::Recall(_) => {
                        self.terms.agreement.on_recalled();
                        // What was learnt of the next slots is of a record that had lost a pause, or its end.
                        self.schedule.forget();
                        self.pacing.reserve_by(received);
                    }
                    Purpose::Read | Purpose::Write { .. } => {}
                }
                if self.on_status(status, now, epoch, observed)
                    && let Some(adopted) = self.terms.agreement.on_record(status, terms, now)
                {
                    self.adopt(adopted);
                }
            }
            Err(error) => {
                self.meters.record_failed();
                if *purpose == Purpose::Read {
                    self.terms.calls.on_read_failed();
                }
                self.on_failure(&error);
                let again = self.pacing.next_reserve_at();
                self.terms.calls.postpone(again);
                self.terms.pauses.on_not_told(again);
            }
        }
    }

    /// Goes by limits that all replicas agree on.
    fn adopt(&mut self, Adopted { settings, is_override }: Adopted) {
        self.meters.rate_in_force(settings.limits.rate().per_second(), is_override);
        self.follow(settings);
    }

    /// The driver is given other settings: all but the limits counts from now on, and the limits once all replicas agree
    /// on them.
    pub(crate) fn reload(&mut self, given: Settings) {
        let now = self.pacing.slots.store_now().unwrap_or_default();
        let settings = self.terms.agreement.give(given, now);
        self.terms.calls.postpone(Instant::now());
        self.follow(settings);
    }

    /// Rates that operators set may be over: has the store told, whoever notices first.
    pub(super) fn expire_rates(&mut self) {
        let end = self.terms.agreement.next_end();
        let Some(now) = end.and_then(|_| self.pacing.slots.store_now()) else { return };
        if let Some(settings) = self.terms.agreement.expire(now, self.pacing.state.is_away()) {
            self.follow(settings);
        }
    }

    /// When [`Engine::expire_rates`] has something to do.
    pub(super) fn rates_expire_at(&self) -> Option<Instant> {
        self.pacing.slots.hold(self.terms.agreement.next_end()?).map(Deadline::instant)
    }

    /// Goes by the terms without the rates that are over: while the store is away nobody can be told.
    pub(super) fn end_rates(&mut self) {
        let now = self.pacing.slots.store_now();
        if let Some(settings) = now.and_then(|now| self.terms.agreement.without_expired(now)) {
            self.follow(settings);
        }
    }

    /// Goes by these settings from now on. Those who hold a slot keep it.
    fn follow(&mut self, settings: Settings) {
        self.release.follow(&settings);
        self.schedule.follow(&settings);
        self.store.set_horizon(&settings.downstream, self.schedule.turns().farthest());
        let before = std::mem::replace(&mut self.settings, Arc::new(settings));
        self.effects.push(Effect::Follow(before));
        self.follow_alone();
        // The next slots lie elsewhere now.
        self.pacing.reserve_at(Instant::now());
        self.schedule.forget_batch_delay();
    }

    /// The downstream asks for a pause until `end`.
    pub(crate) fn penalize(&mut self, end: Deadline) {
        if self.terms.pauses.penalize(end) {
            self.obey();
        }
    }

    /// Learns what holds for the whole downstream, and goes by it at once. False where the store has said something
    /// newer already.
    pub(super) fn on_status(
        &mut self,
        status: Status,
        now: Micros,
        epoch: Micros,
        observed: Observed,
    ) -> bool {
        if observed == Observed::Consistent && self.terms.pauses.is_overtaken(now, epoch) {
            return false;
        }
        self.terms.agreement.on_generation(status.generation);
        let news = self.terms.pauses.on_answer(&status);
        if news.is_reset {
            self.on_reset();
        }
        if news.is_forgotten {
            self.terms.agreement.on_loss();
        }
        // What the store has forgotten counts on.
        if !self.terms.agreement.is_lost() {
            self.terms.pauses.follow(status, now, epoch, &self.pacing.slots);
            if observed == Observed::SteppedBack {
                // What is held has slots of the clock as it was: only its local instants compare.
                let end = self.terms.pauses.end();
                let given_up = self.release.give_up(|held| end.is_some_and(|end| held.deadline < end));
                self.put_back(given_up, Abandoned::Paused);
            }
            self.obey();
        }
        true
    }

    /// Somebody had the counts of limits begin at 0: what was learnt of the next slots says nothing any more. Those that
    /// are held stay good.
    fn on_reset(&mut self) {
        self.pacing.last_shared.forget_usage();
        self.schedule.forget();
        self.pacing.reserve_by(Instant::now());
        tracing::info!(downstream = self.settings.downstream, "reset: the counts of limits began at 0");
    }

    /// Gives up what is held for slots in a pause, and says when one begins and ends.
    pub(super) fn obey(&mut self) {
        self.release.gate().set(self.terms.pauses.closed());
        self.pause_local();
        let given_up = self.release.give_up_paused();
        self.put_back(given_up, Abandoned::Paused);
        let (change, downstream) = (self.terms.pauses.take_change(), &self.settings.downstream);
        if change.is_some() {
            self.effects.push(Effect::Recheck);
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
                // What was learnt of the next slots is of behind the pause.
                self.schedule.forget();
                self.pacing.reserve_by(Instant::now());
            }
            Some(PauseChange::Until { end, until, why, is_news }) => {
                self.meters.paused(true);
                if is_news {
                    tracing::warn!(downstream, until, why, "paused: nothing is released");
                } else {
                    tracing::debug!(downstream, until, why, "the pause ends then");
                }
                // What was learnt of the next slots is of before the pause.
                self.schedule.forget();
                let ask_from = self.ask_behind(end);
                self.terms.pauses.set_ask_from(ask_from);
            }
        }
    }

    /// When to ask for the slots behind a pause: as for others that lie ahead. A policer's are now.
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
