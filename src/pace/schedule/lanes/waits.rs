//! How long jobs wait for the limits of their lanes, and which of them wait long enough to wait elsewhere. It is
//! pure.
//!
//! The lanes of a state take turns at it, those of a higher priority first. So a job waits for the jobs of all lanes
//! that precede it at one of its states, and not only for those of its own lane.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::{Lane, Lanes, Phase};
use crate::pace::backlog::Backlog;
use crate::pace::schedule::lane::PassedOn;
use crate::pace::{Waiter, limit_delay};

/// The longest assumed wait of a job for the probes of a cool-down before it, or for a downstream that throttles
/// again and again: most of these waits end earlier.
const LONGEST_COOLING: Duration = Duration::from_secs(300);

/// How long a job waits elsewhere whose value an operator has paused. Then it comes back, and waits elsewhere again.
const STOPPED: Duration = Duration::from_secs(3600);

/// The jobs of a lane that has limits of its own, or is paused.
struct Queue<W> {
    lane: usize,
    /// The rank and the turn that order the lanes.
    order: (usize, u64),
    /// When the limits of the lane allow something, as far as is known.
    start: Instant,
    /// Whether nobody knows how long the lane waits: for an operator, or for the downstream to throttle no more.
    is_guess: bool,
    /// The number of its jobs, and of those among them that stay, which are the first ones.
    ready: usize,
    stay: usize,
    /// The jobs that were taken out.
    beyond: VecDeque<W>,
}

impl<W: Waiter> Queue<W> {
    /// Until when a job waits elsewhere that is expected to be released at `goes`. If that is a guess and the job
    /// gives up before, it waits for half of the time that it has left, since it may be released sooner.
    fn until(&self, now: Instant, goes: Instant, waiter: &W) -> Instant {
        let end = waiter.end().map(|end| end.at).filter(|end| self.is_guess && *end < goes);
        end.map_or(goes, |end| now + end.saturating_duration_since(now) / 2)
    }
}

/// The jobs that precede others at each state: those that wait here, and those that wait elsewhere.
struct Ahead {
    here: Vec<u64>,
    elsewhere: HashMap<usize, PassedOn>,
}

impl Ahead {
    /// No jobs, for this number of states.
    fn none(states: usize) -> Self {
        Self { here: vec![0; states], elsewhere: HashMap::new() }
    }

    /// The number of jobs at this state that precede one with this position in the order of arrival.
    fn of(&self, state: usize, seq: u64) -> u64 {
        let elsewhere = self.elsewhere.get(&state).map_or(0, |others| others.before(seq));
        self.here[state] + elsewhere
    }

    fn count(&mut self, states: &[usize]) {
        states.iter().for_each(|state| self.here[*state] += 1);
    }
}

impl Lanes {
    /// The number of ready jobs of lanes that allow nothing until after `by`, as far as is known.
    pub(crate) fn asleep<W: Waiter>(&self, backlog: &Backlog<W>, by: Instant) -> usize {
        let sleeps = |state: &usize| self.states.sleeps_until(*state).is_some_and(|until| until > by);
        let asleep = (0..self.all.len()).filter(|lane| self.all[*lane].states.iter().any(sleeps));
        asleep.map(|lane| backlog.ready(self.id(lane))).sum()
    }

    /// When the last job is released that waits for limits of its lane, as far as these determine it.
    pub(crate) fn last_goes<W: Waiter>(&self, backlog: &Backlog<W>, now: Instant) -> Option<Instant> {
        let (mut queues, mut ahead) = (self.queues(backlog, now), Ahead::none(self.states.len()));
        let mut last: Option<Instant> = None;
        take_turns(&mut queues, |queue| {
            last = last.max(Some(self.goes(queue, &ahead, 0)));
            ahead.count(&self.all[queue.lane].states);
            queue.stay += 1;
            queue.stay < queue.ready
        });
        last
    }

