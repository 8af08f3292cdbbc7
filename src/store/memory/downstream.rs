//! The record of one downstream, and the states of its limits.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use indexmap::IndexMap;

use super::{Asker, Booking, Cancel, Change, GRACE, NextTurn, Pause, Queue, Recall, Status, TICK};
use crate::limit::{Limit, LimitSet, State};
use crate::store::dump::{self, Kept, Record};
use crate::time::Micros;

#[derive(Debug)]
pub(super) struct Downstream {
    /// When the record began: at least 1, since 0 stands for "none".
    pub(super) epoch: Micros,
    /// The highest instant seen on the clock, within [`TICK`].
    high: Micros,
    /// How far the clock has stepped back in all, in µs.
    shift: i64,
    /// A clock further behind than this many µs has stepped back.
    step: i64,
    /// What holds for all of it.
    pub(super) status: Status,
    /// Those who ask for slots in turns.
    queue: Queue,
    /// The terms of the status's generation.
    pub(super) terms: Option<String>,
    /// The names of its limits. A limit's place among them is that of its states.
    names: Vec<String>,
    /// The states of the whole downstream.
    whole: Row,
    /// The states of each key.
    keyed: IndexMap<Box<str>, Row>,
    /// The place among them up to where it was looked which may be forgotten.
    swept: usize,
    /// Until when each replica counts as alive.
    pub(super) leases: HashMap<String, Micros>,
}

/// The states of one key, by the limit's place. The first is kept apart: mostly there is no other.
#[derive(Debug, Default)]
struct Row {
    first: Option<Held>,
    more: Vec<Option<Held>>,
}

/// A state, the shift that it was written under, and when it equals absence on that clock.
#[derive(Clone, Debug)]
pub(super) struct Held {
    state: State,
    shift: i64,
    whole: Micros,
}

/// Below this many keys nothing is forgotten.
pub(super) const FEW: usize = 1024;

/// With each new key it is looked at this many others whether they may be forgotten: not at all of them in one
/// call.
const LOOKED_AT: usize = 4;

impl Downstream {
    pub(super) fn new(now: Micros, step: Duration) -> Self {
        Self {
            epoch: now.max(Micros(1)),
            high: Micros(0),
            shift: 0,
            step: i64::try_from(step.as_micros()).unwrap_or(i64::MAX),
            status: Status::default(),
            queue: Queue::default(),
            terms: None,
            names: vec![],
            whole: Row::default(),
            keyed: IndexMap::new(),
            swept: 0,
            leases: HashMap::new(),
        }
    }

    /// Follows the clock: a step back is added to `shift`.
    #[inline]
    pub(super) fn follow(&mut self, now: Micros) {
        if self.has_stepped(now) {
            let back = self.high.0 - now.0;
            self.shift += back;
            self.status.step_back(back);
            self.queue.step_back(back);
            self.high = now;
        } else if now.0 - self.high.0 >= TICK.as_micros() as i64 {
            self.high = now;
        }
    }

    /// Makes a change; says whether there was anything to change.
    pub(super) fn update(&mut self, change: Change<'_>, now: Micros) -> bool {
        let status = self.status;
        // Later than every version before a loss too, so that what was done last counts.
        let next = (status.pause.version + 1).max(u64::try_from(now.0).unwrap_or_default());
        let pause = |span: Option<Duration>| span.map_or(Micros::MAX, |span| now.plus(span));
        match change {
            Change::Penalize(span) => self.status.penalty = status.penalty.max(now.plus(span)),
            Change::Pause(span) => {
                self.status.pause = Pause { until: pause(span), version: next };
            }
            Change::Resume => {
                self.status.penalty = Micros(0);
                self.status.pause = Pause { until: Micros(0), version: next };
            }
            Change::Terms { of, text } => {
                if of == status.generation {
                    self.status.generation += 1;
                    self.terms = Some(text.to_owned());
                }
            }
            Change::Reset { limits } => {
                let least = now.max(Micros(self.epoch.0 + 1));
                self.queue.end = Micros(0);
                self.status.reset = (status.reset + 1).max(u64::try_from(least.0).unwrap_or_default());
                for limit in limits {
                    let last = self.last(limit);
                    self.write(limit, "", limit.restarted(last.max(now)));
                }
            }
            Change::Recall(Recall { penalty, pause: left, version, generation, terms: known }) => {
                if !penalty.is_zero() {
                    self.status.penalty = status.penalty.max(now.plus(penalty));
                }
                if version > status.pause.version {
                    let until = if left == Some(Duration::ZERO) { Micros(0) } else { pause(left) };
                    self.status.pause = Pause { until, version };
                }
                let newer = |generation: u64| match generation.cmp(&status.generation) {
                    Ordering::Equal => self.terms.is_none(),
                    ordering => ordering.is_gt(),
                };
                if let Some(known) = known.filter(|_| newer(generation)) {
                    self.status.generation = generation;
                    self.terms = Some(known.to_owned());
                    self.queue.end = Micros(0);
                }
            }
        }
        let paused = |status: &Status| (status.pause.version, status.generation);
        if paused(&self.status) != paused(&status) {
            // Turns that were booked before are too late now, or too few.
            self.queue.end = Micros(0);
        }
        self.status != status
    }

