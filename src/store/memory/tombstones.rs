//! The tombstones of cancelled jobs. `lua/tombstones.lua` has the same rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::store::{MAX_TOMBSTONE_BATCH, MAX_TOMBSTONES, Tombstone, TombstoneCall};
use crate::time::Micros;

/// The tombstones of one downstream.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    by_id: HashMap<Arc<str>, Entry>,
    by_version: BTreeMap<u64, Arc<str>>,
    by_end: BTreeSet<(Micros, Arc<str>)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    version: u64,
    until: Micros,
    is_undone: bool,
}

/// The result of a call: how many ids it changed, what it reads, and up to which version.
pub(super) struct Answer {
    pub(super) changed: usize,
    pub(super) page: Vec<Tombstone>,
    pub(super) up_to: u64,
}

impl Tombstones {
    /// Makes or reads changes at `now`; `None` if there would be too many. `version` is that of the latest change so
    /// far, and is updated.
    pub(super) fn call(&mut self, call: TombstoneCall<'_>, version: &mut u64, now: Micros) -> Option<Answer> {
        if let TombstoneCall::Read { after } = call {
            return Some(self.read(after, *version));
        }
        self.prune(now);
        let changes = self.changes(call, now);
        let is_new = |change: &&Tombstone| !self.by_id.contains_key(&change.id);
        if !changes.is_empty() && self.by_id.len() + changes.iter().filter(is_new).count() > MAX_TOMBSTONES {
            return None;
        }
        let changed = changes.len();
        for Tombstone { id, until, is_undone } in changes {
            *version = (*version + 1).max(u64::try_from(now.0).unwrap_or_default());
            self.put(id, Entry { version: *version, until, is_undone });
        }
        Some(Answer { changed, page: Vec::new(), up_to: *version })
    }

    /// The tombstones that the call changes, in their new form.
    fn changes(&self, call: TombstoneCall<'_>, now: Micros) -> Vec<Tombstone> {
        let known = |id: &Arc<str>| self.by_id.get(id).copied();
        let after = |until: Micros| Micros(until.0 + 1);
        match call {
            TombstoneCall::Cancel { ids, span } => {
                let end = now.plus(span).min(Micros(Micros::MAX.0 - 1));
                let change = |id: &Arc<str>| {
                    let until = match known(id) {
                        Some(entry) if entry.is_undone => end.max(after(entry.until)),
                        Some(entry) if entry.until >= end => return None,
                        _ => end,
                    };
                    Some(Tombstone { id: Arc::clone(id), until, is_undone: false })
                };
                ids.iter().filter_map(change).collect()
            }
            TombstoneCall::Undo { ids } => {
                let change = |id: &Arc<str>| {
                    let entry = known(id).filter(|entry| !entry.is_undone)?;
                    Some(Tombstone { id: Arc::clone(id), until: after(entry.until), is_undone: true })
                };
                ids.iter().filter_map(change).collect()
            }
            TombstoneCall::Recall { tombstones } => {
                let is_later = |recalled: &&Tombstone| {
                    let known = known(&recalled.id).map_or(Micros(0), |entry| entry.until);
                    recalled.until > known.max(now)
                };
                tombstones.iter().filter(is_later).cloned().collect()
            }
            TombstoneCall::Read { .. } => Vec::new(),
        }
    }

    fn read(&self, after: u64, version: u64) -> Answer {
        let (versions, page): (Vec<u64>, Vec<Tombstone>) =
            self.since(after).take(MAX_TOMBSTONE_BATCH).unzip();
        let last = versions.last().copied().filter(|_| page.len() == MAX_TOMBSTONE_BATCH);
        Answer { changed: 0, page, up_to: last.unwrap_or(version) }
    }

    /// The tombstones that changed after this version, each with its own.
    pub(super) fn since(&self, after: u64) -> impl Iterator<Item = (u64, Tombstone)> {
        let later = self.by_version.range(after.saturating_add(1)..);
        later.filter_map(|(version, id)| {
            let Entry { until, is_undone, .. } = *self.by_id.get(id)?;
            Some((*version, Tombstone { id: Arc::clone(id), until, is_undone }))
        })
    }

    /// The same on a clock that stepped back by `back` µs; forward where that is negative.
    pub(super) fn step_back(&mut self, back: i64) {
        for entry in self.by_id.values_mut() {
            entry.until = Micros(entry.until.0.saturating_sub(back).clamp(0, Micros::MAX.0 - 1));
        }
        self.by_end = self.by_id.iter().map(|(id, entry)| (entry.until, Arc::clone(id))).collect();
    }

    /// Restores a tombstone as it was.
    pub(super) fn restore(&mut self, version: u64, Tombstone { id, until, is_undone }: Tombstone) {
        self.put(id, Entry { version, until, is_undone });
    }

    fn put(&mut self, id: Arc<str>, entry: Entry) {
        if let Some(before) = self.by_id.insert(Arc::clone(&id), entry) {
            self.by_version.remove(&before.version);
            self.by_end.remove(&(before.until, Arc::clone(&id)));
        }
        self.by_version.insert(entry.version, Arc::clone(&id));
        self.by_end.insert((entry.until, id));
    }

    /// Removes the tombstones that have ended.
    fn prune(&mut self, now: Micros) {
        while let Some((until, _)) = self.by_end.first()
            && *until <= now
            && let Some((_, id)) = self.by_end.pop_first()
        {
            if let Some(entry) = self.by_id.remove(&id) {
                self.by_version.remove(&entry.version);
            }
        }
    }
}
