//! The engine of one downstream and replica: its owners, and what crosses them.
//!
//! Its driver offers waiters, calls [`Engine::tick`], does what [`Engine::take_effects`] tells, and waits for
//! [`Engine::next`]. Whatever a tick does when it is due has its instant in [`Engine::wake_at`].

mod absence;
mod answers;
mod ask;
mod record;
mod wakeups;
mod withdraw;

use std::sync::Arc;

use tokio::time::Instant;

use super::backlog::Backlog;
use super::meters::{Abandoned, Meters};
use super::pacing::{Ended, Pacing};
use super::release::clock::{ReleaseClock, ring};
use super::release::{Due, Held, PauseGate, Release};
use super::schedule::Schedule;
use super::terms::SharedTerms;
use super::{LaneId, Settings, Waiter};
use crate::store::{SlotClock, Status, Store, StoreError};
use crate::time::{Deadline, Micros};
pub(crate) use wakeups::Wakeups;
pub(crate) use withdraw::Unused;

/// Gives slots to those who wait for one downstream.
#[derive(Debug)]
pub(crate) struct Engine<W> {
    /// The limits in force, and how slots are asked for.
    settings: Arc<Settings>,
    store: Arc<dyn Store>,
    meters: Meters,
    backlog: Backlog<W>,
    schedule: Schedule,
    pacing: Pacing<W>,
    terms: SharedTerms,
    release: Release<W>,
    /// What the driver is to do.
    effects: Vec<Effect<W>>,
}

/// What the driver of an engine is to do.
#[derive(Debug)]
pub(crate) enum Effect<W> {
    /// The slot of this one has come: it is to be sent now. The driver tells by [`Engine::on_sent`] when that is over.
    Release(Held<W>),
    /// This one gets no slot.
    Refuse(W, Refusal),
    /// Slots are being asked for: this many connections will be used at one time beyond those in use, and they take as long to open.
    Prepare(usize),
    /// Other settings are in force than these, which were until now. Nobody is asked for before the driver goes by them.
    Follow(Arc<Settings>),
    /// Some are waited for by nobody any more.
    DropStale,
    /// The store did not answer a call, or refused it.
    Failing(StoreError),
    /// The store's clock stepped, or a pause began or ended: slots that the driver handed out itself may be none any more.
    Recheck,
}

/// What the store tells with every answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// When the call was sent, and when its answer was received.
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    /// The store's clock when it decided.
    pub(crate) now: Micros,
    /// When its record of the downstream began.
    pub(crate) epoch: Micros,
    pub(crate) status: Status,
}

/// Why one gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// [`Admission::admits`] says so.
    NotAdmitted,
    /// The limits police, and this one of the lane's does not allow it before then.
    Limited { lane: LaneId, limit: usize, earliest: Micros },
}

/// Says who needs a slot.
pub(crate) trait Admission<W> {
    /// Whether this one still needs a slot, and may have one.
    fn admits(&self, waiter: &W) -> bool;
}

impl<W: Waiter> Engine<W> {
    /// An engine that goes by these settings once the store has agreed on them.
    pub(crate) fn new(given: Settings, store: Arc<dyn Store>) -> Self {
        let (settings, now) = (given.clone().policing(), Instant::now());
        let meters = Meters::new(&settings.downstream, settings.on_limit);
        meters.rate_in_force(settings.limits.rate().per_second(), false);
        let schedule = Schedule::new(&settings);
        store.set_horizon(&settings.downstream, schedule.turns().farthest());
        Self {
            backlog: Backlog::new(settings.plans.len()),
            schedule,
            pacing: Pacing::new(&settings, now),
            terms: SharedTerms::new(given, now),
            release: Release::new(&settings),
            settings: Arc::new(settings),
            store,
            meters,
            effects: Vec::new(),
        }
    }

    /// The same, where the driver knows of slots and pauses by these: they outlive the engine.
    pub(crate) fn knowing(mut self, slots: Arc<SlotClock>, gate: Arc<PauseGate>) -> Self {
        self.pacing.slots = slots;
        self.release.set_gate(gate);
        self
    }

    /// The same, in place of an engine of this name that ended: it is no start, so that it goes by the limits in force
    /// instead of proposing its own.
    pub(crate) fn succeeding(mut self, replica: Arc<str>) -> Self {
        self.pacing.set_replica(replica);
        self.terms.agreement.do_not_propose();
        self
    }

