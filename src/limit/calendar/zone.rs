//! Time zones, from the IANA database that is part of the program: all replicas of one version have the same.

use std::fmt;
use std::sync::{LazyLock, Mutex};

use jiff::civil::{Date, Time};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Error, Timestamp};

use super::{CalendarError, Unit};
use crate::lock::lock;

/// The database within the program. That of the system may be another on each machine.
static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The zones that were asked for. They are never dropped, and there are no more of them than the database has.
static ZONES: Mutex<Vec<&'static Known>> = Mutex::new(Vec::new());

/// A time zone of the IANA database, such as `America/Los_Angeles`.
#[derive(Clone, Copy)]
pub struct Zone(&'static Known);

struct Known {
    name: String,
    zone: TimeZone,
}

impl Zone {
    /// The zone of this name, in upper or lower case.
    ///
    /// # Errors
    /// [`CalendarError::Zone`] where the database has none of this name.
    pub fn named(name: &str) -> Result<Self, CalendarError> {
        let unknown = || CalendarError::Zone(name.chars().take(60).collect());
        let zone = DATABASE.get(name).map_err(|_| unknown())?;
        let name = zone.iana_name().ok_or_else(unknown)?.to_owned();
        let mut zones = lock(&ZONES);
        if let Some(known) = zones.iter().find(|known| known.name == name) {
            return Ok(Self(known));
        }
        let known: &'static Known = Box::leak(Box::new(Known { name, zone }));
        zones.push(known);
        Ok(Self(known))
    }

    /// The name, as the database has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name.as_str()
    }

    /// The names of all zones.
    pub fn names() -> impl Iterator<Item = String> {
        DATABASE.available().map(|name| name.as_str().to_owned())
    }

    /// The date there.
    pub(super) fn date(self, at: i64) -> Result<Date, Error> {
        Ok(self.0.zone.to_datetime(Timestamp::from_microsecond(at)?).date())
    }

    /// The instant at which the date begins: its first midnight, or the end of the gap that midnight lies in.
    pub(super) fn begin(self, date: Date) -> Result<i64, Error> {
        let midnight = self.0.zone.to_ambiguous_timestamp(date.to_datetime(Time::midnight()));
        Ok(midnight.compatible()?.as_microsecond())
    }

    /// The beginning and the end of the period around `at`.
    pub(super) fn period(self, at: i64, unit: Unit) -> Result<(i64, i64), Error> {
        let mut date = unit.first(self.date(at)?)?;
        // Where clocks are set back over midnight, a date ends, comes again and ends: the period ends the first time.
        let mut begin = self.begin(date)?;
        while begin > at {
            date = unit.first(date.yesterday()?)?;
            begin = self.begin(date)?;
        }
        loop {
            let following = unit.following(date)?;
            let end = self.begin(following)?;
            if end > at {
                return Ok((begin, end));
            }
            (date, begin) = (following, end);
        }
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Zone {}

impl std::hash::Hash for Zone {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}
