//! The state of all downstreams, over all replicas.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::values::SetValue;
use super::{Millis, Override, Pause, Penalty};
use crate::text;

pub use super::fleet::{Fleet, Replica, Silent};
pub use super::parked::ParkedBy;
pub use super::parts::{Lane, Parts, Share};
pub use super::unclaimed::{Orphan, Unclaimed};

/// The answer of `GET /api/v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The instant of the state.
    pub now: Millis,
    /// The replica that answers.
    pub replica: String,
    /// Its version.
    pub version: String,
    /// Whether changes are allowed: a token is configured.
    pub can_change: bool,
    /// Its connections to RabbitMQ.
    pub amqp: Connection,
    /// Its connection to the store.
    pub store: Connection,
    /// What lies in the broker and nobody takes.
    #[serde(flatten)]
    pub unclaimed: Unclaimed,
    /// The replicas.
    #[serde(flatten)]
    pub fleet: Fleet,
    /// All downstreams; in an event those that changed.
    pub downstreams: Vec<Downstream>,
}

impl State {
    /// The same without its downstreams, which may be hundreds.
    pub fn head(&self) -> Self {
        Self {
            now: self.now,
            replica: self.replica.clone(),
            version: self.version.clone(),
            can_change: self.can_change,
            amqp: self.amqp.clone(),
            store: self.store.clone(),
            unclaimed: self.unclaimed.clone(),
            fleet: self.fleet.clone(),
            downstreams: Vec::new(),
        }
    }
}

/// The state of this replica's connections to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Whether all connections are up.
    pub connected: bool,
    /// The purposes of connections that are down, such as `consuming`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// The queues of a broker that have not confirmed for some seconds what is published to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<String>,
    /// The reason why it is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The kind of a store: `redis`, `memory` or `file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A downstream, over all replicas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Downstream {
    /// The name.
    pub name: String,
    /// The limits in force, and the pauses.
    #[serde(flatten)]
    pub terms: Terms,
    /// The reason why no more jobs are released.
    pub binding: Binding,
    /// The jobs that replicas hold.
    #[serde(flatten)]
    pub counts: Counts,
    /// The jobs in the broker.
    #[serde(flatten)]
    pub queues: Queues,
    /// The pace, and the instants to come.
    #[serde(flatten)]
    pub releases: Releases,
    /// The failures of the API.
    #[serde(flatten)]
    pub health: Health,
    /// What the replicas and the lanes have of it.
    #[serde(flatten)]
    pub parts: Parts,
}

/// The limits in force of a downstream, and its pauses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// The pace: the jobs a second of the slowest limit that spaces them out; `None` where none does. Windows and quotas are
    /// no pace, and have [`Limit::remaining`].
    pub rate_limit: Option<f64>,
    /// The limits in force.
    pub limits: Vec<Limit>,
    /// The rates that operators set.
    pub overrides: Vec<Override>,
    /// The pauses and weights that operators set for values of the part by which lanes share, pauses first; at most a hundred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<SetValue>,
    /// The pause of an operator.
    pub pause: Option<Pause>,
    /// The pause that the API asked for.
    pub penalty: Option<Penalty>,
}

/// The jobs of a downstream in the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// The messages that are ready.
    pub queued: Option<u32>,
    /// The jobs that are parked, about: those that wait for a limit, as the broker counts them, are among them.
    pub parked: Option<i64>,
    /// Those of them that wait for a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_for_limits: Option<u32>,
    /// The same by the time after which they come back at the latest, the shortest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parked_for_limits_within: Vec<ParkedWithin>,
    /// The parked jobs by their reason, as far as that is known: a store that lost its state does not know it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parked_by: Vec<ParkedBy>,
    /// The dead letters.
    pub dead: Option<u32>,
}

/// Jobs that are parked for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedWithin {
    /// They come back after this many seconds at the latest, and ask for a slot.
    pub seconds: u64,
    /// Their number.
    pub jobs: u32,
}

