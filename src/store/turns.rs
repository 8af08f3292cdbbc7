//! The queue of turns of those who ask for the slots of a downstream, as pure functions. `redis/lua/turns.lua` has the
//! same arithmetic.
//!
//! If every replica asked whenever slots are near, the replica nearest to the store would take most of them, and many
//! replicas would make many calls without use. So the store keeps a queue. A caller that has jobs left when it is answered
//! books the next turn in the queue. A turn has as many slots as lie in 0.4 of the reach, and its call is made 0.6 of
//! the reach before it begins. At its turn the caller takes every slot up to the end of the turn, including those that
//! earlier turns have left.
//!
//! A caller sends its turn with each call. One that calls before its turn gets that turn again, or what is left of it,
//! instead of another one: so reloads and failed calls cost no place in the queue, and a caller may look for slots whose
//! turns nobody keeps. A caller that needs its turn no more gives it back.

use std::time::Duration;

use super::LONGEST_TURN_LEASE;
use crate::limit::{Algorithm, Edges, Limit, LimitSet, MAX_BATCH};
use crate::time::Micros;

/// How far ahead turns are booked: the longer of this span, and this number of slots of the limits in the long run.
const BOOKING_AHEAD: (Duration, u32) = (Duration::from_secs(300), 1000);
/// How long the reach stays after the last asker that needed it.
const REACH_KEPT: Duration = Duration::from_secs(30);

/// The part of a reserve call that books turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The turn that the caller holds, if it holds one.
    pub turn: Option<Turn>,
    /// How far ahead this asker needs turns to be booked, given its round trip to the store.
    pub reach: Duration,
    /// The units of all its jobs that wait, including those of the call. If some are left after the call, a turn is
    /// booked.
    pub waiting: u64,
    /// The number of limits that are the whole downstream's: the first ones. Only these determine turns.
    pub own: usize,
    /// The longest distance between two slots of these limits in the long run. Where the next slot is behind the end of
    /// a window, the distance to it is no spacing.
    pub interval: Duration,
    /// The asker makes further calls at the same turn, for others of its jobs: no other turn is booked before this one
    /// is used up, and it is not given back.
    pub goes_on: bool,
    /// How far ahead a turn may begin that is booked.
    pub farthest: Duration,
}

/// The part of the slots that one asker may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its first slot, on the store's clock.
    pub begins: Micros,
    /// The number of units that its slots are for.
    pub units: u32,
    /// The distance between two slots; zero while a burst lasts.
    pub spacing: Duration,
    /// How long before the turn begins the call should arrive at the store.
    pub lead: Duration,
}

/// The answer to an asker: its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booking {
    /// How far ahead turns are booked: as far as the replica with the longest round trip needs.
    pub reach: Duration,
    /// Its next turn.
    pub next: NextTurn,
}

/// The next turn of an asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTurn {
    /// There is none: the asker has no jobs left, or the whole downstream's limits keep none of them waiting.
    None,
    /// The turn is booked.
    At(Turn),
    /// The turn would begin at this instant, which is too far ahead to be booked.
    Later(Micros),
}

impl Booking {
    /// How long the lease of the asker is to last at least: twice the time until its turn.
    pub(super) fn lease_ttl(&self, now: Micros) -> Duration {
        match self.next {
            NextTurn::None => Duration::ZERO,
            NextTurn::At(Turn { begins: at, .. }) | NextTurn::Later(at) => {
                at.since(now).saturating_mul(2).min(LONGEST_TURN_LEASE)
            }
        }
    }
}

