//! Jobs of several lanes in one call: limits of two levels.
//!
//! A job of a lane obeys the downstream's own limits and those of its lane. Slots are granted step by step: the next
//! slot of the downstream goes to the first job, in the order of the call, whose lane is ready by then; if there is
//! none, to the lane that is ready first, if that is soon. So both levels hold at every slot, and no lane that has to
//! wait keeps the downstream from the others.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::slots::Choice;
use super::{Limit, LimitSet, Passed, Plan, Refusal, Row, State};
use crate::limit::Charge;
use crate::time::Micros;

/// The number of steps that a call takes beyond two for each job. Jobs that are left after the last step get no slot in
/// this call.
const SPARE: usize = 1024;

/// The limits of lanes with their states. Lanes may share some of them.
pub(crate) struct Keyed<'a> {
    /// Each pair of limit and key once.
    pub(crate) states: Vec<(&'a Limit, State)>,
    /// The indices of each lane's states.
    pub(crate) lanes: Vec<Vec<usize>>,
    /// The lane and the cost of each job.
    pub(crate) jobs: Vec<(Option<usize>, u32)>,
}

/// The bounds of the slots of one call.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) now: Micros,
    /// The latest slot that may be granted.
    pub(crate) until: Micros,
    /// The latest slot that the limits of a lane may set.
    pub(crate) soon: Micros,
    /// How many more slots may be granted.
    pub(crate) most: usize,
}

/// The first job of a lane that got no slot yet, ordered by the instant at which the lane is ready for it.
type Head = Reverse<(Micros, usize)>;

struct Steps<'k, 'a> {
    own: &'k LimitSet,
    states: &'k mut [State],
    keyed: &'k mut Keyed<'a>,
    span: Span,
    /// The jobs of each lane after its head.
    behind: Vec<VecDeque<usize>>,
    /// The heads whose lanes are ready, by their order in the call.
    ready: BinaryHeap<Reverse<usize>>,
    asleep: BinaryHeap<Head>,
    /// The slot of each job that got one.
    slots: Vec<Option<Micros>>,
    /// The heads that wait for the end of a window of the downstream.
    passed: Vec<usize>,
}

impl Keyed<'_> {
    /// Plans slots for jobs of lanes. `states` are those of `own`, the downstream's limits; all states are left as they
    /// are after the last slot.
    ///
    /// In the plan each job without a slot is among those passed over, and `refused` is the downstream's next slot, if
    /// the downstream ended the call.
    pub(crate) fn plan(&mut self, own: &LimitSet, states: &mut [State], span: Span) -> Plan {
        let mut steps = Steps::new(own, states, self, span);
        let refused = steps.run();
        let passed = steps.refusals();
        let (refused, refused_job) = refused.map_or((None, 0), |(refusal, job)| (Some(refusal), job));
        let slots = steps.slots;
        let jobs = slots.iter().zip(&self.jobs).filter_map(|(slot, job)| Some(((*slot)?, job)));
        let (slots, charges) = jobs.map(|(slot, job)| (slot, self.charge(own, *job))).unzip();
        Plan { slots, charges, passed, refused, refused_job, awaiting_window: 0 }
    }

    /// The charge of a job: all limits of both levels.
    pub(crate) fn charge(&self, own: &LimitSet, (lane, cost): (Option<usize>, u32)) -> Charge {
        let limits = own.len() + lane.map_or(0, |lane| self.lanes[lane].len());
        Charge::all(limits, cost)
    }
}

impl<'k, 'a> Steps<'k, 'a> {
    fn new(own: &'k LimitSet, states: &'k mut [State], keyed: &'k mut Keyed<'a>, span: Span) -> Self {
        let (lanes, jobs) = (keyed.lanes.len(), keyed.jobs.len());
        let mut steps = Self {
            own,
            states,
            keyed,
            span,
            behind: vec![VecDeque::new(); lanes],
            ready: BinaryHeap::new(),
            asleep: BinaryHeap::new(),
            slots: vec![None; jobs],
            passed: vec![],
        };
        let mut begun = vec![false; lanes];
        for job in 0..jobs {
            match steps.keyed.jobs[job].0 {
                Some(lane) if begun[lane] => steps.behind[lane].push_back(job),
                lane => {
                    lane.into_iter().for_each(|lane| begun[lane] = true);
                    let (due, _) = steps.due(job);
                    steps.asleep.push(Reverse((due, job)));
                }
            }
        }
        steps
    }

