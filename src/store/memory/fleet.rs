//! The messages between replicas. In this process the daemon and its commands exchange them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::store::fleet::{HISTORY_KEPT, List, MAX_HISTORY, MAX_PARKED, MAX_SUMMARIES};
use crate::store::journal::Entry;
use crate::store::{
    HistoryEntry, MAX_SERVED, MAX_SERVED_BATCH, ParkedGroup, ParkedGroups, Served, ServedReply, Unserved,
};
use crate::time::Micros;

/// The summaries of replicas, and their reports about downstreams.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    /// The end of each replica's summary, and the summary.
    summaries: BTreeMap<String, (Micros, String)>,
    /// The number of each downstream's parked jobs.
    parked: HashMap<String, i64>,
    /// The same by what they wait for, and until which hour.
    parked_groups: HashMap<String, Vec<ParkedGroup>>,
    /// The last changes of each downstream, the oldest first.
    history: HashMap<String, Vec<HistoryEntry>>,
    /// When each downstream was last served, by the prefix of the queues.
    served: HashMap<String, BTreeMap<String, Micros>>,
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

    /// Records which downstreams are served, and returns those that nobody serves. `lua/served.lua` has the same
    /// rules.
    pub(super) fn served(&mut self, call: Served<'_>, now: Micros) -> ServedReply {
        let known = self.served.entry(call.prefix.to_owned()).or_default();
        if let Some(name) = call.forgotten {
            known.remove(name);
        }
        let is_new = |name: &&&str| known.insert((**name).to_owned(), now).is_none();
        let new = call.names.iter().filter(is_new).count();
        for Unserved { name, served_at } in call.recalled {
            known.entry(name.clone()).or_insert(*served_at);
        }
        let unserved = |(name, at): (&String, &Micros)| Unserved { name: name.clone(), served_at: *at };
        let mut all: Vec<Unserved> = known.iter().map(unserved).collect();
        // Downstreams of one instant stay in the order of their names.
        all.sort_by_key(|unserved| unserved.served_at);
        let excess = all.len().saturating_sub(MAX_SERVED).min(MAX_SERVED_BATCH);
        for dropped in all.drain(..excess) {
            known.remove(&dropped.name);
        }
        all.retain(|unserved| unserved.served_at <= now.minus(call.unserved_for));
        all.truncate(MAX_SERVED_BATCH);
        ServedReply { new, unserved: all }
    }

    /// Adds a text to the history of a downstream, if there is one, and returns the history. `lua/history.lua` has the same
    /// rules.
    pub(super) fn history(&mut self, downstream: &str, text: Option<&str>, now: Micros) -> Vec<HistoryEntry> {
        let entries = self.history.entry(downstream.to_owned()).or_default();
        // The store in Redis keeps milliseconds.
        let now = Micros(now.0 / 1000 * 1000);
        entries.retain(|entry| entry.at > now.minus(HISTORY_KEPT));
        if let Some(text) = text {
            if entries.len() >= MAX_HISTORY {
                entries.remove(0);
            }
            entries.push(HistoryEntry { at: now, text: text.to_owned() });
        }
        entries.clone()
    }

    /// The entries to write: all except the summaries, whose replicas end with this process.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let parked = self.parked.iter().filter(|(_, jobs)| **jobs > 0);
        let parked = parked.map(|(name, jobs)| Entry::Parked { downstream: name.clone(), jobs: *jobs });
        let history = self.history.iter().flat_map(|(name, entries)| {
            entries.iter().map(move |entry| Entry::History { downstream: name.clone(), entry: entry.clone() })
        });
        let served = self.served.iter().flat_map(|(prefix, names)| {
            let entry = move |(name, at): (&String, &Micros)| Entry::Served {
                prefix: prefix.clone(),
                name: name.clone(),
                at: Some(*at),
            };
            names.iter().map(entry)
        });
        parked.chain(history).chain(served).collect()
    }

    /// Restores an entry as it was written.
    pub(super) fn restore(&mut self, entry: Entry) {
        match entry {
            Entry::Parked { downstream, jobs } => {
                self.parked.insert(downstream, jobs);
            }
            Entry::History { downstream, entry } => {
                let entries = self.history.entry(downstream).or_default();
                // An entry that was added while everything was written again is there twice.
                if entries.contains(&entry) {
                    return;
                }
                if entries.len() >= MAX_HISTORY {
                    entries.remove(0);
                }
                entries.push(entry);
            }
            Entry::Served { prefix, name, at } => {
                let known = self.served.entry(prefix).or_default();
                match at {
                    Some(at) => known.insert(name, at),
                    None => known.remove(&name),
                };
            }
            Entry::State { .. } | Entry::Record(_) | Entry::Tombstone { .. } => {}
        }
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

    /// Adds to the groups of parked jobs of a downstream, and returns the groups.
    pub(super) fn parked_groups(&mut self, downstream: &str, call: ParkedGroups<'_>) -> Vec<ParkedGroup> {
        let former = self.parked_groups.remove(downstream).unwrap_or_default();
        let groups = call.apply(&former);
        if !groups.is_empty() {
            self.parked_groups.insert(downstream.to_owned(), groups.clone());
        }
        groups
    }
}
