//! Changes of a limit's count and period that keep everything else.

use super::{Algorithm, Counting, Edges, Limit, LimitError, LimitSet, calendar};
use crate::rate::{Amount, Period, RateError};

/// The reason why a rate cannot be set for a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The numbers make no limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The numbers make no rate.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The limit is a calendar's, which counts in days, weeks or months, and the period is none of these.
    #[error("its windows are those of a calendar; use one day, one week or one month, such as 1000/day")]
    Calendar,
    /// The limit's windows have one length, so they cannot be months.
    #[error("its windows are equally long, and months are not; use days, such as 1000/30d")]
    Month,
    /// The limit was given several times, and the count does not hold one unit for each.
    #[error(
        "the limit is listed several times, and this count does not hold one unit for each; use a higher count"
    )]
    NoUnit,
}

const DAY: Period = Period::Micros(86_400_000_000);

impl Limit {
    /// The limit at another rate, under the same name and with the same margin.
    ///
    /// # Errors
    /// [`Problem`] where that makes no limit.
    pub(crate) fn at_rate(&self, rate: Amount) -> Result<Self, Problem> {
        let (name, count) = (self.name(), rate.count());
        // Only a quota can have the period of a calendar.
        let plain = || match rate.period().is_calendar() {
            true => Err(RateError::QuotaUnit(rate.to_string())),
            false => Ok(rate.period().longest()),
        };
        let limit = match self.without_margin() {
            Algorithm::LeakyBucket(bucket) => {
                plain()?;
                Limit::leaky_bucket(name, rate.rate()?, bucket.burst())
            }
            Algorithm::Gcra(gcra) => {
                plain()?;
                Limit::gcra(name, rate.rate()?, gcra.burst())
            }
            Algorithm::TokenBucket(bucket) => {
                plain()?;
                Limit::token_bucket(name, rate.rate()?, bucket.capacity())
            }
            Algorithm::FixedWindow(window) => match window.edges() {
                Edges::FirstHit { .. } => Limit::first_hit_window(name, count, plain()?),
                _ => Limit::fixed_window(name, count, plain()?),
            },
            Algorithm::SlidingWindow(window) => {
                Limit::sliding_window(name, count, plain()?, window.buckets())
            }
            Algorithm::SlidingLog(_) => Limit::sliding_log(name, count, plain()?),
            Algorithm::Quota(quota) => Limit::quota(name, count, edges(quota, rate.period())?),
        };
        Ok(limit?.with_margin(self.margin())?)
    }
}

/// The edges of a quota's windows, of the same kind for another period.
fn edges(quota: Counting, period: Period) -> Result<Edges, Problem> {
    if let Edges::Calendar(calendar) = quota.edges() {
        let unit = match period {
            DAY => calendar::Unit::Day,
            Period::Week => calendar::Unit::Week,
            Period::Month => calendar::Unit::Month,
            Period::Micros(_) => return Err(Problem::Calendar),
        };
        return Ok(Edges::Calendar(calendar.of(unit)));
    }
    if period == Period::Month {
        return Err(Problem::Month);
    }
    let length = period.longest();
    Ok(match quota.edges() {
        Edges::Aligned { offset, .. } => {
            // An amount has a period of at least 1 µs. Each edge of the old windows is an edge of the new ones.
            let micros = i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
            Edges::aligned(length, offset.rem_euclid(micros))?
        }
        _ => Edges::first_hit(length)?,
    })
}

/// The rate of a limit as people write it, such as `50/s` or `1000000/month`, without its margin. Parsed again, it gives
/// the limit the same numbers.
#[must_use]
pub fn rate_text(limit: &Limit) -> String {
    let periods = |count, period| match Amount::per(count, period) {
        Ok(amount) => amount.to_string(),
        // The numbers of a limit always make an amount.
        Err(_) => limit.without_margin().rate().to_string(),
    };
    let micros = |count, period: i64| periods(count, Period::Micros(period.unsigned_abs()));
    match limit.without_margin() {
        Algorithm::FixedWindow(window) | Algorithm::Quota(window) => match window.edges() {
            Edges::Calendar(calendar) => {
                let period = match calendar.unit() {
                    calendar::Unit::Day => DAY,
                    calendar::Unit::Week => Period::Week,
                    calendar::Unit::Month => Period::Month,
                };
                periods(window.count(), period)
            }
            edges => micros(window.count(), edges.longest()),
        },
        Algorithm::SlidingWindow(window) => {
            micros(window.count(), window.width() * i64::from(window.buckets()))
        }
        Algorithm::SlidingLog(log) => micros(log.count(), log.period()),
        _ => {
            let rate = limit.without_margin().rate();
            let text = rate.to_string();
            let (count, period) = rate.written();
            match (text.parse::<Amount>(), Amount::new(count, period)) {
                // A margin is added to the period as it is written.
                (_, Ok(written)) if !limit.margin().is_zero() => written.to_string(),
                // Whole seconds are easier to read, where they are not too many.
                (Ok(_), _) => text,
                (Err(_), _) => periods(rate.count(), Period::Micros(rate.period_micros())),
            }
        }
    }
}

impl LimitSet {
    /// The set with these limits in place of those of the same names; `None` if that is no set.
    pub(crate) fn with(&self, limits: &[Limit]) -> Option<Self> {
        let with =
            |limit: &Limit| limits.iter().find(|other| other.name() == limit.name()).unwrap_or(limit).clone();
        Self::combined(self.combine(), self.listed().map(with).collect()).ok()
    }
}
