//! State in this process: the reference that every other store must agree with.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{
    BoxFuture, Cancel, Check, Checked, GRACE, LONGEST_LEASE, Lease, Reserve, Reserved, STEP, Scope, Store,
    StoreError, TICK,
};
use crate::limit::{Charge, Limit, LimitSet, Plan, State};
use crate::time::{Clock, Micros, SystemClock};

/// Keeps state in memory: exact, and gone with the process.
///
/// States that are whole again are forgotten, so memory is bounded by the keys in use.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    downstreams: Mutex<HashMap<String, Downstream>>,
}

/// The record of a downstream, and the states of its limits by limit name and key.
#[derive(Debug)]
struct Downstream {
    /// When the record began: at least 1, since 0 stands for "none".
    epoch: Micros,
    /// The highest instant seen on the clock, within [`TICK`].
    high: Micros,
    /// How far the clock has stepped back in all, in µs.
    shift: i64,
    states: HashMap<String, HashMap<String, Held>>,
    /// Until when each replica counts as alive.
    leases: HashMap<String, Micros>,
    /// The number of states at which those that are whole again are forgotten.
    crowded: usize,
}

/// A state, the shift that it was written under, and when it equals absence on that clock.
#[derive(Clone, Debug)]
struct Held {
    state: State,
    shift: i64,
    whole: Micros,
}

/// Below this many states nothing is forgotten: looking would cost more than it frees.
const FEW: usize = 1024;

impl MemoryStore {
    /// A store on this process's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// A store on the given clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { clock, downstreams: Mutex::default() }
    }

    /// Runs `decide` on the record of `name`, at the clock's instant or at `explicit`; on none, it
    /// is not created.
    fn with<T>(
        &self,
        name: &str,
        explicit: Option<Micros>,
        decide: impl FnOnce(&mut Downstream, Micros) -> T,
    ) -> Option<T> {
        let mut downstreams = self.downstreams.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: two threads must not see their instants in the wrong order.
        let now = explicit.unwrap_or_else(|| self.clock.now());
        downstreams.get_mut(name).map(|downstream| decide(downstream, now))
    }

    /// Runs `decide` on the states of the limits under `scope`, and keeps those that it says were taken from.
    fn decide<T>(
        &self,
        scope: Scope<'_>,
        limits: &LimitSet,
        explicit: Option<Micros>,
        decide: impl FnOnce(&mut Downstream, &mut [State], Micros) -> (T, Charge),
    ) -> T {
        let mut downstreams = self.downstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let live = explicit.is_none();
        let now = explicit.unwrap_or_else(|| self.clock.now());
        let downstream =
            downstreams.entry(scope.downstream.to_owned()).or_insert_with(|| Downstream::new(now));
        if live {
            downstream.follow(now);
            downstream.prune();
        }
        let mut states: Vec<State> =
            limits.iter().map(|limit| downstream.read(limit, scope.key, live)).collect();
        let (answer, taken) = decide(downstream, &mut states, now);
        for (place, (limit, state)) in limits.iter().zip(states).enumerate() {
            if taken.has(place) {
                downstream.write(limit, scope.key, state, live);
            }
        }
        answer
    }

    fn reserved(&self, call: Reserve<'_>) -> Reserved {
        self.decide(call.scope, call.limits, call.now, |downstream, states, now| {
            let before = call.limits.marks(states);
            let plan = call.limits.plan(states, now, call.costs, call.until(now));
            let taken = plan.taken();
            let Plan { slots, charges, refused } = plan;
            let next = refused.map_or_else(|| call.limits.earliest(states, now, 1), |refused| refused.slot);
            let epoch = downstream.epoch;
            let replicas = call.lease.map(|lease| downstream.lease(lease, now));
            (Reserved { now, epoch, before, slots, charges, refused, next, replicas }, taken)
        })
    }

    fn checked(&self, call: Check<'_>) -> Checked {
        self.decide(call.scope, call.limits, call.now, |downstream, states, now| {
            let verdicts = call.limits.police(states, now, call.costs);
            let taken = verdicts.iter().fold(0, |all, verdict| all | verdict.charge.0);
            (Checked { now, epoch: downstream.epoch, verdicts }, Charge(taken))
        })
    }

    #[cfg(test)]
    fn held(&self, name: &str) -> usize {
        self.with(name, None, |downstream, _| downstream.len()).unwrap_or(0)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Downstream {
    fn new(now: Micros) -> Self {
        let epoch = now.max(Micros(1));
        Self {
            epoch,
            high: Micros(0),
            shift: 0,
            states: HashMap::new(),
            leases: HashMap::new(),
            crowded: FEW,
        }
    }

    /// Follows the clock: a step back is added to `shift`.
    fn follow(&mut self, now: Micros) {
        let behind = self.high.since(now);
        if behind > STEP {
            self.shift += self.high.0 - now.0;
            self.high = now;
        } else if now.since(self.high) >= TICK {
            self.high = now;
        }
    }

    /// The state of a limit. On the clock (`live`) it is corrected for steps back, and forgotten
    /// once it has equalled absence for long; at an explicit instant it is taken as it stands.
    fn read(&mut self, limit: &Limit, key: &str, live: bool) -> State {
        let (high, shift) = (self.high, self.shift);
        let Some(held) = self.get(limit.name(), key) else { return limit.fresh() };
        if live {
            held.correct(limit, shift);
            if held.whole.plus(GRACE) <= high {
                return limit.fresh();
            }
        }
        limit.adopt(held.state.clone())
    }

    /// The states of the limits that a reservation was charged to, without it; none if anything was
    /// taken after it.
    fn undone<'a>(&mut self, call: &Cancel<'a>, live: bool) -> Option<Vec<(&'a Limit, State)>> {
        let (key, shift) = (call.scope.key, self.shift);
        let marks = call.before.iter().zip(call.after);
        let mut restored = vec![];
        for ((limit, (before, after)), &cost) in call.limits.iter().zip(marks).zip(call.charged) {
            if cost == 0 {
                continue;
            }
            let held = self.get(limit.name(), key).filter(|held| !live || held.shift == shift)?;
            let state = limit.adopt(held.state.clone());
            restored.push((limit, limit.undo(&state, (*before, *after), call.slot, cost)?));
        }
        (!restored.is_empty()).then_some(restored)
    }

    /// Renews a replica's lease, and counts those that live.
    fn lease(&mut self, lease: Lease<'_>, now: Micros) -> u32 {
        // One that lies further ahead was given before the clock stepped back.
        self.leases.retain(|_, until| *until > now && *until <= now.plus(LONGEST_LEASE));
        self.leases.insert(lease.replica.to_owned(), now.plus(lease.ttl));
        u32::try_from(self.leases.len()).unwrap_or(u32::MAX)
    }

    fn get(&mut self, limit: &str, key: &str) -> Option<&mut Held> {
        self.states.get_mut(limit)?.get_mut(key)
    }

    fn write(&mut self, limit: &Limit, key: &str, state: State, live: bool) {
        let (shift, whole) = (self.shift, limit.whole_at(&state));
        if let Some(held) = self.get(limit.name(), key) {
            // At an explicit instant nothing was corrected, so the state keeps its frame.
            *held = Held { state, shift: if live { shift } else { held.shift }, whole };
            return;
        }
        let keys = self.states.entry(limit.name().to_owned()).or_default();
        keys.insert(key.to_owned(), Held { state, shift, whole });
    }

    /// Forgets states that are whole again, once there are twice as many as were left last time.
    fn prune(&mut self) {
        if self.len() < self.crowded {
            return;
        }
        let (high, shift) = (self.high, self.shift);
        for keys in self.states.values_mut() {
            // On the clock that it was written under, which was never behind.
            keys.retain(|_, held| held.whole.plus(GRACE).0 > high.0 + (shift - held.shift).max(0));
        }
        self.states.retain(|_, keys| !keys.is_empty());
        self.crowded = (2 * self.len()).max(FEW);
    }

    fn len(&self) -> usize {
        self.states.values().map(HashMap::len).sum()
    }
}