    /// Turns that were booked begin too late now.
    pub(super) fn forget_turns(&mut self) {
        self.queue.end = Micros(0);
    }

    /// Books the next turn of one who has units `left`, and the first job of which has that cost; the next two slots
    /// lie where it says.
    pub(super) fn book(
        &mut self,
        now: Micros,
        asker: &Asker,
        left: Option<((Micros, Duration), u64, u32)>,
    ) -> Booking {
        let reach = self.queue.stretch(now, asker.reach);
        let next = left
            .map_or(NextTurn::None, |(slots, left, cost)| self.queue.book(now, asker, slots, (left, cost)));
        Booking { reach, next }
    }

    /// Whether the clock is behind where it was by more than clocks wobble.
    #[inline]
    pub(super) fn has_stepped(&self, now: Micros) -> bool {
        self.high.0 - now.0 > self.step
    }

    /// The place of a limit's states.
    pub(super) fn place(&mut self, limit: &Limit) -> usize {
        let place = self.names.iter().position(|name| name == limit.name());
        place.unwrap_or_else(|| {
            self.names.push(limit.name().to_owned());
            self.names.len() - 1
        })
    }

    /// The state of a limit with what a pause does to it, as [`Self::kept`] has it.
    pub(super) fn read(&mut self, limit: &Limit, key: &str, now: Micros) -> State {
        let state = self.kept(limit, key);
        match self.status.paused_until() {
            Micros(0) | Micros::MAX => state,
            until => limit.pause(state, until, now),
        }
    }

    /// The state of a limit, corrected for steps back, and forgotten once it has equalled absence for long.
    fn kept(&mut self, limit: &Limit, key: &str) -> State {
        let (high, shift) = (self.high, self.shift);
        let Some(held) = self.get(limit, key) else { return limit.fresh() };
        let back = shift - held.shift;
        let state = if back > 0 {
            limit.step_back(held.state.clone(), back)
        } else {
            limit.adopt(held.state.clone())
        };
        // By these numbers, which need not be those that it was written under.
        let whole = limit.whole_at(&state);
        if whole.plus(GRACE) <= high {
            return limit.fresh();
        }
        if back > 0 {
            *held = Held { state: state.clone(), shift, whole };
        }
        state
    }

    /// The latest slot of a limit of the whole downstream, on the clock as it is now.
    fn last(&mut self, limit: &Limit) -> Micros {
        let shift = self.shift;
        let held = self.get(limit, "");
        held.map_or(Micros(0), |held| Micros(held.state.last.0 - (shift - held.shift).max(0)))
    }

