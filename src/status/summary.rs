//! The report of one replica to the others. It is a text in the store, and may be of another version of paced.

use std::collections::BTreeMap;

use paced::api::Millis;
use paced::api::find::{Job, Parked};
use paced::api::state::{Counts, Failing, Failure, Lane, Quantiles};
use paced::dispatch::MAX_LANES;
use paced::store::MAX_SUMMARY_BYTES;
use serde::{Deserialize, Serialize};

/// The version of the form. A summary of another one is left out.
const VERSION: u32 = 1;

/// The longest text with failures, in bytes; less where groups take more than the rest of what a store keeps.
const LONGEST: usize = 512 * 1024;

/// The room for lanes in a summary, in bytes, and what a lane takes besides its name. Each replica reads it every few seconds.
const ROOM_FOR_LANES: usize = 64 * 1024;
const LANE_BYTES: usize = 100;

/// From this number of downstreams on, those at rest are reported in groups: otherwise ten thousand would exceed the longest summary
/// that a store keeps. A replica of an earlier version does not see them.
const MANY: usize = 2_000;

/// The most downstreams of such groups that are read.
const MOST_GROUPED: usize = 50_000;

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

/// What the text of a summary has besides its fields, if there are [`MANY`] downstreams.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Groups {
    #[serde(rename = "i", default)]
    resting: Vec<Group>,
    /// The failures of these downstreams, where there is room for them.
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    failures: BTreeMap<String, Vec<Failure>>,
}

/// Downstreams that have no jobs, and the same limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Group {
    /// The hash of the limits in the file of the replica.
    #[serde(rename = "h", default, skip_serializing_if = "is_default")]
    file: u64,
    /// Since when the first of them is idle.
    #[serde(rename = "s")]
    since: Millis,
    #[serde(rename = "n")]
    names: Vec<String>,
    /// For each of them, how many seconds later it became idle.
    #[serde(rename = "a")]
    after: Vec<Millis>,
    /// For each of them, how many jobs were released.
    #[serde(rename = "r")]
    released: Vec<u64>,
    /// For each of them, how many jobs were delivered; none if these are the released ones.
    #[serde(rename = "d", default, skip_serializing_if = "Vec::is_empty")]
    delivered: Vec<u64>,
    /// For each of them, how many attempts failed; none if no attempt did.
    #[serde(rename = "x", default, skip_serializing_if = "Vec::is_empty")]
    failed: Vec<u64>,
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
        if self.downstreams.len() < MANY {
            return self.text_of_all(LONGEST);
        }
        let (others, mut groups) = self.grouped();
        let text = |groups: &Groups| serde_json::to_string(groups).unwrap_or_default();
        let failures = std::mem::take(&mut groups.failures);
        let mut of_groups = text(&groups);
        let others = others.text_of_all(LONGEST.min(MAX_SUMMARY_BYTES.saturating_sub(of_groups.len())));
        if !failures.is_empty() {
            groups.failures = failures;
            let whole = text(&groups);
            if others.len() + whole.len() <= MAX_SUMMARY_BYTES {
                of_groups = whole;
            }
        }
        // Both are objects with fields, and become one.
        let others = others.strip_suffix('}').unwrap_or_default();
        format!("{others},{}", of_groups.strip_prefix('{').unwrap_or_default())
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

    /// The same without the downstreams at rest, and these in groups.
    fn grouped(&self) -> (Self, Groups) {
        let mut groups: BTreeMap<u64, Vec<(&String, &Own)>> = BTreeMap::new();
        let mut downstreams = BTreeMap::new();
        for (name, own) in &self.downstreams {
            if own.can_be_grouped() {
                groups.entry(own.file).or_default().push((name, own));
            } else {
                downstreams.insert(name.clone(), own.clone());
            }
        }
        let failed = groups.values().flatten().filter(|(_, own)| !own.failures.is_empty());
        let size = |failure: &Failure| failure.detail.len() + failure.response.as_deref().map_or(0, str::len);
        let bytes = failed.clone().flat_map(|(_, own)| &own.failures).map(size).sum::<usize>();
        // Copies of thousands would be dropped below.
        let failed = failed.filter(|_| bytes <= LONGEST);
        let failures = failed.map(|(name, own)| ((*name).clone(), own.failures.clone())).collect();
        let resting = groups.into_iter().map(|(file, all)| Group::new(file, &all)).collect();
        let (replica, asked) = (self.replica.clone(), self.asked.clone());
        (Self { replica, asked, downstreams, ..*self }, Groups { resting, failures })
    }

    /// Adds the downstreams of the groups to the others.
    fn ungroup(&mut self, mut groups: Groups) {
        for Group { file, since, names, after, released, delivered, failed } in groups.resting {
            for (index, (name, (after, released))) in
                names.into_iter().zip(after.into_iter().zip(released)).enumerate()
            {
                let since = since.saturating_add(after.saturating_mul(1000));
                let binding = Bound { reason: IDLE.to_owned(), since, ..Bound::default() };
                let delivered = delivered.get(index).copied().unwrap_or(released);
                let failed = failed.get(index).copied().unwrap_or_default();
                let releases = OwnReleases { released, delivered, failed, ..OwnReleases::default() };
                let failures = groups.failures.remove(&name).unwrap_or_default();
                let own = Own { binding, releases, failures, file, ..Own::default() };
                self.downstreams.entry(name).or_insert(own);
            }
        }
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
        if text.contains(r#""i":["#) {
            let groups = serde_json::from_str::<Groups>(text).ok()?;
            if groups.resting.iter().map(|resting| resting.names.len()).sum::<usize>() > MOST_GROUPED {
                return None;
            }
            summary.ungroup(groups);
        }
        Some(summary)
    }
}

impl Group {
    /// The group of these downstreams, at least one, whose files have the limits with this hash.
    fn new(file: u64, all: &[(&String, &Own)]) -> Self {
        let since = all.iter().map(|(_, own)| own.binding.since).min().unwrap_or_default();
        let each =
            |number: fn(&OwnReleases) -> u64| all.iter().map(|(_, own)| number(&own.releases)).collect();
        let has_lost = all.iter().any(|(_, own)| own.releases.delivered != own.releases.released);
        let has_failed = all.iter().any(|(_, own)| own.releases.failed > 0);
        Self {
            file,
            since,
            names: all.iter().map(|(name, _)| (*name).clone()).collect(),
            after: all.iter().map(|(_, own)| (own.binding.since - since) / 1000).collect(),
            released: each(|releases| releases.released),
            delivered: if has_lost { each(|releases| releases.delivered) } else { Vec::new() },
            failed: if has_failed { each(|releases| releases.failed) } else { Vec::new() },
        }
    }
}

impl Own {
    /// Whether it has no jobs, and had none lately.
    pub(super) fn is_at_rest(&self) -> bool {
        let OwnReleases { released, delivered, failed, .. } = self.releases;
        let past = OwnReleases { released, delivered, failed, ..OwnReleases::default() };
        self.binding.reason == IDLE
            && self.counts == Counts::default()
            && self.releases == past
            && self.failing.is_none()
    }

    /// Whether a group has all that is reported of it.
    fn can_be_grouped(&self) -> bool {
        self.is_at_rest() && self.lanes.is_empty() && self.store_error.is_none()
    }

    /// The number of jobs that it holds and that are not being sent.
    pub(super) const fn held_up(&self) -> u64 {
        let Counts { waiting, delayed, retrying, held, .. } = self.counts;
        waiting + delayed + retrying + held
    }
}

#[cfg(test)]
mod tests;
