//! The queue of turns of those who ask for the slots of a downstream, as pure functions. `redis/lua/turns.lua` has the
//! same arithmetic.
//!
//! If every replica asked whenever slots are near, the replica nearest to the store would take most of them, and many
//! replicas would make many calls in vain. So the store keeps a queue. A caller that has jobs left when it is answered
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

/// How far ahead turns are booked: the longer of this span, and so many slots of the limits in the long run.
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
    /// The begin and the end of a gap in the queue that a turn has left which was given back; 0 if there is none.
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
        if begins > now.plus(asker.farthest) {
            return NextTurn::Later(begins);
        }
        self.end = begins.plus(length);
        NextTurn::At(Turn { begins, units, spacing, lead })
    }
}

/// How far ahead turns are booked under these limits, whose slots lie so far apart in the long run. The edges of a calendar
/// are known to the store for a short time ahead.
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
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NOW: Micros = Micros(1_760_000_000_000_000);

    const fn asker(waiting: u64) -> Asker {
        Asker {
            turn: None,
            reach: Duration::from_millis(100),
            waiting,
            own: 1,
            interval: Duration::MAX,
            goes_on: false,
            farthest: Duration::from_secs(3600),
        }
    }

    const fn wants(units: u64, cost: u32) -> Option<Wants> {
        Some(Wants { units, cost })
    }

    fn turn(next: NextTurn) -> Turn {
        match next {
            NextTurn::At(turn) => turn,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_turn_is_what_lies_in_0_4_of_the_reach() {
        assert_eq!(units(100 * MS, 5 * MS), 8);
        assert_eq!(units(500 * MS, 5 * MS), 40);
        assert_eq!([units(100 * MS, 70 * MS), units(100 * MS, 3600 * MS)], [1, 1]);
        assert_eq!(units(100 * MS, Duration::ZERO), 1024, "a burst has no end");
        assert_eq!(lead(125 * MS), 75 * MS);
    }

    #[test]
    fn turns_follow_each_other_and_none_begins_before_the_next_free_slot() {
        let mut queue = Queue::default();
        assert_eq!(queue.extend_reach(NOW, 100 * MS), 100 * MS);
        let mut book = |free, left, cost| {
            let slots = (NOW.plus(free), 5 * MS);
            let turn = turn(queue.next_turn(NOW, &asker(left), slots, wants(left, cost), false));
            (turn.begins.since(NOW), turn.units, turn.ask_at().since(NOW))
        };
        assert_eq!(book(100 * MS, 50, 1), (100 * MS, 8, 40 * MS));
        assert_eq!(book(100 * MS, 3, 1), (140 * MS, 3, 80 * MS), "no more than wait");
        assert_eq!(book(100 * MS, 2, 20), (155 * MS, 20, 95 * MS), "one job at least");
        assert_eq!(book(400 * MS, 50, 1), (400 * MS, 8, 340 * MS), "others took slots beyond the queue");
    }

    #[test]
    fn a_call_takes_what_is_free_up_to_the_end_of_its_turn() {
        let turn = Turn { begins: NOW.plus(100 * MS), units: 8, spacing: 5 * MS, lead: 60 * MS };
        let until = |late: u32| turn.until(turn.ask_at().plus(MS * late)).since(turn.begins);
        let half = Duration::from_micros(2500);
        // The last of eight slots lies 35 ms behind the first.
        assert_eq!([until(0), until(10)], [40 * MS - half; 2]);
        assert_eq!(until(30), 60 * MS - half, "who is later takes others' as far ahead, but less");
        let early = turn.until(turn.ask_at().minus(5 * MS));
        assert_eq!(early.since(turn.begins), 35 * MS - half);
    }

    #[test]
    fn the_end_of_a_window_makes_no_turn_long() {
        let (mut queue, minute) = (Queue::default(), Duration::from_secs(60));
        queue.extend_reach(NOW, 100 * MS);
        let asker = Asker { interval: Duration::from_secs(6), ..asker(50) };
        let booked = turn(queue.next_turn(NOW, &asker, (NOW, minute), wants(50, 3), false));
        assert_eq!((booked.spacing, queue.end.since(NOW)), (asker.interval, 3 * asker.interval));
    }

    #[test]
    fn what_is_too_far_off_is_not_booked() {
        let mut queue = Queue::default();
        queue.extend_reach(NOW, 100 * MS);
        let hour = Duration::from_secs(3600);
        let far = NOW.plus(hour);
        let mut book = |farthest| {
            let asker = Asker { farthest, ..asker(5) };
            (queue.next_turn(NOW, &asker, (far, hour), wants(5, 1), false), queue.end)
        };
        assert_eq!(book(hour - MS), (NextTurn::Later(far), Micros(0)), "nobody waits behind it");
        assert!(matches!(book(hour).0, NextTurn::At(_)));
        let booking = Booking { reach: 100 * MS, next: NextTurn::Later(far) };
        assert_eq!(booking.lease_ttl(NOW), LONGEST_TURN_LEASE);
    }

    #[test]
    fn slow_limits_book_far_ahead_but_for_those_by_a_calendar() {
        let ahead = |limits| {
            let limits = LimitSet::new(limits).unwrap();
            booking_ahead(&limits, limits.iter().map(|limit| limit.rate().interval()).max().unwrap())
                .as_secs()
        };
        let leaky = |rate: &str| Limit::leaky_bucket("l", rate.parse().unwrap(), 1).unwrap();
        let day = crate::limit::Calendar::new(crate::limit::calendar::Unit::Day, 0).unwrap();
        let quota = Limit::quota("q", 10, Edges::Calendar(day)).unwrap();
        assert_eq!([ahead(vec![leaky("200/s")]), ahead(vec![leaky("10/h")])], [300, 360_000]);
        assert_eq!(ahead(vec![leaky("10/h"), quota]), 300);
    }

    #[test]
    fn the_farthest_reach_counts_for_a_while() {
        let mut queue = Queue::default();
        let mut extend_reach =
            |seconds, reach| queue.extend_reach(NOW.plus(Duration::from_secs(seconds)), MS * reach);
        assert_eq!(extend_reach(0, 100), 100 * MS);
        assert_eq!([extend_reach(1, 175), extend_reach(2, 100), extend_reach(30, 100)], [175 * MS; 3]);
        assert_eq!(extend_reach(31, 100), 100 * MS, "nobody needed more for 30 s");
    }

    #[test]
    fn a_turn_that_is_not_used_up_goes_on() {
        let mut queue = Queue::default();
        queue.extend_reach(NOW, 100 * MS);
        let held = turn(queue.next_turn(NOW, &asker(50), (NOW.plus(100 * MS), 5 * MS), wants(50, 1), false));
        let asker = Asker { turn: Some(held), goes_on: true, ..asker(50) };
        let at = held.ask_at();
        let book = |queue: &mut Queue, free| {
            queue.next_turn(at, &asker, (held.begins.plus(MS * free), 5 * MS), wants(40, 1), true)
        };
        assert_eq!(book(&mut queue, 35), NextTurn::None);
        assert_eq!(turn(book(&mut queue, 40)).begins, held.begins.plus(40 * MS));
    }

    const S: Duration = Duration::from_secs(1);

    /// A queue of turns of one slot, a second apart; and these turns.
    fn seconds(count: u32) -> (Queue, Vec<Turn>) {
        let mut queue = Queue::default();
        queue.extend_reach(NOW, 100 * MS);
        let asker = Asker { interval: S, ..asker(1) };
        let book = |_| turn(queue.next_turn(NOW, &asker, (NOW.plus(S), S), wants(1, 1), false));
        let turns = (0..count).map(book).collect();
        (queue, turns)
    }

    /// A call of who holds this turn and has `left` units, at an instant when the next slot is `free`.
    fn call(
        queue: &mut Queue,
        held: &Turn,
        now: Micros,
        (free, left): (Micros, u64),
        is_granted: bool,
    ) -> NextTurn {
        let asker = Asker { turn: Some(*held), interval: S, ..asker(left) };
        queue.next_turn(now, &asker, (free, S), wants(left, 1).filter(|_| left > 0), is_granted)
    }

    #[test]
    fn who_calls_before_its_turn_keeps_it() {
        let (mut queue, turns) = seconds(4);
        let (before, last) = (queue, &turns[3]);
        for is_granted in [false, true] {
            let next = call(&mut queue, last, NOW.plus(S), (turns[1].begins, 5), is_granted);
            assert_eq!((next, queue), (NextTurn::At(*last), before));
        }
        // At its turn it was granted a slot: it gets another turn.
        let at = last.ask_at().minus(last.lead / 4);
        assert!(last.is_due(at) && !last.is_due(at.minus(Duration::from_micros(1))));
        let next = turn(call(&mut queue, last, at, (last.end(), 5), true));
        assert_eq!(next.begins, before.end);
    }

    #[test]
    fn who_gets_no_slot_at_its_turn_keeps_the_rest_of_it() {
        let mut queue = Queue::default();
        queue.extend_reach(NOW, 100 * MS);
        let held = turn(queue.next_turn(NOW, &asker(50), (NOW.plus(100 * MS), 5 * MS), wants(50, 1), false));
        let mut rest = |late: u32| {
            let (free, asker) = (held.begins.plus(MS * late), Asker { turn: Some(held), ..asker(50) });
            let rest = turn(queue.next_turn(held.ask_at(), &asker, (free, 5 * MS), wants(50, 1), false));
            (rest.begins.since(held.begins), rest.units)
        };
        let later = Duration::from_millis;
        assert_eq!([rest(0), rest(12), rest(37)], [(later(0), 8), (later(12), 6), (later(37), 1)]);
        assert_eq!(rest(38).1, 8, "it is over: another one is booked");
    }

    #[test]
    fn a_turn_that_was_discarded_is_not_kept() {
        let (mut queue, turns) = seconds(3);
        queue.forget_turns();
        let next = turn(call(&mut queue, &turns[2], NOW, (turns[0].begins, 5), false));
        assert_eq!(next.begins, turns[0].begins);
    }

    #[test]
    fn a_turn_that_is_given_back_goes_to_the_next_who_books() {
        let (mut queue, turns) = seconds(5);
        let mut give_back = |number: usize| {
            assert_eq!(call(&mut queue, &turns[number], NOW, (turns[0].begins, 0), false), NextTurn::None);
            (queue.end, queue.vacancy)
        };
        let (begins, ends) = (|number: usize| turns[number].begins, |number: usize| turns[number].end());
        let none = (Micros(0), Micros(0));
        assert_eq!(give_back(4), (ends(3), none), "the tail");
        assert_eq!(give_back(2), (ends(3), (begins(2), ends(2))), "a gap");
        assert_eq!(give_back(1), (ends(3), (begins(1), ends(2))), "a longer gap");
        assert_eq!(give_back(3), (begins(1), none), "the tail, with the gap before it");

        let (mut queue, turns) = seconds(5);
        let book = |queue: &mut Queue, units| {
            let asker = Asker { interval: S, ..asker(units) };
            turn(queue.next_turn(NOW, &asker, (NOW.plus(S), S), wants(units, 1), false)).begins
        };
        for number in [1, 3] {
            call(&mut queue, &turns[number], NOW, (turns[0].begins, 0), false);
        }
        assert_eq!(queue.vacancy, (turns[1].begins, turns[1].end()), "the earliest is remembered");
        assert_eq!(book(&mut queue, 1), turns[1].begins);
        assert_eq!((queue.vacancy, book(&mut queue, 1)), (none, turns[4].end()));
        // One that lies behind the next slot is of no use.
        call(&mut queue, &turns[2], NOW, (turns[0].begins, 0), false);
        let asker = Asker { interval: S, ..asker(1) };
        let next = queue.next_turn(NOW, &asker, (turns[2].end(), S), wants(1, 1), false);
        assert_eq!((turn(next).begins, queue.vacancy), (turns[4].end().plus(S), none));
    }

    #[test]
    fn who_goes_on_keeps_its_turn_for_others_of_its_jobs() {
        let (mut queue, turns) = seconds(2);
        let before = queue;
        let asker = Asker { turn: Some(turns[0]), interval: S, goes_on: true, ..asker(1) };
        assert_eq!(queue.next_turn(NOW, &asker, (turns[0].begins, S), None, false), NextTurn::None);
        assert_eq!(queue, before);
    }

    #[test]
    fn turns_follow_slots_that_lie_later_than_was_planned() {
        let begins = |late: u32| {
            let (mut queue, turns) = seconds(2);
            let asker = Asker { interval: S, ..asker(1) };
            let free = turns[0].begins.plus(MS * late);
            turn(queue.next_turn(NOW, &asker, (free, S), wants(1, 1), false)).begins.since(turns[1].end())
        };
        assert_eq!([begins(60), begins(61), begins(500)], [Duration::ZERO, 61 * MS, 500 * MS]);
        assert_eq!(begins(501), Duration::ZERO, "they are earlier");
    }
}