    /// Takes `cost` from the one limit whose states have this place, if it fits from now on until an
    /// instant (`when`): the slot, or the one that it would have had.
    #[inline]
    pub(super) fn take(
        &mut self,
        (limit, place): (&Limit, usize),
        key: &str,
        when: (Micros, Micros),
        cost: u32,
    ) -> Result<Micros, Micros> {
        let (high, shift, paused) = (self.high, self.shift, self.status.paused_until());
        let slot = self.row(key).slot(place);
        let held = match slot {
            Some(held) if held.shift == shift && !held.is_absent(high) => held,
            Some(held) => {
                held.correct(limit, shift);
                if held.is_absent(high) {
                    held.state = limit.fresh();
                }
                held
            }
            None => slot.insert(Held { state: limit.fresh(), shift, whole: Micros(0) }),
        };
        if paused > Micros(0) && limit.feels(paused, when.0) {
            // Only what is taken is kept: who resumes finds the state as it was.
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

    pub(super) fn write(&mut self, limit: &Limit, key: &str, state: State) {
        let (shift, whole) = (self.shift, limit.whole_at(&state));
        let place = self.place(limit);
        *self.row(key).slot(place) = Some(Held { state, shift, whole });
    }

    pub(super) fn forget(&mut self, limit: &Limit, key: &str) {
        if let Some(held) = self.slot(limit, key) {
            *held = None;
        }
    }

    /// The states of the limits that a reservation was charged to, without it; none if anything was
    /// taken after it.
    pub(super) fn undone<'a>(&mut self, call: &Cancel<'a>) -> Option<Vec<(&'a Limit, &'a str, State)>> {
        let shift = self.shift;
        let marks = call.before.iter().zip(call.after);
        let mut restored = vec![];
        for (((limit, key), (before, after)), &cost) in call.states().zip(marks).zip(call.charged) {
            if cost == 0 {
                continue;
            }
            let held = self.get(limit, key).filter(|held| held.shift == shift)?;
            let state = limit.adopt(held.state.clone());
            restored.push((limit, key, limit.undo(&state, (*before, *after), call.slot, cost)?));
        }
        (!restored.is_empty()).then_some(restored)
    }

    /// The record, and the states of the limits, as texts.
    pub(super) fn dump(&mut self, key: &str, limits: &LimitSet) -> Vec<String> {
        let (epoch, high, shift) = (self.epoch, self.high, self.shift);
        let kept = |limit: &Limit| {
            let held = self.get(limit, key)?;
            Some(Kept { state: held.state.clone(), shift: held.shift, epoch })
        };
        let kept = limits.iter().map(kept).collect();
        dump::texts(limits, Record { epoch, high, shift, status: self.status, queue: self.queue }, kept)
    }

    /// How many keys have states of their own.
    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.keyed.len()
    }

    fn get(&mut self, limit: &Limit, key: &str) -> Option<&mut Held> {
        self.slot(limit, key)?.as_mut()
    }

    /// Where a limit's state is, if there ever was one.
    fn slot(&mut self, limit: &Limit, key: &str) -> Option<&mut Option<Held>> {
        let place = self.names.iter().position(|name| name == limit.name())?;
        let row = if key.is_empty() { Some(&mut self.whole) } else { self.keyed.get_mut(key) };
        Some(row?.slot(place))
    }

    fn row(&mut self, key: &str) -> &mut Row {
        if key.is_empty() {
            return &mut self.whole;
        }
        let place = self.keyed.get_index_of(key).unwrap_or_else(|| {
            self.sweep();
            self.keyed.insert_full(key.into(), Row::default()).0
        });
        &mut self.keyed[place]
    }

    /// Forgets some of the keys whose states are all whole again.
    fn sweep(&mut self) {
        if self.keyed.len() < FEW {
            return;
        }
        let (high, shift) = (self.high, self.shift);
        // On the clock that each was written under, which was never behind.
        let is_absent = |held: &Held| held.whole.plus(GRACE) <= Micros(high.0 + (shift - held.shift).max(0));
        for _ in 0..LOOKED_AT {
            match self.keyed.get_index(self.swept) {
                Some((_, row)) if row.all(is_absent) => {
                    self.keyed.swap_remove_index(self.swept);
                }
                Some(_) => self.swept += 1,
                None => self.swept = 0,
            }
        }
    }
}

impl Row {
    fn all(&self, holds: impl FnMut(&Held) -> bool) -> bool {
        self.first.iter().chain(self.more.iter().flatten()).all(holds)
    }

    #[inline]
    fn slot(&mut self, place: usize) -> &mut Option<Held> {
        if place == 0 {
            return &mut self.first;
        }
        if self.more.len() < place {
            self.more.resize(place, None);
        }
        &mut self.more[place - 1]
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

    #[inline]
    fn is_absent(&self, high: Micros) -> bool {
        self.whole.plus(GRACE) <= high
    }
}
