//! Properties of limits that depend on their algorithm.

use std::mem::discriminant;
use std::time::Duration;

use super::tat::Pace;
use super::{Algorithm, Limit};
use crate::rate::Rate;

impl Algorithm {
    /// The rate in the long run.
    pub(super) const fn rate(self) -> Rate {
        match self {
            Self::LeakyBucket(bucket) => bucket.rate(),
            Self::Gcra(gcra) => gcra.rate(),
            Self::TokenBucket(bucket) => bucket.refill(),
            Self::FixedWindow(window) | Self::Quota(window) => window.rate(),
            Self::SlidingWindow(window) => window.rate(),
            Self::SlidingLog(log) => log.rate(),
        }
    }
}

impl Limit {
    /// The rate that the limit allows in the long run. A month counts as its longest.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.algorithm.rate()
    }

    /// The units that may be released at one instant after a rest: the burst, or N.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        match self.algorithm {
            Algorithm::LeakyBucket(bucket) => bucket.burst() as u64,
            Algorithm::Gcra(gcra) => gcra.burst() as u64,
            Algorithm::TokenBucket(bucket) => bucket.capacity() as u64,
            Algorithm::FixedWindow(window) | Algorithm::Quota(window) => window.count(),
            Algorithm::SlidingWindow(window) => window.count(),
            Algorithm::SlidingLog(log) => log.count(),
        }
    }

    /// The pace of a limit of the GCRA family, and whether it charges behind; `None` for other algorithms.
    #[inline]
    pub(super) const fn tat(&self) -> Option<(&Pace, bool)> {
        match &self.algorithm {
            Algorithm::LeakyBucket(bucket) => Some((bucket.pace(), true)),
            Algorithm::Gcra(gcra) => Some((gcra.pace(), false)),
            Algorithm::TokenBucket(bucket) => Some((bucket.gcra().pace(), false)),
            _ => None,
        }
    }

    /// Whether its units come back one by one, at the rate, so that it spaces jobs out: a leaky bucket, a GCRA or a token
    /// bucket. A window, a log or a quota does not.
    #[must_use]
    pub const fn is_even(&self) -> bool {
        self.tat().is_some()
    }

    /// Whether it releases nothing sooner than the other, after any charges: it has the same windows and no more units,
    /// or the same algorithm with no higher rate and burst.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        use Algorithm::{FixedWindow, Quota, SlidingLog, SlidingWindow};
        let is_as_slow = match (self.algorithm, other.algorithm) {
            (FixedWindow(one), FixedWindow(two)) | (Quota(one), Quota(two)) => one.edges() == two.edges(),
            (SlidingWindow(one), SlidingWindow(two)) => {
                (one.buckets(), one.width()) == (two.buckets(), two.width())
            }
            (SlidingLog(one), SlidingLog(two)) => one.period() == two.period(),
            (one, two) => {
                discriminant(&one) == discriminant(&two) && self.rate().interval() >= other.rate().interval()
            }
        };
        is_as_slow && self.burst() <= other.burst()
    }

    /// The number of states that its state counts as, by the work of reading and writing it.
    pub(crate) const fn weight(&self) -> usize {
        match &self.algorithm {
            Algorithm::SlidingWindow(window) => 1 + window.buckets() as usize / 8,
            Algorithm::SlidingLog(_) => 16,
            _ => 1,
        }
    }

    /// Whether the cost is charged behind: it delays the next slot, not its own.
    pub(crate) const fn is_behind(&self) -> bool {
        matches!(self.algorithm, Algorithm::LeakyBucket(_))
    }

    /// The most units that it releases within `span`, with any use before; at least 1.
    pub(crate) fn most_within(&self, span: Duration) -> u64 {
        let burst = self.burst();
        if self.is_even() {
            return self.rate().units_in(span).saturating_add(burst - 1).max(1);
        }
        // A window that ends at the start, one that begins at the end, and those between.
        let period = self.rate().units_in(span).div_ceil(burst.max(1));
        period.saturating_add(1).saturating_mul(burst.max(1))
    }

    /// Whether all of its units come back at once, when a window ends.
    pub(super) const fn is_window(&self) -> bool {
        matches!(self.algorithm, Algorithm::FixedWindow(_) | Algorithm::Quota(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Edges;

    #[test]
    fn windows_may_release_twice_in_little_time_and_a_pace_may_not() {
        let seconds = Duration::from_secs;
        let pace = Limit::leaky_bucket("l", "100/m".parse().unwrap(), 5).unwrap();
        assert_eq!(pace.most_within(seconds(30)), 54);
        assert_eq!(pace.most_within(Duration::ZERO), 4);
        let window = Limit::fixed_window("w", 100, seconds(60)).unwrap();
        assert_eq!(window.most_within(seconds(10)), 200, "over an edge");
        assert_eq!(window.most_within(seconds(61)), 300);
    }

    #[test]
    fn a_limit_is_within_others_that_release_no_later() {
        let second = Duration::from_secs(1);
        let rate = |count| Rate::new(count, second).unwrap();
        let bucket = |count, burst| Limit::leaky_bucket("l", rate(count), burst).unwrap();
        let gcra = |count, burst| Limit::gcra("l", rate(count), burst).unwrap();
        let fixed = |count, seconds: u32| Limit::fixed_window("l", count, second * seconds).unwrap();
        let hit = |count| Limit::first_hit_window("l", count, second * 60).unwrap();
        let quota =
            |count| Limit::quota("l", count, Edges::Aligned { period: 60_000_000, offset: 0 }).unwrap();
        let sliding = |count, buckets| Limit::sliding_window("l", count, second * 60, buckets).unwrap();
        let log = |count, seconds: u32| Limit::sliding_log("l", count, second * seconds).unwrap();
        for (tighter, other) in [
            (bucket(5, 1), bucket(7, 1)),
            (gcra(5, 2), gcra(5, 3)),
            (fixed(5, 60), fixed(7, 60)),
            (hit(5), hit(7)),
            (quota(5), quota(7)),
            (sliding(5, 10), sliding(7, 10)),
            (log(5, 60), log(7, 60)),
        ] {
            assert!(tighter.is_within(&tighter) && tighter.is_within(&other), "{tighter:?} {other:?}");
            assert!(!other.is_within(&tighter), "{tighter:?} {other:?}");
        }
        for (one, other) in [
            (bucket(5, 2), bucket(7, 1)),
            (bucket(5, 1), gcra(5, 1)),
            // Half as many in half the time: where it is used up, that is over sooner.
            (fixed(5, 30), fixed(10, 60)),
            (log(5, 30), log(10, 60)),
            (fixed(5, 60), hit(5)),
            (quota(5), fixed(5, 60)),
            (sliding(5, 20), sliding(5, 10)),
        ] {
            assert!(!one.is_within(&other), "{one:?} {other:?}");
        }
    }
}
