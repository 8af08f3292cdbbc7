//! Exact rates: a number of units in a number of microseconds, never a float.

mod amount;
mod period;
mod suggestion;
mod text;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::time::Duration;

pub use amount::Amount;
pub use period::Period;

/// A rate of `count` units in `period` µs, reduced by their greatest common divisor.
///
/// It is at most a million units a second. The text form is `COUNT ("/" | "per") [N] UNIT` with the units s, sec,
/// second(s), m, min, minute(s), h, hour(s), d, day(s), and us and ms as durations have them; digits may be grouped
/// with `_`. It is displayed as it was written. If the count and the period matter as they are written, use [`Amount`].
///
/// ```
/// use paced::Rate;
/// let rate: Rate = "1_000 per 5 minutes".parse()?;
/// assert_eq!(rate, "10/3s".parse()?);
/// assert_eq!(rate.to_string(), "1000/5m");
/// # Ok::<(), paced::RateError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Rate {
    count: u64,
    period: u64,
    /// The divisor of both, for display; it is no part of the rate.
    divisor: u64,
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Equal rates have equal debug output.
        f.debug_struct("Rate").field("count", &self.count).field("period", &self.period).finish()
    }
}

impl PartialEq for Rate {
    fn eq(&self, other: &Self) -> bool {
        (self.count, self.period) == (other.count, other.period)
    }
}

impl Eq for Rate {}

impl Hash for Rate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.count, self.period).hash(state);
    }
}

/// The reason why a text or a pair of numbers is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RateError {
    /// The text does not have the form of a rate.
    #[error("`{text}` is no rate; write {}", way_out(text, suggestion.as_deref()))]
    Syntax {
        /// The text.
        text: String,
        /// The text that was evidently meant, if there is one: `10/s` for `10r/s`. It is an [`Amount`], or a [`Rate`]
        /// if a rate was to be read.
        suggestion: Option<String>,
    },
    /// The count or the period is zero.
    #[error("a rate of zero releases nothing; use at least 1 in a period of at least 1 µs")]
    Zero,
    /// The rate is more than one unit per microsecond, but slots are whole microseconds apart.
    #[error("`{0}` is more than 1000000/s, the highest rate")]
    TooHigh(String),
    /// The period is over 366 days.
    #[error("the period of `{0}` is over 366 days, the longest")]
    TooLong(String),
    /// The period is not a whole number of microseconds.
    #[error("a period of {0:?} is no whole number of µs; use whole microseconds")]
    Fraction(Duration),
    /// The unit is one that only quotas have.
    #[error("`{0}`: weeks and months are for quotas; write days, such as 7/7d")]
    QuotaUnit(String),
    /// The period is several weeks or months, which a calendar does not have.
    #[error(
        "`{0}`: a quota counts in one week or one month; write it without a number, or days, such as 7/14d"
    )]
    SeveralCalendarUnits(String),
}

impl RateError {
    /// Returns the same error about `text`, without a suggestion, for texts that must not be shown.
    #[cfg(feature = "config")]
    pub(crate) fn about(self, text: String) -> Self {
        match self {
            Self::Syntax { .. } => Self::Syntax { text, suggestion: None },
            Self::TooHigh(_) => Self::TooHigh(text),
            Self::TooLong(_) => Self::TooLong(text),
            Self::QuotaUnit(_) => Self::QuotaUnit(text),
            Self::SeveralCalendarUnits(_) => Self::SeveralCalendarUnits(text),
            Self::Zero | Self::Fraction(_) => self,
        }
    }
}

fn way_out(text: &str, suggestion: Option<&str>) -> String {
    // A count of up to six digits makes a valid rate with any unit.
    let is_count = (1..=6).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && !text.starts_with('0');
    match suggestion {
        Some(suggestion) => suggestion.to_owned(),
        None if is_count => format!("its unit too, such as {text}/s"),
        None => "COUNT/UNIT, such as 50/s or 100 per 5 minutes".to_owned(),
    }
}

const LONGEST: u64 = 366 * 86_400 * 1_000_000;

