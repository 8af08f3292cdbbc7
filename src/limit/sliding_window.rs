//! The sliding-window counter: the last period in S buckets, the oldest one weighted.

use std::time::Duration;

use super::tat::EXACT;
use super::{LimitError, Standing};
use crate::rate::Rate;
use crate::time::Micros;

/// Units taken by bucket: pairs of the bucket's number (its start / width) and its units, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// The width of the buckets that the numbers refer to, in µs.
    pub width: i64,
    /// The buckets that hold units.
    pub counts: Vec<(i64, u64)>,
    /// The first instant at which none of the dropped buckets would count: the frontier cannot go back before it.
    pub cleared: Micros,
}

/// N units per period, as a counter estimates them: the units of the buckets in the period, and of
/// the bucket that the period's start lies in the part that is still inside, as if its units were
/// spread evenly.
///
/// With one bucket it is the classic two-counter window. More buckets follow the period more
/// closely, but where units come in bursts any number of them lets up to 2N through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    count: u64,
    buckets: u32,
    width: i64,
    rate: Rate,
}

/// The highest number of buckets.
const MOST: u32 = 120;

/// Whether the highest intermediate number is exact: count * width, rounded up to a whole width.
fn is_exact(count: u64, width: u64) -> bool {
    (count + 1).checked_mul(width).is_some_and(|product| product <= EXACT)
}

impl SlidingWindow {
    /// A counter of `count` units per `period`, in this many buckets; ten are usual.
    ///
    /// # Errors
    /// [`LimitError`] in these cases:
    /// - the count is 0, or too high for a rate;
    /// - there are 0 or over 120 buckets;
    /// - the period does not divide into buckets of whole microseconds;
    /// - count times a bucket's width is beyond exact numbers.
    pub fn new(count: u64, period: Duration, buckets: u32) -> Result<Self, LimitError> {
        let rate = Rate::new(count, period)?;
        if !(1..=MOST).contains(&buckets) {
            return Err(LimitError::Buckets { buckets });
        }
        // The period of a rate, reduced or not, is far from overflowing 64 bits here.
        let micros = u64::try_from(period.as_micros()).map_err(|_| crate::RateError::Zero)?;
        if micros % u64::from(buckets) != 0 {
            let divides = |other: &u32| micros % u64::from(*other) == 0;
            let below = (1..buckets).rev().find(divides).unwrap_or(1);
            let above = (buckets + 1..=MOST).find(divides).unwrap_or(below);
            return Err(LimitError::Uneven { period, buckets, below, above });
        }
        let width = micros / u64::from(buckets);
        if !is_exact(count, width) {
            let fits =
                |other: &u32| micros % u64::from(*other) == 0 && is_exact(count, micros / u64::from(*other));
            let enough = (buckets + 1..=MOST).find(fits);
            return Err(LimitError::CoarseBuckets { count, period, buckets, enough });
        }
        Ok(Self { count, buckets, width: width as i64, rate })
    }

    /// N.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// S.
    #[must_use]
    pub const fn buckets(self) -> u32 {
        self.buckets
    }

    /// A bucket's width, µs.
    #[must_use]
    pub const fn width(self) -> i64 {
        self.width
    }

    /// N per period.
    #[must_use]
    pub const fn rate(self) -> Rate {
        self.rate
    }

    /// The number of the bucket that `at` lies in.
    #[must_use]
    pub(super) const fn bucket(self, at: Micros) -> i64 {
        at.0.div_euclid(self.width)
    }

    /// The sums while bucket `now` is the current one: the units that count in full, those of the bucket that is
    /// leaving, and the index of the first bucket that leaves after it. Buckets ahead of `now` were filled before the
    /// clock stepped back, and count.
    fn sums(self, state: &Buckets, now: i64) -> (u64, u64, usize) {
        let oldest = now - i64::from(self.buckets);
        let inside = state.counts.partition_point(|(number, _)| *number <= oldest);
        let full = state.counts[inside..].iter().map(|(_, units)| units).sum();
        let leaving = match state.counts[..inside].last() {
            Some(&(number, units)) if number == oldest => units,
            _ => 0,
        };
        (full, leaving, inside)
    }

