//! How far apart the slots of a set lie, and how late one may be used.

use std::time::Duration;

use super::{Combine, Limit, LimitSet};
use crate::rate::Rate;

/// A slot that is missed by no more than this may be used under every limit: timers and networks are as late.
const LEAST_TOLERANCE: Duration = Duration::from_millis(5);

/// A slot that is missed by no more than this and no more than an emission interval may be used.
const INTERVAL_TOLERANCE: Duration = Duration::from_millis(50);

impl LimitSet {
    /// How far apart slots are where there are many: as the slowest limit has it that lets no two go at
    /// once. A quota, or a burst, says nothing of it. Where all of them do, and of alternatives, as the
    /// [`rate`](LimitSet::rate) has it.
    pub(crate) fn spacing(&self) -> Duration {
        let even = self.iter().filter(|limit| limit.burst() == 1 && self.combine() == Combine::All);
        even.map(Limit::rate).map(Rate::interval).max().unwrap_or_else(|| self.rate().interval())
    }

    /// How late a slot may be used, where slots lie T apart: max(min(T, 50 ms), T/10, 5 ms). By no more than T, so that at
    /// most one more than the limits allow goes in any window; and by a tenth of it where T is long, since a slow limit
    /// has few slots to give up.
    pub(crate) fn tolerance(&self) -> Duration {
        let interval = self.spacing();
        interval.min(INTERVAL_TOLERANCE).max(interval / 10).max(LEAST_TOLERANCE)
    }
}
