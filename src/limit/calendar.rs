//! Where the periods of a calendar begin: days, weeks and months at a fixed offset from UTC.
//!
//! The only calendar arithmetic there is. Workers pass boundaries on to the store, which merely
//! compares them with its clock.

use jiff::civil::{Date, Time};
use jiff::tz::Offset;
use jiff::{Error, Timestamp};

use crate::time::Micros;

/// What a calendar counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// From midnight on.
    Day,
    /// From midnight on Monday on.
    Week,
    /// From midnight on the first on.
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

/// Why there is no such [`Calendar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// No place on Earth is so far from UTC.
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

    /// What it counts in.
    #[must_use]
    pub const fn unit(self) -> Unit {
        self.unit
    }

    /// How far east of UTC its midnight is kept, in minutes.
    #[must_use]
    pub const fn offset_minutes(self) -> i16 {
        self.offset_minutes
    }

    /// The first boundary strictly after `at`; at most [`Micros::MAX`], where time ends: from the last
    /// boundary on it is that, which is no boundary.
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

    /// [`current`](Self::current) and [`next`](Self::next) in one: the period that `at` is in, its
    /// end excluded.
    ///
    /// Instants beyond ±[`Micros::MAX`] are taken as that.
    #[must_use]
    pub fn period(&self, at: Micros) -> (Micros, Micros) {
        let offset = i64::from(self.offset_minutes) * 60_000_000;
        // The local time as if it were UTC's.
        let local = at.0.clamp(-Micros::MAX.0, Micros::MAX.0) + offset;
        // Instants reach from 1684 to 2255, dates from -9999 to 9999: there is always a period.
        let (begin, end) = local_period(self.unit, local).unwrap_or((local, Micros::MAX.0 + offset));
        (Micros(begin - offset), Micros(end - offset).min(Micros::MAX))
    }
}

/// Where the period around `local` begins and ends.
fn local_period(unit: Unit, local: i64) -> Result<(i64, i64), Error> {
    around(unit, Offset::UTC.to_datetime(Timestamp::from_microsecond(local)?).date())
}

/// The midnights at which the period around `date` begins and ends.
fn around(unit: Unit, date: Date) -> Result<(i64, i64), Error> {
    // Without summer time every day is as long as the next.
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
