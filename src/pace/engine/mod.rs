//! The engine of one downstream and replica: it owns the parts, and connects them.
//!
//! Its driver offers waiters, calls [`Engine::tick`], carries out the effects of [`Engine::take_effects`], and waits
//! for [`Engine::next`]. [`Engine::wake_at`] covers the instants of everything that a tick does, except slots that
//! come.

mod absence;
mod answers;
mod ask;
mod cancelled;
mod cooling;
mod drain;
mod ends;
mod explain;
mod lanes;
mod opening;
mod record;
mod suspension;
mod unreachable;
mod view;
mod wakeups;
mod withdraw;

use std::sync::Arc;

use tokio::time::Instant;

use super::backlog::Backlog;
use super::meters::{Abandoned, Meters};
use super::pacing::{Ended, Pacing, Peers};
use super::release::clock::{ReleaseClock, ring};
use super::release::{Held, PauseGate, Release};
use super::schedule::Schedule;
use super::terms::{SharedTerms, TermsReply};
use super::{LaneId, Settings, Waiter};
use crate::store::{SlotClock, Stamp, Store, StoreError};
use crate::time::{Deadline, Micros};
pub(crate) use explain::Whereabouts;
use opening::Connections;
pub(crate) use view::{EngineView, Hold};
pub(crate) use wakeups::Wakeups;

/// Assigns slots to the waiters of one downstream.
#[derive(Debug)]
pub(crate) struct Engine<W> {
    /// The settings in force, policing if `on_limit` asks for it.
    settings: Arc<Settings>,
    store: Arc<dyn Store>,
    meters: Meters,
    backlog: Backlog<W>,
    schedule: Schedule,
    pacing: Pacing<W>,
    terms: SharedTerms,
    release: Release<W>,
    driver: Driver<W>,
}

/// The state that the engine shares with its driver.
#[derive(Debug)]
struct Driver<W> {
    /// The effects that it has not taken yet.
    effects: Vec<Effect<W>>,
    connections: Connections,
    /// Whether the driver has suspended the engine.
    is_suspended: bool,
    /// When this replica ends, once that is known.
    ends_at: Option<Instant>,
}

/// An instruction to the driver of the engine.
#[derive(Debug)]
pub(crate) enum Effect<W> {
    /// The slot of this waiter has come: the driver sends it now, and calls [`Engine::on_sent`] when the send has
    /// ended.
    Release(Held<W>),
    /// This waiter gets no slot.
    Refuse(W, Refusal),
    /// Slots are being requested for `jobs` waiters. They need `at_once` connections at one time beyond those in use,
    /// which the driver may open meanwhile. If `is_awaited`, the driver calls [`Engine::on_opened`] when they are
    /// open.
    Prepare { jobs: usize, at_once: usize, is_awaited: bool },
    /// Other settings came into force. No slots are requested before the driver has applied the change.
    Follow,
    /// Waiters may be released earlier than expected: limits changed, their counts were reset to 0, or a pause was
    /// lifted.
    Eased,
    /// Some waiters are stale.
    DropStale,
    /// More waiters are cancelled than before: [`Engine::take_cancelled`] takes them out.
    Cancelled,
    /// The store did not answer a call, or refused it.
    Failing(StoreError),
    /// The store's clock stepped, or a pause began or ended: slots that the driver granted itself may be void.
    Recheck {
        /// Whether the clock stepped, or the store's state was lost.
        has_stepped: bool,
    },
}

/// An answer of the store to a call that the driver made itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// The instant at which the call was sent.
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) stamp: Stamp,
}

/// The reason why a waiter gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// [`Admission::admits`] returned false.
    NotAdmitted,
    /// It gave up; or gave up early, since it could not have a slot in time.
    Ended { is_early: bool },
    /// The limits police, and this limit of the lane does not allow it before `earliest`.
    Limited { lane: LaneId, limit: usize, earliest: Micros },
}

/// Decides which waiters need a slot.
pub(crate) trait Admission<W> {
    /// Whether this waiter still needs a slot, and may have one.
    fn admits(&self, waiter: &W) -> bool;
}

