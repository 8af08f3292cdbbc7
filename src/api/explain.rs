//! What one job waits for.

use serde::{Deserialize, Serialize};

use super::Millis;

/// The answer of `GET .../jobs/ID` and `GET .../lanes/LANE`: what a job waits for that the replica holds which answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The downstream.
    pub name: String,
    /// The id of the job.
    pub id: String,
    /// The replica that answers, and holds the job.
    pub replica: String,
    /// What the job does: `waiting` (for a slot), `requested` (the store is being asked for a slot), `held` (until its slot),
    /// `delayed` (until its time), or `retrying` (until another attempt).
    pub state: String,
    /// The place of a job that waits for a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// What lets a job go last that waits for a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Bound>,
    /// When the job goes, about, if no other job comes; when it has its slot, or may have one at the earliest. `None` while that
    /// is not known.
    pub goes_at: Option<Millis>,
}

/// The place of a job among those that wait for a slot in its replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The lane, such as `endpoint=x&tenant=acme`; `None` without `lanes.by`.
    pub lane: Option<String>,
    /// The number of jobs of its lane, or of its plan where there are no lanes.
    pub waiting: u64,
    /// The number of these that go before it.
    pub ahead: u64,
    /// The number of jobs of all lanes that go before it.
    pub before: u64,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients depend on names, order, nulls and absent fields.
    #[test]
    fn an_explanation_is_the_same_text() {
        for text in [
            concat!(
                r#"{"name":"billing","id":"a","replica":"r","state":"waiting","#,
                r#""place":{"lane":"tenant=a","waiting":2,"ahead":1,"before":7},"#,
                r#""binding":{"of_lane":true,"reason":"limit","limit":"lane.l","text":"t"},"goes_at":3}"#,
            ),
            r#"{"name":"billing","id":"a","replica":"r","state":"requested","goes_at":null}"#,
        ] {
            let explanation: Explanation = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&explanation).unwrap(), text);
        }
    }
}
