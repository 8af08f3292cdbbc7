//! The report of one replica to the others. It is a text in the store, and may be of another version of paced.

use std::collections::BTreeMap;

use paced::api::Millis;
use paced::api::find::{Job, Parked};
use paced::api::state::{Counts, Failing, Failure, Lane, Quantiles};
use paced::dispatch::MAX_LANES;
use serde::{Deserialize, Serialize};

/// The version of the form. A summary of another one is left out.
const VERSION: u32 = 1;

/// The longest text with failures, in bytes.
const LONGEST: usize = 512 * 1024;

/// The room for lanes in a summary, in bytes, and what a lane takes besides its name. Each replica reads it every few seconds.
const ROOM_FOR_LANES: usize = 64 * 1024;
const LANE_BYTES: usize = 100;

/// The longest id of a replica and the longest name of its machine, in bytes.
const MAX_ID: usize = 64;
const MAX_HOST: usize = 255;

/// The name and origin of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) started_at: Millis,
    /// The newest version of terms that it reads. A replica of an earlier version does not say it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) terms: u64,
}

/// The report of one replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    v: u32,
    pub(super) replica: Identity,
    pub(super) at: Millis,
    /// Whether its connections to the broker are up, and whether the store answers.
    pub(super) amqp: bool,
    pub(super) store: bool,
    /// Whether it will say goodbye when it ends in order; replicas of earlier versions only ceased to report.
    #[serde(rename = "g", default, skip_serializing_if = "is_default")]
    pub(super) says_goodbye: bool,
    /// Whether it has ended in order, and says goodbye.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) has_ended: bool,
    /// What it asks the others, and what it answers them.
    #[serde(rename = "j", default, skip_serializing_if = "is_default")]
    pub(super) asked: Asked,
    pub(super) downstreams: BTreeMap<String, Own>,
}

/// What a replica asks the others, and what it answers them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Asked {
    #[serde(rename = "q", default, skip_serializing_if = "Option::is_none")]
    pub(super) question: Option<Question>,
    #[serde(rename = "a", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) answers: Vec<Answer>,
}

/// Where jobs are: those with this id, or the next one of this lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Question {
    /// The number of the question, which distinguishes it from earlier ones of its replica.
    pub(super) number: i64,
    pub(super) downstream: String,
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lane: Option<String>,
}

/// An answer to the question with this number of the replica `to`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(super) to: String,
    pub(super) number: i64,
    /// The jobs that the replica holds.
    pub(crate) jobs: Vec<Job>,
    /// The job that it parked last.
    pub(crate) parked: Option<Parked>,
}

/// What one replica has of a downstream. The names are short, since hundreds of these are written every few seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Own {
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub(super) counts: Counts,
    #[serde(flatten)]
    pub(super) binding: Bound,
    #[serde(flatten)]
    pub(super) releases: OwnReleases,
    #[serde(rename = "f", default, skip_serializing_if = "is_default")]
    pub(super) failing: Option<Failing>,
    #[serde(rename = "fs", default, skip_serializing_if = "is_default")]
    pub(super) failures: Vec<Failure>,
    /// The busiest lanes.
    #[serde(rename = "ls", default, skip_serializing_if = "is_default")]
    pub(super) lanes: Vec<Lane>,
    /// Why calls to the store fail.
    #[serde(rename = "e", default, skip_serializing_if = "is_default")]
    pub(super) store_error: Option<String>,
    /// The hash of the limits in its file.
    #[serde(rename = "h", default, skip_serializing_if = "is_default")]
    pub(super) file: u64,
}

/// The reason why no more jobs are released, the limit if one binds, and the time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bound {
    #[serde(rename = "b")]
    pub(super) reason: String,
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    pub(super) limit: Option<String>,
    #[serde(rename = "s")]
    pub(super) since: Millis,
    #[serde(rename = "u", default, skip_serializing_if = "is_default")]
    pub(super) until: Option<Millis>,
}

