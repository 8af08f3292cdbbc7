//! One replica's knowledge of pauses: those that the downstream asked for, and those of an operator.
//!
//! | state | event | action |
//! |---|---|---|
//! | none | a pause becomes known | [`PauseChange::Until`] |
//! | paused | its end moves by more than [`SLACK`] | [`PauseChange::Until`] |
//! | paused | its end moves by less | slots are requested that much later or earlier: the mapping between two clocks moves by as much |
//! | paused | its end has passed | [`PauseChange::Over`] |
//! | paused | an operator resumes before that | [`PauseChange::Resumed`] |

use std::time::Duration;

use tokio::time::Instant;

use super::record::Memory;
use crate::pace::release::Closed;
use crate::store::{SlotClock, Status};
use crate::time::{Deadline, Micros, wall_now};

/// The minimum interval of reports to the store about a pause that grows, since many answers throttle.
const APART: Duration = Duration::from_millis(20);

/// A shorter pause is not worth a warning, since a shared pace starts again with one.
const BRIEF: Duration = Duration::from_millis(200);

/// Ends that lie closer together count as the same, since the mapping between two clocks moves by as much.
const SLACK: Duration = Duration::from_millis(2);

/// An end that moves closer by more than this does so because of a step of the store's clock.
const STEP: Duration = Duration::from_millis(100);

/// One replica's knowledge of pauses.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// The end of a pause that the downstream asked for, and that the store has not confirmed yet.
    own: Option<Deadline>,
    /// The earliest instant of the next report of it to the store.
    next_report_at: Option<Instant>,
    /// The status of the last answer.
    status: Status,
    /// The instant of that answer on the store's clock, and the epoch of its record.
    status_at: Option<(Micros, Micros)>,
    /// The number of the last known reset; `None` before the first answer, whose number is no news.
    last_reset: Option<u64>,
    /// The end of the pause that the downstream asked for, on this process's clock. It is kept in case the store loses
    /// it, perhaps together with its clock.
    penalty: Option<Deadline>,
    /// The end of an operator's pause, kept for the same reason.
    pause: Option<Deadline>,
    /// The end of an operator's pause from before a step of the store's clock, which does not shorten it.
    stepped_over: Option<Deadline>,
    applied: Applied,
}

/// The pause that was applied last.
#[derive(Debug, Default)]
struct Applied {
    /// Its end; `None` if there was no pause.
    end: Option<Deadline>,
    /// The instant from which slots are requested, a little before it ends.
    ask_from: Option<Instant>,
}

/// The news of an answer about pauses and resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    /// The counts of the limits were reset to 0.
    pub(crate) is_reset: bool,
    /// The store has forgotten an operator's pause or resume.
    pub(crate) is_forgotten: bool,
}

/// Who asked for a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paused {
    /// An operator.
    Operator,
    /// The downstream itself, by `Retry-After`.
    Downstream,
}

/// A change of pauses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PauseChange {
    /// A pause begins, or its end moves: nothing is released before `end`.
    Until {
        /// The end on this process's clock.
        end: Deadline,
        /// The end for people to read.
        until: String,
        /// The reason for people to read: an operator, or an answer of the downstream.
        why: &'static str,
        /// Whether it is worth a warning.
        is_news: bool,
    },
    /// The pause has ended.
    Over,
    /// An operator resumed before the end of the pause.
    Resumed,
}

impl Pauses {
    /// Returns the end of the last known pause, if it is still to come.
    pub(crate) fn end(&self) -> Option<Deadline> {
        let ends = [self.own, self.penalty, self.pause, self.stepped_over].into_iter().flatten();
        ends.max().filter(|end| !end.left().is_zero())
    }

    /// Returns the ends before which the gate is closed.
    pub(crate) fn closed(&self) -> Closed {
        Closed { own: self.own.max(self.stepped_over), until: self.status.paused_until() }
    }

