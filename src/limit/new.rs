//! The constructors of limits, one for each algorithm.

use std::time::Duration;

use super::{
    Algorithm, Counting, Edges, Gcra, LeakyBucket, Limit, LimitError, SlidingLog, SlidingWindow, TokenBucket,
};
use crate::rate::Rate;

impl Limit {
    /// A leaky bucket: at most `burst` slots at once, the others T apart.
    ///
    /// # Errors
    /// [`LimitError`] when the burst is 0 or the numbers are beyond exact time.
    pub fn leaky_bucket(name: impl Into<String>, rate: Rate, burst: u32) -> Result<Self, LimitError> {
        Ok(Self::new(name, Algorithm::LeakyBucket(LeakyBucket::new(rate, burst)?)))
    }

    /// A GCRA: the whole cost must fit the burst, which comes back one unit per T.
    ///
    /// # Errors
    /// [`LimitError`] when the burst is 0 or the numbers are beyond exact time.
    pub fn gcra(name: impl Into<String>, rate: Rate, burst: u32) -> Result<Self, LimitError> {
        Ok(Self::new(name, Algorithm::Gcra(Gcra::new(rate, burst)?)))
    }

    /// A token bucket of this capacity, refilled at this rate.
    ///
    /// # Errors
    /// [`LimitError`] when the capacity is 0 or the numbers are beyond exact time.
    pub fn token_bucket(name: impl Into<String>, refill: Rate, capacity: u32) -> Result<Self, LimitError> {
        Ok(Self::new(name, Algorithm::TokenBucket(TokenBucket::new(refill, capacity)?)))
    }

    /// A fixed window: `count` units from each multiple of `period` since the Unix epoch to the next.
    ///
    /// # Errors
    /// [`LimitError`] when the count is 0 or more than a rate can be.
    pub fn fixed_window(name: impl Into<String>, count: u64, period: Duration) -> Result<Self, LimitError> {
        let edges = Edges::aligned(period, 0)?;
        Ok(Self::new(name, Algorithm::FixedWindow(Counting::new(count, edges)?)))
    }

    /// A fixed window that begins with the first unit taken: `count` units in the `period` after it.
    ///
    /// # Errors
    /// [`LimitError`] when the count is 0 or more than a rate can be.
    pub fn first_hit_window(
        name: impl Into<String>,
        count: u64,
        period: Duration,
    ) -> Result<Self, LimitError> {
        let edges = Edges::first_hit(period)?;
        Ok(Self::new(name, Algorithm::FixedWindow(Counting::new(count, edges)?)))
    }

    /// A sliding-window counter: `count` units per `period`, estimated by this many buckets.
    ///
    /// # Errors
    /// [`LimitError`]; see [`SlidingWindow::new`].
    pub fn sliding_window(
        name: impl Into<String>,
        count: u64,
        period: Duration,
        buckets: u32,
    ) -> Result<Self, LimitError> {
        Ok(Self::new(name, Algorithm::SlidingWindow(SlidingWindow::new(count, period, buckets)?)))
    }

    /// A sliding-window log: `count` units in any `period`, exactly.
    ///
    /// # Errors
    /// [`LimitError`]; see [`SlidingLog::new`].
    pub fn sliding_log(name: impl Into<String>, count: u64, period: Duration) -> Result<Self, LimitError> {
        Ok(Self::new(name, Algorithm::SlidingLog(SlidingLog::new(count, period)?)))
    }

    /// A quota: `count` units in each window that `edges` bound, those of a calendar or of fixed periods.
    ///
    /// # Errors
    /// [`LimitError`] when the count is 0 or more than a rate can be.
    pub fn quota(name: impl Into<String>, count: u64, edges: Edges) -> Result<Self, LimitError> {
        Ok(Self::new(name, Algorithm::Quota(Counting::new(count, edges)?)))
    }
}
