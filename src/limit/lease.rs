//! Leases of states: a store on disk writes a state that is charged ahead, so that the next grants need no write.
//!
//! What is written must never allow what the state in memory does not. A written state *covers* another one if, from now
//! on, any charge that fits it at some instant fits the other one at that instant at the latest. A lease that was not
//! used up is lost with the process: that costs slots and never adds any.

use std::time::Duration;

use super::{Algorithm, Level, Limit, State, Tat};
use crate::rate::Rate;
use crate::time::Micros;

/// How far the frontier of a lease lies ahead. A lease is charged with the units of this time; one of the GCRA family with
/// twice as many, so that it covers slots that lie apart and a burst at one instant. So it is never more than a second of
/// slots.
pub(crate) const LEASE: Duration = Duration::from_millis(500);

impl Limit {
    /// The state charged with what the limit releases within `span`, at the end of it; the state itself where that is less
    /// than one unit.
    ///
    /// `state` has the present numbers, as [`Limit::adopt`] returns it.
    pub(crate) fn leased(&self, state: &State, span: Duration) -> State {
        let (units, last) = (whole_units(self.rate(), span), state.last.plus(span));
        if units == 0 {
            return state.clone();
        }
        if let (Some((pace, _)), Level::Tat(tat, under)) = (self.tat(), &state.level) {
            let twice = i64::try_from(units).unwrap_or(i64::MAX / 2).saturating_mul(2);
            return State { last, level: Level::Tat(pace.advance(*tat, twice), *under) };
        }
        match units.min(self.standing(state, last).remaining) {
            0 => state.clone(),
            cost => {
                // With this frontier the commit drops no entry that a later state still has.
                let whole = State { last: Micros(0), level: state.level.clone() };
                self.commit(&whole, last, u32::try_from(cost).unwrap_or(u32::MAX))
            }
        }
    }

    /// Whether `wide` has been charged with more than `state` by more than a lease, as it is where units were given back.
    pub(crate) fn is_beyond_lease(&self, wide: &State, state: &State) -> bool {
        if let (Level::Tat(more, _), Level::Tat(tat, _)) = (&wide.level, &state.level) {
            return more.at > tat.at.plus(2 * LEASE);
        }
        let at = wide.last.max(state.last);
        let left = |state: &State| self.standing(state, at).remaining;
        left(state).saturating_sub(left(wide)) > whole_units(self.rate(), LEASE)
    }

    /// Whether any charge that fits `wide` at some instant fits `state` at that instant at the latest, now and after
    /// the same further charges, under these numbers and under others.
    pub(crate) fn covers(&self, wide: &State, state: &State) -> bool {
        if wide == state {
            return true;
        }
        if wide.last < state.last {
            return false;
        }
        match (self.algorithm, &wide.level, &state.level) {
            (_, Level::Tat(more, of), Level::Tat(tat, under)) => {
                // Under another rate the units that are pending after the latest slot take another time.
                of == under && more >= tat && pending(*more, wide) >= pending(*tat, state)
            }
            (_, Level::Window(more), Level::Window(window)) => {
                // After the end of a window its units do not count.
                wide.last >= window.end || (more.used >= window.used && more.end >= window.end)
            }
            (Algorithm::SlidingWindow(_), Level::Buckets(more), Level::Buckets(buckets)) => {
                more.width == buckets.width && dominates(&more.counts, &buckets.counts)
            }
            (_, Level::Log(more), Level::Log(log)) => dominates(&more.entries, &log.entries),
            _ => false,
        }
    }
}

/// How long after the latest slot TAT lies: whole µs, and the fraction as in [`Tat::rem`].
const fn pending(tat: Tat, state: &State) -> (i64, u64) {
    (tat.at.0 - state.last.0, tat.rem)
}

/// How many units the rate releases within `span`, rounded down.
fn whole_units(rate: Rate, span: Duration) -> u64 {
    let units = span.as_micros().saturating_mul(rate.count().into()) / u128::from(rate.period_micros());
    u64::try_from(units).unwrap_or(u64::MAX)
}

/// Whether there are as many units in `wide` as in `narrow` from each instant (or bucket) on: both are in ascending
/// order. Older units count less. So at no instant do fewer units count in `wide` than in `narrow`.
fn dominates<T: Ord>(wide: &[(T, u64)], narrow: &[(T, u64)]) -> bool {
    let (mut rest, mut more, mut less) = (wide.iter().rev().peekable(), 0_u64, 0_u64);
    narrow.iter().rev().all(|(at, units)| {
        while let Some((_, units)) = rest.next_if(|(other, _)| other >= at) {
            more += units;
        }
        less += units;
        more >= less
    })
}
