//! Margins: a limit whose period is a little longer than the API's, since arrivals jitter.
//!
//! Two jobs whose slots lie P apart may arrive P less the jitter apart. With a margin, any N + 1 slots span P and the margin.
//! So an API that allows N in any period P, or from its own edges, never counts N + 1 while arrivals jitter by less.

use std::time::Duration;

use super::{
    Algorithm, Counting, Edges, Gcra, LeakyBucket, Limit, LimitError, SlidingLog, SlidingWindow, TokenBucket,
};
use crate::rate::{Rate, RateError};

impl Limit {
    /// The same limit with a period that is longer by `margin`: N units in P become N in P and the margin, as the rate is
    /// written. A window by the clock or the calendar keeps its length, and begins that much after its edge. A sliding
    /// window's period is rounded up to a whole number of µs for each bucket.
    ///
    /// It replaces a margin that the limit has. With another margin it has other numbers; its state stays.
    ///
    /// # Errors
    /// [`LimitError::Margin`] where the margin is not shorter than the period, or no whole number of µs;
    /// [`LimitError`] where the longer period is beyond what a limit may have.
    pub fn with_margin(self, margin: Duration) -> Result<Self, LimitError> {
        let algorithm = self.without_margin.longer(margin)?;
        Ok(Self { algorithm, margin, ..self })
    }

    /// By how much its period is longer than it is written.
    #[must_use]
    pub const fn margin(&self) -> Duration {
        self.margin
    }

    /// The margin in µs, unless it is zero.
    #[must_use]
    pub fn margin_micros(&self) -> Option<u64> {
        u64::try_from(self.margin.as_micros()).ok().filter(|margin| *margin > 0)
    }

    /// The algorithm and its numbers as they are written, without the margin.
    #[must_use]
    pub const fn without_margin(&self) -> Algorithm {
        self.without_margin
    }
}

impl Algorithm {
    fn longer(self, margin: Duration) -> Result<Self, LimitError> {
        if margin.is_zero() {
            return Ok(self);
        }
        Ok(match self {
            Self::LeakyBucket(bucket) => {
                Self::LeakyBucket(LeakyBucket::new(slower(bucket.rate(), margin)?, bucket.burst())?)
            }
            Self::Gcra(gcra) => Self::Gcra(Gcra::new(slower(gcra.rate(), margin)?, gcra.burst())?),
            Self::TokenBucket(bucket) => {
                Self::TokenBucket(TokenBucket::new(slower(bucket.refill(), margin)?, bucket.capacity())?)
            }
            Self::FixedWindow(window) => Self::FixedWindow(later(window, margin)?),
            Self::Quota(window) => Self::Quota(later(window, margin)?),
            Self::SlidingWindow(window) => {
                let (count, buckets) = (window.count(), window.buckets());
                let width = u64::from(buckets);
                let period = window.width().unsigned_abs() * width;
                let more = micros(margin, period)?.div_ceil(width) * width;
                Self::SlidingWindow(SlidingWindow::new(count, Duration::from_micros(period + more), buckets)?)
            }
            Self::SlidingLog(log) => {
                let period = log.period().unsigned_abs();
                let longer = Duration::from_micros(period + micros(margin, period)?);
                Self::SlidingLog(SlidingLog::new(log.count(), longer)?)
            }
        })
    }
}

/// The margin in µs, if it is shorter than a period of `period` µs.
fn micros(margin: Duration, period: u64) -> Result<u64, LimitError> {
    if !margin.subsec_nanos().is_multiple_of(1000) {
        return Err(RateError::Fraction(margin).into());
    }
    let too_long = LimitError::Margin { margin, period: Duration::from_micros(period) };
    u64::try_from(margin.as_micros()).ok().filter(|margin| *margin < period).ok_or(too_long)
}

/// N units in a longer period than the written one.
fn slower(rate: Rate, margin: Duration) -> Result<Rate, LimitError> {
    let (count, period) = rate.written();
    micros(margin, u64::try_from(period.as_micros()).unwrap_or(u64::MAX))?;
    Ok(Rate::new(count, period.saturating_add(margin))?)
}

fn later(window: Counting, margin: Duration) -> Result<Counting, LimitError> {
    let shortest = window.edges().shortest().unsigned_abs();
    // It is shorter than a period, which has at most 366 days.
    let more = micros(margin, shortest)? as i64;
    let edges = match window.edges() {
        Edges::Aligned { period, offset } => Edges::Aligned { period, offset: (offset + more) % period },
        Edges::FirstHit { period } => {
            Edges::first_hit(Duration::from_micros((period + more).unsigned_abs()))?
        }
        Edges::Calendar(calendar) => Edges::Calendar(calendar.opening_later(more)),
    };
    Counting::new(window.count(), edges)
}

#[cfg(test)]
mod tests {
    use super::super::calendar::{Calendar, Unit};
    use super::super::{LimitSet, State};
    use super::*;
    use crate::time::Micros;

