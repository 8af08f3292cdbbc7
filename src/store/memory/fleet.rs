//! What replicas tell each other: in this process they are the daemon and those who look at it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::store::fleet::{List, MAX_PARKED, MAX_SUMMARIES};
use crate::time::Micros;

/// The summaries of replicas, and the parked jobs of downstreams.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    /// The end of each replica's summary, and the summary.
    summaries: BTreeMap<String, (Micros, String)>,
    /// The number of each downstream's parked jobs.
    parked: HashMap<String, i64>,
}

impl Fleet {
    pub(super) fn leave(&mut self, replica: &str, summary: &str, ttl: Duration, now: Micros) {
        self.summaries.retain(|_, (end, _)| *end > now);
        if ttl.is_zero() {
            self.summaries.remove(replica);
        } else {
            self.summaries.insert(replica.to_owned(), (now.plus(ttl), summary.to_owned()));
        }
    }

    pub(super) fn summaries(&self, now: Micros) -> Vec<String> {
        let live = self.summaries.iter().filter(|(_, (end, _))| *end > now);
        let mut live: Vec<_> = live.map(|(replica, (end, summary))| (*end, replica, summary)).collect();
        live.sort_unstable_by(|one, other| other.cmp(one));
        live.truncate(MAX_SUMMARIES);
        live.sort_unstable_by_key(|(_, replica, _)| *replica);
        let mut list = List::default();
        let _ = live.into_iter().all(|(.., summary)| list.push(summary.clone()));
        list.into_inner()
    }

    /// Adds to the parked jobs of a downstream, and returns how many there are.
    pub(super) fn note_parked(&mut self, downstream: &str, jobs: i64) -> i64 {
        let count = self.parked.get(downstream).copied().unwrap_or(0);
        let count = count.saturating_add(jobs).clamp(0, MAX_PARKED);
        if jobs != 0 {
            self.parked.insert(downstream.to_owned(), count);
        }
        count
    }
}
