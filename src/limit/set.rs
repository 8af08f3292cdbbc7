//! Sets of limits that decide on a job together.

use std::time::Duration;

use super::plan::{Charge, Costs, Verdict};
use super::{Decision, Limit, LimitError, MAX_LIMITS, Mark, Standing, State};
use crate::rate::Rate;
use crate::time::Micros;

/// How the limits of a set combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Combine {
    /// All limits must allow the job: the slot is the latest of their `earliest`, and all are charged there.
    #[default]
    All,
    /// One limit must allow the job: the slot is the earliest of their `earliest`, and all that allow it then are
    /// charged.
    Any,
    /// One limit must allow the job, and only it is charged: the first of those that allow it earliest.
    OneOf,
}

/// Limits that decide together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSet {
    pub(super) limits: Vec<Limit>,
    pub(super) combine: Combine,
    /// For each limit as it was given, its index in `limits`.
    given: Vec<usize>,
    /// How often each of `limits` was given.
    times: Vec<u32>,
}

/// The costs of one job by the index of the limit; 0 after the last limit.
pub type Row = [u32; MAX_LIMITS];

impl LimitSet {
    /// A set in which all limits must allow a job. A limit that is given twice is charged twice.
    ///
    /// # Errors
    /// [`LimitError`] when there is no limit, there are too many, or two that differ have one name.
    pub fn new(limits: Vec<Limit>) -> Result<Self, LimitError> {
        Self::combined(Combine::All, limits)
    }

    /// A set in which one limit must allow a job; all that allow it are charged.
    ///
    /// # Errors
    /// As [`LimitSet::new`].
    pub fn any(limits: Vec<Limit>) -> Result<Self, LimitError> {
        Self::combined(Combine::Any, limits)
    }

    /// A set in which one limit must allow a job; only the first that allows it earliest is charged.
    ///
    /// # Errors
    /// As [`LimitSet::new`].
    pub fn one_of(limits: Vec<Limit>) -> Result<Self, LimitError> {
        Self::combined(Combine::OneOf, limits)
    }

    /// A set of limits that combine in this way.
    ///
    /// # Errors
    /// As [`LimitSet::new`].
    pub fn combined(combine: Combine, all: Vec<Limit>) -> Result<Self, LimitError> {
        if all.is_empty() {
            return Err(LimitError::Empty);
        }
        // Most sets have one limit, and some of each downstream last.
        let mut limits = Vec::<Limit>::with_capacity(1);
        let (mut given, mut times) = (Vec::with_capacity(1), Vec::<u32>::with_capacity(1));
        for limit in all {
            // Two reads before one write would undercount a limit that is given twice, so it is stored once, at twice
            // the cost.
            let place = limits.iter().position(|other| other.name == limit.name);
            match place {
                Some(place) if limits[place] == limit => {
                    times[place] += u32::from(combine != Combine::OneOf);
                    given.push(place);
                }
                Some(_) => return Err(LimitError::SameName(limit.name)),
                None => {
                    given.push(limits.len());
                    times.push(1);
                    limits.push(limit);
                }
            }
        }
        if limits.len() > MAX_LIMITS {
            return Err(LimitError::TooMany(limits.len()));
        }
        Ok(Self { limits, combine, given, times })
    }

    /// The set for policers; see [`Limit::policing`].
    #[must_use]
    pub fn policing(self) -> Self {
        let limits = self.limits.into_iter().map(Limit::policing).collect();
        Self { limits, ..self }
    }

    /// The same set with `prefix` before the name of each limit, and so with other states.
    pub(crate) fn prefixed(self, prefix: &str) -> Self {
        let named = |limit: Limit| Limit { name: format!("{prefix}{}", limit.name), ..limit };
        let limits = self.limits.into_iter().map(named).collect();
        Self { limits, ..self }
    }

