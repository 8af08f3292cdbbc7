//! The state that all replicas of a downstream share: the limits in force, pauses, and cancelled waiters.

mod agreement;
mod cooling;
mod known_tombstones;
mod pauses;
mod record;
mod tombstones;

use std::sync::Arc;

use tokio::time::Instant;

use agreement::Wanted;
pub(crate) use agreement::{Adopted, Agreement};
use cooling::Cooling;
pub(crate) use cooling::{CoolingChange, KnownCooling, ProbeEnd};
pub(crate) use known_tombstones::CancelledIds;
pub(crate) use pauses::{PauseChange, Paused, Pauses};
use record::RecordCalls;
pub(crate) use record::{Purpose, RecordReply};
pub(crate) use tombstones::TombstonesReply;
use tombstones::{TombstonePurpose, Tombstones};

use super::Settings;
use crate::store::{Observed, SlotClock, Status, Store, StoreError, TombstoneReply};
use crate::time::{Deadline, Micros};

/// The owner of one replica's knowledge of the downstream's record.
#[derive(Debug)]
pub(crate) struct SharedTerms {
    /// The agreement on the limits in force.
    agreement: Agreement,
    /// The known pauses.
    pauses: Pauses,
    /// The cool-down.
    cooling: Cooling,
    /// The calls about the record.
    calls: RecordCalls,
    /// The cancelled waiters; `None` where waiters have no ids by which they could be cancelled.
    tombstones: Option<Tombstones>,
}

/// The reply to a call about what all replicas share.
pub(crate) enum TermsReply {
    /// The reply to a call about the record.
    Record(Purpose, RecordReply),
    /// The reply to a call about cancelled waiters.
    Tombstones(TombstonesReply),
}

/// The state of the engine's other parts that matters for calls about the record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// The store is unavailable: it is only probed.
    pub(crate) is_away: bool,
    /// Slots are being requested, or will be once a back-off is over; those answers carry the status too.
    pub(crate) are_slots_requested: bool,
    /// There is a waiter, with or without a slot.
    pub(crate) somebody_waits: bool,
    /// When a waiter could go as a probe.
    pub(crate) probe_from: Option<Instant>,
}

/// The news of an answer besides its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatusNews {
    /// The counts of the limits were reset to 0.
    pub(crate) is_reset: bool,
    /// Its pauses are in force, since the store has not lost its record.
    pub(crate) counts: bool,
}

impl SharedTerms {
    pub(crate) fn new(given: Settings, replica: Arc<str>, now: Instant) -> Self {
        Self {
            agreement: Agreement::new(given),
            pauses: Pauses::default(),
            cooling: Cooling::new(replica),
            calls: RecordCalls::new(now),
            tombstones: None,
        }
    }

    /// Returns the agreement on the limits in force.
    pub(crate) const fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Returns the known pauses.
    pub(crate) const fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    pub(crate) const fn cooling(&self) -> &Cooling {
        &self.cooling
    }

    pub(crate) const fn cooling_mut(&mut self) -> &mut Cooling {
        &mut self.cooling
    }

    /// Keeps this replica's own limits from being proposed, unless the store has none.
    pub(crate) const fn do_not_propose(&mut self) {
        self.agreement.do_not_propose();
    }

    /// Applies other settings of this replica. Returns the settings to apply until all replicas agree on their
    /// limits.
    pub(crate) fn give(&mut self, given: Settings, slots: &SlotClock) -> Settings {
        self.calls.postpone(Instant::now());
        self.agreement.give(given, slots.store_now().unwrap_or_default())
    }

    /// Records that the downstream asked for a pause until `end`. Returns false if that is known already.
    pub(crate) fn penalize(&mut self, end: Deadline) -> bool {
        self.pauses.penalize(end)
    }

    /// Returns the change of pauses to apply now, if there is one.
    pub(crate) fn take_pause_change(&mut self) -> Option<PauseChange> {
        self.pauses.take_change()
    }

    /// Sets the instant from which slots behind the pause may be requested.
    pub(crate) const fn set_ask_from(&mut self, at: Instant) {
        self.pauses.set_ask_from(at);
    }

    /// Ends the rates of operators that have expired. The replica that notices first reports that to the store.
    /// Returns the settings to apply if the store is unavailable.
    pub(crate) fn expire(&mut self, slots: &SlotClock, is_away: bool) -> Option<Settings> {
        self.agreement.next_end()?;
        self.agreement.expire(slots.store_now()?, is_away)
    }

