//! This replica's place in the queue of turns that the store keeps for its callers. It is pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::limit::LimitSet;
use crate::store::turns::{farthest, lead, units};
use crate::store::{Asker, Booking, NextTurn, Turn};
use crate::time::Micros;

/// The longest reach of turns, in horizons.
const LONGEST: u32 = 5;

/// How long before a turn that is too far ahead to be booked the store is called again.
const LATER: Duration = Duration::from_secs(300);

/// The known state of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnTaking {
    horizon: Duration,
    /// The smoothed round trip of recent calls; `None` before the first.
    round_trip: Option<Duration>,
    /// How far ahead turns are booked, according to the last answer.
    reach: Duration,
    /// The turn that was booked last.
    booked: Option<Booked>,
}

/// A turn, and the instant until which it is of use.
#[derive(Clone, Copy, Debug)]
struct Booked {
    turn: Turn,
    over: Instant,
}

impl TurnTaking {
    pub(crate) const fn new(horizon: Duration) -> Self {
        Self { horizon, round_trip: None, reach: horizon, booked: None }
    }

    /// Applies another horizon.
    pub(crate) fn follow(&mut self, horizon: Duration) {
        *self = Self { round_trip: self.round_trip, ..Self::new(horizon) };
    }

    /// Forgets the booked turn.
    pub(crate) const fn forget(&mut self) {
        self.booked = None;
    }

    pub(crate) const fn horizon(&self) -> Duration {
        self.horizon
    }

    /// Returns how far ahead a slot may lie at most that is granted out of turn.
    pub(crate) fn farthest(&self) -> Duration {
        farthest(self.far())
    }

