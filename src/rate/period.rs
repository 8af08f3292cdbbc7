//! The period of an amount.

use std::time::Duration;

/// The period of an [`Amount`](super::Amount).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// A number of microseconds. A day has 86 400 000 000 of them; a quota decides whether it means a day of the
    /// calendar.
    Micros(u64),
    /// A week of the calendar, which begins on Monday. Only quotas have it.
    Week,
    /// A month of the calendar. Only quotas have it.
    Month,
}

impl Period {
    /// Whether only a calendar determines when the period ends.
    #[must_use]
    pub const fn is_calendar(self) -> bool {
        matches!(self, Self::Week | Self::Month)
    }

    /// Returns its longest duration: 7 days for a week, and 31 for a month.
    #[must_use]
    pub const fn longest(self) -> Duration {
        match self {
            Self::Micros(micros) => Duration::from_micros(micros),
            Self::Week => Duration::from_secs(7 * 86_400),
            Self::Month => Duration::from_secs(31 * 86_400),
        }
    }
}
