//! The releases of jobs on a virtual clock: slots are those that the limits plan for an engine, and each job goes as soon as it
//! has one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use paced::config::Downstream;
use paced::dispatch::{OnLimit, job_cost, too_far};
use paced::job::{Job, Reason};
use paced::limit::{Costs, JobCost, Limit, LimitSet, MAX_BATCH, Plan, Refusal, State, rate_text};
use paced::time::Micros;

/// The most spans that are listed one by one; the last one then continues to the end.
const MOST_SPANS: usize = 40;

/// Jobs that wait, and the states of the limits.
pub(super) struct Simulation {
    start: Micros,
    /// The downstream's own lane, and one for each plan.
    lanes: Vec<Lane>,
    /// The states of the downstream's own limits, which all lanes share.
    own: Vec<State>,
    polices: bool,
    max_wait: Option<Duration>,
    ended: Ended,
}

/// The jobs under the same limits.
struct Lane {
    /// The downstream's own limits, and then those of the plan.
    limits: LimitSet,
    /// The states of those of the plan.
    states: Vec<State>,
    /// Those that may go, in their order.
    ready: BTreeMap<Place, Waiting>,
    /// Those that may not go yet.
    later: BinaryHeap<Reverse<(Micros, Place, Waiting)>>,
    /// What it has taken, for turns.
    taken: u64,
    /// The limit that the first job waits for, and since when.
    binding: Option<(usize, Micros)>,
}

/// The place of a job in the order: its priority, and its line.
type Place = (Reverse<u8>, u64);

/// Equal jobs that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    times: u64,
    cost: JobCost,
    deadline: Option<Micros>,
    /// When they give up.
    give_up: Option<Micros>,
}

/// What becomes of the jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) start: Micros,
    pub(super) first: Option<Micros>,
    pub(super) last: Option<Micros>,
    pub(super) released: u64,
    pub(super) spans: Vec<Span>,
    pub(super) dead: BTreeMap<&'static str, Dead>,
}

/// A time in which one limit binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) what: String,
    pub(super) from: Micros,
    pub(super) until: Micros,
    pub(super) jobs: u64,
}

/// Jobs that would be dead for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dead {
    pub(super) jobs: u64,
    /// The line and the detail of the first.
    pub(super) line: u64,
    pub(super) detail: String,
}

impl Simulation {
    pub(super) fn new(downstream: &Downstream, start: Micros) -> Self {
        let polices = downstream.on_limit == OnLimit::Reject;
        let own = downstream.limits.len();
        let sets =
            std::iter::once(&downstream.limits).chain(downstream.plans.iter().map(|plan| &plan.limits));
        let set = |set: &LimitSet| if polices { set.clone().policing() } else { set.clone() };
        let lanes: Vec<Lane> = sets.map(|limits| Lane::new(set(limits), own)).collect();
        let own = set(&downstream.limits).fresh();
        let ended = Ended { start, ..Ended::default() };
        Self { start, lanes, own, polices, max_wait: downstream.max_wait, ended }
    }

    /// Adds a number of equal jobs, which are there from the start on.
    pub(super) fn add(&mut self, job: &Job, line: u64, times: u64) {
        let (times_of, start) = (&job.times, self.start);
        if let Some(detail) = too_far(times_of.not_before, start) {
            return self.refuse(Reason::MalformedHeader, &detail, line, times);
        }
        let row = job.plan.map_or(0, |plan| plan + 1);
        let Some(lane) = self.lanes.get_mut(row) else { return };
        let made_at = times_of.made_at.filter(|made_at| *made_at <= start).unwrap_or(start);
        let born = times_of.not_before.map_or(made_at, |due| due.max(made_at));
        let waiting = Waiting {
            times,
            cost: job_cost(&job.cost),
            deadline: times_of.deadline,
            give_up: self.max_wait.map(|max_wait| born.plus(max_wait)),
        };
        let place = (Reverse(job.priority), line);
        match times_of.not_before.filter(|due| *due > start) {
            Some(due) => lane.later.push(Reverse((due, place, waiting))),
            None => {
                lane.ready.insert(place, waiting);
            }
        }
    }

