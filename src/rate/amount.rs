//! Amounts as they are written: windows and quotas count up to the N as written.

use std::fmt;
use std::time::Duration;

use super::{LONGEST, Period, Rate, RateError, micros, text};

/// A number of units per period, as written: `1000/minute` stays a thousand a minute, while a [`Rate`] is reduced to 1
/// in 60 ms.
///
/// It is at least 1 unit in at least 1 µs, and at most a million units a second, in at most 366 days. The text form is
/// that of [`Rate`], with the additional units week(s), w, month(s), each without a number before it. The output of
/// [`Display`](fmt::Display) reads back as the same amount:
///
/// ```
/// use paced::{Amount, Period};
/// let amount: Amount = "1_000 per 60 seconds".parse()?;
/// assert_eq!((amount.count(), amount.period()), (1000, Period::Micros(60_000_000)));
/// assert_eq!(amount.to_string(), "1000/m");
/// assert_eq!("500/month".parse::<Amount>()?.period(), Period::Month);
/// # Ok::<(), paced::RateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Amount {
    count: u64,
    period: Period,
}

impl Amount {
    /// Creates an amount of `count` units in each `period`.
    ///
    /// # Errors
    /// [`RateError`] when either is zero, the period has a fraction of a µs or is over 366 days, or
    /// the rate is over 1 000 000/s.
    pub fn new(count: u64, period: Duration) -> Result<Self, RateError> {
        let text = || format!("{count} per {period:?}");
        let micros = u64::try_from(micros(period)?).map_err(|_| RateError::TooLong(text()))?;
        Self::checked(count, Period::Micros(micros), text)
    }

    /// Creates an amount of `count` units in each `period`, which may be a week or a month.
    ///
    /// # Errors
    /// As [`Amount::new`].
    pub fn per(count: u64, period: Period) -> Result<Self, RateError> {
        Self::checked(count, period, || Self { count, period }.to_string())
    }

    fn checked(count: u64, period: Period, text: impl Fn() -> String) -> Result<Self, RateError> {
        let micros = period.longest().as_micros();
        if count == 0 || micros == 0 {
            return Err(RateError::Zero);
        }
        if micros > LONGEST.into() {
            return Err(RateError::TooLong(text()));
        }
        // This keeps the count below 2^53 too, since 366 days have fewer microseconds.
        if u128::from(count) > micros {
            return Err(RateError::TooHigh(text()));
        }
        Ok(Self { count, period })
    }

    /// Returns the units of one period, as written.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// Returns the period, as written.
    #[must_use]
    pub const fn period(self) -> Period {
        self.period
    }

    /// Returns the same as a rate, reduced. A week counts as 7 days and a month as 31, which is for waits and gauges,
    /// never for the slots of a quota.
    ///
    /// # Errors
    /// [`RateError`]; it does not occur, since every amount is a rate.
    pub fn rate(self) -> Result<Rate, RateError> {
        Rate::new(self.count, self.period.longest())
    }
}

// `Amount::checked` relies on this bound of counts.
const _: () = assert!(LONGEST < 1 << 53);

/// Reads an amount; `None` if the text does not even have the form.
pub(super) fn read(text: &str) -> Option<Result<Amount, RateError>> {
    let written = text::read(text)?;
    let shown = || text.to_owned();
    let period = match written.unit {
        Period::Micros(unit) => match written.number.checked_mul(unit) {
            Some(micros) => Period::Micros(micros),
            None => return Some(Err(RateError::TooLong(shown()))),
        },
        calendar if written.number == 1 => calendar,
        _ => return Some(Err(RateError::SeveralCalendarUnits(shown()))),
    };
    Some(Amount::checked(written.count, period, shown))
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (86_400_000_000, "d"),
            (3_600_000_000, "h"),
            (60_000_000, "m"),
            (1_000_000, "s"),
            (1_000, "ms"),
            (1, "us"),
        ];
        let count = self.count;
        match self.period {
            Period::Week => write!(f, "{count}/week"),
            Period::Month => write!(f, "{count}/month"),
            Period::Micros(period) => {
                // Every period is whole microseconds, so that the last unit always fits.
                let whole = UNITS.into_iter().find(|(micros, _)| period % micros == 0);
                let (micros, unit) = whole.unwrap_or(UNITS[5]);
                match period / micros {
                    1 => write!(f, "{count}/{unit}"),
                    number => write!(f, "{count}/{number}{unit}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
