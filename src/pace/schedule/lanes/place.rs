//! When a waiter goes, as far as is known here: how many go before it, and what the limits of its lane allow. It is pure.
//!
//! Lanes of one value take turns, and values share by their weights. So while the waiter's value gets some grants, each
//! other value gets as many more as its weight says, or all that it waits for, or what its own limits allow by then. These
//! are counts of waiters: their costs are not taken into account.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Lane, LaneWait, Lanes};
use crate::limit::Limit;
use crate::pace::backlog::Backlog;
use crate::pace::{LaneId, Waiter, limit_delay};

/// How often the estimate is made again with what other lanes can get by the instant of the one before; and how often with
/// many of these, since slots must not wait for it.
const ROUNDS: usize = 4;
const ROUNDS_OF_MANY: usize = 1;
const MANY: usize = 1_000;

/// The longest delay of a limit, which can be added to any instant.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// The place of a waiter among those that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaiterPlace {
    /// The name of its lane; `None` unless lanes are made by keys.
    pub(crate) lane: Option<String>,
    /// The number of ready waiters of its lane, and of those of them that go before it.
    pub(crate) waiting: usize,
    pub(crate) ahead: usize,
    /// The number of waiters of all lanes that go before it, besides those that have a slot.
    pub(crate) before: u64,
    /// When the downstream has its next slot for these waiters and this one, as far as is known.
    pub(crate) next: Instant,
    /// When the limits and pauses of its lane let it go, and which of them is the last one to do so. It is
    /// [`LaneWait::Turn`] where they let it go now.
    pub(crate) own: Instant,
    pub(crate) wait: LaneWait,
}

/// The ready waiters of a lane, compared with the priority of one in question.
#[derive(Clone, Copy, Debug)]
struct Rival {
    lane: usize,
    higher: u64,
    equal: u64,
}

/// The waiter in question.
#[derive(Clone, Copy, Debug)]
struct Target {
    lane: usize,
    /// The number of those of its lane that go before it: with a higher priority, and with its own.
    higher: u64,
    equal: u64,
    now: Instant,
}

impl Lanes {
    /// The lanes of this name, of jobs without a plan and of each plan.
    pub(crate) fn named(&self, name: &str) -> Vec<LaneId> {
        let Some(values) = self.rules.values(name) else { return vec![] };
        let lanes = (0..self.sets.len()).filter_map(|set| self.known.get(set, &values));
        lanes.map(|lane| self.id(lane)).collect()
    }

    /// The place of a ready waiter. The downstream has its next slot at `next`, and has released a number of waiters after
    /// `pace` of it.
    pub(crate) fn place_of<W: Waiter>(
        &self,
        backlog: &Backlog<W>,
        waiter: &W,
        (now, next): (Instant, Instant),
        pace: impl Fn(u64) -> Duration,
    ) -> Option<WaiterPlace> {
        let lane = self.index(waiter.lane().row())?;
        let (higher, equal) = backlog.before(waiter);
        let target = Target { lane, higher: higher as u64, equal: equal as u64, now };
        let rank = 9 - waiter.priority().min(9);
        let rivals = self.rivals(backlog, lane, rank);
        let (own, wait) = self.own_wait(target, &rivals);
        let mut before = self.before(target, &rivals, vec![u64::MAX; self.states.len()]);
        let rounds = if rivals.len() > MANY { ROUNDS_OF_MANY } else { ROUNDS };
        for _ in 0..rounds {
            let by = own.max(next + pace(before));
            before = self.before(target, &rivals, self.allowed_by(&rivals, (now, by)));
        }
        Some(WaiterPlace {
            lane: self.known.values(lane).map(|values| self.rules.name(values)),
            waiting: backlog.ready(self.id(lane)),
            ahead: higher + equal,
            before,
            next,
            own,
            wait,
        })
    }

    /// The other lanes that have ready waiters.
    fn rivals<W: Waiter>(&self, backlog: &Backlog<W>, lane: usize, rank: u8) -> Vec<Rival> {
        let others = (0..self.all.len()).filter(|other| *other != lane);
        let rivals = others.map(|lane| {
            let (higher, equal) = backlog.ranks(self.id(lane), rank);
            Rival { lane, higher: higher as u64, equal: equal as u64 }
        });
        rivals.filter(|rival| rival.higher + rival.equal > 0).collect()
    }

