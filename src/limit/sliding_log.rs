//! The sliding-window log: every unit of the last period, exactly.

use std::time::Duration;

use super::{LONGEST_LOG, LimitError, Standing};
use crate::rate::Rate;
use crate::time::Micros;

/// At most N units in any window of one period, exactly; the price is an entry for each instant at
/// which units were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    count: u64,
    period: i64,
    rate: Rate,
}

/// The entries of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The instants at which units were taken, in ascending order, and the units of each.
    pub entries: Vec<(Micros, u64)>,
    /// The first instant at which none of the dropped entries would count: the frontier cannot go back before it.
    pub cleared: Micros,
}

impl SlidingLog {
    /// A log of `count` units per `period`.
    ///
    /// # Errors
    /// [`LimitError`] when the count is 0, over [`LONGEST_LOG`] or over what is a rate.
    pub fn new(count: u64, period: Duration) -> Result<Self, LimitError> {
        let rate = Rate::new(count, period)?;
        if count > LONGEST_LOG {
            return Err(LimitError::LogTooLong { count });
        }
        let period = i64::try_from(period.as_micros()).map_err(|_| crate::RateError::Zero)?;
        Ok(Self { count, period, rate })
    }

    /// N.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// The period, µs.
    #[must_use]
    pub const fn period(self) -> i64 {
        self.period
    }

    /// N per period.
    #[must_use]
    pub const fn rate(self) -> Rate {
        self.rate
    }

    /// The entries that count at `at`: those in the period `(at - period, at]`.
    fn live(self, log: &Log, at: Micros) -> &[(Micros, u64)] {
        let gone = log.entries.partition_point(|(taken, _)| taken.0 <= at.0 - self.period);
        &log.entries[gone..]
    }

    /// The first instant at which the cost fits: now, or when enough of the oldest units have left.
    pub(super) fn earliest(self, log: &Log, last: Micros, now: Micros, cost: u32) -> Micros {
        let at = now.max(last);
        let live = self.live(log, at);
        let mut sum: u64 = live.iter().map(|(_, units)| units).sum();
        let mut first = at;
        for (taken, units) in live {
            if sum + u64::from(cost) <= self.count {
                break;
            }
            sum -= units;
            first = Micros(taken.0 + self.period);
        }
        first
    }

    /// The log after a commit, without the entries that no instant from the frontier on needs.
    pub(super) fn commit(self, log: &Log, last: Micros, at: Micros, cost: u32) -> Log {
        let mut entries = self.live(log, last).to_vec();
        let dropped = log.entries.len() - entries.len();
        let cleared = match dropped.checked_sub(1) {
            Some(latest) => Micros(log.entries[latest].0.0 + self.period).max(log.cleared),
            None => log.cleared,
        };
        let place = entries.partition_point(|(taken, _)| *taken < at);
        match entries.get_mut(place) {
            Some((taken, units)) if *taken == at => *units += u64::from(cost),
            _ => entries.insert(place, (at, cost.into())),
        }
        Log { entries, cleared }
    }

    /// The log with units of `at` taken back.
    pub(super) fn undo(log: &Log, at: Micros, cost: u32) -> Log {
        let less = |&(taken, units): &(Micros, u64)| {
            let units = if taken == at { units.saturating_sub(cost.into()) } else { units };
            (units > 0).then_some((taken, units))
        };
        Log { entries: log.entries.iter().filter_map(less).collect(), ..*log }
    }

    /// Units taken at `at`.
    pub(super) fn units_at(log: &Log, at: Micros) -> u64 {
        log.entries.iter().rev().find(|(taken, _)| *taken == at).map_or(0, |(_, units)| *units)
    }

    pub(super) fn step_back(log: Log, back: i64) -> Log {
        let mut moved: Vec<(Micros, u64)> = Vec::with_capacity(log.entries.len());
        for (taken, units) in log.entries {
            let taken = Micros((taken.0 - back).max(0));
            match moved.last_mut() {
                Some((other, sum)) if *other == taken => *sum += units,
                _ => moved.push((taken, units)),
            }
        }
        Log { entries: moved, cleared: Micros((log.cleared.0 - back).max(0)) }
    }

    pub(super) fn standing(self, log: &Log, last: Micros, now: Micros) -> Standing {
        let at = now.max(last);
        let live = self.live(log, at);
        let sum: u64 = live.iter().map(|(_, units)| units).sum();
        let reset_at = live.first().map_or(at, |(taken, _)| Micros(taken.0 + self.period));
        let reset_after = reset_at.since(now);
        Standing { limit: self.count, remaining: self.count.saturating_sub(sum), reset_after }
    }
}
