//! The report of one replica to the others. It is a text in the store, and may be of another version of paced.

use std::collections::BTreeMap;

use paced::api::Millis;
use paced::api::find::{Job, Parked};
use paced::api::state::{Counts, Failing, Failure, Lane, Quantiles};
use paced::dispatch::MAX_LANES;
use paced::store::MAX_SUMMARY_BYTES;
use serde::{Deserialize, Serialize};

mod groups;

/// The version of the form. A summary of another one is left out.
const VERSION: u32 = 1;

/// The longest text with failures, in bytes; less where groups take more than the rest of what a store keeps.
const LONGEST: usize = 512 * 1024;

/// The room for lanes in a summary, in bytes, and what a lane takes besides its name. Each replica reads it every few seconds.
const ROOM_FOR_LANES: usize = 64 * 1024;
const LANE_BYTES: usize = 100;

/// The longest id of a replica and the longest name of its machine, in bytes.
const MAX_ID: usize = 64;
const MAX_HOST: usize = 255;

/// The reason of a downstream without jobs.
const IDLE: &str = "idle";

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
        if self.downstreams.len() < groups::MANY { self.text_of_all(LONGEST) } else { self.text_in_groups() }
    }

    /// The text for the store, and how many downstreams were left out, since a store keeps no longer text: there is room for some
    /// four thousand that have jobs.
    pub(super) fn text_that_fits(&self) -> (String, usize) {
        let all = self.downstreams.len();
        let (mut text, mut kept) = (self.text(), all);
        while text.len() > MAX_SUMMARY_BYTES && kept > 0 {
            // In proportion, and some less, so that one or two more are enough.
            kept = (kept * (MAX_SUMMARY_BYTES / 1024 * 95 / 100) / (text.len() / 1024)).min(kept - 1);
            let downstreams = self.downstreams.iter().take(kept);
            let downstreams = downstreams.map(|(name, own)| (name.clone(), own.clone())).collect();
            let (replica, asked) = (self.replica.clone(), self.asked.clone());
            text = Self { replica, asked, downstreams, ..*self }.text();
        }
        (text, all - kept)
    }

    fn text_of_all(&self, longest: usize) -> String {
        // Strings as keys and finite numbers always have a form in JSON.
        let text = |summary: &Self| serde_json::to_string(summary).unwrap_or_default();
        let most = self.lanes_with_room();
        let whole = if most < MAX_LANES { text(&self.with_lanes(most)) } else { text(self) };
        if whole.len() <= longest {
            return whole;
        }
        // The names of lanes are foreign text too.
        let mut shorter = self.with_lanes(0);
        for own in shorter.downstreams.values_mut() {
            own.failures.iter_mut().for_each(|failure| failure.response = None);
        }
        let shorter_text = text(&shorter);
        if shorter_text.len() <= longest {
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
        let mut summary = serde_json::from_str::<Self>(text).ok()?;
        // Sums of the reports of others must stay numbers that have a form in JSON.
        let is_sound = summary
            .downstreams
            .values()
            .all(|own| own.releases.rate.is_finite() && own.releases.rate.abs() < 1e12);
        // These are written into the log.
        let is_named = summary.replica.id.len() <= MAX_ID && summary.replica.host.len() <= MAX_HOST;
        if summary.v != VERSION || !is_sound || !is_named {
            return None;
        }
        summary.read_groups(text)?;
        Some(summary)
    }
}

impl Own {
    /// Whether it has no jobs, and had none lately.
    pub(super) fn is_at_rest(&self) -> bool {
        self.binding.reason == IDLE && self.has_no_jobs()
    }

    fn has_no_jobs(&self) -> bool {
        let OwnReleases { released, delivered, failed, .. } = self.releases;
        let past = OwnReleases { released, delivered, failed, ..OwnReleases::default() };
        self.counts == Counts::default() && self.releases == past && self.failing.is_none()
    }

    /// The number of jobs that it holds and that are not being sent.
    pub(super) const fn held_up(&self) -> u64 {
        let Counts { waiting, delayed, retrying, held, .. } = self.counts;
        waiting + delayed + retrying + held
    }
}

#[cfg(test)]
mod tests;
