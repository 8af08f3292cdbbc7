//! The lanes of a downstream by keys of jobs: whose turn it is, and for which of them slots are requested. It is pure.
//!
//! A lane is in one of three phases: it waits for its turn in its class ([`fair`]), it waits for a state of one of
//! its limits that allows nothing now ([`states`]), or it has no jobs that wait. The lanes of one state sleep
//! together: when the state wakes, as many of them are offered as it can allow.
//!
//! Lanes of a class, and those that wait for a state, take turns: the lane that was granted a slot longest ago is
//! first. So a lane that is offered and refused loses nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::limit::Limit;
use crate::pace::backlog::Backlog;
use crate::pace::lanes::LaneRules;
use crate::pace::{LaneId, Settings, Waiter};
pub(crate) use busiest::{BusyLane, LaneWait, LanesView};
pub(crate) use call::Answer;
use call::Offered;
use fair::{Classes, RANKS};
use known::KnownLanes;
pub(crate) use place::WaiterPlace;
use states::States;

mod busiest;
mod call;
mod fair;
mod known;
mod pausing;
mod place;
mod states;
mod waits;

/// The lanes of a downstream.
#[derive(Debug)]
pub(crate) struct Lanes {
    rules: Arc<LaneRules>,
    /// The limits that lanes have besides the downstream's: without a plan, and by plan.
    sets: Vec<Vec<Limit>>,
    known: KnownLanes,
    all: Vec<Lane>,
    /// The highest turn.
    turn: u64,
    classes: Classes,
    states: States,
    asking: Asking,
}

/// The requests for slots.
#[derive(Debug)]
struct Asking {
    horizon: Duration,
    /// How long before a slot is requested that a lane's own limits determine.
    lead: Duration,
    /// The jobs in the current call, in its order.
    offered: Vec<Offered>,
    /// The rest that the current call leaves due to the lowest priority.
    spare: Option<u64>,
    /// The cost to the store of reading its states.
    weight: usize,
    /// The factor by which more jobs are offered, since many were refused while slots stayed free.
    growth: usize,
    /// When the last call was made.
    asked: Option<Instant>,
}

#[derive(Debug, Default)]
struct Lane {
    set: usize,
    class: usize,
    /// The states of its limits, in the order of its set, and then those of its pauses.
    states: Vec<usize>,
    phase: Phase,
    /// Its turn among others: lanes with lower turns are first.
    turn: u64,
    /// The number of its jobs in the current call.
    offered: usize,
}

/// The phase of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// It has no jobs that wait, or the current call has them.
    #[default]
    Idle,
    /// It waits for its turn.
    Ready { rank: usize },
    /// It waits for a state.
    Waiting { state: usize, rank: usize },
    /// It was removed.
    Gone,
}

impl Lanes {
    /// Returns the lanes of a downstream that has any.
    pub(crate) fn new(settings: &Settings) -> Option<Self> {
        let rules = Arc::clone(settings.of_jobs.lanes.as_ref()?);
        Some(Self {
            sets: sets(settings),
            known: KnownLanes::default(),
            all: Vec::new(),
            turn: 0,
            classes: Classes::new(rules.starvation_guard),
            states: States::default(),
            asking: Asking {
                horizon: settings.horizon,
                lead: super::LEAD.min(settings.horizon / 2),
                offered: Vec::new(),
                spare: None,
                weight: 0,
                growth: 1,
                asked: None,
            },
            rules,
        })
    }

    /// Returns how long before a slot is requested that a lane's own limits determine.
    pub(crate) const fn lead(&self) -> Duration {
        self.asking.lead
    }

