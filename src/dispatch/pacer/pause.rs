//! Pauses: what the downstream asked for, and what an operator did.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pacer;
use super::tend::Memory;
use crate::dispatch::OnLimit;
use crate::dispatch::entry::Entry;
use crate::pace::LaneId;
use crate::pace::release::Closed;
use crate::pace::release::Held;
use crate::store::{Observed, SlotClock, Status};
use crate::time::{Deadline, Micros, wall_now};

/// A pause that grows with each answer of a storm is told to the store no more often than this.
const APART: Duration = Duration::from_millis(20);

/// A pause that is no news: a shared pace begins anew with one.
const BRIEF: Duration = Duration::from_millis(200);

/// Ends that lie closer together are one: the mapping between two clocks moves by as much.
const SLACK: Duration = Duration::from_millis(2);

/// An end that comes nearer by more than this does so by a step of the store's clock.
const STEP: Duration = Duration::from_millis(100);

/// What one replica knows of pauses.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// The downstream asked for one until then, and the store has not confirmed it.
    own: Option<Deadline>,
    /// Not to tell the store of it before.
    tell_at: Option<Instant>,
    /// What the store said last, and when: by its clock, in which epoch of its record.
    known: Status,
    said: Option<(Micros, Micros)>,
    /// The last reset that the store told of; none: it has told nothing yet, and the first one is no news.
    reset: Option<u64>,
    /// The ends of those that the store knows of, on this process's clock: kept for a store that loses
    /// them, and with them perhaps its clock.
    penalty: Option<Deadline>,
    pause: Option<Deadline>,
    /// The end that was acted upon last; none: there was no pause.
    end: Option<Deadline>,
    /// Not to ask for slots before.
    pub(super) ask_from: Option<Instant>,
}

impl Pauses {
    /// When the last of them ends, if that is still to come.
    pub(super) fn end(&self) -> Option<Deadline> {
        let ends = [self.own, self.penalty, self.pause].into_iter().flatten();
        ends.max().filter(|end| !end.left().is_zero())
    }

    fn closed(&self) -> Closed {
        Closed { own: self.own, until: self.known.paused_until() }
    }

    /// The end of a pause that the store is to be told of now.
    pub(super) fn to_tell(&self, now: Instant) -> Option<Deadline> {
        self.own.filter(|own| !own.left().is_zero() && self.tell_at.is_none_or(|at| at <= now))
    }

    /// When it is to be told of one.
    pub(super) fn tell_due(&self) -> Option<Instant> {
        let own = self.own.filter(|own| !own.left().is_zero());
        own.map(|_| self.tell_at.unwrap_or_else(Instant::now))
    }

    /// The store knows of a pause until `end`.
    pub(super) fn told(&mut self, end: Deadline) {
        self.tell_at = Some(Instant::now() + APART);
        if self.own.is_some_and(|own| own <= end) {
            self.own = None;
        }
    }

    /// It could not be told; it is to be tried again then.
    pub(super) const fn not_told(&mut self, again: Instant) {
        self.tell_at = Some(again);
    }

    /// The store is there: what it could not be told, it can be told now.
    pub(super) const fn store_is_there(&mut self) {
        self.tell_at = None;
    }

    /// What the store is to be reminded of, once it has lost it.
    pub(super) fn memory(&self, terms: Option<(u64, String)>) -> Memory {
        let left = |end: Option<Deadline>| end.map_or(Duration::ZERO, Deadline::left);
        Memory {
            penalty: left(self.penalty),
            left: (!self.known.is_stopped()).then(|| left(self.pause)),
            version: self.known.pause.version,
            terms,
        }
    }

    /// Takes in what the store said.
    fn take_in(&mut self, status: Status, now: Micros, epoch: Micros, slots: &SlotClock) {
        let resumed = status.pause.version != self.known.pause.version;
        let before = self.penalty.filter(|end| !resumed && !end.left().is_zero());
        self.known = status;
        self.said = Some((now, epoch));
        let end = |until: Micros| slots.hold(until).filter(|_| until > now);
        (self.penalty, self.pause) = (end(status.penalty), end(status.pause.until));
        if let Some(before) = before
            && self.penalty.is_none_or(|end| before.since(end) > STEP)
        {
            // The store's clock stepped forward. What the downstream asked for is a span of real time.
            self.own = self.own.max(Some(before));
        }
    }

    /// Whether an answer was overtaken by one that the store gave later.
    pub(super) fn is_stale(&self, now: Micros, epoch: Micros) -> bool {
        self.said.is_some_and(|(said, of)| epoch == of && now < said)
    }

    /// The end for people to read, and who wanted it.
    fn shown(&self) -> (String, &'static str) {
        if self.known.is_stopped() {
            return ("somebody resumes".to_owned(), "an operator paused it");
        }
        let left = self.end().map_or(Duration::ZERO, Deadline::left);
        let until = jiff::Timestamp::from_microsecond(wall_now().plus(left).0);
        let until = until.map_or_else(|_| format!("{left:?} from now"), |at| format!("{at:.3}"));
        let operator = self.pause.is_some() && self.pause >= self.own.max(self.penalty);
        (until, if operator { "an operator paused it" } else { "it answered with Retry-After" })
    }
}

impl Pacer {
    /// The downstream asks for a pause until `end`.
    pub(super) fn penalized(&mut self, end: Deadline) {
        // The answer of another job may have told the store already.
        if self.pauses.penalty.is_some_and(|known| known >= end) {
            return;
        }
        self.pauses.own = self.pauses.own.max(Some(end));
        self.obey();
    }

