//! What kind of limit one is, for those that treat kinds apart.

use super::tat::Pace;
use super::{Algorithm, Limit};

impl Limit {
    /// The pace of a limit of the GCRA family, and whether it charges behind.
    #[inline]
    pub(super) const fn tat(&self) -> Option<(&Pace, bool)> {
        match &self.algorithm {
            Algorithm::LeakyBucket(bucket) => Some((bucket.pace(), true)),
            Algorithm::Gcra(gcra) => Some((gcra.pace(), false)),
            Algorithm::TokenBucket(bucket) => Some((bucket.gcra().pace(), false)),
            _ => None,
        }
    }

    /// Whether its units come back one by one.
    pub(crate) const fn is_even(&self) -> bool {
        self.tat().is_some()
    }

    /// How many states its own counts as, by the work that it is to read and write.
    pub(crate) const fn weight(&self) -> usize {
        match &self.algorithm {
            Algorithm::SlidingWindow(window) => 1 + window.buckets() as usize / 8,
            Algorithm::SlidingLog(_) => 16,
            _ => 1,
        }
    }

    /// Whether the cost is charged behind: it decides on the next slot, not on its own.
    pub(crate) const fn is_behind(&self) -> bool {
        matches!(self.algorithm, Algorithm::LeakyBucket(_))
    }

    /// Whether all of it comes back at once, when a window ends.
    pub(super) const fn is_window(&self) -> bool {
        matches!(self.algorithm, Algorithm::FixedWindow(_) | Algorithm::Quota(_))
    }
}
