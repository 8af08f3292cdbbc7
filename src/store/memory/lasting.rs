//! A store in memory whose changes are written, and that starts with what was written before.

use std::sync::Arc;

use super::{Decided, MemoryStore};
use crate::lock::lock;
use crate::store::fleet::{HistoryEntry, check_history};
use crate::store::journal::{Entry, Journal};
use crate::store::{Served, ServedReply, StoreError, check_downstream};
use crate::time::{Clock, Micros};

/// The clock, compared with the clock of the run before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Resumed {
    /// What the clock of the run before showed at its last write. It may have shown up to [`STEP`](crate::store::STEP) more.
    pub(in crate::store) high: Micros,
    /// How far the clock has stepped back since then, in µs; forward where it is negative.
    pub(in crate::store) back: i64,
}

impl MemoryStore {
    /// A store on this clock, whose changes go to a journal.
    pub(in crate::store) fn lasting(clock: Arc<dyn Clock>, journal: Arc<Journal>) -> Self {
        Self { journal: Some(journal), ..Self::with_clock(clock) }
    }

    /// Restores what was written before. It must be called before the store has decided anything.
    pub(in crate::store) fn restore(&self, entries: Vec<Entry>, resumed: Resumed) {
        let of = |name: &str| self.open(name, || resumed.high);
        for entry in entries {
            match entry {
                Entry::State { downstream, limit, key, kept } => {
                    lock(&of(&downstream)).restore_state(&limit, &key, kept);
                }
                Entry::Record(record) => {
                    let downstream = of(&record.downstream);
                    lock(&downstream).restore(*record);
                }
                // Its end is an instant of the clock of the run before.
                Entry::Tombstone { tombstone, .. } if tombstone.until.0 - resumed.back <= resumed.high.0 => {}
                Entry::Tombstone { downstream, version, tombstone } => {
                    lock(&of(&downstream)).restore_tombstone(version, tombstone);
                }
                fleet => lock(&self.fleet).restore(fleet),
            }
        }
        for downstream in lock(&self.downstreams).values() {
            lock(downstream).resume(resumed.high, resumed.back);
        }
    }

    /// Passes all entries of the store to `take`, to be written with this batch. They come in parts, and calls may be
    /// decided between the parts. Without a batch the states come as they are, without their leases: no call may be
    /// decided afterwards.
    ///
    /// # Errors
    /// The first error of `take`.
    pub(in crate::store) fn each_part<E>(
        &self,
        batch: Option<u64>,
        mut take: impl FnMut(&[Entry]) -> Result<(), E>,
    ) -> Result<(), E> {
        let downstreams: Vec<_> = lock(&self.downstreams).values().map(Arc::clone).collect();
        let fleet = lock(&self.fleet).entries();
        take(&fleet)?;
        for downstream in downstreams {
            let whole = lock(&downstream).entries(batch);
            take(&whole)?;
            let mut end = usize::MAX;
            while end > 0 {
                let (part, start) = lock(&downstream).keyed_entries(end, batch);
                take(&part)?;
                end = start;
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(in crate::store) fn entries(&self, batch: Option<u64>) -> Vec<Entry> {
        let mut all = Vec::new();
        let Ok(()) = self.each_part(batch, |part| {
            all.extend_from_slice(part);
            Ok::<_, std::convert::Infallible>(())
        });
        all
    }

    /// Adds to the parked jobs of a downstream, and returns how many there are.
    pub(super) fn parked(&self, downstream: &str, jobs: i64) -> Result<i64, StoreError> {
        check_downstream(downstream)?;
        let mut fleet = lock(&self.fleet);
        let count = fleet.note_parked(downstream, jobs);
        if let Some(journal) = self.journal.as_ref().filter(|_| jobs != 0) {
            journal.submit_unhurried(Entry::Parked { downstream: downstream.to_owned(), jobs: count });
        }
        Ok(count)
    }

    /// Adds a text to the history of a downstream, if there is one, and returns the history.
    pub(in crate::store) fn noted(
        &self,
        downstream: &str,
        text: Option<&str>,
    ) -> Result<Decided<Vec<HistoryEntry>>, StoreError> {
        check_downstream(downstream)?;
        check_history(text)?;
        let mut fleet = lock(&self.fleet);
        let answer = fleet.history(downstream, text, self.clock.now());
        let mut batch = 0;
        if let (Some(journal), Some(_), Some(entry)) = (&self.journal, text, answer.last()) {
            batch =
                journal.submit(Entry::History { downstream: downstream.to_owned(), entry: entry.clone() });
        }
        Ok(Decided::uncharged(answer, batch))
    }

    /// Records which downstreams are served. That they still are is not written each time, but with everything else.
    pub(super) fn serve(&self, call: Served<'_>) -> Result<ServedReply, StoreError> {
        call.check()?;
        let mut fleet = lock(&self.fleet);
        let now = self.clock.now();
        let reply = fleet.served(call, now);
        if let Some(journal) = &self.journal {
            let new = call.names.iter().filter(|_| reply.new > 0).map(|name| (*name, Some(now)));
            let recalled = call.recalled.iter().map(|one| (one.name.as_str(), Some(one.served_at)));
            for (name, at) in call.forgotten.map(|name| (name, None)).into_iter().chain(recalled).chain(new) {
                let (prefix, name) = (call.prefix.to_owned(), name.to_owned());
                journal.submit_unhurried(Entry::Served { prefix, name, at });
            }
        }
        Ok(reply)
    }

    /// The store's clock.
    pub(in crate::store) const fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}
