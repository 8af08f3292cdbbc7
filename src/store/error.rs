//! The errors of stores.

use std::time::Duration;

use crate::home::NoRuntime;

/// The reason why a store gave no usable answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, did not answer in time, or reports that it cannot serve at the moment.
    #[error("the store at {address} is not reachable: {detail}; is it running, and its URL right?")]
    Unreachable {
        /// The address, without credentials.
        address: String,
        /// The error of the connection.
        detail: String,
    },
    /// The file of a store cannot be used: another process uses it, it cannot be written, or it is something else.
    #[error("the store in {path} cannot be used: {detail}")]
    File {
        /// The file.
        path: String,
        /// What is wrong, and what to do about it.
        detail: String,
    },
    /// The call or the URL is wrong, and a retry does not help.
    #[error("{0}")]
    Invalid(String),
    /// The store refuses the login, or what the user may not do.
    #[error("the store at {address} refuses: {detail}")]
    Unauthorized {
        /// The address, without credentials.
        address: String,
        /// The answer, and what to do about it.
        detail: String,
    },
    /// The store gave an answer that paced does not understand.
    #[error("the store at {address} answered unexpectedly: {detail}")]
    Unexpected {
        /// The address, without credentials.
        address: String,
        /// The answer, and what to do about it.
        detail: String,
    },
}

impl StoreError {
    /// The error for a store at this address that has not answered within this time.
    #[must_use]
    pub fn no_answer(address: Option<&str>, within: Duration) -> Self {
        let address = address.unwrap_or("this process").to_owned();
        Self::Unreachable { address, detail: format!("no answer within {within:?}") }
    }

    /// Whether the store is away: it was not reached, did not answer in time, or reports that it cannot serve at the
    /// moment; or its file cannot be used. Any other error persists until somebody fixes its cause.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::File { .. })
    }

    /// Whether the store refuses the user, or what the user may not do.
    #[must_use]
    pub const fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Unauthorized { .. })
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::Invalid(_))
    }
}

/// Refuses a call unless this holds.
pub(super) fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), StoreError> {
    if holds { Ok(()) } else { Err(StoreError::Invalid(problem())) }
}

impl From<NoRuntime> for StoreError {
    /// It is not that the store is away.
    fn from(error: NoRuntime) -> Self {
        Self::Invalid(error.to_string())
    }
}
