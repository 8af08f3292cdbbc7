//! The record of one downstream, and the states of its limits.

use std::collections::HashMap;
use std::time::Duration;

use super::tombstones::{Answer, Tombstones};
use super::{Asker, Cancel, GRACE, Queue, Status, TICK};
use crate::limit::{Limit, State};
use crate::store::swept::Swept;
use crate::store::{TombstoneCall, TombstoneReply};
use crate::time::Micros;

mod lease;
mod record;
#[cfg(any(test, feature = "failpoints"))]
mod tests;
mod written;

use lease::Lease;
use record::Attached;
pub(super) use written::{Charged, Writing};

#[derive(Debug)]
pub(super) struct Downstream {
    /// When the record began: at least 1, since 0 stands for "none".
    pub(super) epoch: Micros,
    clock: ClockHistory,
    /// Pauses and the generation of the terms in force.
    pub(super) status: Status,
    /// The queue of turns.
    queue: Queue,
    /// The terms, the note on a pause, and the cool-down.
    attached: Attached,
    states: States,
    /// The end of each replica's lease.
    pub(super) leases: HashMap<String, Micros>,
    /// The tombstones of cancelled jobs.
    tombstones: Tombstones,
    /// What is written of it, in a store in a file.
    writing: Option<Writing>,
}

/// The instants seen on the clock, which reveal a step back.
#[derive(Clone, Copy, Debug)]
struct ClockHistory {
    /// The highest instant seen, within [`TICK`].
    high: Micros,
    /// How far the clock has stepped back in all, in µs, less its steps forward between two runs.
    shift: i64,
    /// A clock further behind than this many µs has stepped back.
    step: i64,
}

/// The states of a downstream's limits.
#[derive(Debug, Default)]
struct States {
    /// The names of the limits. The index of a name is that of the limit's states.
    names: Vec<String>,
    /// The states of limits that are the whole downstream's.
    whole: Row,
    /// The states of keyed limits, by key.
    keyed: Swept<Row>,
}

/// The states of one key, by the index of the limit. The first is stored inline, since most keys have no other.
#[derive(Debug, Default)]
struct Row {
    first: Option<StoredState>,
    more: Vec<Option<StoredState>>,
}

/// A state, the shift that it was written under, and the instant on that clock from which it equals absence.
#[derive(Clone, Debug)]
pub(super) struct StoredState {
    state: State,
    shift: i64,
    whole: Micros,
    /// What is written of it, in a store in a file.
    lease: Option<Box<Lease>>,
}

/// With fewer keys than this, none is swept.
pub(super) const SWEEP_THRESHOLD: usize = 1024;

impl Downstream {
    pub(super) fn new(now: Micros, step: Duration, writing: Option<Writing>) -> Self {
        Self {
            epoch: now.max(Micros(1)),
            clock: ClockHistory {
                high: Micros(0),
                shift: 0,
                step: i64::try_from(step.as_micros()).unwrap_or(i64::MAX),
            },
            status: Status::default(),
            queue: Queue::default(),
            attached: Attached::default(),
            states: States::default(),
            leases: HashMap::new(),
            tombstones: Tombstones::default(),
            writing,
        }
    }

    /// Follows the clock, and adds a step back to `shift`.
    #[inline]
    pub(super) fn follow(&mut self, now: Micros) {
        if self.clock.has_stepped(now) {
            self.step_back(self.clock.high.0 - now.0);
            self.clock.high = now;
            self.write_record();
        } else if now.0 - self.clock.high.0 >= TICK.as_micros() as i64 {
            self.clock.high = now;
        }
    }

    fn step_back(&mut self, back: i64) {
        self.clock.shift += back;
        self.status.step_back(back);
        self.queue.step_back(back);
        self.attached.step_back(back);
    }