    /// Returns whose the pause is, if there is one: an operator's, or the downstream's own; and its end, unless it lasts
    /// until somebody resumes.
    pub(crate) fn current(&self) -> Option<(Paused, Option<Deadline>)> {
        if self.status.is_stopped() {
            return Some((Paused::Operator, None));
        }
        let end = self.end()?;
        let pause = self.pause.max(self.stepped_over);
        let is_operators = pause.is_some() && pause >= self.own.max(self.penalty);
        Some((if is_operators { Paused::Operator } else { Paused::Downstream }, Some(end)))
    }

    /// Returns when the store's record began, on its clock; 0 before the first answer.
    pub(crate) fn epoch(&self) -> Micros {
        self.status_at.map_or(Micros(0), |(_, epoch)| epoch)
    }

    /// Returns the number of the last known reset; 0 if none is known.
    pub(crate) fn last_reset(&self) -> u64 {
        self.last_reset.unwrap_or(0)
    }

    /// Returns the version of the operator's last known pause or resume.
    pub(crate) const fn version(&self) -> u64 {
        self.status.pause.version
    }

    /// Whether the downstream is paused now.
    pub(crate) fn is_paused(&self) -> bool {
        self.applied.end.is_some_and(|end| !end.left().is_zero())
    }

    /// Returns the end of the applied pause.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.applied.end.map(Deadline::instant)
    }

    /// Whether the end of the applied pause has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.applied.end.is_some_and(|end| end.left().is_zero())
    }

    /// Returns the earliest instant to request slots, while there is a pause.
    pub(crate) const fn ask_from(&self) -> Option<Instant> {
        self.applied.ask_from
    }

    /// Sets the instant from which slots behind the pause may be requested.
    pub(crate) const fn set_ask_from(&mut self, at: Instant) {
        self.applied.ask_from = Some(at);
    }

    /// Records that the downstream asked for a pause until `end`. Returns false if that is known already.
    pub(crate) fn penalize(&mut self, end: Deadline) -> bool {
        // The store may know of it already, from the answer to another job.
        let is_news = self.penalty.is_none_or(|known| known < end);
        if is_news {
            self.own = self.own.max(Some(end));
        }
        is_news
    }

    /// Returns the end of a pause that is to be reported to the store at `now`.
    pub(crate) fn to_report(&self, now: Instant) -> Option<Deadline> {
        self.unconfirmed().filter(|_| self.next_report_at.is_none_or(|at| at <= now))
    }

    /// Returns the instant of the next report to the store.
    pub(crate) fn report_at(&self) -> Option<Instant> {
        self.unconfirmed().map(|_| self.next_report_at.unwrap_or_else(Instant::now))
    }

    fn unconfirmed(&self) -> Option<Deadline> {
        self.own.filter(|own| !own.left().is_zero())
    }

    /// Records that the store has confirmed a pause until `end`.
    pub(crate) fn on_confirmed(&mut self, end: Deadline) {
        self.next_report_at = Some(Instant::now() + APART);
        if self.own.is_some_and(|own| own <= end) {
            self.own = None;
        }
    }

    /// Records that a report failed, and is to be repeated at `again`.
    pub(crate) const fn on_report_failed(&mut self, again: Instant) {
        self.next_report_at = Some(again);
    }

    /// Allows a report at once, since the store is available again.
    pub(crate) const fn on_store_back(&mut self) {
        self.next_report_at = None;
    }

    /// Returns the memory from which a lost record is restored.
    pub(crate) fn memory(&self, terms: Option<(u64, String)>) -> Memory {
        let left = |end: Option<Deadline>| end.map_or(Duration::ZERO, Deadline::left);
        Memory {
            penalty: left(self.penalty),
            pause: (!self.status.is_stopped()).then(|| left(self.pause)),
            version: self.status.pause.version,
            terms,
        }
    }

    /// Whether an answer that the store gave at `now` in this epoch was overtaken by a later one.
    pub(crate) fn is_overtaken(&self, now: Micros, epoch: Micros) -> bool {
        self.status_at.is_some_and(|(said, of)| epoch == of && now < said)
    }

    /// Accepts the resets, resumes and losses of an answer, before its pauses are applied.
    pub(crate) fn on_answer(&mut self, status: &Status) -> News {
        let before = self.last_reset.replace(status.reset);
        let (version, known) = (status.pause.version, self.status.pause.version);
        if version > known && status.pause.until == Micros(0) {
            // An operator has resumed since then, which ends the remembered pauses too.
            (self.penalty, self.pause, self.stepped_over) = (None, None, None);
        }
        News { is_reset: before.is_some_and(|before| before < status.reset), is_forgotten: version < known }
    }

    /// Accepts the pauses that the store returned at its instant `now` in this epoch.
    pub(crate) fn follow(&mut self, status: Status, now: Micros, epoch: Micros, slots: &SlotClock) {
        let is_resumed = status.pause.version != self.status.pause.version;
        let in_force = |end: &Deadline| !is_resumed && !end.left().is_zero();
        let before = self.penalty.filter(in_force);
        let pause_before = self.pause.max(self.stepped_over).filter(in_force);
        (self.status, self.status_at) = (status, Some((now, epoch)));
        let end = |until: Micros| slots.hold(until).filter(|_| until > now);
        (self.penalty, self.pause) = (end(status.penalty), end(status.pause.until));
        if let Some(before) = before
            && self.penalty.is_none_or(|end| before.since(end) > STEP)
        {
            // The store's clock stepped forward, but the downstream asked for a span of real time.
            self.own = self.own.max(Some(before));
        }
        let is_nearer = |before: &Deadline| self.pause.is_none_or(|end| before.since(end) > STEP);
        self.stepped_over = pause_before.filter(|before| !self.status.is_stopped() && is_nearer(before));
    }

    /// Returns the change since the last call, as the table above says.
    pub(crate) fn take_change(&mut self) -> Option<PauseChange> {
        let (was, end) = (self.applied.end, self.end());
        // The end is replaced even if it is nearly the same. Otherwise an end that has passed would be handled again
        // and again, until the new one has passed.
        self.applied.end = end;
        if is_same(was, end) {
            if let (Some(from), Some(was), Some(end)) = (self.applied.ask_from, was, end) {
                // `ask_from` moves too, since many small steps add up.
                let moved = from + end.since(was);
                self.applied.ask_from = Some(moved.checked_sub(was.since(end)).unwrap_or(moved));
            }
            return None;
        }
        let Some(end) = end else {
            self.applied.ask_from = None;
            let is_over = was.is_some_and(|was| was.left().is_zero());
            return Some(if is_over { PauseChange::Over } else { PauseChange::Resumed });
        };
        let (until, why) = self.shown();
        Some(PauseChange::Until { end, until, why, is_news: was.is_none() && end.left() > BRIEF })
    }

    /// Returns the end and the reason for people to read.
    fn shown(&self) -> (String, &'static str) {
        let (paused, end) = self.current().unwrap_or((Paused::Downstream, None));
        let why = match paused {
            Paused::Operator => "an operator paused it",
            Paused::Downstream => "it answered with Retry-After",
        };
        if self.status.is_stopped() {
            return ("somebody resumes".to_owned(), why);
        }
        let left = end.map_or(Duration::ZERO, Deadline::left);
        let until = jiff::Timestamp::from_microsecond(wall_now().plus(left).0);
        let until = until.map_or_else(|_| format!("{left:?} from now"), |at| format!("{at:.3}"));
        (until, why)
    }
}

fn is_same(was: Option<Deadline>, is: Option<Deadline>) -> bool {
    match (was, is) {
        (Some(was), Some(is)) => was.since(is).max(is.since(was)) < SLACK,
        (was, is) => was == is,
    }
}

#[cfg(test)]
mod tests;
