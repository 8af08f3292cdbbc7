//! The changes that take effect when the configuration is read again.

use std::collections::{BTreeMap, BTreeSet};

use super::key::Change;
use super::reader::Entry;
use super::settings::Lanes;
use super::{Downstream, Loaded, Plan, Secret, Settings};
use crate::job::PlanRules;
use crate::limit::LimitSet;

/// The result of reading the sources of the configuration in effect again.
#[derive(Clone, Debug)]
pub struct Reload {
    /// The configuration in effect from now on: the old one, with the new values that take effect at once.
    pub loaded: Loaded,
    /// The keys whose values changed.
    pub changed: Vec<String>,
    /// The keys whose change needs a restart: they keep their old values. A downstream or a plan that is
    /// there in only one of them is one key.
    pub restart: Vec<String>,
}

impl Loaded {
    /// Determines what of `new` takes effect at once if `self` is in effect now.
    pub fn reload(&self, new: &Self) -> Reload {
        let (old, new_settings) = (&self.settings, &new.settings);
        let stuck = stuck(old, new_settings);
        let (mut changed, mut restart) = (BTreeSet::new(), BTreeSet::new());
        for (path, change) in differing(&self.entries, &new.entries) {
            match (lone(&path, old, new_settings), change) {
                (Some(whole), _) => restart.insert(whole),
                (None, Change::Followed) if self.follows(new, &path) => false,
                (None, Change::Reload) if !is_stuck(&stuck, &path) => changed.insert(path),
                (None, _) => restart.insert(path),
            };
        }
        let settings = merged(old, new_settings, &changed);
        let entries = merged_entries(&self.entries, &new.entries, &changed);
        let (files, warnings) = (new.files.clone(), new.warnings.clone());
        let loaded = Self { settings, files, warnings, entries };
        Reload { loaded, changed: changed.into_iter().collect(), restart: restart.into_iter().collect() }
    }

    /// Whether a change of this key is one of the contents of its file, and is noticed where they are used. Of a URL the
    /// user and the password are.
    fn follows(&self, new: &Self, path: &str) -> bool {
        let secret = |loaded: &Self| {
            let entry = loaded.entries.iter().find(|entry| entry.path() == path);
            entry.and_then(|entry| entry.secret.clone())
        };
        let (Some(old), Some(new)) = (secret(self), secret(new)) else { return false };
        // The password of sentinels is in the query, which has settings of the connection else.
        let keeps_query = path != "store.url";
        let place = |url| place(url, keeps_query);
        let is_same_place = !path.ends_with(".url") || place(old.expose()) == place(new.expose());
        is_of_same_file(&old, &new) && is_same_place
    }
}

/// Whether both have been read from one file of their own.
fn is_of_same_file(old: &Secret, new: &Secret) -> bool {
    old.file().is_some() && old.file() == new.file()
}

/// The scheme, the place and the query of a URL, without what may be a login.
fn place(url: &str, keeps_query: bool) -> (&str, &str, &str) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    (scheme, place, if keeps_query { query } else { "" })
}

/// The paths that exist in only one of the two, or have different values, and when a change of each applies.
fn differing(old: &[Entry], new: &[Entry]) -> BTreeMap<String, Change> {
    let by_path = |entries: &[Entry]| -> BTreeMap<String, Entry> {
        entries.iter().map(|entry| (entry.path(), entry.clone())).collect()
    };
    let (old, new) = (by_path(old), by_path(new));
    let same = |path: &String| match (old.get(path), new.get(path)) {
        (Some(old), Some(new)) => old.has_same_value(new),
        _ => false,
    };
    let differing = old.iter().chain(&new).filter(|(path, _)| !same(path));
    differing.map(|(path, entry)| (path.clone(), entry.change)).collect()
}

/// The downstream or the plan that a key belongs to, if it exists in only one of the two.
fn lone(path: &str, old: &Settings, new: &Settings) -> Option<String> {
    let mut parts = path.split('.');
    let (family, name) = (parts.next()?, parts.next()?);
    let there = |settings: &Settings| match family {
        "downstreams" => settings.downstreams.contains_key(name),
        // Each downstream has every plan, and there is at least one downstream.
        _ => has_plan(settings, name),
    };
    let named = matches!(family, "downstreams" | "plans");
    (named && there(old) != there(new)).then(|| format!("{family}.{name}"))
}

fn has_plan(settings: &Settings, name: &str) -> bool {
    settings.downstreams.values().any(|downstream| downstream.plans.iter().any(|plan| plan.name == name))
}

/// Whether a key, or the table that it is in, is one of these.
fn is_stuck(stuck: &BTreeSet<String>, path: &str) -> bool {
    let tables = path.match_indices('.').map(|(end, _)| &path[..end]);
    tables.chain([path]).any(|path| stuck.contains(path))
}

