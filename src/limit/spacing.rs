//! How far apart the slots of a set lie.

use std::time::Duration;

use super::{Combine, Limit, LimitSet};
use crate::rate::Rate;

impl LimitSet {
    /// How far apart slots are where there are many: as the slowest limit has it that lets no two go at
    /// once. A quota, or a burst, says nothing of it. Where all of them do, and of alternatives, as the
    /// [`rate`](LimitSet::rate) has it.
    pub(crate) fn spacing(&self) -> Duration {
        let even = self.iter().filter(|limit| limit.burst() == 1 && self.combine() == Combine::All);
        even.map(Limit::rate).map(Rate::interval).max().unwrap_or_else(|| self.rate().interval())
    }
}