    /// Counts jobs that end without a release, or lines that are no valid jobs, under this reason.
    pub(super) fn refuse(&mut self, reason: Reason, detail: &str, line: u64, times: u64) {
        let dead = Dead { jobs: 0, line, detail: detail.to_owned() };
        let dead = self.ended.dead.entry(reason.as_str()).or_insert(dead);
        dead.jobs += times;
    }

    /// Releases all.
    pub(super) fn run(mut self) -> Ended {
        let mut now = self.start;
        loop {
            self.lanes.iter_mut().for_each(|lane| lane.wake(now));
            let next = match self.turn(now) {
                Turn::Released => continue,
                Turn::Waits(slot) => slot,
            };
            // One whose time comes before the slot may go first.
            let due = self.lanes.iter().filter_map(Lane::due).min();
            match next.into_iter().chain(due).min() {
                Some(next) => now = next,
                None => return self.ended,
            }
        }
    }

    /// Releases jobs of one lane that fit now, of several the one that has taken least; otherwise says when the next may go.
    fn turn(&mut self, now: Micros) -> Turn {
        let mut rows: Vec<usize> = (0..self.lanes.len()).collect();
        rows.sort_by_key(|row| self.lanes[*row].taken);
        let mut next: Option<Micros> = None;
        for row in rows {
            while let Some((place, first)) = self.lanes[row].first() {
                if let Some(reason) = first.ended(now) {
                    self.end(row, place, first.times, reason);
                    continue;
                }
                let Some(refusal) = self.release(row, now) else { return Turn::Released };
                if self.polices {
                    let name = self.lanes[row].limits.get(refusal.limit).map_or("", Limit::name);
                    let detail = format!("the limit `{name}` is used up");
                    self.lanes[row].take(place, 1);
                    self.refuse(Reason::Rejected, &detail, place.1, 1);
                    continue;
                }
                if let Some(reason) = first.ended(refusal.slot) {
                    // The jobs that are equal to it wait at least as long.
                    self.end(row, place, first.times, reason);
                    continue;
                }
                let lane = &mut self.lanes[row];
                let since = lane.binding.map_or(now, |(_, since)| since);
                lane.binding = Some((refusal.limit, since));
                next = Some(next.map_or(refusal.slot, |next| next.min(refusal.slot)));
                break;
            }
        }
        Turn::Waits(next)
    }

    /// Releases the first job of a lane, or one that may go before it; otherwise the reason why none may.
    fn release(&mut self, row: usize, now: Micros) -> Option<Refusal> {
        let plan = self.plan(row, now, 1);
        let Some(refusal) = plan.refused else {
            self.released(row, now, &plan);
            return None;
        };
        if plan.awaiting_window == 0 || self.polices || self.lanes[row].ready.len() < 2 {
            return Some(refusal);
        }
        // It waits for the end of a window, the rest of which others may take.
        let plan = self.plan(row, now, MAX_BATCH);
        if plan.slots.is_empty() {
            return Some(refusal);
        }
        self.released(row, now, &plan);
        None
    }

    /// Has the limits plan as many of the first jobs of a lane as fit now, at most this many.
    fn plan(&mut self, row: usize, now: Micros, most: usize) -> Plan {
        let lane = &mut self.lanes[row];
        let jobs = lane.jobs(now, most).map(|(_, cost)| cost);
        let costs: Vec<u32> =
            jobs.flat_map(|cost| lane.limits.listed().map(move |limit| cost.of(limit))).collect();
        let own = self.own.len();
        let mut states = std::mem::take(&mut self.own);
        states.append(&mut lane.states);
        let plan = lane.limits.plan(&mut states, now, Costs::PerLimit(&costs), now);
        lane.states = states.split_off(own);
        self.own = states;
        plan
    }

