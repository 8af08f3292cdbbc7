//! Pauses: what the downstream asked for, and what an operator did, as far as one replica knows.
//!
//! | state | what happens | what is done |
//! |---|---|---|
//! | none | a pause is learnt of | [`PauseChange::Until`] |
//! | paused | its end moves by more than [`SLACK`] | [`PauseChange::Until`] |
//! | paused | its end moves by less | slots are asked for that much later or earlier: the mapping between two clocks moves by as much |
//! | paused | its end has passed | [`PauseChange::Over`] |
//! | paused | somebody resumes before that | [`PauseChange::Resumed`] |

use std::time::Duration;

use tokio::time::Instant;

use super::record::Memory;
use crate::pace::release::Closed;
use crate::store::{SlotClock, Status};
use crate::time::{Deadline, Micros, wall_now};

/// A pause that grows with each answer of a storm is told to the store no more often than this.
const APART: Duration = Duration::from_millis(20);

/// A shorter pause is no news: a shared pace begins anew with one.
const BRIEF: Duration = Duration::from_millis(200);

/// Ends that lie closer together are one: the mapping between two clocks moves by as much.
const SLACK: Duration = Duration::from_millis(2);

/// An end that comes nearer by more than this does so by a step of the store's clock.
const STEP: Duration = Duration::from_millis(100);

/// What one replica knows of pauses.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// The downstream asked for one until then, and the store has not confirmed it.
    own: Option<Deadline>,
    /// When the store may be told of it again.
    next_tell_at: Option<Instant>,
    /// What the store said last.
    status: Status,
    /// When it said so: by its clock, in which epoch of its record.
    said_at: Option<(Micros, Micros)>,
    /// The last reset that the store told of; none: it has told nothing yet, and the first one is no news.
    last_reset: Option<u64>,
    /// The end of the pause that the downstream asked for, on this process's clock: kept for a store that loses it,
    /// and with it perhaps its clock.
    penalty: Option<Deadline>,
    /// The same of an operator's pause.
    pause: Option<Deadline>,
    /// The end that was acted upon last; none: there was no pause.
    end: Option<Deadline>,
    /// Slots are asked for from then on: a little before the pause ends.
    ask_from: Option<Instant>,
}

/// What an answer of the store says of pauses, and of the record as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    /// Somebody had the counts of limits begin at 0.
    pub(crate) is_reset: bool,
    /// The store has forgotten an operator's pause or resume.
    pub(crate) is_forgotten: bool,
}

/// What changes for those who wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PauseChange {
    /// Nothing is released before then: a pause begins, or its end moves.
    Until {
        /// The end on this process's clock.
        end: Deadline,
        /// The end for people to read.
        until: String,
        /// The reason for people to read: the operator, or the downstream's answer.
        why: &'static str,
        /// It is worth a warning.
        is_news: bool,
    },
    /// The pause is over.
    Over,
    /// The pause is over before its time.
    Resumed,
}

impl Pauses {
    /// When the last of them ends, if that is still to come.
    pub(crate) fn end(&self) -> Option<Deadline> {
        let ends = [self.own, self.penalty, self.pause].into_iter().flatten();
        ends.max().filter(|end| !end.left().is_zero())
    }

    /// For which slots the gate is closed.
    pub(crate) fn closed(&self) -> Closed {
        Closed { own: self.own, until: self.status.paused_until() }
    }

    /// Whether nothing may be released now.
    pub(crate) fn is_paused(&self) -> bool {
        self.end.is_some_and(|end| !end.left().is_zero())
    }