    /// Learns what holds for the whole downstream, and goes by it at once. False where the store has said
    /// something newer already.
    pub(super) fn learn(&mut self, status: Status, now: Micros, epoch: Micros, observed: Observed) -> bool {
        if observed == Observed::Consistent && self.pauses.is_stale(now, epoch) {
            return false;
        }
        self.accord.hear(status.generation);
        let before = self.pauses.reset.replace(status.reset);
        if before.is_some_and(|before| before < status.reset) {
            self.reset();
        }
        if status.pause.version > self.pauses.known.pause.version && status.pause.until == Micros(0) {
            // Somebody resumed since: what is remembered of pauses is over too.
            (self.pauses.penalty, self.pauses.pause) = (None, None);
        }
        if status.pause.version < self.pauses.known.pause.version {
            self.accord.lose();
        }
        // What the store has forgotten counts on.
        if !self.accord.is_lost() {
            self.pauses.take_in(status, now, epoch, &self.slots);
            if observed == Observed::SteppedBack {
                // What is held has slots of the clock as it was: only its local instants compare.
                let end = self.pauses.end();
                self.give_up(|held| end.is_some_and(|end| held.deadline < end));
            }
            self.obey();
        }
        true
    }

    /// Somebody had the counts of limits begin at 0: what was learnt of the next slots says nothing any more.
    /// Those that are held stay good.
    fn reset(&mut self) {
        self.shared.reset();
        self.schedule.forget();
        self.ask_at = self.ask_at.min(Instant::now());
        tracing::info!(downstream = self.settings.downstream, "reset: the counts of limits began at 0");
    }

    /// Gives up what is held for slots in a pause, and says when one begins and ends.
    fn obey(&mut self) {
        self.gear.gate.set(self.pauses.closed());
        self.tell_alone();
        let gate = Arc::clone(&self.gear.gate);
        self.give_up(|held| gate.refuses(held.slot, held.deadline));
        let (was, end) = (self.pauses.end, self.pauses.end());
        // Also where it is the same pause: else the end that has passed would be seen to over and over, until
        // the other one has.
        self.pauses.end = end;
        if same(was, end) {
            if let (Some(from), Some(was), Some(end)) = (self.pauses.ask_from, was, end) {
                // Many small steps are no small one.
                let moved = from + end.since(was);
                self.pauses.ask_from = Some(moved.checked_sub(was.since(end)).unwrap_or(moved));
            }
            return;
        }
        let downstream = &self.settings.downstream;
        if was.is_some_and(|was| was.left().is_zero()) && end.is_none() {
            self.pauses.ask_from = None;
            self.gear.meters.paused.set(0.0);
            tracing::info!(downstream, "the pause is over");
            return;
        }
        // What was learnt of the next slots is of before the pause, or of behind it.
        self.schedule.forget();
        let Some(end) = end else { return self.resume() };
        self.pauses.ask_from = Some(self.ask_behind(end));
        let downstream = &self.settings.downstream;
        let (until, why) = self.pauses.shown();
        self.gear.meters.paused.set(1.0);
        if was.is_none() && end.left() > BRIEF {
            tracing::warn!(downstream, until, why, "paused: nothing is released");
        } else {
            tracing::debug!(downstream, until, why, "the pause ends then");
        }
    }

    /// Gives up what is held for slots in a pause: each job goes back to its old place in the backlog.
    fn give_up(&mut self, in_pause: impl Fn(&Held<Entry>) -> bool) {
        let given_up = self.held.take(in_pause);
        self.gear.meters.paused_slots.increment(given_up.len() as u64);
        given_up.into_iter().for_each(|entry| self.backlog.push(entry));
    }

    /// When to ask for the slots behind a pause: as for others that lie ahead. A policer's are now.
    fn ask_behind(&self, end: Deadline) -> Instant {
        let (end, ahead) = (end.instant(), self.settings.horizon / 2);
        match self.settings.on_limit {
            OnLimit::Wait => {
                end.checked_sub(ahead).unwrap_or(end)
                    + self.schedule.batching(LaneId::DOWNSTREAM).jitter(ahead / 2)
            }
            OnLimit::Reject => end,
        }
    }

    /// Notices that a pause is over, if it is.
    pub(super) fn lift(&mut self) {
        if self.pauses.end.is_some_and(|end| end.left().is_zero()) {
            self.obey();
        }
    }

    /// When a pause is over, if nothing changes before.
    pub(super) fn lift_due(&self) -> Option<Instant> {
        self.pauses.end.map(Deadline::instant)
    }

    /// It is over before its time.
    fn resume(&mut self) {
        self.pauses.ask_from = None;
        self.ask_at = self.ask_at.min(Instant::now());
        self.gear.meters.paused.set(0.0);
        tracing::info!(downstream = self.settings.downstream, "resumed: the pause is over before its time");
    }

    /// Whether nothing may be released now.
    pub(super) fn is_paused(&self) -> bool {
        self.pauses.end.is_some_and(|end| !end.left().is_zero())
    }
}

fn same(was: Option<Deadline>, is: Option<Deadline>) -> bool {
    match (was, is) {
        (Some(was), Some(is)) => was.since(is).max(is.since(was)) < SLACK,
        (was, is) => was == is,
    }
}
