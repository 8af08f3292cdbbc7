//! The beginnings of calendar periods: days, weeks and months at a fixed offset from UTC.
//!
//! This is the only calendar arithmetic. Workers pass boundaries on to the store, which merely compares them with its
//! clock.

use jiff::civil::{Date, Time};
use jiff::tz::Offset;
use jiff::{Error, Timestamp};

use crate::time::Micros;

/// The unit of a calendar's periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A day, from midnight on.
    Day,
    /// A week, from midnight on Monday on.
    Week,
    /// A month, from midnight on the first day on.
    Month,
}

/// Periods of a calendar whose midnight lies at a fixed offset from UTC's.
///
/// Leap years are those of the Gregorian calendar; there are no leap seconds, as in Unix time, and no
/// summer time, as the offset is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    unit: Unit,
    offset_minutes: i16,
}

/// The reason why a [`Calendar`] cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// The offset is larger than that of any place on Earth.
    #[error("an offset of {0} minutes from UTC is out of range; use -840 to 840")]
    Offset(i64),
}

impl Calendar {
    /// The length of the longest period, µs.
    #[must_use]
    pub const fn longest(self) -> i64 {
        const DAY: i64 = 86_400_000_000;
        match self.unit {
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 31 * DAY,
        }
    }

    /// The farthest offset from UTC, in minutes, east or west.
    pub const FARTHEST: i16 = 840;

    /// The calendar of `unit` at `offset_minutes` east of UTC; west of it when negative.
    ///
    /// # Errors
    /// [`CalendarError::Offset`] when the offset is over 840 minutes either way.
    pub fn new(unit: Unit, offset_minutes: impl Into<i64>) -> Result<Self, CalendarError> {
        let minutes = offset_minutes.into();
        let offset =
            i16::try_from(minutes).ok().filter(|offset| (-Self::FARTHEST..=Self::FARTHEST).contains(offset));
        let offset_minutes = offset.ok_or(CalendarError::Offset(minutes))?;
        Ok(Self { unit, offset_minutes })
    }

    /// The unit of its periods.
    #[must_use]
    pub const fn unit(self) -> Unit {
        self.unit
    }

    /// The offset of its midnight from that of UTC, in minutes to the east.
    #[must_use]
    pub const fn offset_minutes(self) -> i16 {
        self.offset_minutes
    }

    /// The first boundary strictly after `at`, or [`Micros::MAX`] after the last boundary; that is the end of time, and
    /// no boundary.
    #[must_use]
    pub fn next(&self, at: Micros) -> Micros {
        self.period(at).1
    }

    /// The last boundary at or before `at`. In the first period it may lie before 1970, and the
    /// instant is negative.
    #[must_use]
    pub fn current(&self, at: Micros) -> Micros {
        self.period(at).0
    }

    /// [`current`](Self::current) and [`next`](Self::next) in one: the beginning of the period that contains `at`, and
    /// its exclusive end.
    ///
    /// Instants beyond ±[`Micros::MAX`] are clamped to it.
    #[must_use]
    pub fn period(&self, at: Micros) -> (Micros, Micros) {
        let offset = i64::from(self.offset_minutes) * 60_000_000;
        // The local time, read as if it were UTC.
        let local = at.0.clamp(-Micros::MAX.0, Micros::MAX.0) + offset;
        // Instants reach from 1684 to 2255, dates from -9999 to 9999: there is always a period.
        let (begin, end) = local_period(self.unit, local).unwrap_or((local, Micros::MAX.0 + offset));
        (Micros(begin - offset), Micros(end - offset).min(Micros::MAX))
    }
}

/// The beginning and the end of the period around `local`.
fn local_period(unit: Unit, local: i64) -> Result<(i64, i64), Error> {
    around(unit, Offset::UTC.to_datetime(Timestamp::from_microsecond(local)?).date())
}

/// The midnights at which the period around `date` begins and ends.
fn around(unit: Unit, date: Date) -> Result<(i64, i64), Error> {
    // Without daylight saving time all days have one length.
    const DAY: i64 = 86_400_000_000;
    Ok(match unit {
        Unit::Day => {
            let begin = midnight(date)?;
            (begin, begin + DAY)
        }
        Unit::Week => {
            let monday = midnight(date)? - i64::from(date.weekday().to_monday_zero_offset()) * DAY;
            (monday, monday + 7 * DAY)
        }
        Unit::Month => {
            let first = midnight(date.first_of_month())?;
            (first, first + i64::from(date.days_in_month()) * DAY)
        }
    })
}

fn midnight(date: Date) -> Result<i64, Error> {
    Ok(Offset::UTC.to_timestamp(date.to_datetime(Time::midnight()))?.as_microsecond())
}

#[cfg(test)]
mod tests;
