//! The known states of lanes' limits: which of them allow nothing now, and which lanes wait for them. It is pure. The
//! pauses of some lanes are states too ([`pauses`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::limit::Limit;
use crate::pace::schedule::lane::PassedOn;
use crate::pace::slots_within;
use pauses::Pauses;

mod pauses;

/// The states of limits that the lanes have, each once.
///
/// A lane waits for a state only while that is blocked, or while another lane of it is ready ([`States::is_short`]).
/// So each lane is released in the end, no matter how those before it end.
#[derive(Debug, Default)]
pub(super) struct States {
    all: Vec<State>,
    by_name: HashMap<Name, usize>,
    /// States without lanes, whose rows new ones may take.
    free: Vec<usize>,
    /// The states that sleep and that lanes wait for, by the instant from which slots are requested again.
    wakes: BTreeSet<(Instant, usize)>,
    /// Now, and the downstream's next slot, as of the last call.
    seen: Option<(Instant, Instant)>,
    /// The states that the current call offers jobs to.
    offered: Vec<usize>,
    /// The number of those that the downstream throttles, for which the ends of sends count.
    throttled: usize,
}

/// The name of a limit, and the key of one of its states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    limit: Arc<str>,
    key: Arc<str>,
}

/// One state of one limit.
#[derive(Clone, Debug)]
struct State {
    name: Name,
    /// The number of lanes that have it, and of those among them that wait for their turn.
    lanes: usize,
    ready: u64,
    numbers: Numbers,
    asleep: Option<Sleep>,
    /// The units that the current call offers to it.
    offered: u64,
    /// The lane whose next job of a cost above 1 is the last one that a call offers to it, since jobs that it could
    /// allow earlier have overtaken that job.
    in_order: Option<usize>,
    /// The jobs that were passed on to wait elsewhere, if there were any.
    passed_on: Option<PassedOn>,
    /// The lanes that wait for it, by the rank of their first job and their turn.
    waiting: BTreeMap<(usize, u64), usize>,
}

/// Until when a state allows nothing, and from when slots are requested again.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    until: Instant,
    ask_at: Instant,
}

/// The numbers of a limit as far as they matter here, or those of a pause.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// The most units that it can allow within a horizon, which is all that one call can use.
    per_call: u64,
    /// The time in which it allows one unit more.
    interval: Duration,
    /// Whether its slots are spaced evenly and leave no burst: then the next one is known from the last one.
    is_plain: bool,
    /// The cost to the store of reading it.
    weight: usize,
    /// When a pause ends that was asked for, or the wait before the next probe of a cool-down.
    paused_until: Option<Instant>,
    /// The last one of the pauses that the downstream asked for.
    pauses: Option<Pauses>,
}

impl Numbers {
    fn of(limit: &Limit, horizon: Duration) -> Self {
        Self {
            per_call: slots_within(std::iter::once(limit), horizon),
            interval: limit.rate().interval(),
            is_plain: limit.is_even() && limit.burst() == 1,
            weight: limit.weight(),
            paused_until: None,
            pauses: None,
        }
    }
}

impl Sleep {
    /// Whether the state allows something by the downstream's next slot, or slots are requested for it at `now`.
    fn is_over(self, (now, base): (Instant, Instant)) -> bool {
        self.until <= base || self.ask_at <= now
    }
}

impl States {
    /// Adds a lane to this state of a limit, and returns the state.
    pub(super) fn join(&mut self, limit: &Limit, key: String, horizon: Duration) -> usize {
        let state = self.join_named(limit.name(), key);
        self.all[state].numbers = Numbers::of(limit, horizon);
        state
    }

    fn join_named(&mut self, limit: &str, key: String) -> usize {
        let name = Name { limit: limit.into(), key: key.into() };
        if let Some(&state) = self.by_name.get(&name) {
            self.all[state].lanes += 1;
            return state;
        }
        let new = State {
            name: name.clone(),
            lanes: 1,
            ready: 0,
            numbers: Numbers::UNLIMITED,
            asleep: None,
            offered: 0,
            in_order: None,
            passed_on: None,
            waiting: BTreeMap::new(),
        };
        let state = match self.free.pop() {
            Some(state) => {
                self.all[state] = new;
                state
            }
            None => {
                self.all.push(new);
                self.all.len() - 1
            }
        };
        self.by_name.insert(name, state);
        state
    }

    /// The number of states, with those that are free.
    pub(super) const fn len(&self) -> usize {
        self.all.len()
    }

    /// Removes a lane that waits for nothing from this state.
    pub(super) fn leave(&mut self, state: usize) {
        let left = &mut self.all[state];
        left.lanes -= 1;
        if left.lanes == 0 {
            debug_assert!(left.waiting.is_empty() && left.ready == 0, "a lane of {left:?} waits");
            left.asleep = None;
            self.throttled -= usize::from(left.numbers.are_throttled());
            left.numbers = Numbers::UNLIMITED;
            self.by_name.remove(&left.name);
            self.offered.retain(|other| *other != state);
            self.free.push(state);
        }
    }

