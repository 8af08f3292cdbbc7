//! What the pacer does about what all replicas hold in common: the limits in force, and pauses.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pacer;
use crate::dispatch::entry::Entry;
use crate::pace::terms::{Adopted, Circumstances, PauseChange, Purpose, RecordReply};
use crate::pace::{LaneId, OnLimit, Settings};
use crate::store::{Observed, Status, Tended};
use crate::time::{Deadline, Micros};

impl Pacer {
    /// What matters for calls about the record.
    pub(super) fn circumstances(&self, calling: bool) -> Circumstances {
        // While calls for slots fail, these tell when the store is there again.
        let asks = !self.backlog.is_empty() && self.release.free() > 0 && self.may_ask();
        let asks = asks && !self.terms.pauses.is_paused();
        Circumstances {
            is_away: self.is_away(),
            are_slots_asked_for: calling || (self.failures > 0 && asks),
            somebody_waits: !self.backlog.is_empty() || self.release.held() > 0,
        }
    }

    /// Somebody changed what holds for the downstream.
    pub(super) fn on_change(&mut self) {
        let replicas = self.schedule.batching(LaneId::DOWNSTREAM).replicas();
        self.terms.calls.on_change(Instant::now(), replicas, self.failures > 0);
    }

    /// Learns from a call about the record.
    pub(super) fn on_record_reply(&mut self, purpose: &Purpose, reply: RecordReply) {
        let RecordReply { sent, received, answer } = reply;
        let meters = &self.gear.meters;
        match answer {
            Ok(Tended { now, epoch, status, terms }) => {
                meters.tending.record((received - sent).as_secs_f64());
                self.answers(received);
                let observed = self.observe(sent, now, epoch, received);
                match purpose {
                    Purpose::Penalize(end) => self.terms.pauses.on_told(*end),
                    Purpose::Recall(_) => self.terms.agreement.on_recalled(),
                    Purpose::Read | Purpose::Write { .. } => {}
                }
                if self.on_status(status, now, epoch, observed)
                    && let Some(adopted) = self.terms.agreement.on_record(status, terms, now)
                {
                    self.adopt(adopted);
                }
            }
            Err(error) => {
                meters.tend_errors.increment(1);
                if *purpose == Purpose::Read {
                    self.terms.calls.on_read_failed();
                }
                self.failed(&error);
                self.terms.calls.postpone(self.ask_at);
                self.terms.pauses.on_not_told(self.ask_at);
            }
        }
    }

    /// Goes by limits that all replicas agree on.
    fn adopt(&mut self, Adopted { settings, is_override }: Adopted) {
        self.gear.meters.rate_from(settings.limits.rate().per_second(), is_override);
        self.follow(settings);
    }

    /// A rate that an operator set may be over: says so to all, whoever notices first.
    pub(super) fn expire(&mut self) {
        let Some(now) = self.terms.agreement.next_end().and_then(|_| self.slots.store_now()) else { return };
        let is_away = self.is_away();
        if let Some(settings) = self.terms.agreement.expire(now, is_away) {
            self.follow(settings);
        }
    }

    /// When it will be.
    pub(super) fn expire_due(&self) -> Option<Instant> {
        self.slots.hold(self.terms.agreement.next_end()?).map(Deadline::instant)
    }

    /// Goes by the terms without the rates that are over: while the store is away nobody can be told.
    pub(super) fn end_rates(&mut self) {
        let settings = self.slots.store_now().and_then(|now| self.terms.agreement.without_expired(now));
        if let Some(settings) = settings {
            self.follow(settings);
        }
    }

    /// Goes by these settings from now on. Those who hold a slot keep it; what is being sent was released under the old
    /// ones.
    pub(super) fn follow(&mut self, settings: Settings) {
        self.release.follow(&settings);
        self.schedule.follow(&settings);
        self.store.set_horizon(&settings.downstream, self.schedule.turns().farthest());
        let before = self.window();
        self.settings = Arc::new(settings);
        self.bound_costs();
        self.renew_gear(self.gear.retry, self.gear.max_pause);
        let window = self.window();
        if window != before {
            self.resize = Some(window.saturating_add(self.halt.extra()));
        }
        self.follow_alone();
        // The next slots lie elsewhere now.
        (self.ask_at, self.batch_delay_until) = (Instant::now(), None);
    }

    /// The downstream asks for a pause until `end`.
    pub(super) fn penalized(&mut self, end: Deadline) {
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
            self.reset();
        }
        if news.is_forgotten {
            self.terms.agreement.on_loss();
        }
        // What the store has forgotten counts on.
        if !self.terms.agreement.is_lost() {
            self.terms.pauses.follow(status, now, epoch, &self.slots);
            if observed == Observed::SteppedBack {
                // What is held has slots of the clock as it was: only its local instants compare.
                let end = self.terms.pauses.end();
                let given_up = self.release.give_up(|held| end.is_some_and(|end| held.deadline < end));
                self.put_back_paused(given_up);
            }
            self.obey();
        }
        true
    }

    /// Somebody had the counts of limits begin at 0: what was learnt of the next slots says nothing any more. Those that
    /// are held stay good.
    fn reset(&mut self) {
        self.shared.reset();
        self.schedule.forget();
        self.ask_at = self.ask_at.min(Instant::now());
        tracing::info!(downstream = self.settings.downstream, "reset: the counts of limits began at 0");
    }

    /// Gives up what is held for slots in a pause, and says when one begins and ends.
    pub(super) fn obey(&mut self) {
        self.release.gate().set(self.terms.pauses.closed());
        self.tell_alone();
        let given_up = self.release.give_up_paused();
        self.put_back_paused(given_up);
        let downstream = &self.settings.downstream;
        match self.terms.pauses.take_change() {
            None => {}
            Some(PauseChange::Over) => {
                self.gear.meters.paused.set(0.0);
                tracing::info!(downstream, "the pause is over");
            }
            Some(PauseChange::Resumed) => {
                self.gear.meters.paused.set(0.0);
                tracing::info!(downstream, "resumed: the pause is over before its time");
                // What was learnt of the next slots is of behind the pause.
                self.schedule.forget();
                self.ask_at = self.ask_at.min(Instant::now());
            }
            Some(PauseChange::Until { end, until, why, is_news }) => {
                self.gear.meters.paused.set(1.0);
                if is_news {
                    tracing::warn!(downstream, until, why, "paused: nothing is released");
                } else {
                    tracing::debug!(downstream, until, why, "the pause ends then");
                }
                // What was learnt of the next slots is of before the pause.
                self.schedule.forget();
                self.terms.pauses.set_ask_from(self.ask_behind(end));
            }
        }
    }

    /// The slots of these jobs lie in a pause: each goes back to its old place in the backlog.
    fn put_back_paused(&mut self, given_up: Vec<Entry>) {
        self.gear.meters.paused_slots.increment(given_up.len() as u64);
        given_up.into_iter().for_each(|entry| self.backlog.push(entry));
    }

    /// When to ask for the slots behind a pause: as for others that lie ahead. A policer's are now.
    fn ask_behind(&self, end: Deadline) -> Instant {
        let (end, ahead): (Instant, Duration) = (end.instant(), self.settings.horizon / 2);
        match self.settings.on_limit {
            OnLimit::Wait => {
                let jitter = self.schedule.batching(LaneId::DOWNSTREAM).jitter(ahead / 2);
                end.checked_sub(ahead).unwrap_or(end) + jitter
            }
            OnLimit::Reject => end,
        }
    }

    /// Notices that a pause is over, if it is.
    pub(super) fn lift(&mut self) {
        if self.terms.pauses.is_over() {
            self.obey();
        }
    }
}