    /// Changes or reads the tombstones at `now`; `None` if there would be too many.
    pub(super) fn call_tombstones(&mut self, call: TombstoneCall<'_>, now: Micros) -> Option<TombstoneReply> {
        let before = self.status.tombstones;
        let Answer { changed, page, up_to } = self.tombstones.call(call, &mut self.status.tombstones, now)?;
        if changed > 0 {
            self.write_tombstones(before);
            self.write_record();
        }
        Some(TombstoneReply { now, epoch: self.epoch, status: self.status, changed, before, page, up_to })
    }

    /// Discards the turns that were booked: after a reset they begin too late.
    pub(super) fn forget_turns(&mut self) {
        self.queue.forget_turns();
    }

    /// Records how far ahead an asker needs turns to be booked, and returns the reach in force.
    pub(super) fn extend_reach(&mut self, now: Micros, asker: &Asker) -> Duration {
        self.queue.extend_reach(now, asker.reach)
    }

    /// The queue of turns.
    pub(super) const fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Whether the clock is behind the highest instant seen by more than the tolerance for steps.
    #[inline]
    pub(super) fn has_stepped(&self, now: Micros) -> bool {
        self.clock.has_stepped(now)
    }

    /// The index of a limit's states.
    pub(super) fn index_of(&mut self, limit: &Limit) -> usize {
        self.states.index_of(limit.name())
    }

    /// The state of a limit as [`Self::kept`] returns it, with the pause in force applied.
    pub(super) fn read(&mut self, limit: &Limit, key: &str, now: Micros) -> State {
        let state = self.kept(limit, key);
        match self.status.paused_until() {
            Micros(0) | Micros::MAX => state,
            until => limit.pause(state, until, now),
        }
    }

    /// The state of a limit, corrected for steps back; a fresh one once it has equalled absence for longer than
    /// [`GRACE`].
    fn kept(&mut self, limit: &Limit, key: &str) -> State {
        let ClockHistory { high, shift, .. } = self.clock;
        let Some(held) = self.states.get(limit, key) else { return limit.fresh() };
        let back = shift - held.shift;
        let state = if back != 0 {
            limit.step_back(held.state.clone(), back)
        } else {
            limit.adopt(held.state.clone())
        };
        // Computed under the present numbers, which may differ from those that the state was written under.
        let whole = limit.whole_at(&state);
        if whole.plus(GRACE) <= high {
            return limit.fresh();
        }
        if back != 0 {
            *held = StoredState { state: state.clone(), shift, whole, lease: None };
        }
        state
    }

    /// The latest slot of a limit of the whole downstream, on the present clock.
    fn last(&mut self, limit: &Limit) -> Micros {
        let shift = self.clock.shift;
        let held = self.states.get(limit, "");
        held.map_or(Micros(0), |held| Micros(held.state.last.0 - (shift - held.shift)))
    }

    /// Commits `cost` to the one limit with this index, if it fits at an instant within `when`. Returns the slot, or
    /// the refusal.
    #[inline]
    pub(super) fn take(
        &mut self,
        (limit, index): (&Limit, usize),
        key: &str,
        when: (Micros, Micros),
        cost: u32,
    ) -> Result<Micros, Micros> {
        let (ClockHistory { high, shift, .. }, paused) = (self.clock, self.status.paused_until());
        let slot = self.states.row(key, self.clock).slot(index);
        let held = match slot {
            Some(held) if held.shift == shift && !held.is_absent(high) => held,
            Some(held) => {
                held.correct(limit, shift);
                if held.is_absent(high) {
                    held.state = limit.fresh();
                }
                held
            }
            None => slot.insert(StoredState { state: limit.fresh(), shift, whole: Micros(0), lease: None }),
        };
        if paused > Micros(0) && limit.is_affected_by_pause(paused, when.0) {
            // The pause is stored only with a commit: after a resume the state is then as it was before.
            let mut state = limit.pause(limit.adopt(held.state.clone()), paused, when.0);
            let slot = limit.take(&mut state, when, cost)?;
            if cost > 0 {
                held.state = state;
                held.whole = limit.whole_at(&held.state);
            }
            return Ok(slot);
        }
        let slot = limit.take(&mut held.state, when, cost)?;
        held.whole = limit.whole_at(&held.state);
        Ok(slot)
    }