/// The pace of a downstream, and the instants to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Releases {
    /// The jobs released a second, over the last ten seconds.
    pub rate: f64,
    /// The jobs released since the replicas started.
    pub released: u64,
    /// The jobs delivered since the replicas started.
    pub delivered: u64,
    /// The attempts that failed since the replicas started.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// The next slot.
    pub next_slot: Option<Millis>,
    /// When the oldest job that waits for a slot was first taken in.
    pub oldest: Option<Millis>,
    /// When the backlog is through, if nothing is added.
    pub through_at: Option<Millis>,
    /// The lateness of releases.
    pub lateness: Option<Quantiles>,
    /// How long the downstream takes for an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Quantiles>,
}

/// The failures of a downstream's API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Set while attempt after attempt fails.
    pub failing: Option<Failing>,
    /// The kinds of failures that were seen lately.
    pub failures: Vec<Failure>,
}

/// The jobs that replicas hold, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// They wait for a slot.
    pub waiting: u64,
    /// They may not go yet.
    pub delayed: u64,
    /// They wait for another attempt.
    pub retrying: u64,
    /// They have a slot.
    pub held: u64,
    /// Their requests are in progress.
    pub sending: u64,
    /// They are being settled.
    pub settling: u64,
}

/// A limit in force, and what is left of its window or quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The name.
    pub name: String,
    /// The algorithm.
    pub algorithm: String,
    /// The rate in force.
    pub rate: String,
    /// By how much its period is longer than the rate says, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_us: Option<u64>,
    /// The rate in the file, where another one is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_rate: Option<String>,
    /// The units that are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// The units of the whole window or quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// When it is whole again, if nothing more is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_at: Option<Millis>,
}

/// The reason why jobs are not released faster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The reason, such as `limit`.
    pub reason: String,
    /// The name of the limit, where a limit binds.
    pub limit: Option<String>,
    /// When it began.
    pub since: Millis,
    /// When it ends, where that is known.
    pub until: Option<Millis>,
    /// The same in words, for people.
    pub text: String,
}

/// Spans of the last minute, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The median.
    pub p50_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
}

/// A downstream that fails, attempt after attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// When it began.
    pub since: Millis,
    /// The kind of the last failure.
    pub kind: String,
    /// The text of the last failure.
    pub detail: String,
    /// The failed attempts.
    pub attempts: u64,
    /// These by their kind, the most frequent first. A replica of an earlier version names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<KindCount>,
}

/// How many attempts failed in one way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindCount {
    /// The kind, as in [`Failure::kind`], or `other`.
    pub kind: String,
    /// The number.
    pub count: u64,
}

/// A kind of failure that was seen lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// When it was seen last.
    pub at: Millis,
    /// The kind: a status. Without an answer it is the reason, the host and the port, such as
    /// `connect api.example.com:443`.
    pub kind: String,
    /// The text of the last one.
    pub detail: String,
    /// The number.
    pub count: u64,
    /// The beginning of the body of the last answer, where it is kept. All but line feeds that could steer a terminal is
    /// escaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}

impl Failing {
    /// The kinds with their counts as text, such as `429 ×411, timeout api.example.com:443 ×3`.
    #[must_use]
    pub fn kinds(&self) -> String {
        match self.kinds.as_slice() {
            [] => text::counts([(&*self.kind, self.attempts)]),
            kinds => text::counts(kinds.iter().map(|known| (&*known.kind, known.count))),
        }
    }
}

/// The answer of `GET /api/v1/history`: the jobs that the fleet released in each step of the last quarter of an hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The instant of the answer.
    pub now: Millis,
    /// The length of a step, in milliseconds.
    pub step_ms: u64,
    /// The steps of each downstream.
    pub downstreams: BTreeMap<String, Steps>,
}