    /// Records the round trip of a call. The estimate moves slowly, so that delays of this replica alone do not extend
    /// the queue for all.
    pub(crate) fn on_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = Some(self.round_trip.map_or(round_trip, |before| (before * 7 + round_trip) / 8));
    }

    /// Returns how far ahead this replica needs turns to be booked: two round trips, in steps of a quarter of a
    /// horizon, since a fluctuating reach would make turns of changing length.
    fn need(&self) -> Duration {
        let step = (self.horizon / 4).max(Duration::from_micros(1));
        let steps = (2 * self.round_trip.unwrap_or_default()).as_micros().div_ceil(step.as_micros());
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        (step.saturating_mul(steps)).clamp(self.horizon, self.horizon * LONGEST)
    }

    fn far(&self) -> Duration {
        self.reach.max(self.need())
    }

    /// Returns the turn of a call at `now`.
    pub(crate) fn turn(&self, now: Instant) -> Option<Turn> {
        self.booked.filter(|booked| now < booked.over).map(|booked| booked.turn)
    }

    /// Returns the most units of a call, and how far ahead its slots may lie, given the known spacing of slots. At its
    /// turn a call takes everything that is free up to the turn's end, and otherwise half a turn.
    pub(super) fn call_bounds(&self, turn: Option<Turn>, spacing: Duration) -> (u32, Duration) {
        if let Some(turn) = turn {
            // The slots lie no further ahead than the reach, of which the lead is a part: a slot behind the end of a
            // window would keep others from the rest of that window.
            let ahead = turn.lead.saturating_add(turn.length().min(turn.lead * 5 / 3));
            let slots =
                turn.lead.saturating_add(turn.length()).as_micros().checked_div(turn.spacing.as_micros());
            let slots = slots.map_or(u32::MAX, |slots| u32::try_from(slots).unwrap_or(u32::MAX));
            return (slots.saturating_add(1).max(turn.units), ahead);
        }
        let (far, units) = (self.far(), units(self.far(), spacing));
        let more =
            if units > 1 { spacing.saturating_mul(units + units / 2).min(far) } else { Duration::ZERO };
        ((units / 2).max(1), lead(far) + more)
    }

    /// Returns this replica's part in the queue, with `waiting` units. If it `goes_on` with other lanes at the same
    /// turn, no other turn is booked before this one is used up.
    pub(crate) fn asker(&self, turn: Option<Turn>, waiting: u64, limits: &LimitSet, goes_on: bool) -> Asker {
        let interval = limits.iter().map(|limit| limit.rate().interval()).max().unwrap_or_default();
        let goes_on = goes_on && turn.is_some();
        Asker { turn, reach: self.need(), waiting, own: limits.len(), interval, goes_on }
    }

    /// Returns how long before a slot it is requested out of turn.
    pub(crate) fn early(&self) -> Duration {
        lead(self.far())
    }

    /// Records the booking in an answer, and returns when to call again. The call was sent at `sent`, and decided at
    /// the store's `now`; `next` is the next free slot.
    pub(crate) fn on_booking(
        &mut self,
        sent: Instant,
        now: Micros,
        booking: &Booking,
        next: Micros,
    ) -> Instant {
        self.reach = booking.reach;
        self.booked = None;
        // The time counts from when the call was sent, so that the way to the store cancels out, however long it is.
        let when = |at: Micros| sent + at.since(now);
        match booking.next {
            NextTurn::At(turn) => {
                let ask_at = when(turn.ask_at());
                self.booked = Some(Booked { turn, over: when(turn.begins) + turn.length() + turn.lead });
                ask_at
            }
            NextTurn::Later(begins) => {
                let spread = LATER / 60;
                when(begins.minus(LATER)) + spread.mul_f64(fastrand::f64())
            }
            NextTurn::None => when(next.minus(lead(self.far()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const H: Duration = Duration::from_millis(100);
    const NOW: Micros = Micros(1_760_000_000_000_000);

    fn booked(units: u32, spacing: Duration) -> (TurnTaking, Instant, Turn) {
        let (mut turns, sent) = (TurnTaking::new(H), Instant::now());
        let turn = Turn { begins: NOW.plus(200 * MS), units, spacing, lead: 60 * MS };
        let booking = Booking { reach: H, next: NextTurn::At(turn) };
        let ask_at = turns.on_booking(sent, NOW, &booking, NOW.plus(200 * MS));
        assert_eq!(ask_at, sent + 140 * MS, "so that it arrives as long before the turn as it left");
        (turns, sent, turn)
    }

    #[test]
    fn the_reach_is_two_trips_in_steps() {
        let mut turns = TurnTaking::new(H);
        let mut after = |millis: u32| {
            (0..60).for_each(|_| turns.on_round_trip(MS * millis));
            turns.need()
        };
        assert_eq!(
            [after(1), after(50), after(80), after(200), after(2000)],
            [1, 1, 7, 4, 5].map(|n| match n {
                1 => H,
                7 => 175 * MS,
                n => n * H,
            })
        );
    }

    #[test]
    fn one_stall_stretches_nothing() {
        let mut turns = TurnTaking::new(H);
        (0..20).for_each(|_| turns.on_round_trip(MS));
        turns.on_round_trip(300 * MS);
        assert_eq!(turns.need(), H);
    }

    #[test]
    fn at_its_turn_it_takes_all_that_may_be_free() {
        let (turns, sent, turn) = booked(8, 5 * MS);
        let at_turn = turns.turn(sent + 140 * MS);
        assert_eq!(at_turn, Some(turn));
        assert_eq!(turns.call_bounds(at_turn, 5 * MS), (21, 100 * MS));
        assert_eq!(turns.turn(sent + 300 * MS), None, "long over");
        let dear = Turn { units: 50, ..turn };
        assert_eq!(turns.call_bounds(Some(dear), 5 * MS).0, 63, "one job may cost more than a turn");
    }

    #[test]
    fn out_of_turn_it_takes_half_a_turn() {
        let turns = TurnTaking::new(H);
        assert_eq!(turns.call_bounds(None, 5 * MS), (4, 120 * MS));
        assert_eq!(turns.call_bounds(None, 200 * MS), (1, 60 * MS), "only the next slot, if it is near");
        let spaced = [1, 7, 40, 60].map(|millis| turns.call_bounds(None, MS * millis).1);
        assert!(spaced.iter().all(|ahead| *ahead <= turns.farthest()), "{spaced:?}");
    }

    #[test]
    fn what_is_void_is_forgotten() {
        let (mut turns, sent, _) = booked(8, 5 * MS);
        turns.forget();
        assert_eq!(turns.turn(sent), None);
    }
}
