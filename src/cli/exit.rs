//! Exit codes, after sysexits.h.

use std::process::ExitCode;

use crate::daemon;

/// The ways in which a command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// An unexpected error, or something that was not delivered.
    Failed,
    /// The arguments are wrong.
    Usage,
    /// Broker, store or daemon unreachable.
    Unavailable,
    /// The drain timed out, or a second signal came.
    Undrained,
    /// The broker or the daemon refuses the user.
    Unauthorized,
    /// The configuration is wrong.
    Config,
}

impl Exit {
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unavailable => 69,
            Self::Undrained => 75,
            Self::Unauthorized => 77,
            Self::Config => 78,
        }
    }

    /// The most important of several exit codes: without servers nothing works, without permissions little, and the
    /// others come last.
    pub(super) fn worst(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        let weight = |exit: &Self| match exit {
            Self::Unavailable => 3,
            Self::Unauthorized => 2,
            Self::Config => 1,
            _ => 0,
        };
        all.into_iter().max_by_key(weight)
    }
}

impl From<&paced::amqp::Error> for Exit {
    fn from(error: &paced::amqp::Error) -> Self {
        if error.is_unreachable() {
            Self::Unavailable
        } else if error.is_unauthorized() {
            Self::Unauthorized
        } else if matches!(error, paced::amqp::Error::NameTooLong(_) | paced::amqp::Error::Stream { .. }) {
            // The arguments are checked before, so the name comes from the configuration.
            Self::Config
        } else {
            Self::Failed
        }
    }
}

impl From<&paced::StoreError> for Exit {
    fn from(error: &paced::StoreError) -> Self {
        match error {
            paced::StoreError::Unauthorized { .. } => Self::Unauthorized,
            paced::StoreError::Invalid(_) => Self::Config,
            // A store that is not suitable counts as one that cannot be reached.
            _ => Self::Unavailable,
        }
    }
}

impl From<&daemon::Error> for Exit {
    fn from(error: &daemon::Error) -> Self {
        match error {
            daemon::Error::Setting { .. } => Self::Config,
            daemon::Error::Failed { .. } => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_and_brokers_end_alike() {
        use paced::StoreError::{Invalid, Unauthorized, Unexpected, Unreachable};
        let (address, detail) = (|| "a".to_owned(), || "b".to_owned());
        for (error, code) in [
            (Unreachable { address: address(), detail: detail() }, 69),
            (Unexpected { address: address(), detail: detail() }, 69),
            (Unauthorized { address: address(), detail: detail() }, 77),
            (Invalid(detail()), 78),
        ] {
            assert_eq!(Exit::from(&error).code(), code, "{error}");
        }
    }

    #[test]
    fn the_worst_decides() {
        use Exit::{Config, Failed, Unauthorized, Unavailable};
        assert_eq!(Exit::worst([]), None);
        assert_eq!(Exit::worst([Failed, Unauthorized, Failed]), Some(Unauthorized));
        assert_eq!(Exit::worst([Unauthorized, Unavailable, Config]), Some(Unavailable));
    }
}
