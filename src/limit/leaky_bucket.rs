//! The leaky bucket: a shaper, or a policer when used as a meter.

use super::LimitError;
use super::gcra::Gcra;
use super::tat::{Pace, Tat};
use crate::rate::Rate;
use crate::time::Micros;

/// A leaky bucket: one unit per emission interval T = P/N µs, at most `burst` units at once.
///
/// It is the virtual scheduling of the GCRA (ITU-T I.371), used to delay jobs instead of dropping them. The cost is
/// charged behind: a job's slot does not depend on its own cost, the next job's slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket(Pace);

impl LeakyBucket {
    /// A bucket of this rate and burst.
    ///
    /// # Errors
    /// [`LimitError`] when the burst is 0 or one more unit would be beyond exact time.
    pub fn new(rate: Rate, burst: u32) -> Result<Self, LimitError> {
        Pace::new(rate, burst).map(Self)
    }

    /// The rate.
    #[must_use]
    #[inline]
    pub const fn rate(self) -> Rate {
        self.0.rate()
    }

    /// The burst: units that may be released at one instant after a rest.
    #[must_use]
    #[inline]
    pub const fn burst(self) -> u32 {
        self.0.burst()
    }

    /// The highest cost of one job that is exact.
    #[must_use]
    #[inline]
    pub const fn max_cost(self) -> u32 {
        self.0.max_cost()
    }

    /// The slot: TAT less the burst tolerance (burst - 1) * T, rounded up to a whole µs.
    #[must_use]
    #[inline]
    pub fn earliest(self, tat: Tat, now: Micros, _cost: u32) -> Micros {
        self.0.due(tat, 1).max(now)
    }

    /// The state after `cost` is committed at `at`: the later of TAT and `at`, plus `cost` emission intervals.
    #[must_use]
    #[inline]
    pub fn commit(self, tat: Tat, at: Micros, cost: u32) -> Tat {
        self.0.commit(tat, at, cost)
    }

    /// The latest slot at which `cost` can be taken exactly, in doubles too: no store grants a later one.
    #[must_use]
    #[inline]
    pub fn latest(self, cost: u32) -> Micros {
        self.0.latest(cost)
    }

    /// The same bucket as a meter, which refuses what would overflow it instead of delaying it, so that the whole cost
    /// has to fit. It is a GCRA on the same state.
    #[must_use]
    pub const fn meter(self) -> Gcra {
        Gcra::of(self.0)
    }

    #[inline]
    pub(super) const fn pace(&self) -> &Pace {
        &self.0
    }

    #[cfg(test)]
    const fn advance(self, tat: Tat, units: i64) -> Tat {
        self.0.advance(tat, units)
    }
}

#[cfg(test)]
mod tests;
