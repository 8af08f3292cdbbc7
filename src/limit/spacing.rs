//! The spacing of a set's slots, and how late a slot may be used.

use std::time::Duration;

use super::{Combine, Limit, LimitSet};
use crate::rate::Rate;

/// A slot that is missed by no more than this may be used under every limit: timers and networks cause as much delay.
const LEAST_TOLERANCE: Duration = Duration::from_millis(5);

/// A slot that is missed by no more than this and no more than an emission interval may be used.
const INTERVAL_TOLERANCE: Duration = Duration::from_millis(50);

impl LimitSet {
    /// The distance between slots while many jobs wait: that of the slowest limit that lets no two units go at once. A
    /// quota or a burst does not determine it. Where all limits are such, and for alternatives, it follows from the
    /// [`rate`](LimitSet::rate).
    pub(crate) fn spacing(&self) -> Duration {
        let even = self.iter().filter(|limit| limit.burst() == 1 && self.combine() == Combine::All);
        even.map(Limit::rate).map(Rate::interval).max().unwrap_or_else(|| self.rate().interval())
    }

    /// How late a slot may be used, where slots lie T apart: max(min(T, 50 ms), T/10, 5 ms). It is no more than T, so
    /// that at most one job more than the limits allow is released in any window; and a tenth of T where T is long,
    /// since a slow limit has few slots to give up.
    pub(crate) fn tolerance(&self) -> Duration {
        let interval = self.spacing();
        interval.min(INTERVAL_TOLERANCE).max(interval / 10).max(LEAST_TOLERANCE)
    }
}
