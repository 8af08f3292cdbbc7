//! The errors of a start.

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A value of the configuration cannot be used.
    #[error("{setting}: {why}")]
    Setting { setting: String, why: String },
    /// Something that another start may find in order.
    #[error("{failed}: {why}")]
    Failed { failed: &'static str, why: String },
}

impl Error {
    pub(super) fn setting(setting: impl Into<String>, why: impl ToString) -> Self {
        Self::Setting { setting: setting.into(), why: why.to_string() }
    }

    pub(super) fn failed(failed: &'static str, why: impl ToString) -> Self {
        Self::Failed { failed, why: why.to_string() }
    }
}
