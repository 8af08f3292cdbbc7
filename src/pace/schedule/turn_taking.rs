//! This replica's place in the queue of turns that the store keeps for its callers. It is pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::limit::LimitSet;
use crate::store::turns::{booking_ahead, farthest, lead, units};
use crate::store::{Asker, Booking, NextTurn, Reserved, Turn};
use crate::time::Micros;

/// The longest reach of turns, in horizons.
const LONGEST: u32 = 5;

/// A turn may be too far ahead to be booked. The first calls for it are spread over this time.
const SPREAD: Duration = Duration::from_secs(5);

/// Where the next slot is earlier than the turn by more than this, the caller checks whether anybody takes it.
const GAP: Duration = Duration::from_secs(1);

/// How long others are trusted to take the slots before the turn, unless there is a sign that somebody does not.
const TRUST: Duration = Duration::from_secs(10);

/// The least time after a slot before a check for it is made. A check some microseconds too early would be repeated
/// at once.
const CHECK_DELAY: Duration = Duration::from_millis(4);

/// The error of the known instant of the next slot.
const SLACK: Duration = Duration::from_millis(2);

/// The known state of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnTaking {
    horizon: Duration,
    /// The smoothed round trip of recent calls; `None` before the first.
    round_trip: Option<Duration>,
    /// How far ahead turns are booked, according to the last answer.
    reach: Duration,
    /// The longest distance between two slots of the downstream's limits in the long run.
    interval: Duration,
    /// How far ahead turns are booked.
    booking_ahead: Duration,
    /// The turn that this replica holds.
    held: Option<HeldTurn>,
    /// The next slot, according to the last answer.
    expected: Option<Micros>,
    /// Whether a call has failed since the last answer.
    has_failed: bool,
}

/// A turn, when the call for it is sent, and until when it is of use.
#[derive(Clone, Copy, Debug)]
struct HeldTurn {
    turn: Turn,
    ask_at: Instant,
    over: Instant,
}

/// The turn that a call is sent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentTurn {
    pub(super) turn: Turn,
    /// Whether the call is made at the turn. Before the turn, the call checks for slots that nobody takes.
    pub(super) is_due: bool,
}

impl TurnTaking {
    pub(crate) fn new(horizon: Duration, limits: &LimitSet) -> Self {
        let interval = limits.iter().map(|limit| limit.rate().interval()).max().unwrap_or_default();
        Self {
            horizon,
            round_trip: None,
            reach: horizon,
            interval,
            booking_ahead: booking_ahead(limits, interval),
            held: None,
            expected: None,
            has_failed: false,
        }
    }

    /// Applies another horizon and other limits, under which the turn is void.
    pub(crate) fn follow(&mut self, horizon: Duration, limits: &LimitSet) {
        *self = Self { round_trip: self.round_trip, ..Self::new(horizon, limits) };
    }

    /// Drops the turn.
    pub(crate) const fn drop_turn(&mut self) {
        (self.held, self.expected) = (None, None);
    }

    /// Returns the part of a call at `now` for one lane, with `waiting` units. With none, the call gives the turn back.
    pub(crate) fn asker_at(&self, now: Instant, waiting: u64, limits: &LimitSet) -> Asker {
        self.asker(self.turn(now), waiting, limits, false)
    }

    /// Whether this replica holds a turn whose last slot comes by this instant.
    pub(crate) fn comes_by(&self, until: Instant) -> bool {
        let slots = |turn: &Turn| turn.length().saturating_sub(turn.spacing);
        self.held.is_some_and(|HeldTurn { turn, ask_at, .. }| ask_at + turn.lead + slots(&turn) <= until)
    }

    /// Whether the turn is worth a call to give it back: it keeps others from a slot for longer than the lead.
    pub(crate) fn holds_long_turn(&self) -> bool {
        self.held.is_some_and(|held| held.turn.spacing > held.turn.lead)
    }

    /// Records that a call failed.
    pub(crate) const fn on_failure(&mut self) {
        self.has_failed = true;
    }

