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
    /// The downstream is paused for longer than `max_wait`, because the API asked for that (`Retry-After`) or by an
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

    /// The time after which the same call may succeed, where it is known: a slot within `max_wait` is available then,
    /// unless another caller takes it. `None` where nobody knows the time, as for a store that is away, and where no
    /// time helps; [`ReserveError::is_retryable`] distinguishes the two.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::QueueFull { retry_after, .. } => Some(*retry_after),
            Self::NotYet { retry_at } => Some(retry_at.saturating_duration_since(Instant::now())),
            Self::Paused { retry_after } => *retry_after,
            Self::CostTooLarge { .. }
            | Self::CostCount { .. }
            | Self::Store(_)
            | Self::NoLimits
            | Self::Stopped
            | Self::WouldBlock => None,
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
    /// No decision arrived from the store. It may have decided: an answer can be lost after something was taken. Once
    /// the store is known to be away, the limiter does not ask it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_error_names_the_wait_where_it_is_known() {
        let second = Duration::from_secs(1);
        let full = ReserveError::QueueFull { retry_after: second, limit: "pace".to_owned() };
        assert_eq!(full.retry_after(), Some(second));
        let others = ReserveError::NotYet { retry_at: Instant::now() + 2 * second };
        assert_eq!(others.retry_after(), Some(2 * second));
        tokio::time::advance(second).await;
        assert_eq!(others.retry_after(), Some(second), "it counts from now");
        tokio::time::advance(3 * second).await;
        assert_eq!(others.retry_after(), Some(Duration::ZERO), "never below zero");
        assert_eq!(ReserveError::Paused { retry_after: Some(second) }.retry_after(), Some(second));
        let resumed_by_hand = ReserveError::Paused { retry_after: None };
        assert!(resumed_by_hand.retry_after().is_none() && resumed_by_hand.is_retryable());
        let away = StoreError::no_answer(None, second);
        assert!(ReserveError::Store(away).retry_after().is_none(), "nobody knows when it is back");
        let costly = ReserveError::CostTooLarge { cost: 2, highest: 1, limit: "pace".to_owned() };
        assert!(costly.retry_after().is_none() && !costly.is_retryable(), "no wait helps");
    }
}
