//! The errors of limits with invalid numbers.

use std::time::Duration;

use super::bounds::{LONGEST_LOG, MAX_LIMITS};
use crate::rate::{Rate, RateError};

/// The reason why numbers make no limit, or why no exact arithmetic in 53 bits can hold them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The burst is zero, which lets nothing through.
    #[error("a burst of 0 lets nothing through; use at least 1")]
    NoBurst,
    /// The burst at this rate is beyond exact numbers. A burst of one unit never is.
    #[error("a burst of {burst} at {rate} is beyond exact time; use a smaller burst or a shorter period")]
    BeyondExact {
        /// The burst.
        burst: u32,
        /// The rate.
        rate: Rate,
    },
    /// The count and the period make no rate.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The number of buckets is zero or too large.
    #[error("{buckets} buckets; use 1 to 120")]
    Buckets {
        /// The number of buckets asked for.
        buckets: u32,
    },
    /// The buckets would not be a whole number of microseconds wide.
    #[error(
        "a period of {period:?} does not divide into {buckets} buckets of whole microseconds; \
         use {}",
        match below == above {
            true => format!("{below} buckets"),
            false => format!("{below} or {above} buckets"),
        }
    )]
    Uneven {
        /// The period.
        period: Duration,
        /// The number of buckets asked for.
        buckets: u32,
        /// The next lower number of buckets that divides the period.
        below: u32,
        /// The next higher one, or the next lower one if there is none.
        above: u32,
    },
    /// Count times bucket width is beyond exact numbers.
    #[error(
        "{count} per {period:?} in {buckets} buckets is beyond exact numbers; {}",
        match enough {
            Some(enough) => format!("use {enough} buckets, or a smaller count or period"),
            None => "use a smaller count or period".to_owned(),
        }
    )]
    CoarseBuckets {
        /// The count.
        count: u64,
        /// The period.
        period: Duration,
        /// The number of buckets asked for.
        buckets: u32,
        /// The number of buckets that would be enough, if there is one.
        enough: Option<u32>,
    },
    /// The log would be too long, as it keeps an entry per unit.
    #[error("a log of {count} units; use at most {LONGEST_LOG}, or a sliding window, which counts")]
    LogTooLong {
        /// The count.
        count: u64,
    },
    /// The margin is not shorter than the period that it is for.
    #[error(
        "a margin of {margin:?} at a period of {period:?}; use a shorter one, and write the rate as the API counts it"
    )]
    Margin {
        /// The margin.
        margin: Duration,
        /// The shortest period.
        period: Duration,
    },
    /// The offset of the calendar is out of range.
    #[error(transparent)]
    Calendar(#[from] super::calendar::CalendarError),
    /// The offset of the windows is beyond their period.
    #[error("an offset of {offset} µs in windows of {period:?}; use 0 up to, not including, the period")]
    Offset {
        /// The offset in µs.
        offset: i64,
        /// The period.
        period: Duration,
    },
    /// Two limits have the same name, and would share a state.
    #[error("two limits are called `{0}`; give each its own name")]
    SameName(String),
    /// The set has no limit.
    #[error("no limit; give at least one, such as rate = \"50/s\"")]
    Empty,
    /// The set has more limits than one decision may take.
    #[error("{0} limits in one set; use at most {MAX_LIMITS}")]
    TooMany(usize),
}
