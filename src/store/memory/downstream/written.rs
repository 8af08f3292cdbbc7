//! What a store in a file writes of a downstream: its record after each change, and its states ahead of the grants.

use std::sync::Arc;

use super::lease::Lease;
use super::record::Attached;
use super::{ClockHistory, Downstream, Row, StoredState};
use crate::limit::{LEASE, Limit, State};
use crate::store::journal::{Entry, Journal, KeptRecord, KeptState};
use crate::store::{GRACE, Status, Tombstone};
use crate::time::Micros;

/// The number of keys whose states are collected at once, while calls wait.
const PART: usize = 1024;

/// Writes the changes of a downstream.
#[derive(Debug)]
pub(in crate::store::memory) struct Writing {
    pub(super) journal: Arc<Journal>,
    pub(super) downstream: String,
    /// The batch that must be written before the present call is answered; 0 for none.
    pub(super) batch: u64,
    /// The charges of the present call.
    charged: Vec<Charged>,
    /// The number of the latest charge.
    revision: u64,
}

/// A state that a call has charged, with the data to undo that.
#[derive(Debug)]
pub(in crate::store::memory) struct Charged {
    limit: Limit,
    key: Box<str>,
    /// The state without its lease, which stays.
    before: Option<StoredState>,
    revision: u64,
}

impl Writing {
    pub(in crate::store::memory) const fn new(journal: Arc<Journal>, downstream: String) -> Self {
        Self { journal, downstream, batch: 0, charged: Vec::new(), revision: 0 }
    }

    /// Submits an entry that the present call waits for.
    pub(super) fn submit(&mut self, entry: Entry) {
        self.batch = self.journal.submit(entry);
    }

    /// Ensures that a state which a call has charged is covered by what is written when the call is answered. A lease
    /// that is half used is renewed, and no call waits for that.
    fn charge(&mut self, of: (&Limit, &str), state: &State, lease: &mut Lease) {
        let (limit, _) = of;
        let Some(batch) = lease.covers(limit, state) else {
            self.batch = self.renew(of, state, lease);
            return;
        };
        self.batch = self.batch.max(batch);
        let is_low = |held: &State| !limit.covers(held, &limit.leased(state, LEASE / 2));
        if lease.place().is_none() && lease.latest().is_some_and(is_low) {
            self.renew(of, state, lease);
        }
    }

    /// Submits a state of which units were given back, if the lease is more than another lease beyond it: a kill
    /// would lose these units. No call waits for it, as what is on disk covers all that was answered.
    fn give_back(&self, of: (&Limit, &str), state: &State, lease: &mut Lease) {
        if lease.latest().is_none_or(|latest| of.0.is_beyond_lease(latest, state)) {
            self.renew(of, state, lease);
        }
    }

    /// Submits a state as it is leased, and returns its batch. No call waits for it yet.
    fn renew(&self, (limit, key): (&Limit, &str), state: &State, lease: &mut Lease) -> u64 {
        let next = limit.leased(state, LEASE);
        debug_assert!(limit.covers(&next, state), "{limit:?}: {next:?} is less than {state:?}");
        let whole = limit.whole_at(&next);
        let kept = KeptState { state: next.clone(), shift: lease.shift, whole };
        let place = self.journal.submit_over(self.state_entry(limit.name(), key, Some(kept)), lease.place());
        lease.follow(next, place, whole);
        place.batch
    }

    pub(super) fn state_entry(&self, limit: &str, key: &str, kept: Option<KeptState>) -> Entry {
        let downstream = self.downstream.clone();
        Entry::State { downstream, limit: limit.to_owned(), key: key.to_owned(), kept }
    }
}

impl Downstream {
    /// Stores a state that a call has charged.
    pub(in crate::store::memory) fn write(&mut self, limit: &Limit, key: &str, state: State) {
        let (shift, whole) = (self.clock.shift, limit.whole_at(&state));
        let index = self.states.index_of(limit.name());
        let slot = self.states.row(key, self.clock).slot(index);
        let lease = self.writing.as_mut().map(|writing| {
            let mut before = slot.take();
            let known = before.as_mut().and_then(|stored| stored.lease.take());
            let mut lease = Lease::settled(known, shift, writing.journal.written());
            writing.charge((limit, key), &state, &mut lease);
            writing.revision += 1;
            let revision = writing.revision;
            lease.revision = revision;
            writing.charged.push(Charged { limit: limit.clone(), key: key.into(), before, revision });
            lease
        });
        *slot = Some(StoredState { state, shift, whole, lease });
    }