    /// When the pause that is acted upon is over, if nothing changes before.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.end.map(Deadline::instant)
    }

    /// Whether the end of the pause that is acted upon has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| end.left().is_zero())
    }

    /// The earliest instant to ask for slots, while there is a pause.
    pub(crate) const fn ask_from(&self) -> Option<Instant> {
        self.ask_from
    }

    /// Slots behind the pause may be asked for from then on.
    pub(crate) const fn set_ask_from(&mut self, at: Instant) {
        self.ask_from = Some(at);
    }

    /// The downstream asks for a pause until `end`; false where that is known.
    pub(crate) fn penalize(&mut self, end: Deadline) -> bool {
        // The answer to another job may have told the store already.
        let is_news = self.penalty.is_none_or(|known| known < end);
        if is_news {
            self.own = self.own.max(Some(end));
        }
        is_news
    }

    /// The end of a pause that the store is to be told of at `now`.
    pub(crate) fn to_tell(&self, now: Instant) -> Option<Deadline> {
        self.untold().filter(|_| self.next_tell_at.is_none_or(|at| at <= now))
    }

    /// When it is to be told of one.
    pub(crate) fn tell_at(&self) -> Option<Instant> {
        self.untold().map(|_| self.next_tell_at.unwrap_or_else(Instant::now))
    }

    fn untold(&self) -> Option<Deadline> {
        self.own.filter(|own| !own.left().is_zero())
    }

    /// The store knows of a pause until `end`.
    pub(crate) fn on_told(&mut self, end: Deadline) {
        self.next_tell_at = Some(Instant::now() + APART);
        if self.own.is_some_and(|own| own <= end) {
            self.own = None;
        }
    }

    /// It could not be told; that is to be tried again then.
    pub(crate) const fn on_not_told(&mut self, again: Instant) {
        self.next_tell_at = Some(again);
    }

    /// The store is there again: what it could not be told, it can be told now.
    pub(crate) const fn on_store_back(&mut self) {
        self.next_tell_at = None;
    }

    /// What the store is to be reminded of, once it has lost it.
    pub(crate) fn memory(&self, terms: Option<(u64, String)>) -> Memory {
        let left = |end: Option<Deadline>| end.map_or(Duration::ZERO, Deadline::left);
        Memory {
            penalty: left(self.penalty),
            pause: (!self.status.is_stopped()).then(|| left(self.pause)),
            version: self.status.pause.version,
            terms,
        }
    }

    /// Whether an answer that the store gave at `now` in this epoch was overtaken by one that it gave later.
    pub(crate) fn is_overtaken(&self, now: Micros, epoch: Micros) -> bool {
        self.said_at.is_some_and(|(said, of)| epoch == of && now < said)
    }

    /// Takes notice of what an answer says before its pauses are gone by: resets, resumes and losses.
    pub(crate) fn on_answer(&mut self, status: &Status) -> News {
        let before = self.last_reset.replace(status.reset);
        let (version, known) = (status.pause.version, self.status.pause.version);
        if version > known && status.pause.until == Micros(0) {
            // Somebody resumed since: what is remembered of pauses is over too.
            (self.penalty, self.pause) = (None, None);
        }
        News { is_reset: before.is_some_and(|before| before < status.reset), is_forgotten: version < known }
    }

    /// Goes by the pauses that the store told at its instant `now` in this epoch.
    pub(crate) fn follow(&mut self, status: Status, now: Micros, epoch: Micros, slots: &SlotClock) {
        let is_resumed = status.pause.version != self.status.pause.version;
        let before = self.penalty.filter(|end| !is_resumed && !end.left().is_zero());
        (self.status, self.said_at) = (status, Some((now, epoch)));
        let end = |until: Micros| slots.hold(until).filter(|_| until > now);
        (self.penalty, self.pause) = (end(status.penalty), end(status.pause.until));
        if let Some(before) = before
            && self.penalty.is_none_or(|end| before.since(end) > STEP)
        {
            // The store's clock stepped forward. What the downstream asked for is a span of real time.
            self.own = self.own.max(Some(before));
        }
    }

    /// Acts upon what is known by now, as the table above says.
    pub(crate) fn take_change(&mut self) -> Option<PauseChange> {
        let (was, end) = (self.end, self.end());
        // Also where it is the same pause: otherwise the end that has passed would be seen to over and over, until the
        // other one has.
        self.end = end;
        if is_same(was, end) {
            if let (Some(from), Some(was), Some(end)) = (self.ask_from, was, end) {
                // Many small steps are no small one.
                let moved = from + end.since(was);
                self.ask_from = Some(moved.checked_sub(was.since(end)).unwrap_or(moved));
            }
            return None;
        }
        let Some(end) = end else {
            self.ask_from = None;
            let is_over = was.is_some_and(|was| was.left().is_zero());
            return Some(if is_over { PauseChange::Over } else { PauseChange::Resumed });
        };
        let (until, why) = self.shown();
        Some(PauseChange::Until { end, until, why, is_news: was.is_none() && end.left() > BRIEF })
    }

    /// The end for people to read, and who wanted it.
    fn shown(&self) -> (String, &'static str) {
        if self.status.is_stopped() {
            return ("somebody resumes".to_owned(), "an operator paused it");
        }
        let left = self.end().map_or(Duration::ZERO, Deadline::left);
        let until = jiff::Timestamp::from_microsecond(wall_now().plus(left).0);
        let until = until.map_or_else(|_| format!("{left:?} from now"), |at| format!("{at:.3}"));
        let is_operators = self.pause.is_some() && self.pause >= self.own.max(self.penalty);
        (until, if is_operators { "an operator paused it" } else { "it answered with Retry-After" })
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