    /// When the lane of a job is ready for it, and the first of its limits that requires that instant.
    fn due(&self, job: usize) -> (Micros, usize) {
        let (lane, cost) = self.keyed.jobs[job];
        let mut due = (self.span.now, 0);
        for (place, &state) in lane.iter().flat_map(|&lane| self.keyed.lanes[lane].iter().enumerate()) {
            let (limit, state) = &self.keyed.states[state];
            let slot = limit.earliest(state, self.span.now, cost);
            if slot > due.0 {
                due = (slot, place);
            }
        }
        due
    }

    fn row(&self, cost: u32) -> Row {
        let mut row = Row::default();
        row[..self.own.len()].fill(cost);
        row
    }

    /// Grants slots until the call ends. Returns the downstream's slot that ended it, if one did, and the job that it
    /// was refused to.
    fn run(&mut self) -> Option<(Refusal, usize)> {
        // Where many lanes share a limit, each slot that one of them takes requires all others to be examined again.
        for _ in 0..2 * self.slots.len() + SPARE {
            if self.span.most == 0 {
                return None;
            }
            let base = self.own.choose(self.states, self.span.now, &self.row(1)).slot;
            while let Some(Reverse((_, job))) = self.asleep.peek().copied().filter(|head| head.0.0 <= base) {
                self.asleep.pop();
                self.ready.push(Reverse(job));
            }
            let (known, job) = match self.ready.pop() {
                Some(Reverse(job)) => (base, job),
                None => self.asleep.pop()?.0,
            };
            let (due, _) = self.due(job);
            if due > known {
                // Another lane has charged a limit that they share.
                self.asleep.push(Reverse((due, job)));
                continue;
            }
            if due > base && due > self.span.soon.min(self.span.until) {
                self.asleep.push(Reverse((due, job)));
                return None;
            }
            let cost = self.keyed.jobs[job].1;
            let Choice { slot, limit, .. } = self.own.choose(self.states, self.span.now, &self.row(cost));
            if slot.max(due) <= self.span.until {
                self.grant(job, slot.max(due));
            } else if self.own.waits_for_window(limit) && cost > 1 {
                self.passed.push(job);
            } else {
                self.ready.push(Reverse(job));
                return Some((Refusal { slot, limit }, job));
            }
        }
        None
    }

    fn grant(&mut self, job: usize, slot: Micros) {
        let (lane, cost) = self.keyed.jobs[job];
        self.slots[job] = Some(slot);
        self.span.most -= 1;
        self.own.charge(self.states, slot, &self.row(cost), Charge::all(self.own.len(), cost));
        let Some(lane) = lane else { return };
        for &place in self.keyed.lanes[lane].iter().filter(|_| cost > 0) {
            let (limit, state) = &mut self.keyed.states[place];
            *state = limit.commit(state, slot, cost);
        }
        if let Some(next) = self.behind[lane].pop_front() {
            let (due, _) = self.due(next);
            self.asleep.push(Reverse((due, next)));
        }
    }

    /// The reason why each job without a slot got none. Jobs behind the first one of a lane wait at least as long as
    /// that one.
    fn refusals(&self) -> Vec<Passed> {
        let base = self.own.choose(self.states, self.span.now, &self.row(1)).slot;
        let asleep = self.asleep.iter().map(|head| head.0.1);
        let heads = asleep.chain(self.ready.iter().map(|head| head.0)).chain(self.passed.iter().copied());
        let mut passed = vec![];
        for head in heads {
            let (lane, cost) = self.keyed.jobs[head];
            let (due, place) = self.due(head);
            let Choice { slot, limit, .. } = self.own.choose(self.states, self.span.now, &self.row(cost));
            let refusal = if due > base.max(slot) {
                Refusal { slot: due, limit: self.own.len() + place }
            } else {
                Refusal { slot, limit }
            };
            let behind = lane.into_iter().flat_map(|lane| self.behind[lane].iter().copied());
            passed.extend(std::iter::once(head).chain(behind).map(|job| Passed { job, refusal }));
        }
        passed.sort_unstable_by_key(|passed| passed.job);
        passed
    }
}
