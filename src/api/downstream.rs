//! One downstream: its limits, the rates set over them, and its pauses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Millis;
use super::values::SetValue;

/// The answer of `GET /api/v1/downstreams`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downstreams {
    /// All downstreams, by name.
    pub downstreams: Vec<Downstream>,
}

/// A downstream: the answer of `GET /api/v1/downstreams/NAME`, and of each change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downstream {
    /// Its limits, and the rates set over them.
    #[serde(flatten)]
    pub rates: Rates,
    /// The revision of the file in force.
    pub revision: Option<u64>,
    /// Whether there is a pause of any kind.
    pub paused: bool,
    /// The pause of an operator.
    pub pause: Option<Pause>,
    /// The pause that the API asked for.
    pub penalty: Option<Penalty>,
    /// What operators set for values of the part by which lanes share: the weights, and then the pauses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<SetValue>,
    /// The reason why the terms in the store cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The names of the limits whose counts begin at 0, after a reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<Vec<String>>,
    /// The number of jobs, after their cancellation or its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<Cancelled>,
}

/// The terms in the store as they are: the answer of `GET .../terms`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTerms {
    /// The name of the downstream.
    pub name: String,
    /// The generation of the terms; 0 if the store has none.
    pub generation: u64,
    /// The version of their text; `None` if it is none.
    pub version: Option<u64>,
    /// The newest version that the replica reads.
    pub reads_version: u64,
    /// The reason why the replica cannot use them.
    pub error: Option<String>,
    /// The revision of the file in force, where it can be read.
    pub revision: Option<u64>,
    /// The revision of the file of the replica that answers.
    pub own_revision: Option<u64>,
    /// Whether that file has the limits in force.
    pub is_own: bool,
    /// The text of the terms, as the store has it.
    pub text: Option<String>,
}

/// The limits of a downstream, and the rates set over them: the answer of `GET .../rate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// The name of the downstream.
    pub name: String,
    /// The instant of the answer.
    pub now: Millis,
    /// The id of the replica that answers.
    pub replica: String,
    /// The generation of the terms in force; 0 if none are.
    pub generation: u64,
    /// The file in force.
    pub file: Option<File>,
    /// The limits in force.
    pub limits: Vec<Limit>,
    /// The limits in force that each plan adds.
    pub plans: BTreeMap<String, Vec<Limit>>,
    /// The rates that operators set.
    pub overrides: Vec<SetOverride>,
    /// The limits in the file of the replica that answers, where they differ from those in force.
    pub own_limits: Option<Vec<Limit>>,
}

/// The file in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// The replica that loaded it.
    #[serde(flatten)]
    pub source: Source,
    /// When it was loaded.
    pub since: Millis,
}

/// The replica that put something in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The id of the replica.
    pub replica: String,
    /// Its machine; empty where that is not known.
    pub host: String,
}

/// A limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The name.
    pub name: String,
    /// The algorithm.
    pub algorithm: String,
    /// The rate.
    pub rate: String,
    /// By how much its period is longer than the rate says, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_us: Option<u64>,
    /// The burst.
    pub burst: u64,
    /// When these numbers came into force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Millis>,
    /// The replica that put them in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Source>,
    /// The rate in the file, where an operator set another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_rate: Option<String>,
}

/// A rate that an operator set, and whether it applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetOverride {
    /// The rate.
    #[serde(flatten)]
    pub set: Override,
    /// Whether it fits no limit any more.
    pub idle: bool,
}

/// A rate that an operator set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The name of the limit.
    pub limit: String,
    /// The rate.
    pub rate: String,
    /// Its end; none if it lasts until it is unset.
    pub until: Option<Millis>,
    /// The reason.
    pub reason: Option<String>,
    /// The address that the request came from.
    pub by: Option<String>,
    /// When it was set.
    pub set_at: Millis,
}

/// An operator's pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Its end; none if it lasts until it is resumed.
    pub until: Option<Millis>,
    /// The reason.
    pub reason: Option<String>,
    /// The address that the request came from.
    pub by: Option<String>,
    /// When it began.
    pub at: Option<Millis>,
}

/// A pause that the API asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Penalty {
    /// Its end.
    pub until: Millis,
}

/// The number of jobs in a request that cancels them, or ends that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// The ids in the request.
    pub ids: usize,
    /// Those of them that the request changed.
    pub changed: usize,
}