impl Held {
    fn correct(&mut self, limit: &Limit, shift: i64) {
        let back = shift - self.shift;
        if back > 0 {
            self.state = limit.step_back(self.state.clone(), back);
            self.shift = shift;
            self.whole = limit.whole_at(&self.state);
        }
    }
}

impl Store for MemoryStore {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> BoxFuture<'a, Result<Reserved, StoreError>> {
        Box::pin(async move {
            call.check()?;
            Ok(self.reserved(call))
        })
    }

    fn check<'a>(&'a self, call: Check<'a>) -> BoxFuture<'a, Result<Checked, StoreError>> {
        Box::pin(async move {
            call.check()?;
            Ok(self.checked(call))
        })
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            call.check()?;
            let (key, live) = (call.scope.key, call.now.is_none());
            let given = self.with(call.scope.downstream, call.now, |downstream, now| {
                // After a step back the slot is an instant of a clock that is no more.
                let stepped = live && downstream.high.since(now) > STEP;
                if stepped || now >= call.slot {
                    return false;
                }
                let Some(restored) = downstream.undone(&call, live) else { return false };
                for (limit, state) in restored {
                    downstream.write(limit, key, state, live);
                }
                true
            });
            Ok(given.unwrap_or(false))
        })
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            scope.check()?;
            self.with(scope.downstream, None, |downstream, _| {
                for limit in limits.iter() {
                    if let Some(keys) = downstream.states.get_mut(limit.name()) {
                        keys.remove(scope.key);
                    }
                }
            });
            Ok(())
        })
    }

    fn ping(&self) -> BoxFuture<'_, Result<Micros, StoreError>> {
        Box::pin(async move { Ok(self.clock.now()) })
    }
}

#[cfg(test)]
mod tests;
