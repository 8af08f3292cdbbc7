//! Why numbers are no limit.

use std::time::Duration;

use super::{LONGEST_LOG, MAX_LIMITS};
use crate::rate::{Rate, RateError};

/// Numbers that are no limit, or that no exact arithmetic in 53 bits can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A burst of zero lets nothing through.
    #[error("a burst of 0 lets nothing through; use at least 1")]
    NoBurst,
    /// The burst at this rate reaches beyond what is exact: one unit never does.
    #[error("a burst of {burst} at {rate} is beyond exact time; use a smaller burst or a shorter period")]
    BeyondExact {
        /// The burst.
        burst: u32,
        /// The rate.
        rate: Rate,
    },
    /// The count and the period are no rate.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// A sliding window needs buckets, and not too many.
    #[error("{buckets} buckets; use 1 to 120")]
    Buckets {
        /// How many were asked for.
        buckets: u32,
    },
    /// Buckets are whole microseconds wide.
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
        /// How many were asked for.
        buckets: u32,
        /// The next lower number that divides it.
        below: u32,
        /// The next higher one; where there is none, the next lower one again.
        above: u32,
    },
    /// Count times bucket width is beyond what is exact.
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
        /// How many were asked for.
        buckets: u32,
        /// How many would do.
        enough: Option<u32>,
    },
    /// A log keeps an entry per unit.
    #[error("a log of {count} units; use at most {LONGEST_LOG}, or a sliding window, which counts")]
    LogTooLong {
        /// The count.
        count: u64,
    },
    /// A fixed offset of a clock is out of range.
    #[error(transparent)]
    Calendar(#[from] super::calendar::CalendarError),
    /// An offset beyond the period.
    #[error("an offset of {offset} µs in windows of {period:?}; use 0 up to, not including, the period")]
    Offset {
        /// µs.
        offset: i64,
        /// The period.
        period: Duration,
    },
    /// Two limits of one name would share a state.
    #[error("two limits are called `{0}`; give each its own name")]
    SameName(String),
    /// A set without a limit.
    #[error("no limit; give at least one, such as rate = \"50/s\"")]
    Empty,
    /// More limits than one decision may take.
    #[error("{0} limits in one set; use at most {MAX_LIMITS}")]
    TooMany(usize),
}