    /// Applies other limits; lanes keep their jobs, turns and tags. Estimates of their limits are void, unless only
    /// pauses by operators began or ended.
    pub(crate) fn follow(&mut self, settings: &Settings) {
        let Some(rules) = &settings.of_jobs.lanes else { return };
        let before = std::mem::replace(&mut self.rules, Arc::clone(rules));
        let has_same_states = before.pause_per == rules.pause_per && before.has_same_states(rules);
        self.classes.weigh(|value| rules.weight(value));
        let sets = sets(settings);
        let has_same_horizon = self.asking.horizon == settings.horizon;
        self.asking.horizon = settings.horizon;
        self.asking.lead = super::LEAD.min(settings.horizon / 2);
        if has_same_states && has_same_horizon && self.sets == sets {
            let has_same_stops = before.paused == rules.paused;
            return if has_same_stops { self.forget() } else { self.follow_stops(&before.paused) };
        }
        self.end();
        self.states.wake_all();
        self.states.forget_passed_on();
        self.sets = sets;
        for (lane, values) in self.known.all() {
            let rank = self.take_out(lane);
            let states = self.join_states(self.all[lane].set, &values);
            let old = std::mem::replace(&mut self.all[lane].states, states);
            old.into_iter().for_each(|state| self.states.leave(state));
            rank.into_iter().for_each(|rank| self.make_ready(lane, rank));
        }
    }

    /// Returns the lane of jobs with these values under the limits of this set. The values are replaced by those of
    /// the lane, which lives as long as jobs have them. Unless it `may_forget` now, lanes without jobs are forgotten
    /// later.
    pub(crate) fn lane(&mut self, of: LaneId, values: &mut Arc<[String]>, may_forget: bool) -> LaneId {
        let set = of.set().min(self.sets.len() - 1);
        if let Some(lane) = self.known.find(set, values) {
            return of.in_row(self.row(lane));
        }
        if may_forget && self.known.is_to_sweep(self.rules.max_lanes) {
            self.sweep();
        }
        if self.known.len() >= self.rules.max_lanes && !values.iter().all(String::is_empty) {
            *values = vec![String::new(); self.rules.parts.len()].into();
            return self.lane(of, values, may_forget);
        }
        let value = self.rules.fair_value(values).to_owned();
        let class = self.classes.join(&value, self.rules.weight(&value));
        let states = self.join_states(set, values);
        self.turn += 1;
        let new = Lane { set, class, states, turn: self.turn, ..Lane::default() };
        let lane = self.known.add(set, values, self.all.len());
        if lane == self.all.len() {
            self.all.push(new);
        } else {
            self.all[lane] = new;
        }
        of.in_row(self.row(lane))
    }

    /// Returns the lane of jobs that have no values, under the limits of this set.
    pub(crate) fn lane_without_values(&mut self, of: LaneId, may_forget: bool) -> LaneId {
        let mut values = self.known.nothing();
        self.lane(of, &mut values, may_forget)
    }

    fn join_states(&mut self, set: usize, values: &[String]) -> Vec<usize> {
        let Self { sets, rules, states, asking, .. } = self;
        let join = |limit: &Limit| states.join(limit, rules.key(limit.name(), values), asking.horizon);
        let mut all: Vec<usize> = sets[set].iter().map(join).collect();
        all.extend(rules.pause_key(values).map(|key| states.join_pause(key)));
        let value = rules.fair_value(values);
        all.extend(rules.paused.contains(value).then(|| states.join_stop(value)));
        all
    }

    /// Removes the lanes that no job has, in any phase: their jobs may have been cancelled, parked or refused while
    /// they waited. Those that are paused stay: their jobs may be parked until the pause ends.
    fn sweep(&mut self) {
        let Self { known, all, states, .. } = self;
        let is_paused = |lane: &Lane| lane.states.iter().any(|state| states.is_throttled_now(*state));
        let gone = known.sweep(|lane| all[lane].offered > 0 || is_paused(&all[lane]));
        for lane in gone {
            self.take_out(lane);
            let new = Lane { phase: Phase::Gone, ..Lane::default() };
            let gone = std::mem::replace(&mut self.all[lane], new);
            self.classes.leave(gone.class);
            gone.states.iter().for_each(|state| self.states.leave(*state));
            gone.states.into_iter().for_each(|state| self.top_up(state));
        }
    }