    /// The number of waiters of the same priority that another lane of the target's value has before the target.
    fn in_turn(&self, target: Target, rival: Rival) -> u64 {
        let is_first = self.all[rival.lane].turn < self.all[target.lane].turn;
        rival.equal.min(target.equal + u64::from(is_first))
    }

    /// When the limits of the target's lane let it go, and the last one that does.
    fn own_wait(&self, target: Target, rivals: &[Rival]) -> (Instant, LaneWait) {
        let states = &self.all[target.lane].states;
        let mut ahead = vec![target.higher + target.equal; states.len()];
        for rival in rivals {
            let before = rival.higher + self.in_turn(target, *rival);
            for state in &self.all[rival.lane].states {
                let shared = states.iter().position(|other| other == state);
                shared.into_iter().for_each(|index| ahead[index] += before);
            }
        }
        let limits = &self.sets[self.all[target.lane].set];
        let wait = |(index, state): (usize, &usize)| {
            let asleep = self.states.sleeps_until(*state).filter(|until| *until > target.now);
            let count = u32::try_from(ahead[index]).unwrap_or(u32::MAX);
            let delay = match limits.get(index) {
                // What it allows at once is used up.
                Some(limit) if asleep.is_some() => limit.rate().interval().saturating_mul(count).min(LONGEST),
                Some(limit) => limit_delay(&[limit], ahead[index]),
                None => Duration::ZERO,
            };
            (asleep.unwrap_or(target.now) + delay, *state)
        };
        let last = states.iter().enumerate().map(wait).max();
        match last.filter(|(until, _)| *until > target.now) {
            None => (target.now, LaneWait::Turn),
            Some((until, state)) if self.states.is_stop(state) => (until, LaneWait::Stop),
            Some((until, state)) if self.states.is_pause(state) => (until, LaneWait::Pause(until)),
            Some((until, state)) => {
                (until, LaneWait::Limit(self.states.name(state).0.to_string(), Some(until)))
            }
        }
    }

    /// The number of waiters that go before the target, where each state allows this number of them by then.
    fn before(&self, target: Target, rivals: &[Rival], mut allowed: Vec<u64>) -> u64 {
        let class = self.all[target.lane].class;
        let (mut before, mut own) = (target.higher, target.equal);
        let mut others: BTreeMap<usize, u64> = BTreeMap::new();
        for rival in rivals {
            let Lane { class: its, states, .. } = &self.all[rival.lane];
            let most = states.iter().map(|state| allowed[*state]).min().unwrap_or(u64::MAX);
            let higher = rival.higher.min(most);
            let equal = if *its == class { self.in_turn(target, *rival) } else { rival.equal };
            let equal = equal.min(most - higher);
            states.iter().for_each(|state| allowed[*state] -= higher + equal);
            before += higher;
            match *its == class {
                true => own += equal,
                false => *others.entry(*its).or_default() += equal,
            }
        }
        let weight = u64::from(self.classes.weight(class));
        for (class, waiting) in others {
            let share = own.saturating_mul(u64::from(self.classes.weight(class))).div_ceil(weight);
            before += waiting.min(share);
        }
        before + own
    }

    /// The number of waiters that each state of these lanes allows by an instant.
    fn allowed_by(&self, rivals: &[Rival], times: (Instant, Instant)) -> Vec<u64> {
        let mut allowed = vec![u64::MAX; self.states.len()];
        for rival in rivals {
            let Lane { set, states, .. } = &self.all[rival.lane];
            for (index, state) in states.iter().enumerate() {
                allowed[*state] = self.allows(self.sets[*set].get(index), *state, times);
            }
        }
        allowed
    }

    /// The number of waiters that a state allows by an instant: of this limit, or of a pause.
    fn allows(&self, limit: Option<&Limit>, state: usize, (now, by): (Instant, Instant)) -> u64 {
        let asleep = self.states.sleeps_until(state).filter(|until| *until > now);
        let start = asleep.unwrap_or(now);
        match limit {
            _ if start > by => 0,
            Some(limit) => {
                let at_once = if asleep.is_some() { 1 } else { limit.burst() };
                let more = (by - start).as_micros() / limit.rate().interval().as_micros().max(1);
                at_once.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
            }
            None => u64::MAX,
        }
    }
}