    /// Returns the settings without expired rates, if there are any, since no report reaches the store while it is
    /// unavailable.
    pub(crate) fn without_expired(&self, slots: &SlotClock) -> Option<Settings> {
        self.agreement.without_expired(slots.store_now()?)
    }

    /// Handles the notice that the record was changed; this number of replicas read it now.
    pub(crate) fn on_change(&mut self, now: Instant, replicas: u32, is_failing: bool) {
        self.calls.on_change(now, replicas, is_failing);
    }

    /// Records that the store answered a call of any kind.
    pub(crate) const fn on_answer(&mut self, received: Instant) {
        self.calls.on_answer(received);
    }

    /// Handles that the store is available again: pending changes are sent at once.
    pub(crate) const fn on_store_back(&mut self, received: Instant) {
        self.calls.postpone(received);
        self.pauses.on_store_back();
        if let Some(tombstones) = &mut self.tombstones {
            tombstones.on_store_back(received);
        }
    }

    /// Handles that the store's clock stepped, or its record started again.
    pub(crate) fn on_step(&mut self) {
        self.agreement.on_step();
    }

    /// Handles that the store's clock stepped back.
    pub(crate) const fn on_stepped_back(&mut self) {
        self.agreement.on_stepped_back();
    }

    /// Handles that the store confirmed a call about the record.
    pub(crate) fn on_confirmed(&mut self, purpose: &Purpose) {
        match purpose {
            Purpose::Penalize(end) => self.pauses.on_confirmed(*end),
            Purpose::Recall(_) => self.agreement.on_recalled(),
            Purpose::CoolDown { report, .. } => self.cooling.confirmed(*report),
            Purpose::Read | Purpose::Write { .. } => {}
        }
    }

    /// Handles that a call about the record failed; it is repeated at `again`.
    pub(crate) fn on_failure(&mut self, purpose: &Purpose, again: Instant) {
        if *purpose == Purpose::Read {
            self.calls.on_read_failed();
        }
        self.calls.postpone(again);
        self.pauses.on_report_failed(again);
    }

    /// Accepts the status of an answer that the store gave at `now` in this epoch. Returns `None` if a newer answer
    /// was accepted already.
    pub(crate) fn on_status(
        &mut self,
        (status, now, epoch): (Status, Micros, Micros),
        observed: Observed,
        slots: &SlotClock,
    ) -> Option<StatusNews> {
        if observed == Observed::Consistent && self.pauses.is_overtaken(now, epoch) {
            return None;
        }
        if let Some(tombstones) = &mut self.tombstones {
            tombstones.on_version(epoch, status.tombstones);
        }
        self.agreement.on_generation(status.generation);
        let news = self.pauses.on_answer(&status);
        if news.is_forgotten {
            self.agreement.on_loss();
        }
        // Pauses that the store has lost stay in force.
        let counts = !self.agreement.is_lost();
        if counts {
            self.pauses.follow(status, now, epoch, slots);
        }
        Some(StatusNews { is_reset: news.is_reset, counts })
    }

    /// Accepts the record that the store returned at `now`. Returns the limits to apply, if they change.
    pub(crate) fn on_record(
        &mut self,
        status: Status,
        terms: Option<String>,
        now: Micros,
    ) -> Option<Adopted> {
        self.agreement.on_record(status, terms, now)
    }

    /// Follows the tombstones in the store from now on. Returns the ids of the waiters that are cancelled at any time.
    pub(crate) fn follow_tombstones(&mut self, now: Instant) -> Arc<CancelledIds> {
        let tombstones = self.tombstones.get_or_insert_with(|| Tombstones::new(now));
        Arc::clone(tombstones.cancelled())
    }

    /// Whether the store has tombstones that are not known here.
    pub(crate) fn lacks_tombstones(&self) -> bool {
        self.tombstones.as_ref().is_some_and(Tombstones::is_behind)
    }

    /// Accepts an answer about tombstones, whose status was accepted already. Returns how many waiters are newly
    /// cancelled.
    pub(crate) fn on_tombstones(&mut self, purpose: TombstonePurpose, answer: TombstoneReply) -> usize {
        self.tombstones.as_mut().map_or(0, |tombstones| tombstones.on_answer(purpose, answer))
    }

