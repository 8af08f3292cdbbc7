//! A view of the engine for people: how many waiters wait for what, and what holds them back.

use tokio::time::Instant;

use super::Engine;
use crate::pace::schedule::LanesView;
use crate::pace::terms::Paused;
use crate::pace::{LaneId, OnLimit, Waiter};

/// What the engine is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineView {
    /// What keeps the engine from releasing more.
    pub(crate) hold: Hold,
    /// The number of waiters that wait for a slot.
    pub(crate) waiting: usize,
    /// The number of waiters that may only be released later, and when the first of them may.
    pub(crate) later: usize,
    pub(crate) next_due: Option<Instant>,
    /// The number of waiters that hold a slot, and when the first of these slots comes.
    pub(crate) held: usize,
    pub(crate) next_slot: Option<Instant>,
    /// The number of sends in progress.
    pub(crate) sending: usize,
    /// The lowest position in the order of arrival among those that wait for a slot.
    pub(crate) oldest: Option<u64>,
}

/// What keeps the engine from releasing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nobody waits.
    Nothing,
    /// The limits in force are not known yet.
    Unsettled,
    /// The limits in force cannot be used here.
    Terms,
    /// Calls to the store fail.
    Store,
    /// A pause, until that instant or until somebody resumes.
    Paused(Paused, Option<Instant>),
    /// All waiters may only be released later; the first at that instant.
    NotDue(Instant),
    /// The most sends that may be in progress are in progress.
    Concurrency,
    /// The limit of this name, and the instant of the next slot, where it is known.
    Limit(String, Option<Instant>),
    /// The store is away. This replica's share of the limits holds the waiters back, or nothing does.
    Fallback,
}

impl<W: Waiter> Engine<W> {
    /// Returns what the engine is doing.
    pub(crate) fn view(&self) -> EngineView {
        let later = self.backlog.later().count();
        let waiting = self.without_slot() - later;
        let batch = self.pacing.batch().map(Waiter::seq);
        let next_slot = self.release.first().map(|(_, deadline)| deadline.instant());
        EngineView {
            hold: self.what_holds(waiting),
            waiting,
            later,
            next_due: self.backlog.next_due(),
            held: self.release.held(),
            next_slot,
            sending: self.release.sending(),
            oldest: self.backlog.oldest().into_iter().chain(batch).min(),
        }
    }

    /// Returns the number of waiters that are here, with a slot or without.
    pub(crate) fn in_hand(&self) -> usize {
        self.without_slot() + self.release.held()
    }

    fn without_slot(&self) -> usize {
        self.backlog.len() + self.pacing.batch().count() + usize::from(self.pacing.has_trial())
    }

    /// Returns how many of the waiters that may only be released later `is_meant` selects.
    pub(crate) fn count_later(&self, is_meant: impl Fn(&W) -> bool) -> usize {
        self.backlog.later().filter(|waiter| is_meant(waiter)).count()
    }

    /// Returns how many lanes by keys are known: [`Engine::lanes_view`] examines all of them.
    pub(crate) fn known_lanes(&self) -> usize {
        self.schedule.keyed().map_or(0, |lanes| lanes.count())
    }

    /// Returns the waiters that are ready by lanes, and at most this many of their lanes; none unless lanes are made by
    /// keys.
    pub(crate) fn lanes_view(&self, most: usize) -> LanesView {
        let lanes = self.schedule.keyed();
        lanes.map(|lanes| lanes.view(&self.backlog, Instant::now(), most)).unwrap_or_default()
    }

    /// Returns what holds back this number of waiters without a slot, and those that hold one.
    fn what_holds(&self, waiting: usize) -> Hold {
        let has_ready = waiting > 0 || self.release.held() > 0;
        let next_due = self.backlog.next_due();
        // Nothing could be released. That is worth knowing even while no waiter is there.
        if self.has_no_limits() {
            return Hold::Terms;
        }
        if !has_ready && next_due.is_none() {
            return Hold::Nothing;
        }
        if self.is_failing() {
            return Hold::Store;
        }
        if let Some((paused, end)) = self.terms.pauses().current() {
            return Hold::Paused(paused, end.map(crate::time::Deadline::instant));
        }
        if let Some(at) = self.terms.cooling().probe_at() {
            return Hold::Paused(Paused::Downstream, Some(at.max(Instant::now())));
        }
        if let Some(due) = next_due.filter(|_| !has_ready) {
            return Hold::NotDue(due);
        }
        if waiting > 0 && self.release.free() == 0 {
            return Hold::Concurrency;
        }
        if self.is_absent() {
            return Hold::Fallback;
        }
        if self.terms.agreement().settled().is_none() {
            return Hold::Unsettled;
        }
        match self.settings.on_limit {
            OnLimit::Wait => self.binding_limit(),
            // Waiters that the limits do not allow are refused, and not held.
            OnLimit::Reject => Hold::Nothing,
        }
    }

    /// Returns the limit that determines the next slot of the lane that has the next one.
    fn binding_limit(&self) -> Hold {
        if self.schedule.keyed().is_some_and(|lanes| !lanes.has_ready() && lanes.are_stopped()) {
            return Hold::Paused(Paused::Operator, None);
        }
        if let Some((limit, at)) = self.schedule.keyed().and_then(|lanes| match lanes.has_ready() {
            true => None,
            false => lanes.first_limit(),
        }) {
            return match limit {
                Some(limit) => Hold::Limit(limit, Some(at)),
                None => Hold::Paused(Paused::Downstream, Some(at)),
            };
        }
        let lanes = (0..=self.settings.plans.len()).map(LaneId::at);
        let ready = lanes.filter(|lane| self.backlog.ready(*lane) > 0);
        let lane = ready.min_by_key(|lane| self.schedule.next_slot(*lane));
        let lane = lane.or_else(|| self.release.first().map(|(lane, _)| lane)).unwrap_or(LaneId::DOWNSTREAM);
        // Where lanes are made by keys, the last answer is about the downstream's limits.
        let lane = if self.schedule.keyed().is_some() { LaneId::DOWNSTREAM } else { lane };
        let limits = self.settings.limits_of(lane);
        let binding = self.pacing.last_shared().binding(lane, limits);
        let (index, next) = match binding {
            Some((index, slot)) => (index, self.pacing.slots().hold(slot)),
            None => (0, None),
        };
        let name = limits.get(index).map(|limit| limit.name().to_owned()).unwrap_or_default();
        Hold::Limit(name, next.map(crate::time::Deadline::instant))
    }
}
