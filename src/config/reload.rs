//! The changes that take effect when the configuration is read again.
//!
//! A downstream applies the change of some keys at once ([`Change::Reload`]). For any other key of its own it restarts: it finishes
//! what it sends, and then has the new settings. So a change of a downstream, of its sink or of a plan never needs a restart
//! of the process; one of what all downstreams have in common does.

use std::collections::{BTreeMap, BTreeSet};

use super::key::Change;
use super::reader::Entry;
use super::settings::Lanes;
use super::{Loaded, Secret, Settings};

/// The result of reading the sources of the configuration in effect again.
#[derive(Clone, Debug)]
pub struct Reload {
    /// The configuration in effect from now on: the old one, with the new values that take effect without a restart.
    pub loaded: Loaded,
    /// The keys whose values changed, and apply at once.
    pub changed: Vec<String>,
    /// The downstreams that come, go and restart.
    pub downstreams: DownstreamChanges,
    /// The keys whose change needs a restart of the process: they keep their old values.
    pub restart: Vec<String>,
}

/// The downstreams that come, go and restart, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownstreamChanges {
    /// Those that only the new configuration has.
    pub added: BTreeSet<String>,
    /// Those that it does not have any more.
    pub removed: BTreeSet<String>,
    /// Those that restart, with the keys for which they do. A plan that comes or goes is one key.
    pub replaced: BTreeMap<String, BTreeSet<String>>,
}

impl DownstreamChanges {
    /// Whether this downstream begins, for the first time or again.
    pub fn begins(&self, name: &str) -> bool {
        self.added.contains(name) || self.replaced.contains_key(name)
    }

    /// The downstreams that end, for good or to restart.
    pub fn ended(&self) -> impl Iterator<Item = &str> {
        self.removed.iter().chain(self.replaced.keys()).map(String::as_str)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.replaced.is_empty()
    }
}

impl Reload {
    /// Has this downstream stay as it was in `before`, since it cannot be served as it is configured now. Returns false, and
    /// changes nothing, if other plans have it restart: the plans of all downstreams are the same.
    pub fn leave(&mut self, before: &Loaded, name: &str) -> bool {
        let keys = self.downstreams.replaced.get(name).into_iter().flatten();
        if keys.into_iter().any(|key| key.starts_with("plans.")) {
            return false;
        }
        self.downstreams.replaced.remove(name);
        self.downstreams.added.remove(name);
        let settings = &mut self.loaded.settings.downstreams;
        match before.settings.downstreams.get(name) {
            Some(downstream) => _ = settings.insert(name.to_owned(), downstream.clone()),
            None => _ = settings.remove(name),
        }
        let (table, below) = (format!("downstreams.{name}"), format!("downstreams.{name}."));
        let is_of_it = |entry: &&Entry| *entry.table == *table || entry.table.starts_with(&below);
        self.loaded.entries.retain(|entry| !is_of_it(&entry));
        self.loaded.entries.extend(before.entries.iter().filter(is_of_it).cloned());
        self.changed.retain(|key| !key.starts_with(&below));
        true
    }
}

/// What the change of one key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect<'p> {
    /// It applies at once.
    AtOnce,
    /// It is noticed where the value is used.
    Followed,
    /// The downstream comes.
    Added(&'p str),
    /// The downstream goes.
    Removed(&'p str),
    /// The downstream restarts.
    Replaced(&'p str),
    /// All downstreams restart, since a plan of this name comes or goes.
    Plan(&'p str),
    /// The process has to be restarted.
    Restart,
}

/// The names that two configurations have.
struct Names<'l> {
    old: &'l Settings,
    new: &'l Settings,
    old_plans: BTreeSet<&'l str>,
    new_plans: BTreeSet<&'l str>,
}

impl<'l> Names<'l> {
    fn new(old: &'l Loaded, new: &'l Loaded) -> Self {
        let plans = |loaded: &'l Loaded| {
            loaded.entries.iter().filter_map(|entry| entry.table.strip_prefix("plans.")).collect()
        };
        Self { old: &old.settings, new: &new.settings, old_plans: plans(old), new_plans: plans(new) }
    }

    /// What a change of the key does. A change of the contents of its file alone `is_followed`.
    fn effect<'p>(&self, path: &'p str, change: Change, is_followed: impl Fn() -> bool) -> Effect<'p> {
        let by_itself = |otherwise| match change {
            Change::Reload => Effect::AtOnce,
            Change::Followed if is_followed() => Effect::Followed,
            Change::Followed | Change::Restart => otherwise,
        };
        let mut parts = path.split('.');
        match (parts.next(), parts.next()) {
            (Some("downstreams"), Some(name)) => {
                let is_in = |settings: &Settings| settings.downstreams.contains_key(name);
                match (is_in(self.old), is_in(self.new)) {
                    (false, _) => Effect::Added(name),
                    (_, false) => Effect::Removed(name),
                    (true, true) => by_itself(Effect::Replaced(name)),
                }
            }
            (Some("plans"), Some(name)) if self.old_plans.contains(name) != self.new_plans.contains(name) => {
                Effect::Plan(name)
            }
            _ => by_itself(Effect::Restart),
        }
    }

    /// The downstreams that both have.
    fn common(&self) -> impl Iterator<Item = (&'l str, &'l Lanes, &'l Lanes)> {
        let (old, new) = (self.old, self.new);
        old.downstreams.iter().filter_map(move |(name, was)| {
            let is = new.downstreams.get(name)?;
            Some((name.as_str(), &was.lanes, &is.lanes))
        })
    }
}

