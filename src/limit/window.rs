//! Windows that count units: the fixed window and the quota.
//!
//! At most N units are taken until the window's end; at its end a new one begins. N units at the end of one window and
//! N at the start of the next are 2N in little time: this is the price of a state of three numbers.

use std::time::Duration;

use super::calendar::Calendar;
use super::{LimitError, Standing};
use crate::rate::{Rate, RateError};
use crate::time::Micros;

/// The present window: `used` units were taken that count until `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The first instant that is no longer in it.
    pub end: Micros,
    /// Units taken.
    pub used: u64,
}

/// The kinds of windows, by when they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edges {
    /// At every multiple of the period since the Unix epoch, plus the offset (both in µs).
    Aligned {
        /// The period, in µs.
        period: i64,
        /// The offset, in µs; less than the period.
        offset: i64,
    },
    /// One period (µs) after the first unit taken: a window begins when it is first used.
    FirstHit {
        /// The period, in µs.
        period: i64,
    },
    /// At midnight of a day, of a Monday, or of the first of a month.
    Calendar(Calendar),
}

impl Edges {
    /// Windows of this period, aligned to the Unix epoch plus an offset in µs.
    ///
    /// # Errors
    /// [`LimitError`] when the period is 0 or over 366 days, or the offset is not within it.
    pub fn aligned(period: Duration, offset: i64) -> Result<Self, LimitError> {
        let micros = length(period)?;
        if !(0..micros).contains(&offset) {
            return Err(LimitError::Offset { offset, period });
        }
        Ok(Self::Aligned { period: micros, offset })
    }

    /// Windows of this period, each begun by the first unit taken in it.
    ///
    /// # Errors
    /// [`LimitError`] when the period is 0 or over 366 days.
    pub fn first_hit(period: Duration) -> Result<Self, LimitError> {
        Ok(Self::FirstHit { period: length(period)? })
    }

    /// The end of the window that a unit at `at` opens.
    #[must_use]
    pub fn after(self, at: Micros) -> Micros {
        let end = match self {
            Self::Aligned { period, offset } => at.0 - (at.0 - offset).rem_euclid(period) + period,
            Self::FirstHit { period } => at.0 + period,
            Self::Calendar(calendar) => return calendar.next(at),
        };
        Micros(end.min(Micros::MAX.0))
    }

    /// The length of a window without a change of the clocks, µs; a month counts as its longest.
    const fn usual(self) -> i64 {
        match self {
            Self::Calendar(calendar) => calendar.unit().length(),
            edges => edges.longest(),
        }
    }

    /// The length of the shortest window, µs.
    #[must_use]
    pub(super) const fn shortest(self) -> i64 {
        match self {
            Self::Aligned { period, .. } | Self::FirstHit { period } => period,
            Self::Calendar(calendar) => calendar.shortest(),
        }
    }

    /// The length of the longest window, µs.
    #[must_use]
    pub const fn longest(self) -> i64 {
        match self {
            Self::Aligned { period, .. } | Self::FirstHit { period } => period,
            Self::Calendar(calendar) => calendar.longest(),
        }
    }
}

/// The length of a period, in µs.
fn length(period: Duration) -> Result<i64, RateError> {
    // One unit in a period is a rate exactly when the period is valid.
    let micros = Rate::new(1, period)?.period_micros();
    i64::try_from(micros).map_err(|_| RateError::TooLong(format!("1 per {period:?}")))
}

/// N units per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counting {
    count: u64,
    edges: Edges,
    rate: Rate,
}

impl Counting {
    /// A count of units in each window that `edges` bound.
    ///
    /// # Errors
    /// [`LimitError`] when the count is 0 or over what is a rate, or the offset is not within the period.
    pub(super) fn new(count: u64, edges: Edges) -> Result<Self, LimitError> {
        let usual = u64::try_from(edges.usual()).map_err(|_| RateError::Zero)?;
        let period = Duration::from_micros(usual);
        let rate = Rate::new(count, period)?;
        // Anybody may build the variant directly.
        if let Edges::Aligned { period: micros, offset } = edges
            && !(0..micros).contains(&offset)
        {
            return Err(LimitError::Offset { offset, period });
        }
        Ok(Self { count, edges, rate })
    }

    /// N.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// When windows end.
    #[must_use]
    pub const fn edges(self) -> Edges {
        self.edges
    }

    /// N per window without a change of the clocks; a month counts as its longest.
    #[must_use]
    pub const fn rate(self) -> Rate {
        self.rate
    }

    /// The first instant at which the cost fits, not before `now` and the latest slot: that instant, or the end of the
    /// window.
    pub(super) fn earliest(self, window: Window, last: Micros, now: Micros, cost: u32) -> Micros {
        let at = now.max(last);
        let fits = at >= window.end || window.used + u64::from(cost) <= self.count;
        if fits { at } else { window.end }
    }

    pub(super) fn commit(self, window: Window, at: Micros, cost: u32) -> Window {
        if at >= window.end {
            return Window { end: self.edges.after(at), used: cost.into() };
        }
        Window { used: window.used + u64::from(cost), ..window }
    }

    /// Adapts a window that may be of another period: it ends at most one of the present periods after its latest slot.
    pub(super) fn adopt(self, window: Window, last: Micros) -> Window {
        Window { end: window.end.min(Micros(last.0 + self.edges.longest())), ..window }
    }

    /// A window that was opened by a slot moves with the clock. Any other is the clock's own: it lasts to its end, as
    /// far as `adopt` allows, and where the clock stepped forward (a negative `back`) to the end of the window in which
    /// its latest slot then lies, so that no step gives its units again.
    pub(super) fn step_back(self, window: Window, last: Micros, back: i64) -> Window {
        match self.edges {
            Edges::FirstHit { .. } if window.end.0 > back => {
                Window { end: Micros(window.end.0 - back), used: window.used }
            }
            Edges::FirstHit { .. } => Window { end: Micros(0), used: window.used },
            edges if back < 0 && window.end > last => {
                Window { end: window.end.max(edges.after(Micros(last.0 - back))), used: window.used }
            }
            _ => window,
        }
    }

    pub(super) fn standing(self, window: Window, last: Micros, now: Micros) -> Standing {
        let at = now.max(last);
        let (used, reset_at) = match self.edges {
            _ if at < window.end => (window.used, window.end),
            Edges::FirstHit { .. } => (0, at),
            edges => (0, edges.after(at)),
        };
        Standing {
            limit: self.count,
            remaining: self.count.saturating_sub(used),
            reset_after: reset_at.since(now),
        }
    }
}
