//! Where jobs are and what they wait for, as one replica knows, or all of them.

use serde::{Deserialize, Serialize};

use super::Millis;

/// The answer of `GET .../job`: what the replica that answers knows of the jobs in question, or all replicas do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The id that is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The lane that is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// The instant of the answer.
    pub now: Millis,
    /// The replica that answers.
    pub replica: String,
    /// The other replicas that were not asked, or did not answer: they may hold such jobs.
    pub not_asked: Vec<String>,
    /// The jobs with the id that replicas hold, ten at most of each; or the next job of the lane at each.
    pub jobs: Vec<Job>,
    /// The last job with the id that a replica parked, unless that came back to it.
    pub parked: Option<Parked>,
    /// Whether jobs with the id are cancelled.
    pub cancelled: bool,
    /// The same in words, for people: a line or several.
    pub text: Vec<String>,
}

/// A job that a replica holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The replica that holds it.
    pub replica: String,
    /// Its id.
    pub id: String,
    /// Where it is: `waiting`, `delayed`, `retrying`, `held`, `sending`, as in [`Counts`](super::state::Counts), or `halted`
    /// until the replica can use the API again. A job that is `sending` may also be settled or parked just now.
    pub place: String,
    /// When it goes, or may go; `None` where nobody can tell, as in a pause. For a job that is `waiting`, the replica
    /// that answers estimates it as if no other job came; only for the first such job of each replica.
    pub at: Option<Millis>,
    /// Its place, if it is the first one here that is `waiting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Turn>,
    /// What lets it go last, if it is `waiting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Bound>,
    /// The attempts so far; `None` if it is `sending`.
    pub attempts: Option<u32>,
    /// When a replica first took it; `None` if it is `sending`.
    pub first_seen: Option<Millis>,
}

/// The place of a job among those that wait for a slot in its replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The lane, such as `endpoint=x&tenant=acme`; `None` without `lanes.by`.
    pub lane: Option<String>,
    /// The number of jobs of its lane, or of its plan where there are no lanes.
    pub waiting: u64,
    /// The number of these that go before it.
    pub ahead: u64,
    /// The number of jobs of all lanes that go before it, besides those that have a slot.
    pub before: u64,
    /// When the downstream has its next slot for these, as far as the replica knows.
    pub next: Millis,
    /// When the limits and pauses of its lane let it go, if none is added.
    pub own: Millis,
}

/// What a job waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Whether it is of the job's lane. Otherwise it binds the whole downstream.
    pub of_lane: bool,
    /// The reason, such as `limit`.
    pub reason: String,
    /// The name of the limit, where a limit binds.
    pub limit: Option<String>,
    /// The same in words, for people.
    pub text: String,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients, and replicas of other versions, depend on names, order, nulls and absent fields.
    #[test]
    fn a_job_is_the_same_text() {
        for text in [
            concat!(
                r#"{"replica":"r","id":"a","place":"waiting","at":3,"#,
                r#""turn":{"lane":"tenant=a","waiting":2,"ahead":1,"before":7,"next":1,"own":2},"#,
                r#""binding":{"of_lane":true,"reason":"limit","limit":"lane.l","text":"t"},"attempts":0,"first_seen":5}"#,
            ),
            r#"{"replica":"r","id":"a","place":"sending","at":null,"attempts":null,"first_seen":null}"#,
        ] {
            let job: Job = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&job).unwrap(), text);
        }
    }
}
