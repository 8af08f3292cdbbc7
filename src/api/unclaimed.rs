//! What lies in the broker and nobody takes.

use serde::{Deserialize, Serialize};

use super::Millis;

/// What lies in the broker and nobody takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unclaimed {
    /// The messages for no downstream.
    pub unroutable: Option<u32>,
    /// The downstreams that no replica serves any more. A replica of an earlier version names none.
    #[serde(default)]
    pub orphans: Vec<Orphan>,
}

/// A downstream that no replica serves any more, whose queues still take jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// Its name.
    pub name: String,
    /// When a replica served it last, where that is known.
    pub since: Option<Millis>,
}