/// Returns the whole microseconds of `period`.
fn micros(period: Duration) -> Result<u128, RateError> {
    if period.subsec_nanos().is_multiple_of(1000) {
        Ok(period.as_micros())
    } else {
        Err(RateError::Fraction(period))
    }
}

impl Rate {
    /// Creates a rate of `count` units in each `period`.
    ///
    /// # Errors
    /// [`RateError`] when either is zero, the period has a fraction of a µs, the rate is over
    /// 1 000 000/s or the period, once reduced, over 366 days.
    pub fn new(count: u64, period: Duration) -> Result<Self, RateError> {
        Self::reduced(count, micros(period)?, || format!("{count} per {period:?}"))
    }

    fn reduced(count: u64, micros: u128, text: impl Fn() -> String) -> Result<Self, RateError> {
        if count == 0 || micros == 0 {
            return Err(RateError::Zero);
        }
        let divisor = gcd(count.into(), micros);
        let reduced = |number: u128| u64::try_from(number / divisor).ok();
        let period = reduced(micros).filter(|period| *period <= LONGEST);
        let period = period.ok_or_else(|| RateError::TooLong(text()))?;
        // The quotient by a divisor of the count fits as the count does.
        let count = reduced(count.into()).unwrap_or(count);
        if count > period {
            return Err(RateError::TooHigh(text()));
        }
        // A divisor of the count is at most the count.
        Ok(Self { count, period, divisor: u64::try_from(divisor).unwrap_or(1) })
    }

    /// Returns N of "N units in P µs", reduced.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// Returns P of "N units in P µs", reduced.
    #[must_use]
    pub const fn period_micros(self) -> u64 {
        self.period
    }

    /// Returns N and P as they were given.
    pub(crate) fn written(self) -> (u64, Duration) {
        let micros = u128::from(self.period) * u128::from(self.divisor);
        // A period that was given as a duration fits one.
        let period = u64::try_from(micros).map_or(Duration::MAX, Duration::from_micros);
        (self.count.saturating_mul(self.divisor), period)
    }

    /// Returns the units per second, for people and gauges; never for slots.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shown to people only")]
    pub fn per_second(self) -> f64 {
        self.count as f64 * 1e6 / self.period as f64
    }

    /// Returns the emission interval T, rounded up to a whole µs: for waits, never for slots.
    #[must_use]
    pub const fn interval(self) -> Duration {
        Duration::from_micros(self.period.div_ceil(self.count))
    }
}

