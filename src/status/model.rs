//! The state as JSON. Instants are epoch milliseconds; what is not known is left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An instant in epoch milliseconds.
pub(crate) type Millis = i64;

/// What one replica knows of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) now: Millis,
    /// The replica that answers.
    pub(crate) replica: String,
    pub(crate) version: String,
    /// Whether changes are allowed: a token is configured.
    pub(crate) can_change: bool,
    pub(crate) amqp: Connection,
    pub(crate) store: Connection,
    /// The messages for no downstream that lie in the broker.
    pub(crate) unroutable: Option<u32>,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) downstreams: Vec<Downstream>,
}

impl State {
    /// The same without its downstreams, which may be hundreds.
    pub(crate) fn head(&self) -> Self {
        Self {
            now: self.now,
            replica: self.replica.clone(),
            version: self.version.clone(),
            can_change: self.can_change,
            amqp: self.amqp.clone(),
            store: self.store.clone(),
            unroutable: self.unroutable,
            replicas: self.replicas.clone(),
            downstreams: Vec::new(),
        }
    }
}

/// The state of this replica's connections to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Connection {
    pub(crate) connected: bool,
    /// The purposes of connections that are down, such as `consuming`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The kind of a store: `redis` or `memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
}

/// A replica of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Replica {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) started_at: Millis,
    pub(crate) seen_at: Millis,
    /// Whether it is the one that answers.
    pub(crate) is_me: bool,
    pub(crate) amqp: bool,
    pub(crate) store: bool,
}

/// A downstream, over all replicas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Downstream {
    pub(crate) name: String,
    /// The jobs a second that the slowest limit allows in the long run.
    pub(crate) rate_limit: Option<f64>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) overrides: Vec<Override>,
    pub(crate) pause: Option<Pause>,
    pub(crate) penalty: Option<Penalty>,
    pub(crate) binding: Binding,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// The messages that are ready in the broker.
    pub(crate) queued: Option<u32>,
    /// The jobs that are parked in the broker.
    pub(crate) parked: Option<i64>,
    /// The dead letters.
    pub(crate) dead: Option<u32>,
    /// The jobs released a second, over the last ten seconds.
    pub(crate) rate: f64,
    /// The jobs released, and those delivered, since the replicas started.
    pub(crate) released: u64,
    pub(crate) delivered: u64,
    pub(crate) next_slot: Option<Millis>,
    /// When the oldest job that waits for a slot was first taken in.
    pub(crate) oldest: Option<Millis>,
    /// When the backlog is through, if nothing is added.
    pub(crate) through_at: Option<Millis>,
    pub(crate) lateness: Option<Lateness>,
    pub(crate) failing: Option<Failing>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) replicas: Vec<Share>,
    /// The replicas that go by limits of other files than those in force, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) strays: Vec<String>,
}

/// The jobs that replicas hold, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) waiting: u64,
    pub(crate) delayed: u64,
    pub(crate) retrying: u64,
    pub(crate) held: u64,
    pub(crate) sending: u64,
    pub(crate) settling: u64,
}

/// A limit in force, and what is left of a window or a quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) algorithm: String,
    pub(crate) rate: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file_rate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remaining: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) whole_at: Option<Millis>,
}

/// A rate that an operator set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Override {
    pub(crate) limit: String,
    pub(crate) rate: String,
    pub(crate) until: Option<Millis>,
    pub(crate) reason: Option<String>,
    pub(crate) by: Option<String>,
    pub(crate) set_at: Millis,
}

/// An operator's pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pause {
    /// Its end; none if it lasts until somebody resumes.
    pub(crate) until: Option<Millis>,
    pub(crate) reason: Option<String>,
    pub(crate) by: Option<String>,
    pub(crate) at: Option<Millis>,
}

/// A pause that the downstream asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Penalty {
    pub(crate) until: Millis,
}

/// What keeps jobs from being released faster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Binding {
    pub(crate) reason: String,
    pub(crate) limit: Option<String>,
    pub(crate) since: Millis,
    pub(crate) until: Option<Millis>,
    /// The same in words.
    pub(crate) text: String,
}

/// How late releases were in the last minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lateness {
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
}

/// A downstream that fails, attempt after attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failing {
    pub(crate) since: Millis,
    pub(crate) kind: String,
    pub(crate) detail: String,
    pub(crate) attempts: u64,
}

/// A kind of failure that was seen lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) at: Millis,
    pub(crate) kind: String,
    pub(crate) detail: String,
    pub(crate) count: u64,
}

/// What one replica has of a downstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) id: String,
    pub(crate) waiting: u64,
    pub(crate) held: u64,
    pub(crate) sending: u64,
    pub(crate) rate: f64,
    pub(crate) reason: String,
}

/// The jobs that the fleet released in each step of the last quarter of an hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) now: Millis,
    pub(crate) step_ms: u64,
    pub(crate) downstreams: BTreeMap<String, Steps>,
}

/// The steps of one downstream, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Steps {
    /// The end of the last step.
    pub(crate) until: Millis,
    pub(crate) released: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The state of the API as text: names, order, nulls, absent fields and numbers. Clients depend on it.
    const FULL: &str = concat!(
        r#"{"now":1764000000000,"replica":"a","version":"0.1.0","can_change":true,"#,
        r#""amqp":{"connected":false,"lost":["consuming"],"error":"x"},"store":{"connected":true,"kind":"redis"},"#,
        r#""unroutable":3,"replicas":[{"id":"a","host":"h","pid":1,"version":"0.1.0","started_at":2,"seen_at":3,"#,
        r#""is_me":true,"amqp":true,"store":false}],"downstreams":[{"name":"billing","rate_limit":50.0,"#,
        r#""limits":[{"name":"l","algorithm":"gcra","rate":"5/s","file_rate":"6/s","remaining":1,"of":2,"whole_at":3},"#,
        r#"{"name":"m","algorithm":"leaky-bucket","rate":"7/s"}],"#,
        r#""overrides":[{"limit":"l","rate":"5/s","until":null,"reason":"r","by":"127.0.0.1","set_at":4}],"#,
        r#""pause":{"until":5,"reason":null,"by":"127.0.0.1","at":6},"penalty":{"until":7},"#,
        r#""binding":{"reason":"limit","limit":"l","since":8,"until":9,"text":"the limit l (5/s)"},"#,
        r#""waiting":1,"delayed":2,"retrying":3,"held":4,"sending":5,"settling":6,"queued":7,"parked":-8,"dead":9,"#,
        r#""rate":0.1,"released":10,"delivered":11,"next_slot":12,"oldest":13,"through_at":14,"#,
        r#""lateness":{"p50_us":15,"p99_us":16},"failing":{"since":17,"kind":"500","detail":"d","attempts":18},"#,
        r#""failures":[{"at":19,"kind":"500","detail":"d","count":20}],"#,
        r#""replicas":[{"id":"a","waiting":1,"held":2,"sending":3,"rate":4.5,"reason":"limit"}],"strays":["b"]}]}"#,
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
        let rest = r#""store":{"connected":false},"unroutable":null,"replicas":[],"downstreams":[]}"#;
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