    /// The states of the limits that a reservation was charged to, with the charge undone; `None` if anything was
    /// committed after it.
    pub(super) fn undone<'a>(&mut self, call: &Cancel<'a>) -> Option<Vec<(&'a Limit, &'a str, State)>> {
        let shift = self.clock.shift;
        let marks = call.before.iter().zip(call.after);
        let mut restored = vec![];
        for (((limit, key), (before, after)), &cost) in call.states().zip(marks).zip(call.charged) {
            if cost == 0 {
                continue;
            }
            let held = self.states.get(limit, key).filter(|held| held.shift == shift)?;
            let state = limit.adopt(held.state.clone());
            restored.push((limit, key, limit.undo(&state, (*before, *after), call.slot, cost)?));
        }
        (!restored.is_empty()).then_some(restored)
    }

    /// The number of keys that have states of their own.
    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.states.keyed.len()
    }
}

impl ClockHistory {
    #[inline]
    fn has_stepped(&self, now: Micros) -> bool {
        self.high.0 - now.0 > self.step
    }
}

impl States {
    /// The index of the states of the limit with this name.
    fn index_of(&mut self, limit: &str) -> usize {
        let index = self.names.iter().position(|name| name == limit);
        index.unwrap_or_else(|| {
            self.names.push(limit.to_owned());
            self.names.len() - 1
        })
    }

    fn get(&mut self, limit: &Limit, key: &str) -> Option<&mut StoredState> {
        self.slot(limit, key)?.as_mut()
    }

    /// The storage of a limit's state, if there ever was one.
    fn slot(&mut self, limit: &Limit, key: &str) -> Option<&mut Option<StoredState>> {
        let index = self.names.iter().position(|name| name == limit.name())?;
        self.slot_at(index, key)
    }

    fn slot_at(&mut self, index: usize, key: &str) -> Option<&mut Option<StoredState>> {
        let row = if key.is_empty() { Some(&mut self.whole) } else { self.keyed.get_mut(key) };
        Some(row?.slot(index))
    }

    fn row(&mut self, key: &str, clock: ClockHistory) -> &mut Row {
        if key.is_empty() {
            return &mut self.whole;
        }
        let index = self.keyed.index(key).unwrap_or_else(|| {
            self.sweep(clock);
            self.keyed.insert(key)
        });
        self.keyed.at(index)
    }

    /// Removes some of the keys whose states all equal absence.
    fn sweep(&mut self, ClockHistory { high, shift, .. }: ClockHistory) {
        if self.keyed.len() < SWEEP_THRESHOLD {
            return;
        }
        // Each state is compared on the clock that it was written under.
        let is_absent = |held: &StoredState| held.whole.plus(GRACE) <= Micros(high.0 + shift - held.shift);
        self.keyed.sweep(|row| row.all(is_absent));
    }
}

#[cfg(test)]
thread_local! {
    /// The number of keys whose states this thread has examined.
    pub(super) static EXAMINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Row {
    /// The states by the index of the limit; the last ones may be missing.
    fn iter(&self) -> impl Iterator<Item = &Option<StoredState>> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn all(&self, holds: impl FnMut(&StoredState) -> bool) -> bool {
        #[cfg(test)]
        EXAMINED.set(EXAMINED.get() + 1);
        self.first.iter().chain(self.more.iter().flatten()).all(holds)
    }

    #[inline]
    fn slot(&mut self, index: usize) -> &mut Option<StoredState> {
        if index == 0 {
            return &mut self.first;
        }
        if self.more.len() < index {
            self.more.resize(index, None);
        }
        &mut self.more[index - 1]
    }
}

impl StoredState {
    fn correct(&mut self, limit: &Limit, shift: i64) {
        let back = shift - self.shift;
        if back != 0 {
            self.state = limit.step_back(self.state.clone(), back);
            self.shift = shift;
            self.whole = limit.whole_at(&self.state);
        }
    }

    #[inline]
    fn is_absent(&self, high: Micros) -> bool {
        self.whole.plus(GRACE) <= high
    }
}
