//! The reasons why there is no reservation, or no decision.

use std::time::Duration;

use tokio::time::Instant;

use super::cost::InvalidCost;
use crate::store::StoreError;

/// The reason why there is no reservation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The slot would lie further ahead than `max_wait`. Nothing was taken.
    #[error("the queue is full for `{limit}`; try again in {retry_after:?}")]
    QueueFull {
        /// The time until a slot within `max_wait` is available, unless another caller takes it.
        retry_after: Duration,
        /// The name of the binding limit: the first that allows nothing earlier.
        limit: String,
    },
    /// Others wait in order for slots of the downstream, in this process or in others: the next slots are theirs, and one
    /// beyond the horizon would starve them. Nothing was taken.
    #[error("others wait for the next slots; try again in {:?}", retry_at.saturating_duration_since(Instant::now()))]
    NotYet {
        /// The instant at which this process may reserve a slot again. Its first caller from then on gets the slot.
        retry_at: Instant,
    },
    /// The downstream is paused for longer than `max_wait`, because it asked for it (`Retry-After`) or by an
    /// operator. Nothing was taken.
    #[error("the downstream is paused{}", match retry_after {
        Some(span) => format!("; try again in {span:?}"),
        None => " until somebody resumes it".to_owned(),
    })]
    Paused {
        /// The time until a slot within `max_wait` is available; `None` if not before an operator resumes.
        retry_after: Option<Duration>,
    },
    /// The limits can never hold so high a cost, or not exactly.
    #[error("a cost of {cost} is more than `{limit}` holds; use at most {highest}")]
    CostTooLarge {
        /// The cost asked for.
        cost: u32,
        /// The highest cost that is possible.
        highest: u32,
        /// The name of the limit that does not hold it; of alternatives the one that holds the most.
        limit: String,
    },
    /// There must be one cost for each limit.
    #[error("{given} costs for {limits} limits; give one for each, in the order of the limits")]
    CostCount {
        /// The number of costs that were given.
        given: usize,
        /// The number of limits that were given.
        limits: usize,
    },
    /// The store did not decide.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Other processes have put limits into force that this process cannot use: they are of a newer version, or are
    /// invalid with its plans.
    #[error(
        "this process cannot use the limits in force (its log says why); run the same version of paced, and the same \
         configuration, everywhere"
    )]
    NoLimits,
    /// The task that calls the store does not run: the runtime that was given to the builder has ended or stands still, the
    /// store panicked repeatedly, or the system has no thread left.
    #[error(
        "nobody asks the store: the runtime given to the shaper has ended or stands still, or no thread can be started"
    )]
    Stopped,
    /// The call would block a thread on which a runtime polls. Nothing was taken.
    #[error("this would block the runtime; await `acquire` instead, or use `tokio::task::spawn_blocking`")]
    WouldBlock,
}

impl ReserveError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::QueueFull { .. } | Self::NotYet { .. } | Self::Paused { .. } | Self::Stopped => true,
            Self::CostTooLarge { .. } | Self::CostCount { .. } | Self::NoLimits | Self::WouldBlock => false,
            Self::Store(error) => error.is_retryable(),
        }
    }
}

impl From<InvalidCost> for ReserveError {
    fn from(invalid: InvalidCost) -> Self {
        match invalid {
            InvalidCost::Count { given, limits } => Self::CostCount { given, limits },
            InvalidCost::TooLarge { cost, highest, limit } => Self::CostTooLarge { cost, highest, limit },
        }
    }
}

/// The reason why there is no decision. A denial is a decision, and none of these errors.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The limits can never hold so high a cost.
    #[error("a cost of {cost} is more than `{limit}` ever allows at once; use at most {highest}")]
    CostTooLarge {
        /// The cost asked for.
        cost: u32,
        /// The highest cost that is possible.
        highest: u32,
        /// The name of the limit that does not hold it; of alternatives the one that holds the most.
        limit: String,
    },
    /// There must be one cost for each limit.
    #[error("{given} costs for {limits} limits; give one for each, in the order of the limits")]
    CostCount {
        /// The number of costs that were given.
        given: usize,
        /// The number of limits that were given.
        limits: usize,
    },
    /// No decision arrived from the store. It may have decided: an answer can be lost after something was taken. Once it is
    /// known to be away, it is not asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The task that called the store was ended: the store panicked, the runtime that was given has ended, or the system
    /// has no thread left.
    #[error("the call to the store was broken off; check again")]
    Stopped,
}

impl CheckError {
    /// Whether the same call may be decided later. Meanwhile the caller chooses whether to let the request pass or to
    /// refuse it.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Stopped => true,
            Self::CostTooLarge { .. } | Self::CostCount { .. } => false,
            Self::Store(error) => error.is_retryable(),
        }
    }
}

impl From<InvalidCost> for CheckError {
    fn from(invalid: InvalidCost) -> Self {
        match invalid {
            InvalidCost::Count { given, limits } => Self::CostCount { given, limits },
            InvalidCost::TooLarge { cost, highest, limit } => Self::CostTooLarge { cost, highest, limit },
        }
    }
}