impl<W: Waiter> Engine<W> {
    /// Creates an engine that uses these settings once the replicas agree on them.
    pub(crate) fn new(given: Settings, store: Arc<dyn Store>) -> Self {
        let (settings, now) = (given.clone().policing(), Instant::now());
        let meters = Meters::new(&settings.downstream, settings.on_limit);
        meters.pace_in_force(settings.limits.pace(), false);
        meters.paused_values(0);
        let (schedule, pacing) = (Schedule::new(&settings), Pacing::new(&settings, now));
        store.set_horizon(&settings.downstream, schedule.turns().farthest());
        Self {
            backlog: match &settings.of_jobs.lanes {
                Some(_) => Backlog::new(settings.plans.len()).with_rows_for_lanes(),
                None => Backlog::new(settings.plans.len()),
            },
            schedule,
            terms: SharedTerms::new(given, Arc::clone(pacing.replica()), now),
            pacing,
            release: Release::new(&settings),
            driver: Driver {
                effects: Vec::new(),
                connections: Connections::default(),
                is_suspended: false,
                ends_at: None,
            },
            settings: Arc::new(settings),
            store,
            meters,
        }
    }

    /// Uses this slot clock and pause gate, through which the driver maps slots and sees pauses. They outlive the
    /// engine.
    pub(crate) fn with_clock_and_gate(mut self, slots: Arc<SlotClock>, gate: Arc<PauseGate>) -> Self {
        self.pacing.set_slots(slots);
        self.release.set_gate(gate);
        self
    }

    /// Uses this number of replicas besides that of leases.
    pub(crate) fn with_peers(mut self, peers: Peers) -> Self {
        self.pacing.set_peers(peers);
        self
    }

    /// Continues as the replica of a previous engine that ended. It is not a start of the replica, so the engine does
    /// not propose its limits.
    pub(crate) fn continuing_as(mut self, replica: Arc<str>) -> Self {
        self.terms.cooling_mut().set_replica(Arc::clone(&replica));
        self.pacing.set_replica(replica);
        self.without_proposing()
    }

    /// Follows the limits in force instead of proposing its own, unless the store has none.
    pub(crate) fn without_proposing(mut self) -> Self {
        self.terms.do_not_propose();
        self
    }

    /// Returns the tracing span of all work on this downstream. It has no parent, since it outlives the current span.
    pub(crate) fn span(&self) -> tracing::Span {
        tracing::info_span!(parent: None, "downstream", downstream = self.settings.downstream)
    }

    /// Whether this replica follows its fallback instead of the shared pace.
    pub(crate) const fn is_absent(&self) -> bool {
        self.pacing.state().is_absent()
    }

    /// Returns the settings in force.
    pub(crate) const fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(crate) const fn meters(&self) -> &Meters {
        &self.meters
    }

    pub(crate) const fn release(&self) -> &Release<W> {
        &self.release
    }

    /// Adds a waiter that is ready now.
    pub(crate) fn offer(&mut self, mut waiter: W) {
        self.find_lane(&mut waiter);
        self.backlog.push(waiter);
    }

    /// Adds a waiter that becomes ready at `due`.
    pub(crate) fn offer_later(&mut self, due: Instant, mut waiter: W) {
        self.find_lane(&mut waiter);
        self.backlog.push_later(due, waiter);
    }

    /// Returns the number of waiters without a slot.
    pub(crate) fn waiting(&self) -> usize {
        self.backlog.len()
    }

    /// Whether any waiter waits in order: without a slot, or until its slot comes.
    pub(crate) fn somebody_waits(&self) -> bool {
        self.backlog.has_ready() || self.pacing.is_calling() || self.release.held() > 0
    }

    /// Takes all waiters without a slot.
    pub(crate) fn take_waiting(&mut self) -> Vec<W> {
        self.backlog.drain()
    }