    const SECOND: Duration = Duration::from_secs(1);
    const MARGIN: Duration = Duration::from_millis(50);

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    /// The slots of a number of jobs that all wait from an instant on.
    fn slots(limit: &Limit, from: i64, jobs: usize) -> Vec<i64> {
        let mut state: State = limit.fresh();
        let mut now = Micros(from);
        let mut slots = Vec::new();
        for _ in 0..jobs {
            now = limit.earliest(&state, now, 1);
            state = limit.commit(&state, now, 1);
            slots.push(now.0);
        }
        slots
    }

    /// The shortest span of any n + 1 slots that follow each other.
    fn shortest(slots: &[i64], n: usize) -> i64 {
        slots.windows(n + 1).map(|part| part[n] - part[0]).min().unwrap()
    }

    #[test]
    fn n_and_one_more_span_the_period_and_the_margin() {
        let even = [
            Limit::leaky_bucket("l", rate("10/s"), 1),
            Limit::gcra("l", rate("10/s"), 1),
            Limit::token_bucket("l", rate("10/s"), 1),
            Limit::sliding_log("l", 10, SECOND),
            Limit::first_hit_window("l", 10, SECOND),
        ];
        for limit in even {
            let (plain, wide) = (limit.clone().unwrap(), limit.unwrap().with_margin(MARGIN).unwrap());
            assert_eq!(shortest(&slots(&plain, 1_000_000_000, 600), 10), 1_000_000, "{plain:?}");
            assert_eq!(shortest(&slots(&wide, 1_000_000_000, 600), 10), 1_050_000, "{wide:?}");
        }
        let buckets = Limit::sliding_window("l", 10, SECOND, 8).unwrap();
        let wide = buckets.with_margin(Duration::from_micros(50_001)).unwrap();
        let Algorithm::SlidingWindow(window) = wide.algorithm() else { panic!("{wide:?}") };
        assert_eq!(window.width() * 8, 1_050_008, "rounded up to whole µs for each bucket");
        let spaced = Limit::leaky_bucket("l", rate("1/100ms"), 1).unwrap().with_margin(MARGIN).unwrap();
        assert_eq!(shortest(&slots(&spaced, 0, 50), 1), 150_000, "the period as it is written counts");
    }

    #[test]
    fn windows_of_the_clock_and_the_calendar_open_later() {
        let window = Limit::fixed_window("w", 2, SECOND).unwrap().with_margin(MARGIN).unwrap();
        assert_eq!(slots(&window, 5_200_000, 5), [5_200_000, 5_200_000, 6_050_000, 6_050_000, 7_050_000]);
        const DAY: i64 = 86_400_000_000;
        let fixed = Edges::aligned(SECOND, 999_999).unwrap();
        let quota = Limit::quota("q", 1, fixed).unwrap().with_margin(MARGIN).unwrap();
        assert_eq!(slots(&quota, 5_200_000, 2), [5_200_000, 6_049_999]);
        let days = Edges::Calendar(Calendar::new(Unit::Day, 60).unwrap());
        let quota = Limit::quota("q", 1, days).unwrap().with_margin(MARGIN).unwrap();
        let midnight = 10 * DAY - 3_600_000_000;
        assert_eq!(
            slots(&quota, midnight + 49_999, 3),
            [midnight + 49_999, midnight + 50_000, midnight + DAY + 50_000],
            "what goes before it opens is of the day before"
        );
    }

    #[test]
    fn a_margin_replaces_another_and_its_limit_is_another() {
        let plain = Limit::leaky_bucket("l", rate("50/s"), 3).unwrap();
        let wide = plain.clone().with_margin(MARGIN).unwrap();
        assert_ne!(plain, wide);
        assert_eq!((wide.margin(), wide.without_margin()), (MARGIN, plain.algorithm()));
        assert_eq!(wide.rate(), rate("50/1050ms"));
        assert_eq!(wide.clone().with_margin(MARGIN), Ok(wide.clone()));
        assert_eq!(wide.clone().with_margin(Duration::ZERO), Ok(plain.clone()));
        let (policer, waiter) = (wide.clone().policing(), plain.policing().with_margin(MARGIN).unwrap());
        assert_eq!(policer, waiter);
        assert!(LimitSet::new(vec![wide.clone(), wide.with_margin(SECOND / 2).unwrap()]).is_err());
    }

    #[test]
    fn margins_that_are_none() {
        let limit = || Limit::leaky_bucket("l", rate("10/s"), 1).unwrap();
        let error = limit().with_margin(SECOND).unwrap_err().to_string();
        assert_eq!(
            error,
            "a margin of 1s at a period of 1s; use a shorter one, and write the rate as the API counts it"
        );
        assert!(limit().with_margin(Duration::from_nanos(1500)).is_err());
        let days = Edges::Calendar(Calendar::new(Unit::Month, 0).unwrap());
        let month = || Limit::quota("q", 1, days).unwrap();
        assert!(month().with_margin(Duration::from_secs(28 * 86_400 - 1)).is_ok());
        assert!(month().with_margin(Duration::from_secs(28 * 86_400)).is_err(), "February has 28 days");
        let longest = Limit::sliding_log("l", 1, Duration::from_secs(366 * 86_400)).unwrap();
        assert!(longest.with_margin(MARGIN).is_err(), "no period is longer");
    }
}
