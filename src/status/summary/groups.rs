//! The downstreams of a report that have no jobs, in groups of those that are alike: otherwise ten thousand would exceed the longest
//! summary that a store keeps.

use std::collections::BTreeMap;

use paced::api::Millis;
use paced::api::state::Failure;
use paced::store::MAX_SUMMARY_BYTES;
use serde::{Deserialize, Serialize};

use super::{Bound, IDLE, LONGEST, Own, OwnReleases, Summary, is_default};

/// From this number of downstreams on there are groups. A replica of an earlier version does not see the downstreams in them.
pub(super) const MANY: usize = 2_000;

/// The most downstreams of groups that are read, and the longest reason, in bytes: each downstream of a group gets a copy, and
/// anybody who may write to the store may leave a summary.
pub(super) const MOST_GROUPED: usize = 50_000;
const LONGEST_REASON: usize = 32;

/// What the text of a summary has besides its fields, if there are [`MANY`] downstreams.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Groups {
    #[serde(rename = "i", default)]
    groups: Vec<Group>,
    /// The failures of these downstreams, where there is room for them.
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    failures: BTreeMap<String, Vec<Failure>>,
}

/// Downstreams without jobs, with the same reason and the same limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Group {
    #[serde(flatten)]
    kind: Kind,
    /// Since when the reason holds for the first of them.
    #[serde(rename = "s")]
    since: Millis,
    #[serde(rename = "n")]
    names: Vec<String>,
    /// For each of them, how many seconds later that began.
    #[serde(rename = "a")]
    after: Vec<i64>,
    /// For each of them, how many seconds after `since` that ends, if it is known; empty if none is known.
    #[serde(rename = "u", default, skip_serializing_if = "Vec::is_empty")]
    until: Vec<Option<i64>>,
    /// For each of them, how many jobs were released.
    #[serde(rename = "r")]
    released: Vec<u64>,
    /// For each of them, how many jobs were delivered; empty if these are the numbers in `released`.
    #[serde(rename = "d", default, skip_serializing_if = "Vec::is_empty")]
    delivered: Vec<u64>,
    /// For each of them, how many attempts failed; empty if none did.
    #[serde(rename = "x", default, skip_serializing_if = "Vec::is_empty")]
    failed: Vec<u64>,
}

/// What the downstreams of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Kind {
    /// The reason why no job is released.
    #[serde(rename = "b", default = "idle", skip_serializing_if = "is_idle")]
    reason: String,
    /// The hash of the limits in the file of the replica.
    #[serde(rename = "h", default, skip_serializing_if = "is_default")]
    file: u64,
}

impl Default for Kind {
    fn default() -> Self {
        Self { reason: idle(), file: 0 }
    }
}

fn idle() -> String {
    IDLE.to_owned()
}

fn is_idle(reason: &str) -> bool {
    reason == IDLE
}

impl Group {
    /// The group of these downstreams, at least one.
    fn new(kind: Kind, all: &[(&String, &Own)]) -> Self {
        let since = all.iter().map(|(_, own)| own.binding.since).min().unwrap_or_default();
        let each =
            |number: fn(&OwnReleases) -> u64| all.iter().map(|(_, own)| number(&own.releases)).collect();
        let until = |own: &Own| own.binding.until.map(|until| (until - since) / 1000);
        let has_end = all.iter().any(|(_, own)| own.binding.until.is_some());
        let has_lost = all.iter().any(|(_, own)| own.releases.delivered != own.releases.released);
        let has_failed = all.iter().any(|(_, own)| own.releases.failed > 0);
        Self {
            kind,
            since,
            names: all.iter().map(|(name, _)| (*name).clone()).collect(),
            after: all.iter().map(|(_, own)| (own.binding.since - since) / 1000).collect(),
            until: if has_end { all.iter().map(|(_, own)| until(own)).collect() } else { Vec::new() },
            released: each(|releases| releases.released),
            delivered: if has_lost { each(|releases| releases.delivered) } else { Vec::new() },
            failed: if has_failed { each(|releases| releases.failed) } else { Vec::new() },
        }
    }

    /// Its downstreams, without their failures.
    fn into_downstreams(self) -> impl Iterator<Item = (String, Own)> {
        let Self { kind: Kind { reason, file }, since, names, after, until, released, delivered, failed } =
            self;
        let at = move |seconds: i64| since.saturating_add(seconds.saturating_mul(1000));
        let each = names.into_iter().zip(after.into_iter().zip(released)).enumerate();
        each.map(move |(index, (name, (after, released)))| {
            let until = until.get(index).copied().flatten().map(at);
            let binding = Bound { reason: reason.clone(), since: at(after), until, ..Bound::default() };
            let delivered = delivered.get(index).copied().unwrap_or(released);
            let failed = failed.get(index).copied().unwrap_or_default();
            let releases = OwnReleases { released, delivered, failed, ..OwnReleases::default() };
            (name, Own { binding, releases, file, ..Own::default() })
        })
    }
}

impl Own {
    /// Whether a group can hold everything that is reported of this downstream.
    fn can_be_grouped(&self) -> bool {
        self.has_no_jobs()
            && self.binding.limit.is_none()
            && self.lanes.is_empty()
            && self.store_error.is_none()
    }
}

impl Summary {
    /// The text for the store, with groups.
    pub(super) fn text_in_groups(&self) -> String {
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

    /// The same without the downstreams that have no jobs, and these in groups.
    fn grouped(&self) -> (Self, Groups) {
        let mut groups: BTreeMap<Kind, Vec<(&String, &Own)>> = BTreeMap::new();
        let mut downstreams = BTreeMap::new();
        for (name, own) in &self.downstreams {
            if own.can_be_grouped() {
                let kind = Kind { reason: own.binding.reason.clone(), file: own.file };
                groups.entry(kind).or_default().push((name, own));
            } else {
                downstreams.insert(name.clone(), own.clone());
            }
        }
        let failed = groups.values().flatten().filter(|(_, own)| !own.failures.is_empty());
        let size = |failure: &Failure| failure.detail.len() + failure.response.as_deref().map_or(0, str::len);
        let bytes = failed.clone().flat_map(|(_, own)| &own.failures).map(size).sum::<usize>();
        // Copies of thousands would be dropped later.
        let failed = failed.filter(|_| bytes <= LONGEST);
        let failures = failed.map(|(name, own)| ((*name).clone(), own.failures.clone())).collect();
        let groups = groups.into_iter().map(|(kind, all)| Group::new(kind, &all)).collect();
        let (replica, asked) = (self.replica.clone(), self.asked.clone());
        (Self { replica, asked, downstreams, ..*self }, Groups { groups, failures })
    }

    /// Adds the downstreams of the groups in a text to the others; `None` where the form of the groups is not known.
    pub(super) fn read_groups(&mut self, text: &str) -> Option<()> {
        if !text.contains(r#""i":["#) {
            return Some(());
        }
        let Groups { groups, mut failures } = serde_json::from_str(text).ok()?;
        let is_long = |group: &Group| group.kind.reason.len() > LONGEST_REASON;
        let all = groups.iter().map(|group| group.names.len()).sum::<usize>();
        if all > MOST_GROUPED || groups.iter().any(is_long) {
            return None;
        }
        for (name, own) in groups.into_iter().flat_map(Group::into_downstreams) {
            let failures = failures.remove(&name).unwrap_or_default();
            self.downstreams.entry(name).or_insert(Own { failures, ..own });
        }
        Some(())
    }
}