    /// Lanes have rows of a backlog behind those of the plans.
    fn row(&self, lane: usize) -> usize {
        lane + self.sets.len()
    }

    fn index(&self, row: usize) -> Option<usize> {
        row.checked_sub(self.sets.len()).filter(|lane| *lane < self.all.len())
    }

    fn id(&self, lane: usize) -> LaneId {
        LaneId::at(self.all[lane].set).in_row(self.row(lane))
    }

    /// The keys of the states of a lane's limits, in the order of its set.
    pub(crate) fn keys(&self, lane: LaneId) -> Vec<Arc<str>> {
        let states = self.index(lane.row()).map(|lane| self.limit_states(lane));
        states.into_iter().flatten().map(|state| Arc::clone(self.states.name(*state).1)).collect()
    }

    /// Until when a lane's own limits allow nothing, as far as is known. Of an operator's pause nothing is known.
    pub(crate) fn sleeps_until(&self, lane: LaneId) -> Option<Instant> {
        let states = self.index(lane.row()).map(|lane| &self.all[lane].states);
        let known = states.into_iter().flatten().filter(|state| !self.states.is_stop(**state));
        known.filter_map(|state| self.states.sleeps_until(*state)).max()
    }

    /// Updates which lanes have new jobs or no jobs any more. Wakes those whose limits allow something, as far as is
    /// known, by `base`, the downstream's next slot, or early enough that their slots are requested at `now`.
    pub(crate) fn refresh<W: Waiter>(&mut self, backlog: &mut Backlog<W>, now: Instant, base: Instant) {
        for state in self.states.wake(now, base) {
            self.top_up(state);
        }
        for row in backlog.take_touched() {
            let Some(lane) = self.index(row) else { continue };
            match self.rank(lane, backlog) {
                Some(rank) => self.has_job(lane, rank),
                None => self.has_no_job(lane),
            }
        }
    }

    /// The rank of the first job of a lane.
    fn rank<W: Waiter>(&self, lane: usize, backlog: &Backlog<W>) -> Option<usize> {
        backlog.first(self.id(lane)).map(|(rank, _)| usize::from(rank).min(RANKS - 1))
    }

    /// Records that the first job of a lane has this rank.
    fn has_job(&mut self, lane: usize, rank: usize) {
        match self.all[lane].phase {
            Phase::Ready { rank: before } | Phase::Waiting { rank: before, .. } if rank >= before => return,
            Phase::Gone => return,
            _ => {}
        }
        self.take_out(lane);
        self.wait(lane, rank);
    }

    /// Records that the jobs of a lane have left. Other lanes of its states may continue.
    fn has_no_job(&mut self, lane: usize) {
        let is_gone = self.all[lane].phase == Phase::Gone;
        if !is_gone && self.take_out(lane).is_some() {
            self.top_up_all_of(lane);
        }
    }

    /// Makes a lane wait for its turn, or for one of its states. In the second case other lanes of its other states
    /// may continue.
    fn wait(&mut self, lane: usize, rank: usize) {
        self.put(lane, rank);
        if let Phase::Waiting { .. } = self.all[lane].phase {
            self.top_up_all_of(lane);
        }
    }

    /// Makes a lane wait for the first of its states that is blocked, or for which other lanes wait that precede it;
    /// or else for its turn.
    fn put(&mut self, lane: usize, rank: usize) {
        let Some(state) = self.held_up_by(lane, rank) else { return self.make_ready(lane, rank) };
        self.states.wait(state, lane, (rank, self.all[lane].turn));
        self.all[lane].phase = Phase::Waiting { state, rank };
    }