    /// The limit's name, and the key of the state.
    pub(super) fn name(&self, state: usize) -> (&Arc<str>, &Arc<str>) {
        let Name { limit, key } = &self.all[state].name;
        (limit, key)
    }

    /// Whether no more jobs are offered to this state now: it sleeps, or the current call offers as many as it can
    /// allow.
    pub(super) fn is_blocked(&self, state: usize) -> bool {
        let State { asleep, offered, numbers, .. } = &self.all[state];
        let sleeps = asleep.is_some_and(|sleep| self.seen.is_none_or(|seen| !sleep.is_over(seen)));
        sleeps || *offered >= numbers.per_call
    }

    /// Whether lanes wait for this state that precede one of this rank and turn.
    pub(super) fn is_behind(&self, state: usize, order: (usize, u64)) -> bool {
        self.all[state].waiting.first_key_value().is_some_and(|(first, _)| *first < order)
    }

    /// Whether more of the lanes that wait for this state should be offered: it can allow more than the offered ones.
    fn is_short(&self, state: usize) -> bool {
        let State { ready, offered, numbers, waiting, .. } = &self.all[state];
        !waiting.is_empty() && !self.is_blocked(state) && ready + offered < numbers.per_call
    }

    /// Until when this state allows nothing, as far as is known.
    pub(super) fn sleeps_until(&self, state: usize) -> Option<Instant> {
        self.all[state].asleep.map(|sleep| sleep.until)
    }

    /// The cost to the store of reading this state, if the current call does not read it yet.
    pub(super) fn more_weight(&self, state: usize) -> usize {
        let State { offered, numbers, .. } = &self.all[state];
        if *offered > 0 { 0 } else { numbers.weight }
    }

    /// Records that the current call offers a job of this lane to this state.
    pub(super) fn offer(&mut self, state: usize, lane: usize, cost: u32) {
        let State { offered, in_order, numbers, .. } = &mut self.all[state];
        if *offered == 0 {
            self.offered.push(state);
        }
        *offered += u64::from(cost.max(1));
        if *in_order == Some(lane) && cost > 1 {
            *offered = numbers.per_call.max(*offered);
        }
    }

    /// Makes calls offer nothing to this state behind the next job of this lane that costs more than 1, until
    /// [`States::end_order`].
    pub(super) fn keep_order(&mut self, state: usize, lane: usize) {
        self.all[state].in_order = Some(lane);
    }

    /// Records that a job of this lane and cost was granted.
    pub(super) fn end_order(&mut self, state: usize, lane: usize, cost: u32) {
        let State { in_order, .. } = &mut self.all[state];
        if *in_order == Some(lane) && cost > 1 {
            *in_order = None;
        }
    }

    /// Ends the current call. Returns the states that it offered jobs to.
    pub(super) fn end_call(&mut self) -> Vec<usize> {
        for state in &self.offered {
            self.all[*state].offered = 0;
        }
        std::mem::take(&mut self.offered)
    }

    /// Records that one more lane of this state waits for its turn.
    pub(super) fn add_ready(&mut self, state: usize) {
        self.all[state].ready += 1;
    }

    /// Records that one lane fewer of this state waits for its turn.
    pub(super) fn remove_ready(&mut self, state: usize) {
        self.all[state].ready -= 1;
    }

    /// Makes a lane wait for this state, by the rank of its first job and its turn.
    pub(super) fn wait(&mut self, state: usize, lane: usize, order: (usize, u64)) {
        let State { waiting, asleep, .. } = &mut self.all[state];
        waiting.insert(order, lane);
        self.wakes.extend(asleep.map(|sleep| (sleep.ask_at, state)));
    }

    /// Takes out a lane that waits at this rank and turn.
    pub(super) fn remove(&mut self, state: usize, order: (usize, u64)) {
        self.all[state].waiting.remove(&order);
        self.forget_wake(state);
    }

    /// A state that no lane waits for needs no wake-up.
    fn forget_wake(&mut self, state: usize) {
        let State { waiting, asleep, .. } = &self.all[state];
        if let (true, Some(sleep)) = (waiting.is_empty(), asleep) {
            self.wakes.remove(&(sleep.ask_at, state));
        }
    }

    /// Makes this state sleep until a slot, and slots be requested again from `ask_at` on.
    pub(super) fn sleep(&mut self, state: usize, until: Instant, ask_at: Instant) {
        let State { waiting, asleep, .. } = &mut self.all[state];
        if asleep.is_some_and(|before| before.until >= until) {
            return;
        }
        let before = asleep.replace(Sleep { until, ask_at });
        if !waiting.is_empty() {
            if let Some(before) = before {
                self.wakes.remove(&(before.ask_at, state));
            }
            self.wakes.insert((ask_at, state));
        }
    }

