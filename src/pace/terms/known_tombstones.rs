//! The tombstones of cancelled waiters that one replica knows. It has no I/O.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::store::{MAX_TOMBSTONE_BATCH, MAX_TOMBSTONES, Tombstone};
use crate::time::Micros;

/// The most tombstones that are remembered. Beyond what a store keeps, these are from before a loss of its state; the
/// first ones to end are forgotten.
const MOST: usize = 2 * MAX_TOMBSTONES;

/// The ids of the waiters that are cancelled at present, for the callers that release waiters. A lookup costs next to
/// nothing while there are none.
#[derive(Debug, Default)]
pub(crate) struct CancelledIds {
    is_any: AtomicBool,
    ids: RwLock<HashSet<Arc<str>>>,
}

impl CancelledIds {
    /// Whether the waiter with this id is cancelled.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.is_any.load(Ordering::Acquire)
            && self.ids.read().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    fn change(&self, change: impl FnOnce(&mut HashSet<Arc<str>>)) {
        // No change leaves the set inconsistent.
        let mut ids = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut ids);
        self.is_any.store(!ids.is_empty(), Ordering::Release);
    }
}

/// The tombstones that this replica knows, including those that were undone.
#[derive(Debug, Default)]
pub(super) struct KnownTombstones {
    by_id: HashMap<Arc<str>, KnownTombstone>,
    by_end: BTreeSet<(Micros, Arc<str>)>,
    cancelled: Arc<CancelledIds>,
    /// The number of records of the store that this replica has seen: each loss of its state begins another one.
    record: u64,
}

#[derive(Clone, Copy, Debug)]
struct KnownTombstone {
    until: Micros,
    is_undone: bool,
    /// The store's record that contains it, as far as this replica has seen.
    record: u64,
}

impl KnownTombstones {
    /// Returns the ids that are cancelled, which follow each change.
    pub(super) const fn cancelled(&self) -> &Arc<CancelledIds> {
        &self.cancelled
    }

    /// Returns the instant at which the first tombstone ends.
    pub(super) fn next_end(&self) -> Option<Micros> {
        self.by_end.first().map(|(until, _)| *until)
    }

    /// Records that the store has begun another record, whose tombstones are not known.
    pub(super) const fn begin_record(&mut self) {
        self.record += 1;
    }

    /// Accepts tombstones that the store returned at `now`. Returns how many waiters are newly cancelled.
    pub(super) fn learn(&mut self, page: Vec<Tombstone>, now: Micros) -> usize {
        let record = self.record;
        let (mut cancelled, mut revived) = (Vec::new(), Vec::new());
        for Tombstone { id, until, is_undone } in page {
            let known = self.by_id.get_mut(&id);
            let was_cancelled = known.as_ref().is_some_and(|known| !known.is_undone);
            match known {
                // The store has lost the latest change of this tombstone.
                Some(known) if known.until > until => continue,
                Some(known) if known.until == until => {
                    known.record = record;
                    continue;
                }
                _ if until <= now => continue,
                _ => {}
            }
            match (was_cancelled, is_undone) {
                (false, false) => cancelled.push(Arc::clone(&id)),
                (true, true) => revived.push(Arc::clone(&id)),
                _ => {}
            }
            self.insert(id, KnownTombstone { until, is_undone, record });
        }
        let count = cancelled.len();
        if count + revived.len() > 0 {
            self.cancelled.change(|ids| {
                ids.extend(cancelled);
                revived.iter().for_each(|id| {
                    ids.remove(id);
                });
            });
        }
        count
    }

    fn insert(&mut self, id: Arc<str>, known: KnownTombstone) {
        if let Some(before) = self.by_id.insert(Arc::clone(&id), known) {
            self.by_end.remove(&(before.until, Arc::clone(&id)));
        } else if self.by_id.len() > MOST {
            let first = self.by_end.pop_first();
            first.into_iter().for_each(|(_, first)| self.forget(&first));
        }
        self.by_end.insert((known.until, id));
    }

    /// Forgets the tombstones that have ended at `now`.
    pub(super) fn end(&mut self, now: Micros) {
        while self.next_end().is_some_and(|until| until <= now) {
            let first = self.by_end.pop_first();
            first.into_iter().for_each(|(_, first)| self.forget(&first));
        }
    }

