//! The replicas of the daemon.

use serde::{Deserialize, Serialize};

use super::Millis;

/// The replicas that report themselves, and those that have ceased to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    /// All replicas.
    pub replicas: Vec<Replica>,
    /// The replicas that have not been heard from for some time, and that did not end in order: they hang, were killed, or
    /// do not reach the store. While the store does not answer the replica that reports this, they are all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<Silent>,
}

/// A replica of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// The id.
    pub id: String,
    /// The machine.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The version of paced.
    pub version: String,
    /// When it started.
    pub started_at: Millis,
    /// When it was seen last.
    pub seen_at: Millis,
    /// Whether it is the one that answers.
    pub is_me: bool,
    /// Whether its connections to RabbitMQ are up.
    pub amqp: bool,
    /// Whether the store answers it.
    pub store: bool,
}

/// A replica that has not been heard from for some time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silent {
    /// The id.
    pub id: String,
    /// The machine.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// When it reported its state last.
    pub seen_at: Millis,
}
