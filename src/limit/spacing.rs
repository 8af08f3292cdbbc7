//! The pace of a set, the spacing of its slots, and how late a slot may be used.

use std::time::Duration;

use super::{Combine, Limit, LimitSet};
use crate::rate::Rate;

/// A slot that is missed by no more than this may be used under every limit: timers and networks cause as much delay.
const LEAST_TOLERANCE: Duration = Duration::from_millis(5);

/// A slot that is missed by no more than this and no more than an emission interval may be used.
const INTERVAL_TOLERANCE: Duration = Duration::from_millis(50);

/// The room for two delays. Between the last reading of the clock and the hand-over a process may lose its processor. And
/// replicas' estimates of the store's clock differ by some tenths of a millisecond. With this room, a job that passes the
/// last check is handed over within its tolerance.
pub(crate) const HAND_OVER: Duration = Duration::from_millis(1);

impl LimitSet {
    /// The pace: the rate of the slowest limit that spaces jobs out ([`Limit::is_even`]), or of alternatives that of the
    /// fastest, if each of them does. `None` where none does: a window or a quota bounds how many jobs go, and not how
    /// fast.
    #[must_use]
    pub fn pace(&self) -> Option<Rate> {
        let even = self.iter().filter(|limit| limit.is_even()).map(Limit::rate);
        match self.combine() {
            Combine::All => even.max_by_key(|rate| rate.interval()),
            Combine::Any | Combine::OneOf if !self.iter().all(Limit::is_even) => None,
            Combine::Any | Combine::OneOf => even.min_by_key(|rate| rate.interval()),
        }
    }

    /// The distance between slots while many jobs wait: that of the slowest limit that lets no two units go at once. A
    /// quota or a burst does not determine it. Where all limits are such, and for alternatives, it follows from the
    /// [`rate`](LimitSet::rate).
    pub(crate) fn spacing(&self) -> Duration {
        let even = self.iter().filter(|limit| limit.burst() == 1 && self.combine() == Combine::All);
        even.map(Limit::rate).map(Rate::interval).max().unwrap_or_else(|| self.rate().interval())
    }

    /// How late a slot may be at the last reading of the clock: max(min(T, 50 ms), T/10, 5 ms), less [`HAND_OVER`],
    /// where slots lie T apart. Up to 200/s the job is handed over within T of its slot, so that at most one job more
    /// than the limits allow is released in any window. It is a tenth of T where T is long, since a slow limit has
    /// few slots to give up.
    pub(crate) fn tolerance(&self) -> Duration {
        let interval = self.spacing();
        interval.min(INTERVAL_TOLERANCE).max(interval / 10).max(LEAST_TOLERANCE) - HAND_OVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_the_slowest_limit_that_spaces_jobs_out() {
        let even = |name: &str, rate: &str| Limit::leaky_bucket(name, rate.parse().unwrap(), 1).unwrap();
        let minute = || even("minute", "100/m");
        let tokens = || Limit::token_bucket("tokens", "90/m".parse().unwrap(), 500).unwrap();
        let day = || Limit::fixed_window("day", 5000, Duration::from_secs(86_400)).unwrap();
        let window = || Limit::sliding_window("window", 10, Duration::from_secs(60), 60).unwrap();
        let pace = |combine, limits| {
            let pace = LimitSet::combined(combine, limits).unwrap().pace();
            pace.map(|pace| pace.to_string())
        };
        assert_eq!(pace(Combine::All, vec![minute(), day()]).as_deref(), Some("100/m"));
        assert_eq!(pace(Combine::All, vec![minute(), tokens(), window()]).as_deref(), Some("90/m"));
        assert_eq!(pace(Combine::All, vec![day(), window()]), None);
        for combine in [Combine::Any, Combine::OneOf] {
            assert_eq!(pace(combine, vec![tokens(), minute()]).as_deref(), Some("100/m"));
            assert_eq!(pace(combine, vec![minute(), day()]), None, "a quota may let jobs go at any pace");
        }
    }
}