    pub(crate) const fn horizon(&self) -> Duration {
        self.horizon
    }

    /// Returns how far ahead a slot may lie at most that is granted out of turn.
    pub(crate) fn farthest(&self) -> Duration {
        farthest(self.far())
    }

    /// Records the round trip of a call. The estimate moves slowly, so that delays of this replica alone do not
    /// extend the queue for all replicas.
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

    /// Returns the turn that a call at `now` is sent with.
    pub(super) fn turn(&self, now: Instant) -> Option<SentTurn> {
        let held = self.held.filter(|held| now < held.over)?;
        Some(SentTurn { turn: held.turn, is_due: now + held.turn.lead / 4 >= held.ask_at })
    }

    /// Returns the most units of a call, and how far ahead its slots may lie, given the known spacing of slots. At its
    /// turn a call takes everything that is free up to the turn's end, and otherwise half a turn. Before a turn of one
    /// slot it takes only a slot that is due: others have booked those before the turn.
    pub(super) fn call_bounds(&self, sent: Option<SentTurn>, spacing: Duration) -> (u32, Duration) {
        if let Some(SentTurn { turn, is_due: true }) = sent {
            // The slots lie no further ahead than the reach, of which the lead is a part: a slot behind the end of a
            // window would keep others from the rest of that window.
            let ahead = turn.lead.saturating_add(turn.length().min(turn.lead * 5 / 3));
            let slots =
                turn.lead.saturating_add(turn.length()).as_micros().checked_div(turn.spacing.as_micros());
            let slots = slots.map_or(u32::MAX, |slots| u32::try_from(slots).unwrap_or(u32::MAX));
            return (slots.saturating_add(1).max(turn.units), ahead);
        }
        let (far, units) = (self.far(), units(self.far(), spacing));
        if units == 1 {
            return (1, if sent.is_some() { Duration::ZERO } else { lead(far) });
        }
        let more = spacing.saturating_mul(units + units / 2).min(far);
        ((units / 2).max(1), lead(far) + more)
    }

    /// Returns this replica's part in the queue, with `waiting` units. If it `goes_on` with other lanes at the same
    /// turn, no other turn is booked before this one is used up.
    pub(super) fn asker(
        &self,
        sent: Option<SentTurn>,
        waiting: u64,
        limits: &LimitSet,
        goes_on: bool,
    ) -> Asker {
        let (turn, goes_on) = (sent.map(|sent| sent.turn), goes_on && sent.is_some());
        let (own, interval, farthest) = (limits.len(), self.interval, self.booking_ahead);
        Asker { turn, reach: self.need(), waiting, own, interval, goes_on, farthest }
    }

    /// Returns how long before a slot it is requested out of turn.
    pub(crate) fn early(&self) -> Duration {
        lead(self.far())
    }

    /// Records the booking in an answer to a call that was sent at `sent`, and returns when to call again.
    pub(crate) fn on_booking(&mut self, sent: Instant, booking: &Booking, reserved: &Reserved) -> Instant {
        let (now, next) = (reserved.stamp.now, reserved.next);
        self.reach = booking.reach;
        let held = self.held.take().filter(|held| sent < held.over);
        // The holders of the turns before this one may be gone.
        let is_wary = held.is_none()
            || self.has_failed
            || held.is_some_and(|held| self.is_missed(&held.turn, reserved));
        (self.expected, self.has_failed) = (Some(next), false);
        // The time counts from when the call was sent, so that the way to the store cancels out, however long it is.
        let when = |at: Micros| sent + at.since(now);
        let (begins, ask_at) = match booking.next {
            NextTurn::At(turn) => {
                let ask_at = when(turn.ask_at());
                let over = when(turn.begins) + turn.length() + turn.lead;
                self.held = Some(HeldTurn { turn, ask_at, over });
                (turn.begins, ask_at)
            }
            NextTurn::Later(begins) => {
                let at = when(begins.minus(self.booking_ahead));
                (begins, at + SPREAD.mul_f64(fastrand::f64()))
            }
            NextTurn::None => return when(next.minus(lead(self.far()))),
        };
        if begins.since(next) <= GAP {
            return ask_at;
        }
        ask_at.min(when(self.check_at(now, next, is_wary)) + (lead(self.reach) / 2).mul_f64(fastrand::f64()))
    }

