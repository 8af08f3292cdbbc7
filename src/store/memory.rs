//! State in this process: the reference implementation that every other store must agree with.

mod downstream;
mod fleet;
mod handle;
mod lasting;
mod reserving;
mod tombstones;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{
    Answer, Asker, Cancel, Change, Changes, Check, Checked, GRACE, LONGEST_TURN_LEASE, Lease, NextTurn,
    ParkedGroup, ParkedGroups, RecordState, Reserve, Reserved, STEP, Scope, Served, ServedReply,
    SharedHorizon, Stamp, Status, Store, StoreError, TICK, TombstoneCall, TombstoneReply, check_downstream,
    tombstones::too_many,
};
use crate::limit::{Charge, Limit, LimitSet, State};
use crate::lock::lock;
use crate::store::changes::Watchers;
use crate::store::fleet::{HistoryEntry, check_summary};
use crate::store::journal::Journal;
use crate::store::turns::Queue;
use crate::time::{Clock, Micros, SystemClock};
use downstream::{Charged, Downstream, Writing};
use fleet::Fleet;
pub use handle::MemoryHandle;
pub(super) use lasting::Resumed;

/// Keeps state in memory: exact, and lost with the process.
///
/// States that equal absence are forgotten, so memory is bounded by the keys in use.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    downstreams: Mutex<HashMap<String, Arc<Mutex<Downstream>>>>,
    watchers: Watchers,
    fleet: Mutex<Fleet>,
    /// The clock has stepped back if it is behind the highest instant seen by more than this.
    step: Duration,
    /// Where changes are written, in a store in a file.
    journal: Option<Arc<Journal>>,
}

/// An answer, and the batch of a journal that must be written before the answer is given; 0 for none.
pub(super) struct Decided<T> {
    pub(super) answer: T,
    pub(super) batch: u64,
    /// What the call has charged.
    pub(super) charged: Unanswered,
}

/// The charges of a call that has not been answered yet: they are undone if this is dropped before the answer.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    downstream: Option<Arc<Mutex<Downstream>>>,
    charged: Vec<Charged>,
}

impl Unanswered {
    /// The call is answered.
    pub(super) fn answered(mut self) {
        self.charged.clear();
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(downstream) = self.downstream.take().filter(|_| !self.charged.is_empty()) {
            lock(&downstream).undo(std::mem::take(&mut self.charged));
        }
    }
}

impl<T> Decided<T> {
    /// An answer of a call without charges.
    pub(super) fn uncharged(answer: T, batch: u64) -> Self {
        Self { answer, batch, charged: Unanswered::default() }
    }
}

