//! The queue of turns of those who ask for the slots of a downstream, as pure functions. `redis/lua/turns.lua` has the
//! same arithmetic.
//!
//! If every replica asked whenever slots are near, the replica nearest to the store would take most of them, and many
//! replicas would make many calls in vain. So the store keeps a queue. A caller that has jobs left when it is answered
//! books the next turn in the queue. A turn has as many slots as lie in 0.4 of the reach, and its call is made 0.6 of
//! the reach before it begins. At its turn the caller takes every slot up to the end of the turn, including those that
//! earlier turns have left.

use std::time::Duration;

use super::LONGEST_TURN_LEASE;
use crate::limit::MAX_BATCH;
use crate::time::Micros;

/// Turns that would begin later than this are not booked.
const MAX_BOOKING_AHEAD: Duration = Duration::from_secs(300);
/// How long the reach stays after the last asker that needed it.
const REACH_KEPT: Duration = Duration::from_secs(30);

/// The part of a reserve call that books turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The turn that the call is made for, if it is made at a turn.
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
    /// is used up.
    pub goes_on: bool,
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
    /// The turn was booked.
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
}

impl Queue {
    /// Moves the queue to a clock that stepped back by `back` µs.
    pub(super) fn step_back(&mut self, back: i64) {
        self.end = Micros((self.end.0 - back).max(0));
        self.until = Micros((self.until.0 - back).max(0));
    }

    /// Records how far ahead an asker needs turns to be booked, and returns the reach in force.
    pub(super) fn extend_reach(&mut self, now: Micros, reach: Duration) -> Duration {
        if reach >= self.reach || now >= self.until {
            (self.reach, self.until) = (reach, now.plus(REACH_KEPT));
        }
        self.reach
    }

    /// Books the next turn of an asker with `left` units, the first of which belong to a job of `cost`. The first free
    /// slot for that job is `free`, and the next one for a unit is `spacing` after it.
    pub(super) fn book(
        &mut self,
        now: Micros,
        asker: &Asker,
        (free, spacing): (Micros, Duration),
        (left, cost): (u64, u32),
    ) -> NextTurn {
        if asker.goes_on && asker.turn.is_some_and(|turn| free <= turn.until(now)) {
            return NextTurn::None;
        }
        let spacing = spacing.min(asker.interval);
        let begins = self.end.max(free);
        if begins > now.plus(MAX_BOOKING_AHEAD) {
            return NextTurn::Later(begins);
        }
        let units = u64::from(units(self.reach, spacing)).min(left).max(cost.into());
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let turn = Turn { begins, units, spacing, lead: lead(self.reach) };
        self.end = begins.plus(turn.length());
        NextTurn::At(turn)
    }
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
        }
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
            let turn = turn(queue.book(NOW, &asker(left), (NOW.plus(free), 5 * MS), (left, cost)));
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
        let booked = turn(queue.book(NOW, &asker, (NOW, minute), (50, 3)));
        assert_eq!((booked.spacing, queue.end.since(NOW)), (asker.interval, 3 * asker.interval));
    }

    #[test]
    fn what_is_too_far_off_is_not_booked() {
        let mut queue = Queue::default();
        queue.extend_reach(NOW, 100 * MS);
        let hour = Duration::from_secs(3600);
        let far = NOW.plus(hour);
        assert_eq!(queue.book(NOW, &asker(5), (far, hour), (5, 1)), NextTurn::Later(far));
        assert_eq!(queue.end, Micros(0), "nobody waits behind it");
        let booking = Booking { reach: 100 * MS, next: NextTurn::Later(far) };
        assert_eq!(booking.lease_ttl(NOW), LONGEST_TURN_LEASE);
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
        let held = turn(queue.book(NOW, &asker(50), (NOW.plus(100 * MS), 5 * MS), (50, 1)));
        let asker = Asker { turn: Some(held), goes_on: true, ..asker(50) };
        let at = held.ask_at();
        let book =
            |queue: &mut Queue, free| queue.book(at, &asker, (held.begins.plus(MS * free), 5 * MS), (40, 1));
        assert_eq!(book(&mut queue, 35), NextTurn::None);
        assert_eq!(turn(book(&mut queue, 40)).begins, held.begins.plus(40 * MS));
    }
}