    /// The first state of a lane that is blocked, or that lanes wait for which precede one of this rank and its turn.
    fn held_up_by(&self, lane: usize, rank: usize) -> Option<usize> {
        let order = (rank, self.all[lane].turn);
        let holds_up = |state: &usize| self.states.is_blocked(*state) || self.states.is_behind(*state, order);
        self.all[lane].states.iter().copied().find(holds_up)
    }

    fn make_ready(&mut self, lane: usize, rank: usize) {
        let Lane { class, states, turn, phase, .. } = &mut self.all[lane];
        self.classes.push(lane, *class, rank, *turn);
        states.iter().for_each(|state| self.states.add_ready(*state));
        *phase = Phase::Ready { rank };
    }

    /// Takes a lane out of the queue where it waits. Returns the rank of its first job.
    fn take_out(&mut self, lane: usize) -> Option<usize> {
        let Lane { class, states, turn, phase, .. } = &mut self.all[lane];
        let (before, turn) = (std::mem::take(phase), *turn);
        match before {
            Phase::Ready { rank } => {
                self.classes.remove(*class, rank, turn);
                states.iter().for_each(|state| self.states.remove_ready(*state));
                Some(rank)
            }
            Phase::Waiting { state, rank } => {
                self.states.remove(state, (rank, turn));
                Some(rank)
            }
            Phase::Idle | Phase::Gone => None,
        }
    }

    /// Gives a lane another turn, in any phase.
    fn set_turn(&mut self, lane: usize, turn: u64) {
        let Lane { class, phase, turn: before, .. } = &mut self.all[lane];
        let before = std::mem::replace(before, turn);
        match *phase {
            Phase::Ready { rank } => self.classes.turn(*class, rank, (before, turn)),
            Phase::Waiting { state, rank } => {
                self.states.remove(state, (rank, before));
                self.states.wait(state, lane, (rank, turn));
            }
            Phase::Idle | Phase::Gone => {}
        }
    }

    /// Makes as many lanes that wait for this state wait for their turn as it can allow.
    fn top_up(&mut self, state: usize) {
        while let Some(lane) = self.states.release(state) {
            if let Phase::Waiting { rank, .. } = self.all[lane].phase {
                // Another of its states may block it. No lane was ready for less by it.
                self.put(lane, rank);
            }
        }
    }

    /// Does the same for each state of a lane that does not wait for its turn any more.
    fn top_up_all_of(&mut self, lane: usize) {
        for index in 0..self.all[lane].states.len() {
            self.top_up(self.all[lane].states[index]);
        }
    }

    /// Whether any lane waits for its turn.
    pub(crate) fn has_ready(&self) -> bool {
        self.classes.has_waiting()
    }

    /// When slots may be requested: `since` at the earliest.
    pub(crate) fn wake_at<W: Waiter>(&self, backlog: &Backlog<W>, since: Instant) -> Option<Instant> {
        if self.has_ready() || backlog.has_touched() {
            return Some(since);
        }
        // One call serves lanes that wake shortly after each other.
        let apart = self.asking.asked.map(|asked| asked + self.asking.lead / 2);
        self.states.wake_at().map(|at| at.max(since).max(apart.unwrap_or(since)))
    }

    /// Forgets which limits allow nothing now.
    pub(crate) fn forget(&mut self) {
        for state in self.states.wake_all() {
            self.top_up(state);
        }
    }

    /// Does the same for the limits of one lane.
    pub(crate) fn forget_limits_of(&mut self, lane: LaneId) {
        let Some(lane) = self.index(lane.row()) else { return };
        self.all[lane].states.iter().for_each(|state| self.states.wake_one(*state));
        self.top_up_all_of(lane);
    }
}

/// The limits of lanes besides the downstream's: without a plan, and by plan.
fn sets(settings: &Settings) -> Vec<Vec<Limit>> {
    let sets = 0..=settings.plans.len();
    sets.map(|set| settings.own_limits(LaneId::at(set)).cloned().collect()).collect()
}

#[cfg(test)]
mod tests;
