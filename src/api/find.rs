//! Where the jobs with an id are, as one replica knows, or all of them.

use serde::{Deserialize, Serialize};

use super::Millis;

/// The answer of `GET .../job`: what the replica that answers knows of the jobs with an id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The id.
    pub id: String,
    /// The instant of the answer.
    pub now: Millis,
    /// The replica that answers.
    pub replica: String,
    /// The other replicas that were not asked, or did not answer: they may hold such jobs.
    pub not_asked: Vec<String>,
    /// The jobs that replicas hold: ten at most of each.
    pub jobs: Vec<Job>,
    /// The last job with this id that a replica parked, unless that came back to it.
    pub parked: Option<Parked>,
    /// Whether jobs with this id are cancelled.
    pub cancelled: bool,
    /// The same in words, for people: a line or several.
    pub text: Vec<String>,
}

/// A job that a replica holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The replica that holds it.
    pub replica: String,
    /// Where it is: `waiting`, `delayed`, `retrying`, `held`, `sending`, as in [`Counts`](super::state::Counts), or `halted`
    /// until the replica can use the API again. A job that is `sending` may also be settled or parked just now.
    pub place: String,
    /// When it goes, or may go. For one that is `waiting` an estimate by the limits of the whole downstream: its plan or lane
    /// may take longer. Only the replica that answers estimates it.
    pub at: Option<Millis>,
    /// The jobs of its lane that are before it at this replica, if it is `waiting`.
    pub ahead: Option<u64>,
    /// The attempts so far; `None` if it is `sending`.
    pub attempts: Option<u32>,
    /// When a replica first took it; `None` if it is `sending`.
    pub first_seen: Option<Millis>,
}

/// A job that a replica parked: it is in RabbitMQ, or another replica has taken it since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    /// The replica that parked it.
    pub replica: String,
    /// When that was.
    pub at: Millis,
    /// Until when it is to wait; an estimate if it waits for a limit.
    pub until: Millis,
    /// The reason, as in the header `paced-parked-for`.
    pub reason: String,
}
