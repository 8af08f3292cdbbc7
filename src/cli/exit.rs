//! Exit codes, after sysexits.h.

use std::process::ExitCode;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Ok,
    /// Unexpected, or something was not delivered.
    Failed,
    /// The arguments are wrong.
    Usage,
    /// Broker or store unreachable.
    Unavailable,
    /// The drain timed out, or a second signal came.
    Undrained,
    /// The broker refuses the user.
    Unauthorized,
    /// The configuration is wrong.
    Config,
}

impl Exit {
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unavailable => 69,
            Self::Undrained => 75,
            Self::Unauthorized => 77,
            Self::Config => 78,
        }
    }
}

impl From<&paced::amqp::Error> for Exit {
    fn from(error: &paced::amqp::Error) -> Self {
        if error.is_unreachable() {
            Self::Unavailable
        } else if error.is_unauthorized() {
            Self::Unauthorized
        } else {
            Self::Failed
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