    /// Stores a state to which a call has given units back.
    pub(in crate::store::memory) fn give_back(&mut self, limit: &Limit, key: &str, state: State) {
        let (shift, whole) = (self.clock.shift, limit.whole_at(&state));
        let index = self.states.index_of(limit.name());
        let slot = self.states.row(key, self.clock).slot(index);
        let lease = self.writing.as_ref().map(|writing| {
            let known = slot.take().and_then(|stored| stored.lease);
            let mut lease = Lease::settled(known, shift, writing.journal.written());
            lease.revision = 0;
            writing.give_back((limit, key), &state, &mut lease);
            lease
        });
        *slot = Some(StoredState { state, shift, whole, lease });
    }

    /// Replaces a state by another one, regardless of what is written of it. It uses one entry, so that no other
    /// state is ever on disk in between.
    pub(in crate::store::memory) fn replace(&mut self, limit: &Limit, key: &str, state: State) {
        if let Some(stored) = self.states.get(limit, key) {
            stored.lease = None;
        }
        self.write(limit, key, state);
        if let Some(writing) = &mut self.writing {
            writing.charged.pop();
        }
    }

    /// Discards a state.
    pub(in crate::store::memory) fn forget(&mut self, limit: &Limit, key: &str) {
        let Some(held) = self.states.slot(limit, key).filter(|held| held.is_some()) else { return };
        *held = None;
        if let Some(writing) = &mut self.writing {
            writing.submit(writing.state_entry(limit.name(), key, None));
        }
    }

    /// The charges of the present call, if it must wait before it is answered.
    pub(in crate::store::memory) fn charged(&mut self) -> Vec<Charged> {
        let Some(writing) = self.writing.as_mut().filter(|writing| writing.batch > 0) else { return vec![] };
        std::mem::take(&mut writing.charged)
    }

    /// Undoes the charges of a call that will not be answered, where nothing was charged since. What is written
    /// follows, as after slots that are given back.
    pub(in crate::store::memory) fn undo(&mut self, charged: Vec<Charged>) {
        for Charged { limit, key, before, revision } in charged.into_iter().rev() {
            let Some(slot) = self.states.slot(&limit, &key) else { continue };
            let is_latest = |stored: &mut StoredState| {
                stored.lease.as_ref().is_some_and(|lease| lease.revision == revision)
            };
            let Some(StoredState { shift, lease, .. }) = slot.take_if(is_latest) else { continue };
            // A state of another shift equals absence, or the call would have corrected it.
            let before = before.filter(|before| before.shift == shift);
            let fresh = || StoredState { state: limit.fresh(), shift, whole: Micros(0), lease: None };
            let before = before.unwrap_or_else(fresh);
            let lease = self.writing.as_ref().map(|writing| {
                let mut lease = Lease::settled(lease, shift, writing.journal.written());
                lease.revision = 0;
                writing.give_back((&limit, &*key), &limit.adopt(before.state.clone()), &mut lease);
                lease
            });
            *slot = Some(StoredState { lease, ..before });
        }
    }

    /// Begins a call, which has nothing to wait for yet.
    #[inline]
    pub(in crate::store::memory) fn begin(&mut self) {
        if let Some(writing) = &mut self.writing {
            writing.batch = 0;
            writing.charged.clear();
        }
    }

    /// The batch that must be written before the present call is answered; 0 for none.
    pub(in crate::store::memory) fn batch(&self) -> u64 {
        self.writing.as_ref().map_or(0, |writing| writing.batch)
    }

    /// Submits the record, in a store in a file.
    pub(in crate::store::memory) fn write_record(&mut self) {
        if let Some(record) = self.kept_record()
            && let Some(writing) = &mut self.writing
        {
            writing.submit(record);
        }
    }

    /// Submits the tombstones that changed after this version, in a store in a file.
    pub(in crate::store::memory) fn write_tombstones(&mut self, after: u64) {
        let Some(writing) = &mut self.writing else { return };
        for (version, tombstone) in self.tombstones.since(after) {
            let downstream = writing.downstream.clone();
            writing.submit(Entry::Tombstone { downstream, version, tombstone });
        }
    }