    /// Returns the generation of the limits in force, for calls that the driver makes itself; `None` while it is not
    /// known.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.terms.agreement().settled()
    }

    /// Returns the fingerprint of the file whose limits are in force; `None` while it is not known.
    pub(crate) fn fingerprint(&self) -> Option<u64> {
        self.terms.agreement().fingerprint()
    }

    /// Whether the last call to the store failed.
    pub(crate) const fn is_failing(&self) -> bool {
        self.pacing.state().is_failing()
    }

    /// Whether this replica cannot use the limits in force: no slots are granted, and the log says why.
    pub(crate) fn has_no_limits(&self) -> bool {
        self.terms.agreement().is_rejected()
    }

    /// Returns this replica's name at the store.
    pub(crate) const fn replica(&self) -> &Arc<str> {
        self.pacing.replica()
    }

    /// Accepts the stamp of an answer to a call that the driver made itself.
    pub(crate) fn on_answered(&mut self, Answered { sent, received, stamp }: Answered) {
        self.on_store_there(received);
        self.on_stamp(sent, received, stamp);
    }

    /// Forgets the estimates of the next slots and the turn, since the store's clock stepped, its state was lost, or it
    /// is away.
    fn forget_estimates_and_turn(&mut self) {
        self.pacing.forget_unused();
        self.schedule.forget();
        self.schedule.turns_mut().drop_turn();
    }

    /// Forgets the estimates of the next slots, since the counts of the limits were reset to 0.
    pub(crate) fn forget_next_slots(&mut self) {
        self.schedule.forget();
        self.pacing.reserve_by(Instant::now());
    }

    /// Whether the backlog is so long that stale waiters should be purged.
    pub(crate) fn is_crowded(&self) -> bool {
        self.backlog.is_crowded()
    }

    /// Whether there is no waiter without a slot, with a slot, in a call to the store or being sent.
    pub(crate) fn is_idle(&self) -> bool {
        let is_requested = self.pacing.is_calling() || self.pacing.has_trial();
        self.release.is_quiet() && self.backlog.is_empty() && !is_requested
    }

    /// Does everything that is due at `now`.
    pub(crate) fn tick(&mut self, now: Instant, admission: &impl Admission<W>) {
        self.backlog.tick(now, self.schedule.turns().early());
        if self.terms.pauses().is_over() {
            self.apply_pauses();
        }
        self.expire_rates();
        self.terms.end_tombstones(self.pacing.slots());
        self.end_waits(now);
        self.release_openly(now, admission);
        self.release_due(Deadline::at(now));
        self.tick_cooling(now, admission);
        self.ask(now, admission);
        self.give_back_unneeded_turn(now);
        let circumstances = self.circumstances();
        self.terms.tick(now, circumstances, (&self.store, &self.settings.downstream));
        self.pacing.tick(now, self.schedule.lease(), (&self.store, &self.settings));
    }

    /// Returns the instant of the next tick, except for slots that come; those are in [`Release::wake_at`].
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        [
            self.backlog.wake_at(self.schedule.turns().early()),
            self.ask_wake_at(),
            self.terms.wake_at(self.circumstances(), self.pacing.slots()),
            self.pacing.wake_at(&self.settings),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Moves the effects since the last call into `into`, which must be empty; its memory is reused.
    pub(crate) fn take_effects(&mut self, into: &mut Vec<Effect<W>>) {
        debug_assert!(into.is_empty(), "what was not done would be lost");
        std::mem::swap(&mut self.driver.effects, into);
    }

    /// Waits for an answer of the store, for a change that it announces, for a slot, for the next tick, or until `by`,
    /// and takes the answer or change in. Cancel safe.
    pub(crate) async fn next(&mut self, wakeups: &mut Wakeups, by: Option<Instant>) {
        wakeups.set(self.release_wake_at(), self.wake_at().into_iter().chain(by).min());
        let Wakeups { alarm, timer, timed, changes } = wakeups;
        tokio::select! {
            biased;
            () = ring(&mut **alarm) => {}
            ended = self.pacing.next() => match ended {
                Ended::Call(call, reply) => self.on_reply(call, reply),
                Ended::Probe(reply) => self.on_probe_reply(reply),
                // The next slot is earlier than estimated.
                Ended::Return(Some(lane)) => {
                    self.schedule.forget_slots_of(lane);
                    self.pacing.reserve_by(Instant::now());
                }
                Ended::Return(None) => {}
            },
            reply = self.terms.reply() => match reply {
                TermsReply::Record(purpose, reply) => self.on_record_reply(&purpose, reply),
                TermsReply::Tombstones(reply) => self.on_tombstones_reply(reply),
            },
            () = changes.next() => self.on_change(),
            () = timer, if timed.is_some() => *timed = None,
        }
    }

    /// Creates the sources of wake-ups of this engine.
    pub(crate) fn wakeups(&self, clock: &dyn ReleaseClock) -> Wakeups {
        Wakeups::new(clock.alarm(), self.store.changes(&self.settings.downstream))
    }

    /// Records that a send which [`Effect::Release`] began has ended, and how long the downstream took to answer, if it
    /// did.
    pub(crate) fn on_sent(&mut self, took: Option<std::time::Duration>) {
        self.release.sent(took);
    }

    /// Whether the driver has not applied a change of settings yet. Until then it admits waiters by the old ones.
    fn is_ahead_of_driver(&self) -> bool {
        self.driver.effects.iter().any(|effect| matches!(effect, Effect::Follow))
    }

    /// Returns waiters that do not use their slots to the backlog, each to its old position.
    fn put_back(&mut self, waiters: Vec<W>, reason: Abandoned) {
        self.meters.abandoned(waiters.len(), reason);
        waiters.into_iter().for_each(|waiter| self.backlog.push(waiter));
    }
}

#[cfg(test)]
mod tests;
