//! The beginnings of calendar periods: days, weeks and months at a fixed offset from UTC, or in a time zone.
//!
//! This is the only calendar arithmetic. Workers pass boundaries on to the store, which merely compares them with its
//! clock.

use jiff::civil::{Date, Time};
use jiff::tz::Offset;
use jiff::{Error, Span, Timestamp};

use crate::time::Micros;

mod zone;

pub use zone::Zone;

const DAY: i64 = 86_400_000_000;

/// By how much a day of a time zone may be longer or shorter than 24 hours, µs: clocks are set by 3 hours at most since
/// 2001, but for places that skipped a date.
const CHANGE: i64 = 4 * 3_600_000_000;

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

impl Unit {
    /// The length of a period without a change of the clocks, µs; a month counts as its longest.
    pub(super) const fn length(self) -> i64 {
        match self {
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 31 * DAY,
        }
    }

    /// The first date of the period of a date.
    fn first(self, date: Date) -> Result<Date, Error> {
        match self {
            Self::Day => Ok(date),
            Self::Week => date.checked_sub(Span::new().days(date.weekday().to_monday_zero_offset())),
            Self::Month => Ok(date.first_of_month()),
        }
    }

    /// The first date of the next period, from that of a period.
    fn following(self, first: Date) -> Result<Date, Error> {
        match self {
            Self::Day => first.tomorrow(),
            Self::Week => first.checked_add(Span::new().days(7)),
            Self::Month => first.last_of_month().tomorrow(),
        }
    }
}

/// Where a calendar's midnights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Midnight {
    /// At this many minutes east of UTC.
    Offset(i16),
    /// In a time zone, which may change its offset.
    Zone(Zone),
}

/// Periods of a calendar.
///
/// Leap years are those of the Gregorian calendar; there are no leap seconds, as in Unix time. There is summer time only in
/// time zones: there a day may have 23 or 25 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    unit: Unit,
    midnight: Midnight,
    /// How long after its edge a period begins, µs.
    later: i64,
}

/// The reason why a [`Calendar`] cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalendarError {
    /// The offset is larger than that of any place on Earth.
    #[error("an offset of {0} minutes from UTC is out of range; use -840 to 840")]
    Offset(i64),
    /// No time zone has this name.
    #[error("`{0}` is no time zone; write its name in the IANA database, such as America/Los_Angeles")]
    Zone(String),
}

impl Calendar {
    /// The length of the longest period, µs, at most.
    #[must_use]
    pub const fn longest(self) -> i64 {
        match self.midnight {
            Midnight::Offset(_) => self.unit.length(),
            Midnight::Zone(_) => self.unit.length() + CHANGE,
        }
    }

    /// The length of the shortest period, µs, at least, but for a zone that skips a date.
    pub(super) const fn shortest(self) -> i64 {
        let length = match self.unit {
            Unit::Month => 28 * DAY,
            unit => unit.length(),
        };
        match self.midnight {
            Midnight::Offset(_) => length,
            Midnight::Zone(_) => length - CHANGE,
        }
    }

    /// The same calendar with periods that begin and end `later` µs later, which is less than the shortest period.
    pub(super) const fn opening_later(self, later: i64) -> Self {
        Self { later, ..self }
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
        Ok(Self { unit, midnight: Midnight::Offset(offset_minutes), later: 0 })
    }

    /// The calendar of `unit` in a time zone.
    #[must_use]
    pub const fn zoned(unit: Unit, zone: Zone) -> Self {
        Self { unit, midnight: Midnight::Zone(zone), later: 0 }
    }

    /// The same calendar with periods of another unit.
    pub(super) const fn of(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// The unit of its periods.
    #[must_use]
    pub const fn unit(self) -> Unit {
        self.unit
    }

    /// Where its midnights are.
    #[must_use]
    pub const fn midnight(self) -> Midnight {
        self.midnight
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
        let at = at.0.clamp(-Micros::MAX.0, Micros::MAX.0) - self.later;
        let period = match self.midnight {
            Midnight::Offset(minutes) => with_offset(self.unit, i64::from(minutes) * 60_000_000, at),
            Midnight::Zone(zone) => zone.period(at, self.unit),
        };
        // Instants reach from 1684 to 2255, dates from -9999 to 9999: there is always a period.
        let (begin, end) = period.unwrap_or((at, Micros::MAX.0));
        (Micros(begin + self.later), Micros(end + self.later).min(Micros::MAX))
    }
}

/// The beginning and the end of the period around `at`, with midnights that many µs before those of UTC.
fn with_offset(unit: Unit, offset: i64, at: i64) -> Result<(i64, i64), Error> {
    // The local time, read as if it were UTC.
    let local = Timestamp::from_microsecond(at + offset)?;
    let (begin, end) = around(unit, Offset::UTC.to_datetime(local).date())?;
    Ok((begin - offset, end - offset))
}

/// The midnights at which the period around `date` begins and ends.
fn around(unit: Unit, date: Date) -> Result<(i64, i64), Error> {
    // Without summer time all days have one length.
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