/// The releases of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct OwnReleases {
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(super) released: u64,
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(super) delivered: u64,
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub(super) failed: u64,
    #[serde(rename = "p", default, skip_serializing_if = "is_default")]
    pub(super) rate: f64,
    #[serde(rename = "n", default, skip_serializing_if = "is_default")]
    pub(super) next_slot: Option<Millis>,
    #[serde(rename = "o", default, skip_serializing_if = "is_default")]
    pub(super) oldest: Option<Millis>,
    #[serde(rename = "q", default, skip_serializing_if = "is_default")]
    pub(super) lateness: Option<Quantiles>,
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub(super) latency: Option<Quantiles>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Summary {
    pub(super) fn new(replica: Identity, at: Millis) -> Self {
        Self { v: VERSION, replica, at, says_goodbye: true, ..Self::default() }
    }

    /// The report of a replica at its end.
    pub(super) fn goodbye(replica: Identity, at: Millis) -> Self {
        Self { has_ended: true, ..Self::new(replica, at) }
    }

    /// The text for the store. It has as many of the busiest lanes of each downstream as there is room for.
    ///
    /// Where hundreds of downstreams fail or have lanes it may be too long for the store; then it goes without the answers of
    /// their APIs and without lanes, or without failures too.
    pub(super) fn text(&self) -> String {
        // Strings as keys and finite numbers always have a form in JSON.
        let text = |summary: &Self| serde_json::to_string(summary).unwrap_or_default();
        let most = self.lanes_with_room();
        let whole = if most < MAX_LANES { text(&self.with_lanes(most)) } else { text(self) };
        if whole.len() <= LONGEST {
            return whole;
        }
        // The names of lanes are foreign text too.
        let mut shorter = self.with_lanes(0);
        for own in shorter.downstreams.values_mut() {
            own.failures.iter_mut().for_each(|failure| failure.response = None);
        }
        let shorter_text = text(&shorter);
        if shorter_text.len() <= LONGEST {
            return shorter_text;
        }
        shorter.downstreams.values_mut().for_each(|own| own.failures.clear());
        text(&shorter)
    }

    /// How many lanes of each downstream there is room for.
    fn lanes_with_room(&self) -> usize {
        let size = |lane: &Lane| lane.name.len() + LANE_BYTES;
        let all = |most: usize| {
            let lanes = self.downstreams.values().flat_map(|own| own.lanes.iter().take(most));
            lanes.map(size).sum::<usize>()
        };
        (1..=MAX_LANES).rev().find(|most| all(*most) <= ROOM_FOR_LANES).unwrap_or(0)
    }

    /// The same with at most this many lanes of each downstream.
    fn with_lanes(&self, most: usize) -> Self {
        let mut cut = self.clone();
        cut.downstreams.values_mut().for_each(|own| own.lanes.truncate(most));
        cut
    }

    /// Reads the text of any replica; `None` where its form is not known.
    pub(super) fn read(text: &str) -> Option<Self> {
        let summary = serde_json::from_str::<Self>(text).ok()?;
        // Sums of the reports of others must stay numbers that have a form in JSON.
        let is_sound = summary
            .downstreams
            .values()
            .all(|own| own.releases.rate.is_finite() && own.releases.rate.abs() < 1e12);
        // These are written into the log.
        let is_named = summary.replica.id.len() <= MAX_ID && summary.replica.host.len() <= MAX_HOST;
        (summary.v == VERSION && is_sound && is_named).then_some(summary)
    }
}

