//! Changes that operators order. The tools make them, and the daemon reads them.
//!
//! A body is read in two steps: first its form, then the values in its texts. So an error of the first step has a line and
//! a column, and one of the second names its field.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use crate::config::duration;
use crate::rate::Amount;

/// The longest reason, in characters.
const LONGEST_REASON: usize = 200;

/// Stops the releases of a downstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "body::Pause")]
pub struct Pause {
    /// The length; without one it lasts until it is resumed.
    #[serde(rename = "for")]
    pub span: Option<Span>,
    /// The reason.
    pub reason: Option<String>,
}

/// Ends a pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// The reason.
    pub reason: Option<String>,
}

/// Sets a rate over that of a limit's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "body::SetRate")]
pub struct SetRate {
    /// The rate.
    #[serde(serialize_with = "text")]
    pub rate: Amount,
    /// The limit; without one the one of `rate = "..."`, or the only one.
    pub limit: Option<String>,
    /// How long it applies; without one until it is unset.
    #[serde(rename = "for")]
    pub span: Option<Span>,
    /// The reason.
    pub reason: Option<String>,
}

/// Restores the rate of a limit's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsetRate {
    /// The limit; without one the one of `rate = "..."`, or the only one.
    pub limit: Option<String>,
    /// The reason.
    pub reason: Option<String>,
}

/// Starts counts again from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// The limit; without one all of them.
    pub limit: Option<String>,
    /// The reason.
    pub reason: Option<String>,
}

/// Puts the limits of the file of the replica that answers in force, also if those in force have a higher revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForceTerms {
    /// The reason.
    pub reason: Option<String>,
}

/// Puts the limits of that file in place of all terms in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropTerms {
    /// The reason.
    pub reason: Option<String>,
}

/// Cancels jobs, or ends their cancellation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "body::Cancel")]
pub struct Cancel {
    /// The ids of the jobs.
    pub ids: Vec<String>,
    /// How long they stay cancelled; without one as long as may be.
    #[serde(rename = "for")]
    pub span: Option<Span>,
    /// Ends the cancellation.
    pub undo: bool,
    /// The reason.
    pub reason: Option<String>,
}

/// A time that is not zero, as it was written, such as `10m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    text: String,
    duration: Duration,
}

impl Span {
    /// The time.
    pub const fn duration(&self) -> Duration {
        self.duration
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match duration(text)? {
            Duration::ZERO => Err("no time at all; use at least 1us".to_owned()),
            duration => Ok(Self { text: text.to_owned(), duration }),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

fn text<S: Serializer>(rate: &Amount, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(rate)
}

/// A reason for people, checked; `None` if it is empty.
///
/// # Errors
/// A text that says what would be right.
pub fn reason(reason: Option<String>) -> Result<Option<String>, String> {
    let Some(reason) = reason.filter(|reason| !reason.trim().is_empty()) else { return Ok(None) };
    if reason.chars().count() > LONGEST_REASON || reason.contains(char::is_control) {
        return Err(format!("reason: use up to {LONGEST_REASON} characters on one line"));
    }
    Ok(Some(reason))
}

pub(super) fn span(text: Option<String>) -> Result<Option<Span>, String> {
    text.map(|text| text.parse()).transpose().map_err(|problem| format!("for: {problem}"))
}

/// The bodies in their first step.
mod body {
    use serde::Deserialize;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Pause {
        #[serde(rename = "for")]
        pub(super) span: Option<String>,
        pub(super) reason: Option<String>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct SetRate {
        pub(super) rate: String,
        pub(super) limit: Option<String>,
        #[serde(rename = "for")]
        pub(super) span: Option<String>,
        pub(super) reason: Option<String>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Cancel {
        pub(super) ids: Vec<String>,
        #[serde(rename = "for")]
        pub(super) span: Option<String>,
        #[serde(default)]
        pub(super) undo: bool,
        pub(super) reason: Option<String>,
    }
}

impl TryFrom<body::Pause> for Pause {
    type Error = String;

    fn try_from(body::Pause { span: text, reason }: body::Pause) -> Result<Self, String> {
        Ok(Self { span: span(text)?, reason })
    }
}

impl TryFrom<body::SetRate> for SetRate {
    type Error = String;

    fn try_from(body: body::SetRate) -> Result<Self, String> {
        let body::SetRate { rate, limit, span: text, reason } = body;
        let rate = rate.parse().map_err(|error| format!("rate: {error}"))?;
        Ok(Self { rate, limit, span: span(text)?, reason })
    }
}

impl TryFrom<body::Cancel> for Cancel {
    type Error = String;

    fn try_from(body::Cancel { ids, span: text, undo, reason }: body::Cancel) -> Result<Self, String> {
        if ids.is_empty() {
            return Err("ids: there are none; name the jobs to cancel".to_owned());
        }
        let span = span(text)?;
        if undo && span.is_some() {
            return Err("for: not with `undo`, which ends it at once; leave one out".to_owned());
        }
        Ok(Self { ids, span, undo, reason })
    }
}