    /// The limits, in the order in which they were given, each once.
    pub fn iter(&self) -> std::slice::Iter<'_, Limit> {
        self.limits.iter()
    }

    /// The limits as they were given: one that was given twice is repeated.
    pub fn listed(&self) -> impl Iterator<Item = &Limit> {
        self.given.iter().map(|&place| &self.limits[place])
    }

    /// The limit at an index.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&Limit> {
        self.limits.get(place)
    }

    /// The limit of a set of a single one that was given once.
    #[must_use]
    #[inline]
    pub fn single(&self) -> Option<&Limit> {
        match (&*self.limits, &*self.times) {
            ([limit], [1]) => Some(limit),
            _ => None,
        }
    }

    /// The number of limits, each counted once: at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(&self) -> usize {
        self.limits.len()
    }

    /// The number of costs per job in [`Costs::PerLimit`]: one for each limit that was given.
    #[must_use]
    pub const fn given(&self) -> usize {
        self.given.len()
    }

    /// The way in which they combine.
    #[must_use]
    pub const fn combine(&self) -> Combine {
        self.combine
    }

    /// Whether all limits are of the GCRA family, whose slots can be derived from the first one.
    #[must_use]
    pub fn is_tat(&self) -> bool {
        self.iter().all(|limit| limit.tat().is_some())
    }

    /// The states of limits that were never used.
    #[must_use]
    pub fn fresh(&self) -> Vec<State> {
        self.iter().map(Limit::fresh).collect()
    }

    /// The slot of a job that costs every limit the same: the first instant at which it fits.
    #[must_use]
    pub fn earliest(&self, states: &[State], now: Micros, cost: u32) -> Micros {
        self.choose(states, now, &self.each(cost)).slot
    }

    /// Commits `cost` at `at` to every limit.
    pub fn commit(&self, states: &mut [State], at: Micros, cost: u32) {
        self.charge(states, at, &self.each(cost), Charge(u32::MAX));
    }

    /// The latest slot at which `cost` can be taken from every limit exactly.
    #[must_use]
    pub fn latest(&self, cost: u32) -> Micros {
        self.iter().map(|limit| limit.latest(cost)).min().unwrap_or(Micros::MAX)
    }

    /// The decision that a verdict stands for.
    pub fn decision(&self, now: Micros, verdict: Verdict) -> Decision {
        let Verdict { earliest, charge, limit, standings } = verdict;
        let allowed = earliest <= now;
        let remaining = |place: &usize| standings.get(*place).map_or(0, |standing| standing.remaining);
        let places = 0..standings.len();
        let binding = match self.combine {
            _ if !allowed => limit,
            Combine::All => places.min_by_key(remaining).unwrap_or(limit),
            // The first of several limits with the same remainder is reported. A job that costs nothing asks all
            // limits.
            Combine::Any | Combine::OneOf => {
                let charged = |place: &usize| charge == Charge::default() || charge.has(*place);
                places.filter(charged).rev().max_by_key(remaining).unwrap_or(limit)
            }
        };
        let unknown = Standing { limit: 0, remaining: 0, reset_after: Duration::ZERO };
        let Standing { limit, remaining, reset_after } = standings.get(binding).copied().unwrap_or(unknown);
        let retry_after = earliest.since(now);
        let is_fallback = false;
        Decision { allowed, limit, remaining, reset_after, retry_after, is_fallback, now, binding, standings }
    }

    /// The marks of states.
    #[must_use]
    pub fn marks(&self, states: &[State]) -> Vec<Mark> {
        self.iter().zip(states).map(|(limit, state)| limit.mark(state)).collect()
    }

    /// The marks after a job is charged.
    #[must_use]
    pub fn marks_after(&self, marks: &[Mark], at: Micros, row: &[u32]) -> Vec<Mark> {
        let each = self.iter().zip(marks).zip(row);
        each.map(|((limit, mark), &cost)| limit.mark_commit(*mark, at, cost)).collect()
    }

    /// The cost that each limit was charged for a job: 0 where it was not charged.
    #[must_use]
    pub fn charged(&self, row: &Row, charge: Charge) -> Vec<u32> {
        let cost = |(place, cost): (usize, &u32)| if charge.has(place) { *cost } else { 0 };
        row[..self.len()].iter().enumerate().map(cost).collect()
    }

    /// The rate of the set in the long run, at cost 1: that of the slowest limit, or of the fastest alternative.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let rates = self.iter().map(Limit::rate);
        let rate = match self.combine {
            Combine::All => rates.max_by_key(|rate| rate.interval()),
            Combine::Any | Combine::OneOf => rates.min_by_key(|rate| rate.interval()),
        };
        // The set is never empty.
        rate.unwrap_or_else(|| self.limits[0].rate())
    }

    /// How much further ahead than a job of cost 1 a job of this cost must reach: T for each additional unit, of
    /// those limits in which the whole cost has to fit and units come back one by one. With less reach it would never
    /// fit, since jobs of cost 1 take each unit as it comes back. A fixed window or a quota gets all units back at an
    /// edge, at the same time for every job; a slot there would keep the rest of the window from others.
    #[must_use]
    pub fn reach(&self, cost: u32) -> Duration {
        self.reach_of(&self.each(cost))
    }

    /// [`LimitSet::reach`] of a job with a cost for each limit.
    pub(crate) fn reach_of(&self, row: &Row) -> Duration {
        let reach =
            |(limit, cost): (&Limit, &u32)| limit.rate().interval().saturating_mul(cost.saturating_sub(1));
        self.iter()
            .zip(row.iter())
            .filter(|(limit, _)| !limit.is_behind() && !limit.is_window())
            .map(reach)
            .max()
            .unwrap_or_default()
    }

    /// The highest cost of one job that can ever fit, the same for every limit.
    #[must_use]
    pub fn max_cost(&self) -> u32 {
        let costs = self.iter().zip(&self.times).map(|(limit, times)| limit.max_cost() / times);
        match self.combine {
            Combine::All => costs.min().unwrap_or(1),
            // A limit that the cost never fits is no alternative.
            Combine::Any | Combine::OneOf => costs.max().unwrap_or(1),
        }
    }

    /// The index of the first job that can never fit, and the highest costs that it may have.
    #[must_use]
    pub fn unfit(&self, costs: Costs<'_>) -> Option<(usize, Vec<u32>)> {
        let never = |row: &Row| {
            let mut asked = self.asked(row);
            let fits = |place: usize| row[place] <= self.limits[place].max_cost();
            match self.combine {
                Combine::All => !asked.all(fits),
                // A limit that the cost can never fit is no alternative and is left out. A limit that cannot count
                // the cost exactly must not be left out.
                Combine::Any | Combine::OneOf => {
                    let never = |limit: &Limit, cost| !limit.is_behind() && u64::from(cost) > limit.burst();
                    let exact = |place: usize| fits(place) || never(&self.limits[place], row[place]);
                    !self.asked(row).all(exact) || !asked.any(fits)
                }
            }
        };
        let job = self.rows(costs).position(|row| never(&row))?;
        Some((job, self.iter().map(Limit::max_cost).collect()))
    }

    /// The number of jobs that these costs are for.
    #[must_use]
    pub const fn jobs(&self, costs: Costs<'_>) -> usize {
        match costs {
            Costs::Each(each) => each.len(),
            Costs::PerLimit(all) => all.len() / self.given.len(),
        }
    }

    /// The costs of each job, by limit.
    pub fn rows<'a>(&'a self, costs: Costs<'a>) -> impl Iterator<Item = Row> + 'a {
        (0..self.jobs(costs)).map(move |job| match costs {
            Costs::Each(each) => self.each(each[job]),
            Costs::PerLimit(all) => {
                let mut row = Row::default();
                let mine = &all[job * self.given.len()..][..self.given.len()];
                for (&place, &cost) in self.given.iter().zip(mine) {
                    row[place] = match self.combine {
                        Combine::OneOf => row[place].max(cost),
                        _ => row[place].saturating_add(cost),
                    };
                }
                row
            }
        })
    }

    /// The cost of one unit for each limit: the number of times that it was given.
    #[must_use]
    pub fn unit(&self) -> Row {
        self.each(1)
    }

    /// Whether each limit was given once.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.times.iter().all(|&times| times == 1)
    }

    fn each(&self, cost: u32) -> Row {
        let mut row = Row::default();
        for (place, times) in self.times.iter().enumerate() {
            row[place] = cost.saturating_mul(*times);
        }
        row
    }

    /// The indices of the limits that decide on a job: those that it costs something, or all where it costs nothing at
    /// all.
    pub(super) fn asked<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = usize> + 'a {
        let peek = row.iter().all(|&cost| cost == 0);
        (0..self.len()).filter(move |&place| peek || row[place] > 0)
    }
}