impl Own {
    /// The number of jobs that it holds and that are not being sent.
    pub(super) const fn held_up(&self) -> u64 {
        let Counts { waiting, delayed, retrying, held, .. } = self.counts;
        waiting + delayed + retrying + held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_as_it_was_written_and_one_of_another_form_is_left_out() {
        let identity = Identity { id: "one".to_owned(), pid: 7, ..Identity::default() };
        let mut summary = Summary::new(identity, 1_000);
        let mut own = Own::default();
        own.binding.reason = "limit".to_owned();
        (own.releases.released, own.releases.rate) = (12, 0.5);
        summary.downstreams.insert("billing".to_owned(), own);
        let text = summary.text();
        assert_eq!(Summary::read(&text), Some(summary));
        assert!(Summary::read(&text.replace("\"v\":1", "\"v\":2")).is_none());
        let long = "x".repeat(65);
        assert!(Summary::read(&text.replace("\"id\":\"one\"", &format!("\"id\":\"{long}\""))).is_none());
        assert!(Summary::read(&text.replacen('{', "{\"new\":[1],", 1)).is_some(), "a later one may say more");
        for text in ["", "{}", "[]", "{\"v\":1}"] {
            assert!(Summary::read(text).is_none(), "{text}");
        }
    }

    /// Replicas of other versions of paced read it, and write such texts.
    #[test]
    fn a_summary_is_the_same_text() {
        const FULL: &str = concat!(
            r#"{"v":1,"replica":{"id":"a","host":"h","pid":1,"version":"0.1.0","started_at":2},"at":3,"#,
            r#""amqp":true,"store":false,"downstreams":{"billing":{"#,
            r#""c":{"waiting":1,"delayed":2,"retrying":3,"held":4,"sending":5,"settling":6},"b":"limit","l":"m","s":7,"#,
            r#""u":8,"r":9,"d":10,"p":0.5,"n":11,"o":12,"q":{"p50_us":13,"p99_us":14},"a":{"p50_us":20,"p99_us":21},"#,
            r#""f":{"since":15,"kind":"500","detail":"d","attempts":16,"kinds":[{"kind":"500","count":16}]},"#,
            r#""fs":[{"at":17,"kind":"500","detail":"d","count":18,"response":"r"}],"#,
            r#""ls":[{"name":"tenant=a","waiting":22,"oldest":23,"reason":"turn"}],"e":"away","h":19},"#,
            r#""idle":{"b":"","s":0}}}"#,
        );
        let summary = Summary::read(FULL).unwrap();
        assert_eq!(summary.downstreams["idle"], Own::default());
        assert_eq!(summary.text(), FULL);
        let newer = FULL.replace(r#""started_at":2}"#, r#""started_at":2,"terms":4}"#);
        let summary = Summary::read(&newer).unwrap();
        assert_eq!((summary.replica.terms, summary.text()), (4, newer));
    }

    #[test]
    fn a_goodbye_is_a_summary_of_nothing() {
        let goodbye = Summary::goodbye(Identity { id: "one".to_owned(), ..Identity::default() }, 5);
        let text = goodbye.text();
        assert!(
            text.ends_with(r#""amqp":false,"store":false,"g":true,"has_ended":true,"downstreams":{}}"#),
            "{text}"
        );
        assert_eq!(Summary::read(&text), Some(goodbye));
    }

    #[test]
    fn a_long_summary_goes_without_answers_and_lanes_and_a_longer_one_without_failures() {
        let failure = |response: &str| Failure {
            at: 1,
            kind: "500".to_owned(),
            detail: "d".repeat(120),
            count: 2,
            response: Some(response.to_owned()),
        };
        let mut summary = Summary::new(Identity::default(), 0);
        let mut add = |downstreams: std::ops::Range<u32>| {
            for number in downstreams {
                let lanes = vec![Lane { name: "tenant=acme".to_owned(), waiting: 1, ..Lane::default() }];
                let own = Own { failures: vec![failure(&"x".repeat(1024)); 3], lanes, ..Own::default() };
                summary.downstreams.insert(format!("downstream-{number}"), own);
            }
            let text = summary.text();
            assert!(text.len() <= LONGEST, "{}", text.len());
            let read = Summary::read(&text).unwrap().downstreams.remove("downstream-0").unwrap();
            let has_answers = read.failures.iter().any(|failure| failure.response.is_some());
            (read.failures.len(), has_answers, read.lanes.len())
        };
        assert_eq!(add(0..100), (3, true, 1));
        assert_eq!(add(100..500), (3, false, 0));
        assert_eq!(add(500..2_000), (0, false, 0));
    }

    #[test]
    fn the_busiest_lanes_of_each_downstream_are_reported_as_long_as_there_is_room() {
        let lane = |number: usize| Lane { name: format!("{number}{}", "x".repeat(399)), ..Lane::default() };
        let mut summary = Summary::new(Identity::default(), 0);
        let mut add = |downstreams: std::ops::Range<u32>| {
            for number in downstreams {
                let own = Own { lanes: (0..10).map(lane).collect(), ..Own::default() };
                summary.downstreams.insert(format!("downstream-{number}"), own);
            }
            let text = summary.text();
            let lanes = Summary::read(&text).unwrap().downstreams.remove("downstream-0").unwrap().lanes;
            (lanes.len(), lanes.first().is_none_or(|first| first.name.starts_with("0x")))
        };
        assert_eq!(add(0..13), (10, true));
        assert_eq!(add(13..100), (1, true));
        assert_eq!(add(100..200), (0, true));
        assert_eq!(summary.downstreams["downstream-0"].lanes.len(), 10, "all of its own are known here");
    }

    #[test]
    fn an_idle_downstream_takes_few_bytes() {
        let mut summary = Summary::new(Identity::default(), 0);
        let empty = summary.text().len();
        let binding = Bound { reason: "idle".to_owned(), since: 1_764_000_000_000, ..Bound::default() };
        let own = Own { binding, file: u64::MAX, ..Own::default() };
        for number in 0..100 {
            summary.downstreams.insert(format!("downstream-{number:02}"), own.clone());
        }
        assert!((summary.text().len() - empty) / 100 < 100, "{}", summary.text().len());
    }
}