impl Loaded {
    /// Determines what of `new` takes effect if `self` is in effect now, and how. It may take a while where there are thousands
    /// of downstreams.
    pub fn reload(&self, new: &Self) -> Reload {
        let names = Names::new(self, new);
        let (mut changed, mut restart) = (BTreeSet::new(), BTreeSet::new());
        let mut downstreams = DownstreamChanges::default();
        let DownstreamChanges { added, removed, replaced } = &mut downstreams;
        let mut replace = |name: &str, key: String| {
            replaced.entry(name.to_owned()).or_default().insert(key);
        };
        for (path, Difference { change, old, new }) in differing(&self.entries, &new.entries) {
            match names.effect(&path, change, || follows(&path, old, new)) {
                Effect::AtOnce => _ = changed.insert(path),
                Effect::Followed => {}
                Effect::Added(name) => _ = added.insert(name.to_owned()),
                Effect::Removed(name) => _ = removed.insert(name.to_owned()),
                Effect::Replaced(name) => replace(name, path.clone()),
                Effect::Plan(plan) => {
                    names.common().for_each(|(name, ..)| replace(name, format!("plans.{plan}")));
                }
                Effect::Restart => _ = restart.insert(path),
            }
        }
        for (name, ..) in names.common().filter(|(_, was, is)| !have_same_states(was, is)) {
            // Even if each key by itself applied at once: one limit would have two states.
            let lanes = format!("downstreams.{name}.lanes.");
            let (of_lanes, others): (BTreeSet<String>, _) =
                changed.into_iter().partition(|key| key.starts_with(&lanes));
            changed = others;
            of_lanes.into_iter().for_each(|key| replace(name, key));
        }
        let settings = merged(&self.settings, &new.settings);
        let entries = merged_entries(&self.entries, &new.entries, &changed);
        let (files, warnings, dynamic) = (new.files.clone(), new.warnings.clone(), new.dynamic.clone());
        let loaded = Self { settings, files, warnings, entries, dynamic };
        let (changed, restart) = (changed.into_iter().collect(), restart.into_iter().collect());
        Reload { loaded, changed, downstreams, restart }
    }
}

/// Whether a change of this key is one of the contents of its file, and is noticed where they are used. Of a URL the user and
/// the password are.
fn follows(path: &str, old: Option<&Entry>, new: Option<&Entry>) -> bool {
    let secret = |entry: Option<&'_ Entry>| entry.and_then(|entry| entry.secret.clone());
    let (Some(old), Some(new)) = (secret(old), secret(new)) else { return false };
    // The password of sentinels is in the query, which has settings of the connection else.
    let keeps_query = path != "store.url";
    let place = |url| place(url, keeps_query);
    let is_same_place = !path.ends_with(".url") || place(old.expose()) == place(new.expose());
    is_of_same_file(&old, &new) && is_same_place
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

fn by_path(entries: &[Entry]) -> BTreeMap<String, &Entry> {
    entries.iter().map(|entry| (entry.path(), entry)).collect()
}

/// A key that exists in only one of two configurations, or has different values.
struct Difference<'l> {
    /// When a change of it applies.
    change: Change,
    old: Option<&'l Entry>,
    new: Option<&'l Entry>,
}

/// The keys that differ, by path.
fn differing<'l>(old: &'l [Entry], new: &'l [Entry]) -> BTreeMap<String, Difference<'l>> {
    let (old, new) = (by_path(old), by_path(new));
    let mut all: BTreeMap<String, Difference<'l>> = BTreeMap::new();
    for (path, entry) in old.iter().chain(&new) {
        let (old, new) = (old.get(path).copied(), new.get(path).copied());
        let is_same = old.zip(new).is_some_and(|(old, new)| old.has_same_value(new));
        if !is_same {
            all.insert(path.clone(), Difference { change: entry.change, old, new });
        }
    }
    all
}

/// Whether jobs have the same lanes, and these the same states.
fn have_same_states(one: &Lanes, other: &Lanes) -> bool {
    let have_same_states = match (&one.rules, &other.rules) {
        (Some(one), Some(other)) => one.has_same_states(other),
        (one, other) => one.is_none() && other.is_none(),
    };
    have_same_states && one.parts == other.parts
}

/// The old settings with the new values that take effect: all of downstreams and plans, and some of the process.
fn merged(old: &Settings, new: &Settings) -> Settings {
    let mut settings = Settings { downstreams: new.downstreams.clone(), ..old.clone() };
    settings.store.on_unavailable = new.store.on_unavailable;
    settings.admin.token.clone_from(&new.admin.token);
    settings.admin.read_token.clone_from(&new.admin.read_token);
    settings.admin.tokens.clone_from(&new.admin.tokens);
    settings.admin.show_bodies = new.admin.show_bodies;
    settings
}