    /// The next slot of this state after one that took this cost, if that is known.
    pub(super) fn next_after(&self, state: usize, slot: Instant, cost: u32) -> Option<Instant> {
        let Numbers { interval, is_plain, .. } = self.all[state].numbers;
        is_plain.then(|| slot + interval.saturating_mul(cost))
    }

    /// The jobs that were passed on to wait elsewhere and have no slot of this state yet.
    pub(super) fn passed_on(&mut self, state: usize, now: Instant) -> PassedOn {
        let apart = self.apart(state);
        let State { asleep, numbers, passed_on, .. } = &mut self.all[state];
        let start = asleep.map_or(now, |sleep| sleep.until.max(now));
        let before = passed_on.unwrap_or(PassedOn::nobody(start));
        *passed_on.insert(before.less_released(start, apart.unwrap_or(numbers.interval)))
    }

    /// Records that the job with this position in the order of arrival is passed on.
    pub(super) fn pass_on(&mut self, state: usize, seq: u64) {
        let State { passed_on, .. } = &mut self.all[state];
        *passed_on = passed_on.map(|others| others.with(seq));
    }

    /// Forgets the jobs that were passed on, since the limits have changed.
    pub(super) fn forget_passed_on(&mut self) {
        self.all.iter_mut().for_each(|state| state.passed_on = None);
    }

    /// Wakes the states that lanes wait for and that allow something by `base`, the downstream's next slot, or early
    /// enough that slots are requested for them at `now`. Returns them.
    pub(super) fn wake(&mut self, now: Instant, base: Instant) -> Vec<usize> {
        self.seen = Some((now, base));
        // For none of them slots are requested after it allows something.
        let near = self.wakes.range(..=(now.max(base), usize::MAX));
        let is_over = |state: &usize| self.all[*state].asleep.is_some_and(|sleep| sleep.is_over((now, base)));
        let woken: Vec<(Instant, usize)> = near.filter(|(_, state)| is_over(state)).copied().collect();
        for timer in &woken {
            self.wakes.remove(timer);
            self.all[timer.1].asleep = None;
        }
        woken.into_iter().map(|(_, state)| state).collect()
    }

    /// Wakes the state of a limit, if it sleeps. A pause continues.
    pub(super) fn wake_one(&mut self, state: usize) {
        if !self.is_pause(state) {
            self.end_sleep(state);
        }
    }

    fn end_sleep(&mut self, state: usize) {
        if let Some(sleep) = self.all[state].asleep.take() {
            self.wakes.remove(&(sleep.ask_at, state));
        }
    }

    /// Wakes the states of all limits. Returns those that lanes wait for.
    pub(super) fn wake_all(&mut self) -> Vec<usize> {
        (0..self.all.len()).for_each(|state| self.wake_one(state));
        (0..self.all.len()).filter(|state| !self.all[*state].waiting.is_empty()).collect()
    }

    /// When [`States::wake`] wakes the next state.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// The state that lanes wait for and that wakes next.
    pub(super) fn first_asleep(&self) -> Option<usize> {
        self.wakes.first().map(|(_, state)| *state)
    }

    /// Takes the next lane that waits for this state, if more of them should be offered.
    pub(super) fn release(&mut self, state: usize) -> Option<usize> {
        if !self.is_short(state) {
            return None;
        }
        let (_, lane) = self.all[state].waiting.pop_first()?;
        self.forget_wake(state);
        Some(lane)
    }
}

#[cfg(test)]
impl States {
    /// The violated invariant of the states, given the lanes that wait for their turn and those that wait for each
    /// state.
    pub(super) fn broken(&self, ready: &[Vec<usize>], waiting: &BTreeMap<usize, usize>) -> Option<String> {
        let throttled = self.all.iter().filter(|state| state.numbers.are_throttled()).count();
        if throttled != self.throttled {
            return Some(format!("{throttled} are throttled, and not {}", self.throttled));
        }
        for (index, state) in self.all.iter().enumerate() {
            let counted = ready.iter().flatten().filter(|other| **other == index).count() as u64;
            let asleep =
                state.asleep.filter(|_| !state.waiting.is_empty()).map(|sleep| (sleep.ask_at, index));
            let timers: Vec<_> = self.wakes.iter().filter(|(_, other)| *other == index).copied().collect();
            let holds = state.ready == counted
                && state.waiting.len() == waiting.get(&index).copied().unwrap_or_default()
                && timers == asleep.into_iter().collect::<Vec<_>>()
                && !self.is_short(index)
                // A lane of the state has its turn, or the state wakes up.
                && (state.waiting.is_empty() || self.is_blocked(index) || state.ready > 0);
            if !holds {
                return Some(format!(
                    "{state:?} at {index}; {counted} ready, {timers:?}, at {:?}",
                    self.seen
                ));
            }
        }
        None
    }
}
