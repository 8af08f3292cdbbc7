//! State in this process: the reference implementation that every other store must agree with.

mod downstream;
mod fleet;
mod handle;
mod reserving;
mod tombstones;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{
    Answer, Asker, Cancel, Change, Changes, Check, Checked, GRACE, LONGEST_TURN_LEASE, Lease, NextTurn,
    RecordState, Reserve, Reserved, STEP, Scope, Served, ServedReply, SharedHorizon, Stamp, Status, Store,
    StoreError, TICK, TombstoneCall, TombstoneReply, check_downstream, tombstones::too_many,
};
use crate::limit::{Charge, Limit, LimitSet, State};
use crate::lock::lock;
use crate::store::changes::Watchers;
use crate::store::fleet::{HistoryEntry, check_history, check_summary};
use crate::store::turns::Queue;
use crate::time::{Clock, Micros, SystemClock};
use downstream::Downstream;
use fleet::Fleet;
pub use handle::MemoryHandle;

/// Keeps state in memory: exact, and lost with the process.
///
/// States that are whole again are forgotten, so memory is bounded by the keys in use.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    downstreams: Mutex<HashMap<String, Arc<Mutex<Downstream>>>>,
    watchers: Watchers,
    fleet: Mutex<Fleet>,
    /// The clock has stepped back if it is behind the highest instant seen by more than this.
    step: Duration,
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
        }
    }

    /// A store on a clock whose instants are taken as they are: no correction is made for a clock that steps back. It
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
        let downstream = Arc::new(Mutex::new(Downstream::new(now(), self.step)));
        downstreams.insert(name.to_owned(), Arc::clone(&downstream));
        downstream
    }

    /// Works on a downstream, at the store's now.
    fn with<T>(&self, name: &str, work: impl FnOnce(&mut Downstream, Micros) -> T) -> T {
        let downstream = self.open(name, || self.clock.now());
        let mut downstream = lock(&downstream);
        // The clock is read under the lock, so that two threads cannot see their instants in the wrong order.
        let now = self.clock.now();
        downstream.follow(now);
        work(&mut downstream, now)
    }

    /// Runs `decide` on the states of the limits under `scope`, and stores those that it reports as charged.
    fn decide<T>(
        &self,
        scope: Scope<'_>,
        limits: &LimitSet,
        decide: impl FnOnce(&mut Downstream, &mut [State], Micros) -> (T, Charge),
    ) -> T {
        self.with(scope.downstream, |downstream, now| {
            let mut states: Vec<State> =
                limits.iter().map(|limit| downstream.read(limit, scope.key, now)).collect();
            let (answer, taken) = decide(downstream, &mut states, now);
            for (place, (limit, state)) in limits.iter().zip(states).enumerate() {
                if taken.has(place) {
                    downstream.write(limit, scope.key, state);
                }
            }
            answer
        })
    }

    fn reserved(&self, call: Reserve<'_>) -> Result<Reserved, StoreError> {
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

    fn checked(&self, call: Check<'_>) -> Checked {
        self.decide(call.scope, call.limits, |downstream, states, now| {
            let (epoch, status) = (downstream.epoch, downstream.status);
            let outdated = !status.is_current(call.generation);
            let verdicts = call.police(states, now, &status);
            let taken = verdicts.iter().fold(0, |all, verdict| all | verdict.charge.0);
            (Checked { stamp: Stamp { now, epoch, status }, verdicts, outdated }, Charge(taken))
        })
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
    async fn record(&self, downstream: &str, change: Option<Change<'_>>) -> Result<RecordState, StoreError> {
        check_downstream(downstream)?;
        change.map_or(Ok(()), |change| change.check())?;
        let (state, is_changed) = self.with(downstream, |downstream, now| {
            let is_changed = change.is_some_and(|change| downstream.update(change, now));
            (downstream.record(now), is_changed)
        });
        if is_changed {
            self.watchers.notify(downstream);
        }
        Ok(state)
    }

    /// Changes or reads the tombstones of a downstream.
    async fn call_tombstones(
        &self,
        downstream: &str,
        call: TombstoneCall<'_>,
    ) -> Result<TombstoneReply, StoreError> {
        check_downstream(downstream)?;
        call.check()?;
        let reply = self.with(downstream, |downstream, now| downstream.call_tombstones(call, now));
        let reply = reply.ok_or_else(|| too_many(downstream))?;
        if reply.changed > 0 {
            self.watchers.notify(downstream);
        }
        Ok(reply)
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
        Box::pin(async move {
            call.check()?;
            self.reserved(call)
        })
    }

    fn check<'a>(&'a self, call: Check<'a>) -> Answer<'a, Checked> {
        Box::pin(async move {
            call.check()?;
            Ok(self.checked(call))
        })
    }

    fn try_check(&self, call: Check<'_>) -> Option<Result<Checked, StoreError>> {
        Some(call.check().map(|()| self.checked(call)))
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> Answer<'a, bool> {
        Box::pin(async move {
            call.check()?;
            let Some(downstream) = self.find(call.scope.downstream) else { return Ok(false) };
            let mut downstream = lock(&downstream);
            let now = self.clock.now();
            // After a step back the slot is an instant of the clock before the step.
            if downstream.has_stepped(now) || (now >= call.slot && !call.is_unused) {
                return Ok(false);
            }
            let Some(restored) = downstream.undone(&call) else { return Ok(false) };
            for (limit, key, state) in restored {
                downstream.write(limit, key, state);
            }
            Ok(true)
        })
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> Answer<'a, ()> {
        Box::pin(async move {
            scope.check()?;
            if let Some(downstream) = self.find(scope.downstream) {
                let mut downstream = lock(&downstream);
                limits.iter().for_each(|limit| downstream.forget(limit, scope.key));
                downstream.forget_turns();
            }
            Ok(())
        })
    }

    fn read_record<'a>(&'a self, downstream: &'a str) -> Answer<'a, RecordState> {
        Box::pin(self.record(downstream, None))
    }

    fn update_record<'a>(&'a self, downstream: &'a str, change: Change<'a>) -> Answer<'a, RecordState> {
        Box::pin(self.record(downstream, Some(change)))
    }

    fn tombstones<'a>(&'a self, downstream: &'a str, call: TombstoneCall<'a>) -> Answer<'a, TombstoneReply> {
        Box::pin(self.call_tombstones(downstream, call))
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
        Box::pin(async move {
            call.check()?;
            Ok(lock(&self.fleet).served(call, self.clock.now()))
        })
    }

    fn note_parked<'a>(&'a self, downstream: &'a str, jobs: i64) -> Answer<'a, i64> {
        Box::pin(async move {
            check_downstream(downstream)?;
            Ok(lock(&self.fleet).note_parked(downstream, jobs))
        })
    }

    fn history<'a>(&'a self, downstream: &'a str, text: Option<&'a str>) -> Answer<'a, Vec<HistoryEntry>> {
        Box::pin(async move {
            check_downstream(downstream)?;
            check_history(text)?;
            Ok(lock(&self.fleet).history(downstream, text, self.clock.now()))
        })
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