/// The keys that would take effect at once, but depend on a key that needs a restart.
fn stuck(old: &Settings, new: &Settings) -> BTreeSet<String> {
    let mut stuck = BTreeSet::new();
    for (name, was) in &old.downstreams {
        let Some(is) = new.downstreams.get(name) else { continue };
        let mut key = |key: &str| {
            stuck.insert(format!("downstreams.{name}.{key}"));
        };
        // Limits that delay jobs and limits that reject them differ; and the limits may be too many together with those
        // of a plan that stays until the restart.
        if was.on_limit != is.on_limit || plans(was, is).is_none() {
            ["rate", "limits", "revision"].into_iter().for_each(&mut key);
        }
        let default_plan = is.lanes.default_plan.as_deref();
        if default_plan.is_some_and(|plan| !has_plan(old, plan)) {
            key("lanes.default_plan");
        }
        if !have_same_states(&was.lanes, &is.lanes) {
            ["lanes.limits", "lanes.weights"].into_iter().for_each(&mut key);
            // This downstream keeps the old ones, even if other downstreams apply the new ones.
            stuck.extend(was.plans.iter().map(|plan| format!("plans.{}.limits", plan.name)));
        }
    }
    stuck
}

/// Whether jobs have the same lanes, and these the same states.
fn have_same_states(one: &Lanes, other: &Lanes) -> bool {
    let have_same_states = match (&one.rules, &other.rules) {
        (Some(one), Some(other)) => one.has_same_states(other),
        (one, other) => one.is_none() && other.is_none(),
    };
    have_same_states && one.parts == other.parts
}

/// The limits of jobs without a plan: the downstream's own, and those of lanes.
fn without_plan(downstream: &Downstream) -> &LimitSet {
    let of_lanes = downstream.plans.iter().find(|plan| plan.name == PlanRules::LANES);
    of_lanes.map_or(&downstream.limits, |plan| &plan.limits)
}

/// The old plans with the new limits; a plan that the new settings do not have keeps its own limits. It is `None` where they
/// cannot follow: where the limits would be too many, or lanes come, go or have other states, which needs a restart. The
/// limits of lanes would otherwise be shared by all jobs of a plan, or one limit would have two states.
fn plans(old: &Downstream, new: &Downstream) -> Option<Vec<Plan>> {
    if !have_same_states(&old.lanes, &new.lanes) {
        return None;
    }
    let plan = |was: &Plan| {
        let is = new.plans.iter().find(|plan| plan.name == was.name);
        let limits = match is {
            Some(is) => is.limits.clone(),
            None => {
                let own = was.limits.listed().skip(without_plan(old).given());
                LimitSet::new(without_plan(new).listed().chain(own).cloned().collect()).ok()?
            }
        };
        Some(Plan { name: was.name.clone(), limits })
    };
    old.plans.iter().map(plan).collect()
}

/// The old settings with the new values of these keys.
fn merged(old: &Settings, new: &Settings, changed: &BTreeSet<String>) -> Settings {
    let mut settings = old.clone();
    // Every key that is not compared here is unchanged, or needs a restart.
    settings.store.on_unavailable = new.store.on_unavailable;
    settings.admin.token.clone_from(&new.admin.token);
    settings.admin.read_token.clone_from(&new.admin.read_token);
    settings.admin.tokens.clone_from(&new.admin.tokens);
    for (name, downstream) in &mut settings.downstreams {
        let Some(new) = new.downstreams.get(name) else { continue };
        let is = |key: &str| changed.contains(&format!("downstreams.{name}.{key}"));
        // The limits may also have changed with those of a plan.
        if let Some(plans) = plans(downstream, new).filter(|_| downstream.on_limit == new.on_limit) {
            (downstream.limits, downstream.plans) = (new.limits.clone(), plans);
            downstream.revision = new.revision;
        }
        if is("lanes.default_plan") {
            downstream.lanes.default_plan.clone_from(&new.lanes.default_plan);
        }
        let has_same_lanes = have_same_states(&downstream.lanes, &new.lanes);
        if has_same_lanes && let (Some(old), Some(new)) = (&mut downstream.lanes.rules, &new.lanes.rules) {
            old.weights.clone_from(&new.weights);
        }
        if has_same_lanes {
            // Jobs of lanes have no costs by limit.
            downstream.costs.clone_from(&new.costs);
        }
        downstream.on_unavailable = new.on_unavailable;
        downstream.max_cost = new.max_cost;
        downstream.concurrency = new.concurrency;
        downstream.horizon = new.horizon;
        downstream.max_wait = new.max_wait;
        downstream.hold_max = new.hold_max;
        downstream.http.headers.clone_from(&new.http.headers);
        // Headers go to the host that was read with them.
        if is_of_same_file(&downstream.http.base_url, &new.http.base_url) {
            downstream.http.base_url.clone_from(&new.http.base_url);
        }
        if let (Some(old), Some(new)) = (&mut downstream.http.proxy, &new.http.proxy)
            && is_of_same_file(old, new)
        {
            old.clone_from(new);
        }
        downstream.retry = new.retry.clone();
    }
    settings
}

/// The old entries with the new ones of these keys, grouped by table as in `config show`.
fn merged_entries(old: &[Entry], new: &[Entry], changed: &BTreeSet<String>) -> Vec<Entry> {
    let is_changed = |entry: &&Entry| changed.contains(&entry.path());
    let mut merged: Vec<Entry> = old.iter().filter(|entry| !is_changed(entry)).cloned().collect();
    for entry in new.iter().filter(is_changed) {
        let place = merged.iter().rposition(|other| other.table == entry.table);
        merged.insert(place.map_or(merged.len(), |place| place + 1), entry.clone());
    }
    merged
}