    /// Counts the jobs of a plan.
    fn released(&mut self, row: usize, now: Micros, plan: &Plan) {
        let lane = &mut self.lanes[row];
        let is_passed = |job: usize| plan.passed.iter().any(|passed| passed.job == job);
        let most = plan.slots.len() + plan.passed.len();
        let jobs: Vec<_> = lane.jobs(now, most).enumerate().filter(|(job, _)| !is_passed(*job)).collect();
        let first = lane.first().map(|(place, _)| place);
        for (_, (place, cost)) in jobs.into_iter().take(plan.slots.len()) {
            lane.take(place, 1);
            lane.taken += u64::from(cost.default_cost());
            self.ended.first.get_or_insert(now);
            self.ended.last = self.ended.last.max(Some(now));
            self.ended.released += 1;
            if Some(place) == first
                && let Some((limit, since)) = lane.binding.take()
                && now > since
                && let Some(limit) = lane.limits.get(limit)
            {
                self.ended.bound(&format!("{} ({})", limit.name(), rate_text(limit)), since, now);
            }
        }
    }

    /// Has a number of equal jobs end without a slot.
    fn end(&mut self, row: usize, (priority, line): Place, times: u64, reason: Reason) {
        let detail = match reason {
            Reason::Expired => "its deadline passes before its slot comes",
            _ => "it would wait for longer than max_wait",
        };
        self.lanes[row].take((priority, line), times);
        self.lanes[row].binding = None;
        self.refuse(reason, detail, line, times);
    }
}

/// The result of a turn.
enum Turn {
    Released,
    /// The next slot, if any job waits for one.
    Waits(Option<Micros>),
}

impl Waiting {
    /// Why they are dead at this instant, if they are.
    fn ended(&self, at: Micros) -> Option<Reason> {
        let has_passed = |end: Option<Micros>| end.is_some_and(|end| end < at);
        match (has_passed(self.deadline), has_passed(self.give_up)) {
            (true, _) => Some(Reason::Expired),
            (_, true) => Some(Reason::QueueFull),
            _ => None,
        }
    }
}

impl Ended {
    /// Notes that a limit had a job wait from one instant to the other.
    fn bound(&mut self, what: &str, from: Micros, until: Micros) {
        let is_full = self.spans.len() >= MOST_SPANS;
        match self.spans.last_mut() {
            Some(last) if last.what == what || is_full => (last.until, last.jobs) = (until, last.jobs + 1),
            _ => self.spans.push(Span { what: what.to_owned(), from, until, jobs: 1 }),
        }
    }
}

impl Lane {
    fn new(limits: LimitSet, own: usize) -> Self {
        let states = limits.fresh().split_off(own);
        Self { limits, states, ready: BTreeMap::new(), later: BinaryHeap::new(), taken: 0, binding: None }
    }

    fn first(&self) -> Option<(Place, Waiting)> {
        self.ready.first_key_value().map(|(place, waiting)| (*place, *waiting))
    }

    /// The first of the jobs that may still go, one by one.
    fn jobs(&self, now: Micros, most: usize) -> impl Iterator<Item = (Place, JobCost)> {
        let live = self.ready.iter().filter(move |(_, waiting)| waiting.ended(now).is_none());
        let each = live.flat_map(move |(place, waiting)| {
            let times = usize::try_from(waiting.times).unwrap_or(usize::MAX).min(most);
            std::iter::repeat_n((*place, waiting.cost), times)
        });
        each.take(most)
    }

    fn due(&self) -> Option<Micros> {
        self.later.peek().map(|Reverse((due, ..))| *due)
    }

    fn wake(&mut self, now: Micros) {
        while self.due().is_some_and(|due| due <= now) {
            let Some(Reverse((_, place, waiting))) = self.later.pop() else { return };
            self.ready.insert(place, waiting);
        }
    }

    /// Takes a number of the equal jobs at a place out.
    fn take(&mut self, place: Place, times: u64) {
        let Some(waiting) = self.ready.get_mut(&place) else { return };
        waiting.times = waiting.times.saturating_sub(times);
        if waiting.times == 0 {
            self.ready.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests;