/// The steps of one downstream, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// The end of the last step.
    pub until: Millis,
    /// The jobs released in each step.
    pub released: Vec<u64>,
    /// The attempts that failed in each step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<u64>,
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The state of the API as text: names, order, nulls, absent fields and numbers. Clients depend on it.
    const FULL: &str = concat!(
        r#"{"now":1764000000000,"replica":"a","version":"0.1.0","can_change":true,"#,
        r#""amqp":{"connected":false,"lost":["consuming"],"unconfirmed":["q"],"error":"x"},"store":{"connected":true,"kind":"redis"},"#,
        r#""unroutable":3,"orphans":[{"name":"old","since":4}],"#,
        r#""replicas":[{"id":"a","host":"h","pid":1,"version":"0.1.0","started_at":2,"seen_at":3,"#,
        r#""is_me":true,"amqp":true,"store":false}],"silent":[{"id":"c","host":"h","pid":2,"seen_at":3}],"downstreams":[{"name":"billing","rate_limit":50.0,"#,
        r#""limits":[{"name":"l","algorithm":"gcra","rate":"5/s","file_rate":"6/s","remaining":1,"of":2,"whole_at":3},"#,
        r#"{"name":"m","algorithm":"leaky-bucket","rate":"7/s"}],"#,
        r#""overrides":[{"limit":"l","rate":"5/s","until":null,"reason":"r","by":"127.0.0.1","set_at":4}],"#,
        r#""values":[{"value":"acme","weight":5,"until":null,"reason":null,"by":"ops","set_at":29}],"#,
        r#""pause":{"until":5,"reason":null,"by":"127.0.0.1","at":6},"penalty":{"until":7},"#,
        r#""binding":{"reason":"limit","limit":"l","since":8,"until":9,"text":"the limit l (5/s)"},"#,
        r#""waiting":1,"delayed":2,"retrying":3,"held":4,"sending":5,"settling":6,"queued":7,"parked":-8,"dead":9,"#,
        r#""rate":0.1,"released":10,"delivered":11,"next_slot":12,"oldest":13,"through_at":14,"#,
        r#""lateness":{"p50_us":15,"p99_us":16},"latency":{"p50_us":23,"p99_us":24},"failing":{"since":17,"kind":"500","detail":"d","attempts":18,"#,
        r#""kinds":[{"kind":"500","count":17},{"kind":"timeout api:443","count":1}]},"#,
        r#""failures":[{"at":19,"kind":"500","detail":"d","count":20,"response":"r"},"#,
        r#"{"at":21,"kind":"404","detail":"d","count":22}],"#,
        r#""replicas":[{"id":"a","waiting":1,"held":2,"sending":3,"rate":4.5,"reason":"limit"}],"strays":["b"],"#,
        r#""lanes":[{"name":"tenant=a","waiting":25,"oldest":26,"reason":"limit","limit":"lane.l","until":27},"#,
        r#"{"name":"tenant=","waiting":28,"oldest":null,"reason":"turn"}]}]}"#,
    );
    const EMPTY: &str = concat!(
        r#"{"name":"","rate_limit":null,"limits":[],"overrides":[],"pause":null,"penalty":null,"#,
        r#""binding":{"reason":"","limit":null,"since":0,"until":null,"text":""},"#,
        r#""waiting":0,"delayed":0,"retrying":0,"held":0,"sending":0,"settling":0,"queued":null,"parked":null,"#,
        r#""dead":null,"rate":0.0,"released":0,"delivered":0,"next_slot":null,"oldest":null,"through_at":null,"#,
        r#""lateness":null,"failing":null,"failures":[],"replicas":[]}"#,
    );

    #[test]
    fn the_state_is_the_same_text() {
        let state: State = serde_json::from_str(FULL).unwrap();
        assert_eq!(serde_json::to_string(&state).unwrap(), FULL);
        let head = r#"{"now":0,"replica":"","version":"","can_change":false,"amqp":{"connected":false},"#;
        let rest =
            r#""store":{"connected":false},"unroutable":null,"orphans":[],"replicas":[],"downstreams":[]}"#;
        assert_eq!(serde_json::to_string(&State::default().head()).unwrap(), format!("{head}{rest}"));
        assert_eq!(serde_json::to_string(&Downstream::default()).unwrap(), EMPTY);
        assert_eq!(serde_json::from_str::<Downstream>(EMPTY).unwrap(), Downstream::default());
        // `paced status -o json` has its keys in order.
        let printed = json!(Downstream::default()).to_string();
        assert!(printed.starts_with(r#"{"binding":{"limit":null,"reason":"","since":0,"text":"","until":null},"dead":null,"delayed":0,"#));
        assert_eq!(serde_json::from_str::<Downstream>(&printed).unwrap(), Downstream::default());
    }

    #[test]
    fn the_history_is_the_same_text() {
        let text = r#"{"now":1,"step_ms":5000,"downstreams":{"a":{"until":2,"released":[3,4]}}}"#;
        assert_eq!(serde_json::to_string(&serde_json::from_str::<History>(text).unwrap()).unwrap(), text);
    }
}
