//! Dead letters: listed, replayed and purged.

use serde::{Deserialize, Serialize};

use super::Millis;

/// The answer of `GET .../dead`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// The first letters.
    pub letters: Vec<Letter>,
    /// The number of all letters.
    pub total: u32,
    /// Whether the time was over before all were examined.
    pub stopped: bool,
}

/// A dead letter without its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Letter {
    /// The id of the job.
    pub id: Option<String>,
    /// The reason of its death.
    pub reason: Option<String>,
    /// The same in words.
    pub detail: Option<String>,
    /// The status of the last answer.
    pub status: Option<i64>,
    /// The attempts.
    pub attempts: Option<i64>,
    /// The routing key that the job was published with.
    pub key: Option<String>,
    /// When it died.
    pub dead_at: Option<Millis>,
    /// The beginning of the last answer's body, as text.
    pub response: Option<String>,
    /// The length of the job's body.
    pub bytes: usize,
}

/// `POST .../dead/replay` and `POST .../dead/purge`: the letters that are meant, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The most letters.
    pub limit: Option<u32>,
    /// Only letters with this reason of their death.
    pub reason: Option<String>,
    /// Only letters with this status of the last answer.
    pub status: Option<u16>,
    /// Only the letter of this job.
    pub id: Option<String>,
    /// Only letters with this routing key.
    pub key: Option<String>,
    /// The pace at which the jobs of a replay are published.
    pub rate: Option<String>,
    /// The reason of the change, for the audit log.
    pub audit: Option<String>,
}

/// The answer of `POST .../dead/replay`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// The letters at the start.
    pub found: u32,
    /// Those that are jobs again.
    pub replayed: u32,
    /// Those that were not meant.
    pub passed: u32,
    /// Those that could not be published.
    pub failed: u32,
    /// Whether the time was over before all were examined.
    pub stopped: bool,
    /// The last error of those that failed.
    pub error: Option<String>,
}

/// The answer of `POST .../dead/purge`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// The letters at the start.
    pub found: u32,
    /// Those that were removed.
    pub purged: u32,
    /// Those that were not meant.
    pub passed: u32,
    /// Whether the time was over before all were examined.
    pub stopped: bool,
}
