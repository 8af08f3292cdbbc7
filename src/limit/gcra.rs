//! The GCRA, and the token bucket, which is the same algorithm in other terms.

use super::LimitError;
use super::tat::{Pace, Tat};
use crate::rate::Rate;
use crate::time::Micros;

/// The generic cell rate algorithm, by virtual scheduling (ITU-T I.371, annex A): a cost fits while
/// TAT stays within `burst` emission intervals of now.
///
/// Unlike the leaky bucket it needs the whole cost to fit: `earliest = TAT + (cost - burst) * T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra(Pace);

impl Gcra {
    /// A limit of this rate in the long run, and `burst` units at once after a rest.
    ///
    /// # Errors
    /// [`LimitError`] when the burst is 0 or the numbers are beyond exact time.
    pub fn new(rate: Rate, burst: u32) -> Result<Self, LimitError> {
        Pace::new(rate, burst).map(Self)
    }

    pub(super) const fn of(pace: Pace) -> Self {
        Self(pace)
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

    /// The highest cost of one job: more than the burst never fits.
    #[must_use]
    #[inline]
    pub fn max_cost(self) -> u32 {
        self.0.max_cost().min(self.burst())
    }

    /// The first instant, `now` or later, at which the whole cost fits.
    #[must_use]
    #[inline]
    pub fn earliest(self, tat: Tat, now: Micros, cost: u32) -> Micros {
        self.0.due(tat, cost).max(now)
    }

    /// The state after `cost` is committed at `at`: the later of TAT and `at`, plus `cost` emission intervals.
    #[must_use]
    #[inline]
    pub fn commit(self, tat: Tat, at: Micros, cost: u32) -> Tat {
        self.0.commit(tat, at, cost)
    }

    #[inline]
    pub(super) const fn pace(&self) -> &Pace {
        &self.0
    }
}

/// A bucket of `capacity` tokens that `rate` refills continuously; a cost takes as many tokens.
///
/// It is exactly a [`Gcra`] whose burst is the capacity: at `now` the bucket holds `capacity - (TAT - now) / T` tokens.
/// As the state is a TAT, there is no fraction of a token to round, and a clock that stepped back finds fewer tokens,
/// never more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket(Gcra);

impl TokenBucket {
    /// A bucket of this capacity, refilled at this rate.
    ///
    /// # Errors
    /// [`LimitError`] when the capacity is 0 or the numbers are beyond exact time.
    pub fn new(rate: Rate, capacity: u32) -> Result<Self, LimitError> {
        Gcra::new(rate, capacity).map(Self)
    }

    /// The tokens that a full bucket holds.
    #[must_use]
    #[inline]
    pub const fn capacity(self) -> u32 {
        self.0.burst()
    }

    /// The rate at which it refills.
    #[must_use]
    #[inline]
    pub const fn refill(self) -> Rate {
        self.0.rate()
    }

    /// The GCRA that implements it.
    #[must_use]
    #[inline]
    pub const fn gcra(&self) -> &Gcra {
        &self.0
    }
}