impl Turn {
    /// The duration of the turn.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.spacing.saturating_mul(self.units)
    }

    /// The instant at which the call should arrive at the store.
    #[must_use]
    pub fn ask_at(&self) -> Micros {
        self.begins.minus(self.lead)
    }

    /// The instant at which the turn ends.
    fn end(&self) -> Micros {
        self.begins.plus(self.length())
    }

    /// Whether a call that arrives at `now` is made at the turn: a quarter of the lead early at most.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        now.plus(self.lead + floored(self.lead, 1, 4)) >= self.begins
    }

    /// What is left of the turn if the next slot is `free`; `None` if it is over.
    fn left(&self, free: Micros) -> Option<Self> {
        let (end, half) = (self.end(), floored(self.spacing, 1, 2));
        if free.plus(half) >= end {
            return None;
        }
        if free <= self.begins {
            return Some(*self);
        }
        let units = (end.since(free) + half).as_micros() / self.spacing.as_micros().max(1);
        Some(Self { begins: free, units: u32::try_from(units).unwrap_or(u32::MAX).max(1), ..*self })
    }

    /// The latest slot that a call may take which arrives at `now`. A late call takes fewer slots.
    pub(super) fn until(&self, now: Micros) -> Micros {
        let late = now.since(self.ask_at()).min(floored(self.length(), 1, 4));
        let ahead = self.lead + self.length() - floored(self.spacing, 1, 2);
        now.plus(ahead.saturating_sub(late))
    }
}

/// The part of the record that describes the queue of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue {
    /// The end of the turns that are booked.
    pub(super) end: Micros,
    pub(super) reach: Duration,
    /// The instant until which the present reach is needed.
    pub(super) until: Micros,
    /// The begin and the end of the gap in the queue where a turn was given back; 0 if there is none.
    pub(super) vacancy: (Micros, Micros),
}

/// What a call has left to wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wants {
    /// The units that wait for the downstream's pace.
    pub(super) units: u64,
    /// The cost of the first job of them.
    pub(super) cost: u32,
}

impl Queue {
    /// Moves the queue to a clock that stepped back by `back` µs.
    pub(super) fn step_back(&mut self, back: i64) {
        let moved = |at: Micros| Micros((at.0 - back).max(0));
        (self.end, self.until) = (moved(self.end), moved(self.until));
        self.vacancy = (moved(self.vacancy.0), moved(self.vacancy.1));
    }

    /// Discards the turns that are booked.
    pub(super) fn forget_turns(&mut self) {
        (self.end, self.vacancy) = (Micros(0), <(Micros, Micros)>::default());
    }

    /// Records how far ahead an asker needs turns to be booked, and returns the reach in force.
    pub(super) fn extend_reach(&mut self, now: Micros, reach: Duration) -> Duration {
        if reach >= self.reach || now >= self.until {
            (self.reach, self.until) = (reach, now.plus(REACH_KEPT));
        }
        self.reach
    }

    /// Decides on the next turn of an asker, whose call was granted slots or not. If it has jobs left, the first free
    /// slot for the first of them is `free`, and the next one for a unit is `spacing` after it.
    pub(super) fn next_turn(
        &mut self,
        now: Micros,
        asker: &Asker,
        (free, spacing): (Micros, Duration),
        wants: Option<Wants>,
        is_granted: bool,
    ) -> NextTurn {
        let due = asker.turn.filter(|turn| turn.is_due(now));
        let held = asker.turn.filter(|turn| !(due.is_some() && is_granted) && turn.end() <= self.end);
        let left = held.and_then(|turn| turn.left(free));
        match (wants, held.filter(|_| left.is_some())) {
            (Some(_), Some(_)) => left.map_or(NextTurn::None, NextTurn::At),
            (None, Some(held)) if !asker.goes_on => {
                self.take_back(&held, free);
                NextTurn::None
            }
            (None, _) => NextTurn::None,
            (Some(_), None) if asker.goes_on && due.is_some_and(|turn| free <= turn.until(now)) => {
                NextTurn::None
            }
            (Some(wants), None) => self.book(now, asker, (free, spacing), wants),
        }
    }