    /// Whether this replica goes by something else than the store's slots.
    pub(crate) const fn is_absent(&self) -> bool {
        self.pacing.state.is_absent()
    }

    /// The settings in force.
    pub(crate) const fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(crate) const fn meters(&self) -> &Meters {
        &self.meters
    }

    pub(crate) const fn release(&self) -> &Release<W> {
        &self.release
    }

    /// Adds one that may go now.
    pub(crate) fn offer(&mut self, waiter: W) {
        self.backlog.push(waiter);
    }

    /// Adds one that may go from `due` on.
    pub(crate) fn offer_later(&mut self, due: Instant, waiter: W) {
        self.backlog.push_later(due, waiter);
    }

    /// How many wait for a slot.
    pub(crate) fn waiting(&self) -> usize {
        self.backlog.len()
    }

    /// Takes all who wait for a slot.
    pub(crate) fn take_waiting(&mut self) -> Vec<W> {
        self.backlog.drain()
    }

    /// The generation of the limits in force, for calls of the driver's own; none while it is not known which these are.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.terms.agreement.settled()
    }

    /// Whether the last call to the store failed.
    pub(crate) const fn is_failing(&self) -> bool {
        self.pacing.state.is_failing()
    }

    /// Whether the limits in force cannot be gone by here: nobody gets a slot, which the log explains.
    pub(crate) fn has_no_limits(&self) -> bool {
        self.terms.agreement.is_rejected()
    }

    /// This replica's name at the store.
    pub(crate) const fn replica(&self) -> &Arc<str> {
        self.pacing.replica()
    }

    /// Takes in what the store told in answer to a call of the driver's own.
    pub(crate) fn on_stamp(&mut self, stamp: Stamp) {
        let Stamp { sent, received, now, epoch, status } = stamp;
        self.on_store_there(received);
        let observed = self.observe(sent, now, epoch, received);
        self.on_status(status, now, epoch, observed);
    }

    /// Forgets what was learnt of the next slots: somebody had the counts of limits begin at 0.
    pub(crate) fn forget_next_slots(&mut self) {
        self.schedule.forget();
        self.pacing.reserve_by(Instant::now());
    }

    /// Whether so many wait that the stale ones are to be dropped.
    pub(crate) fn is_crowded(&self) -> bool {
        self.backlog.is_crowded()
    }

    /// Whether nobody waits, holds a slot or is being sent, and nothing is asked of the store for them.
    pub(crate) fn is_idle(&self) -> bool {
        let is_asked_for = self.pacing.is_calling() || self.pacing.has_trial();
        self.release.is_quiet() && self.backlog.is_empty() && !is_asked_for
    }

    /// Does what is due at `now`.
    pub(crate) fn tick(&mut self, now: Instant, admission: &impl Admission<W>) {
        self.backlog.promote(now, self.schedule.turns().early());
        if self.terms.pauses.is_over() {
            self.obey();
        }
        self.expire_rates();
        self.release_openly(now, admission);
        self.release_due(Deadline::at(now));
        self.ask(now, admission);
        let circumstances = self.circumstances();
        self.terms.tick(now, circumstances, (&self.store, &self.settings.downstream));
        self.pacing.probe(now, self.schedule.lease(), (&self.store, &self.settings));
    }

    /// When the next tick is due, but for slots that come: [`Release::wake_at`].
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        [
            self.backlog.next_due(self.schedule.turns().early()),
            self.ask_wake_at(),
            self.terms.wake_at(self.circumstances()),
            self.terms.pauses.wake_at(),
            self.rates_expire_at(),
            self.pacing.probe_wake_at(&self.settings),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Gives the driver what it is to do since it was asked last, in a list that is empty and whose memory is used again.
    pub(crate) fn take_effects(&mut self, into: &mut Vec<Effect<W>>) {
        debug_assert!(into.is_empty(), "what was not done would be lost");
        std::mem::swap(&mut self.effects, into);
    }

    /// Waits for an answer of the store, for a change that it tells of, for a slot, or until the next tick is due, `by`
    /// then at the latest; and takes it in. Cancel safe.
    pub(crate) async fn next(&mut self, wakeups: &mut Wakeups, by: Option<Instant>) {
        wakeups.set(self.release.wake_at(), self.wake_at().into_iter().chain(by).min());
        let Wakeups { alarm, timer, timed, changes } = wakeups;
        tokio::select! {
            biased;
            () = ring(&mut **alarm) => {}
            ended = self.pacing.next() => match ended {
                Ended::Call(call, reply) => self.on_reply(call, reply),
                Ended::Probe(reply) => self.on_probe_reply(reply),
                // The next slot is an earlier one than was learnt.
                Ended::Return(true) => self.forget_next_slots(),
                Ended::Return(false) => {}
            },
            (purpose, reply) = self.terms.calls.reply() => self.on_record_reply(&purpose, reply),
            () = changes.next() => self.on_change(),
            () = timer, if timed.is_some() => *timed = None,
        }
    }

    /// What wakes this engine.
    pub(crate) fn wakeups(&self, clock: &dyn ReleaseClock) -> Wakeups {
        Wakeups::new(clock.alarm(), self.store.changes(&self.settings.downstream))
    }

    /// Hands over those whose slots have come.
    fn release_due(&mut self, now: Deadline) {
        while let Some(due) = self.release.pop_due(now) {
            match due {
                Due::Now(held) => self.effects.push(Effect::Release(held)),
                Due::Missed(held) => {
                    self.on_missed(Unused::of(&held));
                    self.backlog.push(held.waiter);
                }
            }
        }
    }

    /// A send that [`Effect::Release`] began is over; how long the downstream took to answer, if it did.
    pub(crate) fn on_sent(&mut self, took: Option<std::time::Duration>) {
        self.release.sent(took);
    }

    /// Whether the driver does not know yet that other settings are in force. Then it admits by the old ones.
    fn is_ahead_of_driver(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::Follow(_)))
    }

    /// These do not use the slots that they have: each takes its old place in the backlog.
    fn put_back(&mut self, waiters: Vec<W>, reason: Abandoned) {
        self.meters.abandoned(waiters.len(), reason);
        waiters.into_iter().for_each(|waiter| self.backlog.push(waiter));
    }

    /// Nobody is asked for from now on, for this reason, and those who hold a slot give it up; but one at a time may be
    /// tried, see [`Engine::try_one`].
    pub(crate) fn suspend(&mut self, reason: Abandoned) {
        let given_up = self.release.give_up_all();
        self.put_back(given_up, reason);
        let trial = self.pacing.suspend(&self.settings, reason, Instant::now());
        trial.into_iter().for_each(|waiter| self.backlog.push(waiter));
    }

    /// All are asked for again.
    pub(crate) fn resume(&mut self) {
        if let Some(waiter) = self.pacing.resume(Instant::now()) {
            self.backlog.push(waiter);
        }
        self.schedule.forget();
    }

    /// Asks for a slot for this one while nobody else is asked for.
    pub(crate) fn try_one(&mut self, waiter: W) {
        if let Some(waiter) = self.pacing.try_one(waiter) {
            self.backlog.push(waiter);
        }
    }

    /// From when on another one can be tried; none while nobody can.
    pub(crate) fn try_at(&self) -> Option<Instant> {
        let is_free = !self.pacing.is_calling() && !self.pacing.has_trial();
        self.trial_from().filter(|_| self.pacing.is_suspended() && is_free)
    }

    /// From when on the one that is to be tried may have a slot, or go without; none while nobody may.
    fn trial_from(&self) -> Option<Instant> {
        let may = if self.pacing.state.is_open() { !self.terms.pauses.is_paused() } else { self.may_ask() };
        (may && self.release.is_quiet()).then(|| self.ask_from())
    }

    /// Ends: takes all who wait or hold a slot. Those that are being sent may end.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        self.meters.abandoned(self.release.held(), Abandoned::Stopped);
        let mut waiters = self.backlog.drain();
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Release(Held { waiter, .. }) | Effect::Refuse(waiter, _) => waiters.push(waiter),
                Effect::Prepare(_)
                | Effect::Follow(_)
                | Effect::DropStale
                | Effect::Failing(_)
                | Effect::Recheck => {}
            }
        }
        waiters.extend(self.release.give_up_all());
        waiters.extend(self.pacing.drain());
        waiters
    }
}

#[cfg(test)]
mod tests;