    /// Returns when to check for a slot before the turn, on the store's clock: shortly after the next slot, or after
    /// the last one within the time for which others are trusted to take them.
    fn check_at(&self, now: Micros, next: Micros, is_wary: bool) -> Micros {
        let trust = if is_wary { Duration::ZERO } else { TRUST };
        let interval = self.interval.max(Duration::from_micros(1));
        let slots = now.plus(trust).since(next).as_micros() / interval.as_micros();
        let slot = next.plus(interval.saturating_mul(u32::try_from(slots).unwrap_or(u32::MAX)));
        slot.plus(CHECK_DELAY.max((interval / 16).min(self.horizon / 2)))
    }

    /// Whether somebody seems to have missed a turn: a slot was taken when it was overdue, so that the next slots lie
    /// off the grid of the expected ones, or this call was granted a slot long before its turn.
    fn is_missed(&self, held: &Turn, reserved: &Reserved) -> bool {
        let interval = self.interval;
        if interval <= lead(self.reach) {
            return false;
        }
        let is_off = |expected: Micros| {
            let apart = i64::try_from(interval.as_micros()).unwrap_or(i64::MAX);
            let slack = i64::try_from(SLACK.as_micros()).unwrap_or(i64::MAX);
            (reserved.next.0 - expected.0 + slack).rem_euclid(apart) > 2 * slack
        };
        let is_early = |slot: &Micros| slot.plus(interval / 2) < held.begins;
        self.expected.is_some_and(is_off) || reserved.slots.first().is_some_and(is_early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;
    use crate::store::Status;
    use crate::store::{Charges, Stamp};

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);
    const H: Duration = Duration::from_millis(100);
    const NOW: Micros = Micros(1_760_000_000_000_000);

    fn taking(rate: &str) -> TurnTaking {
        let limit = Limit::leaky_bucket("l", rate.parse().unwrap(), 1).unwrap();
        TurnTaking::new(H, &LimitSet::new(vec![limit]).unwrap())
    }

    /// An answer at [`NOW`] with these slots and this next one.
    fn reserved(slots: &[Duration], next: Duration) -> Reserved {
        Reserved {
            stamp: Stamp { now: NOW, epoch: NOW, status: Status::default() },
            slots: slots.iter().map(|slot| NOW.plus(*slot)).collect(),
            charges: Charges::default(),
            passed: vec![],
            refused: None,
            next: NOW.plus(next),
            replicas: None,
            booking: None,
            outdated: false,
        }
    }

    fn at(begins: Duration, units: u32, spacing: Duration) -> Booking {
        let turn = Turn { begins: NOW.plus(begins), units, spacing, lead: 60 * MS };
        Booking { reach: H, next: NextTurn::At(turn) }
    }

    fn booked(units: u32, spacing: Duration) -> (TurnTaking, Instant, Turn) {
        let (mut turns, sent) = (taking("200/s"), Instant::now());
        let booking = at(200 * MS, units, spacing);
        let NextTurn::At(turn) = booking.next else { unreachable!() };
        let ask_at = turns.on_booking(sent, &booking, &reserved(&[], 200 * MS));
        assert_eq!(ask_at, sent + 140 * MS, "so that it arrives as long before the turn as it left");
        (turns, sent, turn)
    }

    #[test]
    fn the_reach_is_two_trips_in_steps() {
        let mut turns = taking("200/s");
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
        let mut turns = taking("200/s");
        (0..20).for_each(|_| turns.on_round_trip(MS));
        turns.on_round_trip(300 * MS);
        assert_eq!(turns.need(), H);
    }

    #[test]
    fn at_its_turn_it_takes_all_that_may_be_free() {
        let (turns, sent, turn) = booked(8, 5 * MS);
        let at_turn = turns.turn(sent + 125 * MS);
        assert_eq!(at_turn, Some(SentTurn { turn, is_due: true }));
        assert_eq!(turns.call_bounds(at_turn, 5 * MS), (21, 100 * MS));
        assert_eq!(turns.turn(sent + 300 * MS), None, "long over");
        let costly = SentTurn { turn: Turn { units: 50, ..turn }, is_due: true };
        assert_eq!(turns.call_bounds(Some(costly), 5 * MS).0, 63, "one job may cost more than a turn");
    }

    #[test]
    fn before_its_turn_it_takes_half_a_turn_or_what_is_due() {
        let (turns, sent, turn) = booked(8, 5 * MS);
        let before = turns.turn(sent + 124 * MS);
        assert_eq!(before, Some(SentTurn { turn, is_due: false }));
        assert_eq!(turns.call_bounds(before, 5 * MS), (4, 120 * MS));
        assert_eq!(
            turns.call_bounds(before, 200 * MS),
            (1, Duration::ZERO),
            "others have booked the next slot"
        );
    }

    #[test]
    fn out_of_turn_it_takes_half_a_turn() {
        let turns = taking("200/s");
        assert_eq!(turns.call_bounds(None, 5 * MS), (4, 120 * MS));
        assert_eq!(turns.call_bounds(None, 200 * MS), (1, 60 * MS), "only the next slot, if it is near");
        let spaced = [1, 7, 40, 60].map(|millis| turns.call_bounds(None, MS * millis).1);
        assert!(spaced.iter().all(|ahead| *ahead <= turns.farthest()), "{spaced:?}");
    }

    #[test]
    fn what_is_void_is_dropped() {
        let (mut turns, sent, _) = booked(8, 5 * MS);
        turns.drop_turn();
        assert_eq!(turns.turn(sent), None);
    }

    /// Whether the next call checks for the next slot, and is not made at the turn, after an answer with a turn 8 s
    /// ahead.
    fn checks(turns: &mut TurnTaking, slots: &[Duration], next: Duration) -> bool {
        let sent = Instant::now();
        let wait = turns.on_booking(sent, &at(8 * S, 1, S), &reserved(slots, next)) - sent;
        let check = next + 50 * MS;
        assert!(wait == 7940 * MS || (check..=check + 30 * MS).contains(&wait), "{wait:?}");
        wait < 7 * S
    }

    #[test]
    fn it_checks_for_the_next_slot_unless_others_are_seen_to_take_them() {
        let mut turns = taking("1/s");
        assert!(checks(&mut turns, &[], S), "nobody is known to take the slots before the turn");
        assert!(!checks(&mut turns, &[], S), "the turn was sent, and all is as expected");
        turns.on_failure();
        assert!(checks(&mut turns, &[], S), "a call failed");
        assert!(!checks(&mut turns, &[], 3002 * MS), "others took slots");
        assert!(checks(&mut turns, &[], 3300 * MS), "one was taken late");
        assert!(!checks(&mut turns, &[], 3300 * MS));
        assert!(checks(&mut turns, &[2 * S], 3300 * MS), "this call took a slot of somebody else");
        turns.drop_turn();
        assert!(checks(&mut turns, &[], S));
    }

    #[test]
    fn others_are_trusted_for_ten_seconds() {
        let (mut turns, sent) = (taking("1/s"), Instant::now());
        let booking = at(60 * S, 1, S);
        turns.on_booking(sent, &booking, &reserved(&[], S));
        let wait = turns.on_booking(sent, &booking, &reserved(&[], S)) - sent;
        assert!((10_050 * MS..=10_080 * MS).contains(&wait), "the last slot within them: {wait:?}");
    }

    #[test]
    fn a_turn_far_ahead_is_booked_later() {
        let (mut turns, sent) = (taking("1/s"), Instant::now());
        let booking = Booking { reach: H, next: NextTurn::Later(NOW.plus(2000 * S)) };
        let wait = turns.on_booking(sent, &booking, &reserved(&[], 2000 * S)) - sent;
        assert!((1000 * S..=1005 * S).contains(&wait), "{wait:?}");
    }
}