    /// Takes back a turn: the queue ends earlier, or else one vacancy is remembered, the earliest.
    fn take_back(&mut self, turn: &Turn, free: Micros) {
        let (begin, end, (from, to)) = (turn.begins, turn.end(), self.vacancy);
        if end == self.end {
            self.end = begin;
            if to == begin {
                (self.end, self.vacancy) = (from, (Micros(0), Micros(0)));
            }
        } else if to <= free || to > self.end || (begin < from && end != from) {
            self.vacancy = (begin, end);
        } else if to == begin {
            self.vacancy.1 = end;
        } else if end == from {
            self.vacancy.0 = begin;
        }
    }

    /// Books a turn: in the vacancy if it has room, or else at the end of the queue.
    fn book(
        &mut self,
        now: Micros,
        asker: &Asker,
        (free, spacing): (Micros, Duration),
        wants: Wants,
    ) -> NextTurn {
        let spacing = spacing.min(asker.interval);
        let (mut begins, lead, half) = (self.end.max(free), lead(self.reach), floored(spacing, 1, 2));
        if !spacing.is_zero() {
            // Where slots lie later than was planned by more than the lead, so does the turn.
            let apart = i64::try_from(spacing.as_micros()).unwrap_or(i64::MAX);
            let behind = (free.0 - begins.0).rem_euclid(apart);
            let behind = Duration::from_micros(behind.unsigned_abs());
            if lead < behind && behind <= half {
                begins = begins.plus(behind);
            }
        }
        let units = u64::from(units(self.reach, spacing)).min(wants.units).max(wants.cost.into());
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let length = spacing.saturating_mul(units);
        // An older replica that discards all turns leaves the vacancy, which then lies behind the end of the queue.
        if self.vacancy.1 <= free || self.vacancy.1 > self.end {
            self.vacancy = <(Micros, Micros)>::default();
        }
        let (from, to) = self.vacancy;
        let vacant = from.max(free);
        if to > Micros(0) && from < begins && vacant.plus(length) <= to.plus(half) {
            let rest = vacant.plus(length);
            self.vacancy = if rest < to { (rest, to) } else { <(Micros, Micros)>::default() };
            return NextTurn::At(Turn { begins: vacant, units, spacing, lead });
        }
        // Where no slot is ever free there is nothing to book, however far ahead it may be.
        if begins > now.plus(asker.farthest) || free == Micros::MAX {
            return NextTurn::Later(begins);
        }
        self.end = begins.plus(length);
        NextTurn::At(Turn { begins, units, spacing, lead })
    }
}

/// How far ahead turns are booked under these limits, whose slots are `interval` apart in the long run. The edges of
/// a calendar are known to the store for a short time ahead.
#[must_use]
pub(crate) fn booking_ahead(limits: &LimitSet, interval: Duration) -> Duration {
    let (span, slots) = BOOKING_AHEAD;
    let is_by_calendar = |limit: &Limit| match limit.algorithm() {
        Algorithm::Quota(counting) => matches!(counting.edges(), Edges::Calendar(_)),
        _ => false,
    };
    if limits.iter().any(is_by_calendar) { span } else { interval.saturating_mul(slots).max(span) }
}

/// The number of units of a turn whose slots lie `spacing` apart.
#[must_use]
pub(crate) fn units(reach: Duration, spacing: Duration) -> u32 {
    const MOST: u128 = MAX_BATCH as u128;
    let (reach, spacing) = (reach.as_micros(), spacing.as_micros());
    let units = (4 * reach + 5 * spacing).checked_div(10 * spacing).unwrap_or(MOST);
    u32::try_from(units.clamp(1, MOST)).unwrap_or(1)
}

/// How long before a turn begins the call for it is to arrive.
#[must_use]
pub(crate) fn lead(reach: Duration) -> Duration {
    floored(reach, 3, 5)
}

/// How far ahead a slot may lie at most that is granted to an asker out of its turn, where slots lie close together.
#[must_use]
pub(crate) fn farthest(reach: Duration) -> Duration {
    reach.saturating_add(floored(reach, 1, 4))
}

/// Returns `parts` / `of` of a span, rounded down to whole µs.
fn floored(span: Duration, parts: u32, of: u32) -> Duration {
    let micros = span.as_micros() * u128::from(parts) / u128::from(of);
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