/// The old entries with the new ones of these keys, and of downstreams and plans, grouped by table as in `config show`.
fn merged_entries(old: &[Entry], new: &[Entry], changed: &BTreeSet<String>) -> Vec<Entry> {
    let is_of_downstreams =
        |entry: &&Entry| entry.table.starts_with("downstreams.") || entry.table.starts_with("plans.");
    let is_changed = |entry: &&Entry| changed.contains(&entry.path());
    let stays = |entry: &&Entry| !is_of_downstreams(entry) && !is_changed(entry);
    let mut merged: Vec<Entry> = old.iter().filter(stays).cloned().collect();
    for entry in new.iter().filter(|entry| is_changed(entry) && !is_of_downstreams(entry)) {
        let place = merged.iter().rposition(|other| other.table == entry.table);
        merged.insert(place.map_or(merged.len(), |place| place + 1), entry.clone());
    }
    merged.extend(new.iter().filter(is_of_downstreams).cloned());
    merged
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Change::{Followed, Reload, Restart};
    use super::*;
    use crate::config::load_text;

    fn loaded(text: &str) -> Loaded {
        load_text("paced.toml", text, Path::new("")).unwrap()
    }

    #[test]
    fn a_downstream_that_cannot_be_served_stays_as_it_was_until_it_can() {
        let downstream = |name: &str, host: &str, rate: u32| {
            format!("[downstreams.{name}]\nrate = '{rate}/s'\nhttp.base_url = 'http://{host}/'\n")
        };
        let plan = "[plans.pro]\nlimits = [{ rate = '1/s' }]\n";
        let old = loaded(&[downstream("a", "one", 1), downstream("b", "one", 1)].concat());
        let new = ["a", "b", "c", "d"].map(|name| downstream(name, "two", 2)).concat();
        let (new, planned) = (loaded(&new), loaded(&[&*new, plan].concat()));
        let mut reload = old.reload(&new);
        assert!(reload.leave(&old, "a") && reload.leave(&old, "c"));
        let names = |reload: &super::Reload| reload.downstreams.replaced.keys().cloned().collect::<String>();
        assert_eq!((names(&reload), &reload.downstreams.added), ("b".to_owned(), &["d".to_owned()].into()));
        assert_eq!(reload.changed, ["downstreams.b.rate"]);
        assert_eq!(reload.loaded.settings.downstreams["a"].http.base_url.expose(), "http://one/");
        assert!(!reload.loaded.settings.downstreams.contains_key("c"));
        // The next reload finds what is left.
        let next = reload.loaded.reload(&new);
        assert_eq!((names(&next), &next.downstreams.added), ("a".to_owned(), &["c".to_owned()].into()));
        assert_eq!(next.changed, ["downstreams.a.rate"]);
        assert!(next.loaded.reload(&new).downstreams.is_empty());
        assert!(!old.reload(&planned).leave(&old, "a"));
    }

    #[test]
    fn what_a_change_does_depends_on_the_key_and_on_who_has_it() {
        let plan = |name: &str| format!("[plans.{name}]\nlimits = [{{ rate = '1/s' }}]\n");
        let downstream =
            |name: &str| format!("[downstreams.{name}]\nrate = '1/s'\nhttp.base_url = 'http://localhost/'\n");
        let old = loaded(&[plan("both"), plan("old"), downstream("both"), downstream("old")].concat());
        let new = loaded(&[plan("both"), plan("new"), downstream("both"), downstream("new")].concat());
        let names = Names::new(&old, &new);
        let cases = [
            ("downstreams.both.rate", Reload, Effect::AtOnce),
            ("downstreams.both.on_limit", Restart, Effect::Replaced("both")),
            ("downstreams.both.http.base_url", Followed, Effect::Replaced("both")),
            ("downstreams.old.rate", Reload, Effect::Removed("old")),
            ("downstreams.new.queue.name", Restart, Effect::Added("new")),
            ("plans.both.limits", Reload, Effect::AtOnce),
            ("plans.old.limits", Reload, Effect::Plan("old")),
            ("plans.new.limits", Reload, Effect::Plan("new")),
            ("store.on_unavailable", Reload, Effect::AtOnce),
            ("store.url", Followed, Effect::Restart),
            ("amqp.prefix", Restart, Effect::Restart),
            ("admin.listen", Restart, Effect::Restart),
            ("precision", Restart, Effect::Restart),
            ("shutdown.drain_timeout", Restart, Effect::Restart),
        ];
        for (path, change, effect) in cases {
            assert_eq!(names.effect(path, change, || false), effect, "{path}");
        }
        for path in ["store.url", "downstreams.both.http.base_url"] {
            assert_eq!(names.effect(path, Followed, || true), Effect::Followed, "{path}");
        }
    }
}