    fn forget(&mut self, id: &str) {
        self.by_id.remove(id);
        self.cancelled.change(|ids| {
            ids.remove(id);
        });
    }

    /// Returns the ids of the tombstones that the store's record lacks, as far as this replica has seen.
    pub(super) fn missing(&self) -> Vec<Arc<str>> {
        self.by_id.keys().filter(|id| self.is_missing(id)).cloned().collect()
    }

    /// Whether there is a tombstone of this id that the store's record lacks.
    pub(super) fn is_missing(&self, id: &str) -> bool {
        self.by_id.get(id).is_some_and(|known| known.record != self.record)
    }

    /// Returns the last of these tombstones that the store's record lacks, as many as fit into a call.
    pub(super) fn last_missing(&self, ids: &[Arc<str>]) -> Vec<Tombstone> {
        let last = ids.iter().rev().take(MAX_TOMBSTONE_BATCH).filter(|id| self.is_missing(id));
        let tombstone = |id: &Arc<str>| {
            let KnownTombstone { until, is_undone, .. } = *self.by_id.get(id)?;
            Some(Tombstone { id: Arc::clone(id), until, is_undone })
        };
        last.filter_map(tombstone).collect()
    }

    /// Records that the store has these tombstones, or later changes of them.
    pub(super) fn confirm(&mut self, recalled: &[Tombstone]) {
        for Tombstone { id, .. } in recalled {
            if let Some(known) = self.by_id.get_mut(id) {
                known.record = self.record;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tombstone(id: &str, until: i64) -> Tombstone {
        Tombstone { id: Arc::from(id), until: Micros(until.abs()), is_undone: until < 0 }
    }

    #[test]
    fn the_latest_change_of_an_id_counts() {
        let mut known = KnownTombstones::default();
        let cancelled = Arc::clone(known.cancelled());
        assert!(!cancelled.contains("a"));
        assert_eq!(
            known.learn(vec![tombstone("a", 100), tombstone("b", 50), tombstone("c", 9)], Micros(10)),
            2
        );
        assert!(cancelled.contains("a") && cancelled.contains("b"));
        assert!(!cancelled.contains("c"), "it has ended");
        assert_eq!(known.learn(vec![tombstone("a", 200)], Micros(10)), 0, "it is cancelled already");
        assert_eq!(known.learn(vec![tombstone("a", -201)], Micros(10)), 0);
        assert!(!cancelled.contains("a"));
        assert_eq!(known.learn(vec![tombstone("a", 200)], Micros(10)), 0, "an earlier change");
        assert!(!cancelled.contains("a"));
        assert_eq!(known.learn(vec![tombstone("a", 300)], Micros(10)), 1);
        assert!(cancelled.contains("a"));
    }

    #[test]
    fn a_tombstone_ends_at_its_instant() {
        let mut known = KnownTombstones::default();
        known.learn(vec![tombstone("a", 100), tombstone("b", 50), tombstone("a", 120)], Micros(10));
        assert_eq!(known.next_end(), Some(Micros(50)));
        known.end(Micros(119));
        assert_eq!((known.next_end(), known.cancelled().contains("b")), (Some(Micros(120)), false));
        assert!(known.cancelled().contains("a"), "the later instant counts");
        known.end(Micros(120));
        assert_eq!((known.next_end(), known.cancelled().contains("a")), (None, false));
    }

    #[test]
    fn what_another_record_lacks_is_known() {
        let mut known = KnownTombstones::default();
        known.learn(vec![tombstone("a", 100), tombstone("b", 50), tombstone("c", -70)], Micros(10));
        assert_eq!(known.missing(), [] as [Arc<str>; 0]);
        known.begin_record();
        known.learn(vec![tombstone("a", 100), tombstone("b", 40)], Micros(10));
        let mut missing = known.missing();
        missing.sort_unstable();
        assert_eq!(missing, [Arc::from("b"), Arc::from("c")], "of `b` it has an earlier change");
        let recalled = known.last_missing(&missing);
        assert_eq!(recalled, [tombstone("c", -70), tombstone("b", 50)]);
        known.confirm(&recalled);
        assert!(known.missing().is_empty() && !known.is_missing("a"));
    }
}
