//! Parked jobs by what they wait for.

use serde::{Deserialize, Serialize};

use super::Millis;

/// The parked jobs of a downstream that wait for the same reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedBy {
    /// The reason, as in the header `paced-parked-for`: `not-before`, `retry`, `limit` or `restart`.
    pub reason: String,
    /// The number of jobs.
    pub jobs: i64,
    /// The end of the hour in which the first of them may go; an estimate for a `limit`.
    pub first: Millis,
    /// The number of those that are due before that.
    pub first_jobs: i64,
    /// The end of the hour in which the last of them may go.
    pub last: Millis,
}