    /// Takes out at most this many jobs that are released after `by`, with the instant for each, as far as the limits
    /// of lanes determine it. Jobs of the lanes whose turn comes last are taken first.
    ///
    /// Their instants count the jobs that were taken out before and have no slot yet. Jobs that give up before their
    /// slot are among them, and no job waits for these. Nobody gives up by a guess: the instant is earlier then.
    pub(crate) fn take_beyond<W: Waiter>(
        &mut self,
        backlog: &mut Backlog<W>,
        (now, by): (Instant, Instant),
        most: usize,
    ) -> Vec<(Instant, W)> {
        let (mut queues, mut ahead) = (self.queues(backlog, now), Ahead::none(self.states.len()));
        take_turns(&mut queues, |queue| {
            let stays = queue.stay < queue.ready && self.goes(queue, &ahead, 0) <= by;
            if stays {
                ahead.count(&self.all[queue.lane].states);
                queue.stay += 1;
            }
            stays
        });
        let mut left = most;
        for queue in queues.iter_mut().rev() {
            let id = self.id(queue.lane);
            let count = (queue.ready - queue.stay).min(left);
            queue.beyond = (0..count).map_while(|_| backlog.pop_last(id)).collect();
            queue.beyond.make_contiguous().reverse();
            left -= queue.beyond.len();
            // The others stay, however late they are released.
            let others = queue.stay..queue.ready - queue.beyond.len();
            others.for_each(|_| ahead.count(&self.all[queue.lane].states));
        }
        queues.retain(|queue| !queue.beyond.is_empty());
        for queue in &queues {
            let Lane { set, states, .. } = &self.all[queue.lane];
            let is_paced =
                |index: usize, state| index < self.sets[*set].len() || self.states.apart(state).is_some();
            let paced = states.iter().copied().enumerate().filter(|(index, state)| is_paced(*index, *state));
            for (_, state) in paced.collect::<Vec<_>>() {
                ahead.elsewhere.insert(state, self.states.passed_on(state, now));
            }
        }
        let mut taken = Vec::new();
        take_turns(&mut queues, |queue| {
            let Some(waiter) = queue.beyond.pop_front() else { return false };
            let seq = waiter.seq();
            let goes = queue.until(now, self.goes(queue, &ahead, seq), &waiter);
            let gives_up = waiter.end().is_some_and(|end| end.is_early_for(goes));
            if !gives_up {
                let states = &self.all[queue.lane].states;
                ahead.count(states);
                states.iter().for_each(|state| self.states.pass_on(*state, seq));
            }
            taken.push((goes, waiter));
            true
        });
        taken
    }

    /// The lanes with jobs that wait for limits of their own, in the order of their turns.
    fn queues<W: Waiter>(&self, backlog: &Backlog<W>, now: Instant) -> Vec<Queue<W>> {
        let queue = |(lane, of): (usize, &Lane)| {
            let (Phase::Ready { rank } | Phase::Waiting { rank, .. }) = of.phase else { return None };
            let ready = backlog.ready(self.id(lane));
            let asleep = of.states.iter().filter_map(|state| {
                let until = self.states.sleeps_until(*state)?;
                Some(if self.states.is_stop(*state) { until.min(now + STOPPED) } else { until })
            });
            let asleep = asleep.max();
            let (order, start) = ((rank, of.turn), asleep.map_or(now, |until| until.max(now)));
            let is_limited = ready > 0 && (!self.sets[of.set].is_empty() || asleep.is_some());
            let is_guess = of
                .states
                .iter()
                .any(|state| self.states.is_stop(*state) || self.states.apart(*state).is_some());
            is_limited.then(|| Queue {
                lane,
                order,
                start,
                is_guess,
                ready,
                stay: 0,
                beyond: VecDeque::new(),
            })
        };
        let mut queues: Vec<_> = self.all.iter().enumerate().filter_map(queue).collect();
        queues.sort_unstable_by_key(|queue| queue.order);
        queues
    }

    /// When the job of a lane with this position in the order of arrival is released, behind those ahead of it.
    fn goes<W>(&self, queue: &Queue<W>, ahead: &Ahead, seq: u64) -> Instant {
        let Lane { set, states, .. } = &self.all[queue.lane];
        let limits = self.sets[*set].iter().zip(states);
        let delays = limits.map(|(limit, state)| limit_delay(&[limit], ahead.of(*state, seq)));
        let throttled = states.iter().filter_map(|state| {
            let apart = self.states.apart(*state)?;
            let before = u32::try_from(ahead.of(*state, seq)).unwrap_or(u32::MAX);
            Some(apart.saturating_mul(before).min(LONGEST_COOLING))
        });
        queue.start + delays.chain(throttled).max().unwrap_or_default()
    }
}

/// Makes lanes take turns until `turn` returns false for each of them: those of the highest priority first, one job
/// each.
fn take_turns<W>(queues: &mut [Queue<W>], mut turn: impl FnMut(&mut Queue<W>) -> bool) {
    for equals in queues.chunk_by_mut(|one, next| one.order.0 == next.order.0) {
        let mut waiting: Vec<&mut Queue<W>> = equals.iter_mut().collect();
        while !waiting.is_empty() {
            waiting.retain_mut(|queue| turn(queue));
        }
    }
}
