//! Properties of limits that depend on their algorithm.

use super::tat::Pace;
use super::{Algorithm, Limit};

impl Limit {
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

    /// Whether its units come back one by one, at the rate.
    pub(crate) const fn is_even(&self) -> bool {
        self.tat().is_some()
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

    /// Whether all of its units come back at once, when a window ends.
    pub(super) const fn is_window(&self) -> bool {
        matches!(self.algorithm, Algorithm::FixedWindow(_) | Algorithm::Quota(_))
    }
}
