//! What the replicas and the lanes have of a downstream.

use serde::{Deserialize, Serialize};

use super::Millis;

/// What the replicas and the lanes have of a downstream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// The part of each replica.
    pub replicas: Vec<Share>,
    /// The replicas whose files have other limits than those in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strays: Vec<String>,
    /// The busiest lanes, where the downstream has lanes: those in which the most jobs wait for a slot, of the ten that each
    /// replica names. What a replica has of other lanes is not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<Lane>,
}

/// A lane in which jobs wait for a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// The values of its parts, such as `endpoint=x&tenant=acme`.
    pub name: String,
    /// The number of its jobs that wait for a slot in replicas.
    pub waiting: u64,
    /// When the oldest of them was first taken in.
    pub oldest: Option<Millis>,
    /// What its next job waits for: `limit` (of the lane), `throttled` (the API throttles this lane), `paused` (an operator
    /// paused it), or else `turn`.
    pub reason: String,
    /// The name of the limit, where one binds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// When that ends, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Millis>,
}

/// The part of a downstream that one replica has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The id of the replica.
    pub id: String,
    /// The jobs that wait for a slot.
    pub waiting: u64,
    /// The jobs that have a slot.
    pub held: u64,
    /// The jobs whose requests are in progress.
    pub sending: u64,
    /// The jobs released a second.
    pub rate: f64,
    /// The reason why it releases no more.
    pub reason: String,
}