    /// The first instant at which the estimate leaves room for `cost`. The estimate only falls while
    /// nothing is taken, in a straight line within each bucket, so those in which one leaves are tried in turn.
    pub(super) fn earliest(self, state: &Buckets, last: Micros, now: Micros, cost: u32) -> Micros {
        let from = now.max(last);
        let mut number = self.bucket(from);
        let (mut full, mut leaving, inside) = self.sums(state, number);
        let mut next = state.counts[inside..].iter();
        loop {
            let start = number * self.width;
            if let Some(room) = self.count.checked_sub(full + u64::from(cost)) {
                // The estimate fits if room * width >= (width - e) * leaving, where e is the elapsed part of the
                // bucket.
                let gone = if leaving == 0 {
                    0
                } else {
                    (self.width - (room as i64 * self.width) / leaving as i64).max(0)
                };
                let at = Micros(start + gone).max(from);
                // Without any room the bucket leaves just as the next one begins.
                if at.0 < start + self.width {
                    return at;
                }
            }
            number += 1;
            leaving = 0;
            if let Some(&(other, units)) = next.as_slice().first() {
                let leaves = other + i64::from(self.buckets);
                // Without room nothing changes until the next bucket leaves.
                if leaves == number || full + u64::from(cost) > self.count {
                    (number, leaving, full) = (leaves, units, full - units);
                    next.next();
                }
            }
        }
    }

    /// The buckets after a commit, without those that no instant from the frontier on needs.
    pub(super) fn commit(self, state: &Buckets, last: Micros, at: Micros, cost: u32) -> Buckets {
        let (oldest, number) = (self.bucket(last) - i64::from(self.buckets), self.bucket(at));
        let mut counts: Vec<(i64, u64)> =
            state.counts.iter().copied().filter(|(other, _)| *other >= oldest).collect();
        let place = counts.partition_point(|(other, _)| *other < number);
        match counts.get_mut(place) {
            Some((other, units)) if *other == number => *units += u64::from(cost),
            _ => counts.insert(place, (number, cost.into())),
        }
        let dropped = state.counts.iter().rev().find(|(other, _)| *other < oldest);
        let cleared = dropped.map_or(state.cleared, |(other, _)| self.leaves(*other).max(state.cleared));
        Buckets { width: self.width, counts, cleared }
    }

    /// The instant at which a bucket has left the period.
    fn leaves(self, number: i64) -> Micros {
        Micros(((number + 1 + i64::from(self.buckets)) * self.width).min(Micros::MAX.0))
    }

    /// The buckets with units of `at` taken back.
    pub(super) fn undo(self, state: &Buckets, at: Micros, cost: u32) -> Buckets {
        let number = self.bucket(at);
        let mut counts = state.counts.clone();
        if let Some(place) = counts.iter().position(|(other, _)| *other == number) {
            counts[place].1 = counts[place].1.saturating_sub(cost.into());
            if counts[place].1 == 0 {
                counts.remove(place);
            }
        }
        Buckets { counts, ..*state }
    }

    /// Units taken in the bucket that `at` lies in.
    pub(super) fn units_at(self, state: &Buckets, at: Micros) -> u64 {
        let number = self.bucket(at);
        state.counts.iter().find(|(other, _)| *other == number).map_or(0, |(_, units)| *units)
    }

    /// Adapts buckets of another width: all units move to the bucket of the latest slot, so that they never count for
    /// less.
    pub(super) fn adopt(self, state: Buckets, last: Micros) -> Buckets {
        if state.width == self.width {
            return state;
        }
        let sum: u64 = state.counts.iter().map(|(_, units)| units).sum();
        let counts = if sum == 0 { vec![] } else { vec![(self.bucket(last), sum.min(self.count))] };
        Buckets { width: self.width, counts, cleared: state.cleared }
    }

    /// Moves the buckets by as many whole widths as the clock stepped back: units leave late, never early.
    pub(super) fn step_back(state: Buckets, back: i64) -> Buckets {
        let moved = back.div_euclid(state.width.max(1));
        let counts = state.counts.into_iter().map(|(number, units)| ((number - moved).max(0), units));
        let mut merged: Vec<(i64, u64)> = Vec::new();
        for (number, units) in counts {
            match merged.last_mut() {
                Some((other, sum)) if *other == number => *sum += units,
                _ => merged.push((number, units)),
            }
        }
        let cleared = Micros((state.cleared.0 - moved * state.width).max(0));
        Buckets { width: state.width, counts: merged, cleared }
    }

    /// The instant from which none of the units count any more.
    pub(super) fn whole_at(self, state: &Buckets) -> Micros {
        state.counts.last().map_or(Micros(0), |(number, _)| self.leaves(*number))
    }

    pub(super) fn standing(self, state: &Buckets, last: Micros, now: Micros) -> Standing {
        let at = now.max(last);
        let number = self.bucket(at);
        let (full, leaving, _) = self.sums(state, number);
        let left = (number + 1) * self.width - at.0;
        // The weight of the leaving bucket, rounded up to whole units.
        let weighed = (left * leaving as i64 + self.width - 1) / self.width;
        let reset_after = self.leaves(number).since(now);
        let remaining = self.count.saturating_sub(full).saturating_sub(weighed as u64);
        Standing { limit: self.count, remaining, reset_after }
    }
}