impl MemoryStore {
    /// A store on this process's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// A store on the given clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            downstreams: Mutex::default(),
            watchers: Watchers::default(),
            fleet: Mutex::default(),
            step: STEP,
            journal: None,
        }
    }

    /// A store on a clock whose instants count as they are: no correction is made for a clock that steps back. It
    /// serves to replay recorded decisions.
    #[doc(hidden)]
    #[must_use]
    pub fn replaying(clock: Arc<dyn Clock>) -> Self {
        Self { step: Duration::MAX, ..Self::with_clock(clock) }
    }

    /// The record of `name`; it is not created if there is none.
    fn find(&self, name: &str) -> Option<Arc<Mutex<Downstream>>> {
        lock(&self.downstreams).get(name).map(Arc::clone)
    }

    /// The record of `name`, created at `now` if there is none.
    fn open(&self, name: &str, now: impl FnOnce() -> Micros) -> Arc<Mutex<Downstream>> {
        let mut downstreams = lock(&self.downstreams);
        if let Some(downstream) = downstreams.get(name) {
            return Arc::clone(downstream);
        }
        let writing = self.journal.as_ref().map(|journal| Writing::new(Arc::clone(journal), name.to_owned()));
        let downstream = Arc::new(Mutex::new(Downstream::new(now(), self.step, writing)));
        downstreams.insert(name.to_owned(), Arc::clone(&downstream));
        downstream
    }

    /// Works on a downstream, at the store's now.
    fn with<T>(&self, name: &str, work: impl FnOnce(&mut Downstream, Micros) -> T) -> Decided<T> {
        let shared = self.open(name, || self.clock.now());
        let mut downstream = lock(&shared);
        downstream.begin();
        // The clock is read under the lock, so that two threads cannot see their instants in the wrong order.
        let now = self.clock.now();
        downstream.follow(now);
        let answer = work(&mut downstream, now);
        let (batch, charged) = (downstream.batch(), downstream.charged());
        drop(downstream);
        Decided { answer, batch, charged: Unanswered { downstream: Some(shared), charged } }
    }

    /// Runs `decide` on the states of the limits under `scope`, and stores those that it reports as charged.
    fn decide<T>(
        &self,
        scope: Scope<'_>,
        limits: &LimitSet,
        decide: impl FnOnce(&mut Downstream, &mut [State], Micros) -> (T, Charge),
    ) -> Decided<T> {
        self.with(scope.downstream, |downstream, now| {
            let mut states: Vec<State> =
                limits.iter().map(|limit| downstream.read(limit, scope.key, now)).collect();
            let (answer, taken) = decide(downstream, &mut states, now);
            for (index, (limit, state)) in limits.iter().zip(states).enumerate() {
                if taken.has(index) {
                    downstream.write(limit, scope.key, state);
                }
            }
            answer
        })
    }

    pub(super) fn reserved(&self, call: Reserve<'_>) -> Result<Decided<Reserved>, StoreError> {
        call.check()?;
        if let Some(lanes) = &call.lanes {
            let lanes = (lanes.states()?, lanes);
            return Ok(self.decide(call.scope, call.limits, |downstream, states, now| {
                downstream.reserve_in_lanes(&call, lanes, states, now)
            }));
        }
        Ok(self.decide(call.scope, call.limits, |downstream, states, now| {
            let before = call.limits.marks(states);
            let call = downstream.yielding(call, states, now);
            let plan = call.plan(states, (now, now), &downstream.status);
            let taken = plan.taken();
            (downstream.reserved(&call, states, now, (before, plan)), taken)
        }))
    }

    pub(super) fn checked(&self, call: Check<'_>) -> Result<Decided<Checked>, StoreError> {
        call.check()?;
        Ok(self.decide(call.scope, call.limits, |downstream, states, now| {
            let (epoch, status) = (downstream.epoch, downstream.status);
            let outdated = !status.is_current(call.generation);
            let verdicts = call.police(states, now, &status);
            let taken = verdicts.iter().fold(0, |all, verdict| all | verdict.charge.0);
            (Checked { stamp: Stamp { now, epoch, status }, verdicts, outdated }, Charge(taken))
        }))
    }

    /// Gives a slot back, if nothing was taken after it.
    pub(super) fn cancelled(&self, call: Cancel<'_>) -> Result<Decided<bool>, StoreError> {
        call.check()?;
        let none = Decided::uncharged(false, 0);
        let Some(downstream) = self.find(call.scope.downstream) else { return Ok(none) };
        let mut downstream = lock(&downstream);
        downstream.begin();
        let now = self.clock.now();
        // After a step back the slot is an instant of the clock before the step.
        if downstream.has_stepped(now) || (now >= call.slot && !call.is_unused) {
            return Ok(none);
        }
        let Some(restored) = downstream.undone(&call) else { return Ok(none) };
        for (limit, key, state) in restored {
            downstream.give_back(limit, key, state);
        }
        Ok(Decided::uncharged(true, downstream.batch()))
    }

    /// Discards the states of the limits.
    pub(super) fn discarded(&self, scope: Scope<'_>, limits: &LimitSet) -> Result<Decided<()>, StoreError> {
        scope.check()?;
        let Some(downstream) = self.find(scope.downstream) else {
            return Ok(Decided::uncharged((), 0));
        };
        let mut downstream = lock(&downstream);
        downstream.begin();
        limits.iter().for_each(|limit| downstream.forget(limit, scope.key));
        downstream.forget_turns();
        Ok(Decided::uncharged((), downstream.batch()))
    }

    /// Replaces the state of a limit of the whole downstream.
    pub(crate) fn put_state(&self, downstream: &str, limit: &Limit, state: State) {
        let downstream = self.open(downstream, || self.clock.now());
        lock(&downstream).write(limit, "", state);
    }

    /// The record of the downstream and the states of the limits, as text. It serves tests.
    #[cfg(any(test, feature = "failpoints"))]
    #[doc(hidden)]
    #[must_use]
    pub fn dump(&self, scope: Scope<'_>, limits: &LimitSet) -> Vec<String> {
        match self.find(scope.downstream) {
            Some(downstream) => lock(&downstream).dump(scope.key, limits),
            None => super::tests::unused(limits),
        }
    }

    #[cfg(test)]
    fn key_count(&self, name: &str) -> usize {
        self.find(name).map_or(0, |downstream| lock(&downstream).keys())
    }

    /// Returns the record of a downstream, after the change if one is given.
    pub(super) fn record(
        &self,
        downstream: &str,
        change: Option<Change<'_>>,
    ) -> Result<Decided<RecordState>, StoreError> {
        check_downstream(downstream)?;
        change.map_or(Ok(()), |change| change.check())?;
        let decided = self.with(downstream, |downstream, now| {
            let is_changed = change.is_some_and(|change| downstream.update(change, now));
            (downstream.record(now), is_changed)
        });
        let (state, is_changed) = decided.answer;
        if is_changed {
            self.watchers.notify(downstream);
        }
        Ok(Decided::uncharged(state, decided.batch))
    }

    /// Changes or reads the tombstones of a downstream.
    pub(super) fn call_tombstones(
        &self,
        downstream: &str,
        call: TombstoneCall<'_>,
    ) -> Result<Decided<TombstoneReply>, StoreError> {
        check_downstream(downstream)?;
        call.check()?;
        let decided = self.with(downstream, |downstream, now| downstream.call_tombstones(call, now));
        let reply = decided.answer.ok_or_else(|| too_many(downstream))?;
        if reply.changed > 0 {
            self.watchers.notify(downstream);
        }
        Ok(Decided::uncharged(reply, decided.batch))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl super::sealed::Sealed for MemoryStore {}

impl Store for MemoryStore {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> Answer<'a, Reserved> {
        Box::pin(async move { Ok(self.reserved(call)?.answer) })
    }

    fn check<'a>(&'a self, call: Check<'a>) -> Answer<'a, Checked> {
        Box::pin(async move { Ok(self.checked(call)?.answer) })
    }

    fn try_check(&self, call: Check<'_>) -> Option<Result<Checked, StoreError>> {
        Some(self.checked(call).map(|decided| decided.answer))
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> Answer<'a, bool> {
        Box::pin(async move { Ok(self.cancelled(call)?.answer) })
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> Answer<'a, ()> {
        Box::pin(async move { self.discarded(scope, limits).map(drop) })
    }

    fn read_record<'a>(&'a self, downstream: &'a str) -> Answer<'a, RecordState> {
        Box::pin(async move { Ok(self.record(downstream, None)?.answer) })
    }

    fn update_record<'a>(&'a self, downstream: &'a str, change: Change<'a>) -> Answer<'a, RecordState> {
        Box::pin(async move { Ok(self.record(downstream, Some(change))?.answer) })
    }

    fn tombstones<'a>(&'a self, downstream: &'a str, call: TombstoneCall<'a>) -> Answer<'a, TombstoneReply> {
        Box::pin(async move { Ok(self.call_tombstones(downstream, call)?.answer) })
    }

    fn leave_summary<'a>(&'a self, replica: &'a str, summary: &'a str, ttl: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            check_summary(replica, summary, ttl)?;
            lock(&self.fleet).leave(replica, summary, ttl, self.clock.now());
            Ok(())
        })
    }

    fn summaries(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async move { Ok(lock(&self.fleet).summaries(self.clock.now())) })
    }

    fn served<'a>(&'a self, call: Served<'a>) -> Answer<'a, ServedReply> {
        Box::pin(async move { self.serve(call) })
    }

    fn note_parked<'a>(&'a self, downstream: &'a str, jobs: i64) -> Answer<'a, i64> {
        Box::pin(async move { self.parked(downstream, jobs) })
    }

    fn parked_groups<'a>(
        &'a self,
        downstream: &'a str,
        call: ParkedGroups<'a>,
    ) -> Answer<'a, Vec<ParkedGroup>> {
        Box::pin(async move {
            check_downstream(downstream)?;
            call.check()?;
            Ok(lock(&self.fleet).parked_groups(downstream, call))
        })
    }

    fn history<'a>(&'a self, downstream: &'a str, text: Option<&'a str>) -> Answer<'a, Vec<HistoryEntry>> {
        Box::pin(async move { Ok(self.noted(downstream, text)?.answer) })
    }

    fn changes(&self, downstream: &str) -> Changes {
        self.watchers.subscribe(downstream)
    }

    fn ping(&self) -> Answer<'_, Micros> {
        Box::pin(async move { Ok(self.clock.now()) })
    }
}

#[cfg(test)]
mod tests;