impl Rate {
    /// Returns how many units `span` holds, rounded up and saturating.
    #[must_use]
    pub fn units_in(self, span: Duration) -> u64 {
        let units = span.as_micros().saturating_mul(self.count.into()).div_ceil(self.period.into());
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

const fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl FromStr for Amount {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        amount::read(text).unwrap_or_else(|| {
            Err(RateError::Syntax { text: text.to_owned(), suggestion: suggestion::of(text) })
        })
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let Some(written) = text::read(text) else {
            let suggestion = suggestion::of(text);
            // The text is a misspelt quota, whose unit is the mistake to report.
            if suggestion.as_deref().and_then(text::read).is_some_and(|meant| meant.unit.is_calendar()) {
                return Err(RateError::QuotaUnit(text.to_owned()));
            }
            return Err(RateError::Syntax { text: text.to_owned(), suggestion });
        };
        let Period::Micros(unit) = written.unit else {
            return Err(RateError::QuotaUnit(text.to_owned()));
        };
        // The product of two u64 always fits a u128.
        let micros = u128::from(written.number) * u128::from(unit);
        Self::reduced(written.count, micros, || text.to_owned())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u128, &str); 4] =
            [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s")];
        let written = u128::from(self.period) * u128::from(self.divisor);
        let scale = match written % 1_000_000 {
            0 => self.divisor.into(),
            // The smallest multiple of the reduced fraction whose period is whole seconds.
            _ => 1_000_000 / gcd(self.period.into(), 1_000_000),
        };
        let (count, period) = (u128::from(self.count) * scale, u128::from(self.period) * scale);
        let whole = UNITS.into_iter().find(|(micros, _)| period % micros == 0);
        // The scale makes the period whole seconds, so that the last unit always fits.
        let (micros, unit) = whole.unwrap_or(UNITS[3]);
        match period / micros {
            1 => write!(f, "{count}/{unit}"),
            number => write!(f, "{count}/{number}{unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_rates() {
        for (text, count, micros) in [
            ("50/s", 1, 20_000),
            ("50 / s", 1, 20_000),
            ("50 per second", 1, 20_000),
            ("1_000/5 minutes", 1, 300_000),
            ("700001/s", 700_001, 1_000_000),
            ("1/3s", 1, 3_000_000),
            ("7/7d", 1, 86_400_000_000),
            ("1000000/s", 1, 1),
            ("100/min", 1, 600_000),
            ("10/100ms", 1, 10_000),
            ("3 per 700 us", 3, 700),
            ("400/400d", 1, 86_400_000_000),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.count(), rate.period_micros()), (count, micros), "{text}");
            assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate, "{text} shown and read");
        }
    }

    #[test]
    fn rates_of_any_size_are_reduced_before_they_are_checked_and_shown() {
        let rate = |count, micros| Rate::new(count, Duration::from_micros(micros));
        assert_eq!(rate(400, 400 * LONGEST).unwrap(), rate(1, LONGEST).unwrap());
        assert_eq!(rate(1, 20_000_000_000_001).unwrap().to_string(), "1000000/20000000000001s");
    }

    #[test]
    fn a_rate_is_shown_as_it_was_written_and_equal_ones_are_equal() {
        for (text, shown) in [
            ("300/minute", "300/m"),
            ("1000 per 5 minutes", "1000/5m"),
            ("60/m", "60/m"),
            ("7/7d", "7/7d"),
            ("3600/h", "3600/h"),
            ("50/s", "50/s"),
            ("24/24h", "24/d"),
            ("10/100ms", "100/s"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.to_string(), shown);
            let (count, period) = rate.written();
            assert_eq!(Rate::new(count, period).unwrap().to_string(), shown);
        }
        let (minute, second): (Rate, Rate) = ("60/m".parse().unwrap(), "1/s".parse().unwrap());
        assert_eq!(minute, second);
        assert_eq!(std::collections::HashSet::from([minute, second]).len(), 1);
    }

    #[test]
    fn units_in_a_span() {
        let units = |rate: &str, secs| rate.parse::<Rate>().unwrap().units_in(Duration::from_secs(secs));
        assert_eq!(units("50/s", 60), 3000);
        assert_eq!(units("7/7d", 86_400), 1);
        assert_eq!(units("1/7s", 60), 9);
        assert_eq!(units("1000000/s", u64::MAX), u64::MAX);
    }

    #[test]
    fn texts_that_are_none() {
        for text in ["", "50", "50/S", "/s", "-1/s", "1.5/s", "50//s", "50/s/s", "50/x", "50pers", "_5/s"] {
            assert!(matches!(text.parse::<Rate>(), Err(RateError::Syntax { .. })), "{text}");
        }
        assert_eq!("0/s".parse::<Rate>(), Err(RateError::Zero));
        assert_eq!("1/0s".parse::<Rate>(), Err(RateError::Zero));
        assert!(matches!("1000001/s".parse::<Rate>(), Err(RateError::TooHigh(_))));
        assert!(matches!("7/week".parse::<Rate>(), Err(RateError::QuotaUnit(_))));
        assert!(matches!("7/2weeks".parse::<Rate>(), Err(RateError::QuotaUnit(_))));
        assert!(
            matches!("7/wk".parse::<Rate>(), Err(RateError::QuotaUnit(_))),
            "no suggestion that is no rate"
        );
        assert!(matches!("1/367d".parse::<Rate>(), Err(RateError::TooLong(_))));
        let fraction = Duration::from_nanos(1500);
        assert_eq!(Rate::new(1, fraction), Err(RateError::Fraction(fraction)), "never quicker than asked");
    }
}
