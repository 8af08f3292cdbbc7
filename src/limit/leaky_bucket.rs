//! The leaky bucket as a shaper, in exact integer time.
//!
//! Virtual scheduling of the GCRA (ITU-T I.371), used to wait instead of to drop. The cost is
//! charged behind: a job's slot does not depend on its own cost, the next job's slot does.

use super::{LimitError, MAX_BATCH};
use crate::rate::Rate;
use crate::time::Micros;

/// A theoretical arrival time: `at + rem/N` µs with `0 <= rem < N`, N being the rate's count.
///
/// Ordered lexicographically. The remainder keeps rates such as 1/3 s free of drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tat {
    /// Whole µs.
    pub at: Micros,
    /// Parts of N.
    pub rem: u64,
}

impl Tat {
    /// Long ago: nothing was taken yet.
    pub const ZERO: Self = Self { at: Micros(0), rem: 0 };

    /// Exactly `at`.
    #[must_use]
    pub const fn whole(at: Micros) -> Self {
        Self { at, rem: 0 }
    }

    /// The first whole µs that is not before it.
    #[must_use]
    pub const fn ceil(self) -> Micros {
        Micros(self.at.0 + (self.rem > 0) as i64)
    }
}

/// One unit per emission interval T = P/N µs, `burst` units at once at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    rate: Rate,
    burst: u32,
    max_cost: u32,
}

/// 2^53: from here on doubles, and so Lua, skip integers.
const EXACT: u64 = 1 << 53;
/// What is left for spans once today's epoch, and 6 more years, are taken off.
const SPAN: u64 = EXACT - 2_000_000_000_000_000;

impl LeakyBucket {
    /// A bucket of this rate and burst.
    ///
    /// # Errors
    /// [`LimitError`] when the burst is 0 or a full batch would be beyond exact time.
    pub fn new(rate: Rate, burst: u32) -> Result<Self, LimitError> {
        if burst == 0 {
            return Err(LimitError::NoBurst);
        }
        // Spans are (burst + cost + n) * T, and remainders stay below (burst + cost + n) * N.
        let interval = rate.period_micros().div_ceil(rate.count());
        let units = (SPAN / interval).min(EXACT / rate.count());
        let spent = u64::from(burst) + MAX_BATCH as u64;
        match units.saturating_sub(spent).saturating_sub(1) {
            0 => Err(LimitError::BeyondExact { burst, rate }),
            left => Ok(Self { rate, burst, max_cost: u32::try_from(left).unwrap_or(u32::MAX) }),
        }
    }

    /// The rate.
    #[must_use]
    pub const fn rate(self) -> Rate {
        self.rate
    }

    /// The burst: units that may go at one instant after a rest.
    #[must_use]
    pub const fn burst(self) -> u32 {
        self.burst
    }

    /// The highest cost of one job that is exact.
    #[must_use]
    pub const fn max_cost(self) -> u32 {
        self.max_cost
    }

    /// The slot: TAT less the burst tolerance (burst - 1) * T, rounded up to a whole µs.
    #[must_use]
    pub fn earliest(self, tat: Tat, now: Micros, _cost: u32) -> Micros {
        let due = self.advance(tat, 1 - i64::from(self.burst));
        due.ceil().max(now)
    }

    /// TAT, or `at` where that is later, and `cost` emission intervals on.
    ///
    /// `at` is a whole µs and TAT need not be: a slot at TAT rounded up is at TAT. Counted from
    /// the slot instead, every rounding would stay, and 700001/s become 500000/s.
    #[must_use]
    pub fn commit(self, tat: Tat, at: Micros, cost: u32) -> Tat {
        let start = if tat.ceil() < at { Tat::whole(at) } else { tat };
        self.advance(start, i64::from(cost))
    }

    /// The latest slot at which `cost` can be taken exactly, in doubles too: no store grants a later one.
    #[must_use]
    pub fn latest(self, cost: u32) -> Micros {
        let reach = self.advance(Tat::ZERO, i64::from(self.burst) + i64::from(cost));
        Micros(Micros::MAX.0 - reach.at.0 - 1)
    }

    /// A state that may have been written under another rate: a remainder that is none here is
    /// rounded up to a whole µs.
    #[must_use]
    pub const fn adopt(self, tat: Tat) -> Tat {
        if tat.rem < self.rate.count() { tat } else { Tat::whole(Micros(tat.at.0 + 1)) }
    }

    /// `units` emission intervals on from `tat` (or back), exactly.
    fn advance(self, tat: Tat, units: i64) -> Tat {
        let (count, period) = (i128::from(self.rate.count()), i128::from(self.rate.period_micros()));
        let (whole, part) = (period / count, period % count);
        let sum = i128::from(tat.rem) + i128::from(units) * part;
        let at = i128::from(tat.at.0) + i128::from(units) * whole + sum.div_euclid(count);
        // In range by construction: the spans were checked in `new`.
        Tat { at: Micros(at as i64), rem: sum.rem_euclid(count) as u64 }
    }
}

#[cfg(test)]
mod tests;