    /// Handles that a call about tombstones failed. It is repeated at `again` if the store is away.
    pub(crate) fn on_tombstones_failed(
        &mut self,
        purpose: &TombstonePurpose,
        (error, downstream): (&StoreError, &str),
        again: Instant,
    ) {
        let Some(tombstones) = &mut self.tombstones else { return };
        if error.is_away() {
            tombstones.on_away(again);
        } else {
            tombstones.on_refused(purpose, error, downstream);
        }
    }

    /// Forgets the tombstones that have ended.
    pub(crate) fn end_tombstones(&mut self, slots: &SlotClock) {
        if let Some(tombstones) = &mut self.tombstones {
            tombstones.end(slots);
        }
    }

    /// Waits for the reply to a call in flight; forever, if there is none. Cancel safe.
    pub(crate) async fn reply(&mut self) -> TermsReply {
        let Self { calls, tombstones, .. } = self;
        let tombstones = async {
            match tombstones {
                Some(tombstones) => tombstones.reply().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            (purpose, reply) = calls.reply() => TermsReply::Record(purpose, reply),
            reply = tombstones => TermsReply::Tombstones(reply),
        }
    }

    /// Starts the next calls, if any are needed. Among calls about the record, restoring a lost one comes first, then
    /// a pause, then terms, then reading.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        circumstances: Circumstances,
        (store, downstream): (&Arc<dyn Store>, &str),
    ) {
        if let Some(tombstones) = self.tombstones.as_mut().filter(|_| !circumstances.is_away) {
            tombstones.tick(now, (store, downstream));
        }
        if self.calls.is_calling() || circumstances.is_away {
            return;
        }
        if let Some(purpose) = self.purpose(now, circumstances) {
            self.calls.start(Arc::clone(store), downstream.to_owned(), purpose, now);
        }
    }

    fn purpose(&self, now: Instant, circumstances: Circumstances) -> Option<Purpose> {
        let may_call = self.calls.may_call(now);
        if may_call && self.agreement.is_lost() {
            return Some(Purpose::Recall(self.pauses.memory(self.agreement.memory())));
        }
        if let Some(end) = self.pauses.to_report(now) {
            return Some(Purpose::Penalize(end));
        }
        if let Some(report) = self.cooling.to_report(now, circumstances.probe_from).filter(|_| may_call) {
            let (replica, longest) = (Arc::clone(self.cooling.replica()), self.cooling.longest());
            return Some(Purpose::CoolDown { report, replica, longest });
        }
        match self.agreement.wanted().filter(|_| may_call) {
            Some(Wanted::Write { of, text }) => return Some(Purpose::Write { of, text }),
            Some(Wanted::Read) => return Some(Purpose::Read),
            None => {}
        }
        self.read_due(circumstances).filter(|due| *due <= now).map(|_| Purpose::Read)
    }

    /// Returns the instant at which [`SharedTerms::tick`] has something to do, or a pause, an operator's rate or a
    /// tombstone ends.
    pub(crate) fn wake_at(&self, circumstances: Circumstances, slots: &SlotClock) -> Option<Instant> {
        let rate_end = self.agreement.next_end().and_then(|end| slots.hold(end)).map(Deadline::instant);
        let tombstones = self.tombstones.as_ref();
        let tombstones = tombstones.and_then(|tombstones| tombstones.wake_at(circumstances.is_away, slots));
        [self.call_at(circumstances), self.pauses.wake_at(), rate_end, tombstones].into_iter().flatten().min()
    }

    /// Returns the instant of the next call.
    fn call_at(&self, circumstances: Circumstances) -> Option<Instant> {
        if self.calls.is_calling() || circumstances.is_away {
            return None;
        }
        let wants =
            self.agreement.is_lost() || self.agreement.wanted().is_some() || self.cooling.is_unconfirmed();
        let wanted = wants.then(|| self.calls.next_at());
        let probe = self.cooling.wake_at(circumstances.probe_from).map(|at| at.max(self.calls.next_at()));
        [wanted, probe, self.pauses.report_at(), self.read_due(circumstances)].into_iter().flatten().min()
    }

    fn read_due(&self, circumstances: Circumstances) -> Option<Instant> {
        self.calls.read_due(circumstances.are_slots_requested, circumstances.somebody_waits)
    }
}