    /// The states of the whole downstream, the tombstones and the record, as entries: the states as they are leased
    /// up to this batch, and without a batch as they are. States that equal absence are left out, and so is an empty
    /// record: otherwise the record of a name that is gone would be kept for ever.
    pub(in crate::store::memory) fn entries(&self, batch: Option<u64>) -> Vec<Entry> {
        let Some(writing) = &self.writing else { return Vec::new() };
        let mut all = Vec::new();
        self.add_row(("", &self.states.whole), batch, &mut all);
        all.extend(self.tombstones.since(0).map(|(version, tombstone)| {
            let downstream = writing.downstream.clone();
            Entry::Tombstone { downstream, version, tombstone }
        }));
        if !all.is_empty() || self.states.keyed.len() > 0 || !self.is_as_new() {
            all.extend(self.kept_record());
        }
        all
    }

    /// Whether the record equals that of a new downstream. States are written under its shift.
    fn is_as_new(&self) -> bool {
        self.clock.shift == 0 && self.status == Status::default() && self.attached == Attached::default()
    }

    /// The states of some keys whose indices are below `end`, as entries, and the least of these indices. So all keys
    /// are visited from the last to the first: a key that replaces a removed one meanwhile was visited already, or
    /// will be.
    pub(in crate::store::memory) fn keyed_entries(
        &self,
        end: usize,
        batch: Option<u64>,
    ) -> (Vec<Entry>, usize) {
        let end = end.min(self.states.keyed.len());
        let (start, mut all) = (end.saturating_sub(PART), Vec::new());
        self.states.keyed.range(start..end).for_each(|row| self.add_row(row, batch, &mut all));
        (all, start)
    }

    fn add_row(&self, (key, row): (&str, &Row), batch: Option<u64>, all: &mut Vec<Entry>) {
        let Some(writing) = &self.writing else { return };
        let ClockHistory { high, shift, .. } = self.clock;
        for (limit, stored) in self.states.names.iter().zip(row.iter()) {
            let Some(stored) = stored else { continue };
            let lease = stored.lease.as_ref().filter(|lease| lease.shift == stored.shift).zip(batch);
            let leased = lease.and_then(|(lease, batch)| Some((lease.kept_in(batch)?, lease.whole)));
            let (state, whole) = leased.unwrap_or((&stored.state, stored.whole));
            // A state may equal absence and still have a lease by which calls are answered, as after slots were given
            // back.
            if whole.plus(GRACE) <= Micros(high.0 + shift - stored.shift) {
                continue;
            }
            let kept = KeptState { state: state.clone(), shift: stored.shift, whole };
            all.push(writing.state_entry(limit, key, Some(kept)));
        }
    }

    fn kept_record(&self) -> Option<Entry> {
        let writing = self.writing.as_ref()?;
        let Attached { terms, note, cool_down } = &self.attached;
        Some(Entry::Record(Box::new(KeptRecord {
            downstream: writing.downstream.clone(),
            epoch: self.epoch,
            shift: self.clock.shift,
            status: self.status,
            terms: terms.clone(),
            note: note.clone(),
            cool_down: cool_down.clone(),
        })))
    }

    /// Restores the record as it was written.
    pub(in crate::store::memory) fn restore(&mut self, record: KeptRecord) {
        let KeptRecord { epoch, shift, status, terms, note, cool_down, .. } = record;
        (self.epoch, self.clock.shift, self.status) = (epoch, shift, status);
        self.attached = Attached { terms, note, cool_down };
    }

    /// Restores a state as it was written.
    pub(in crate::store::memory) fn restore_state(
        &mut self,
        limit: &str,
        key: &str,
        kept: Option<KeptState>,
    ) {
        let index = self.states.index_of(limit);
        let slot = self.states.row(key, self.clock).slot(index);
        *slot =
            kept.map(|KeptState { state, shift, whole }| StoredState { state, shift, whole, lease: None });
    }

    /// Restores a tombstone as it was written.
    pub(in crate::store::memory) fn restore_tombstone(&mut self, version: u64, tombstone: Tombstone) {
        self.tombstones.restore(version, tombstone);
    }

    /// Starts on a clock that has shown `high`, and has stepped back by `back` µs since then, or forward where that
    /// is negative.
    pub(in crate::store::memory) fn resume(&mut self, high: Micros, back: i64) {
        self.clock.high = high;
        if back != 0 {
            self.step_back(back);
            self.tombstones.step_back(back);
        }
    }
}
