//! Several limits on one job.

use std::time::Duration;

use super::plan::{Charge, Costs, Verdict};
use super::{Decision, Limit, LimitError, Mark, Standing, State};
use crate::rate::Rate;
use crate::time::Micros;

/// The most limits of one set.
pub const MAX_LIMITS: usize = 16;

/// How the limits of a set combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Combine {
    /// All must agree: the slot is the latest of their `earliest`, and all are charged there.
    #[default]
    All,
    /// One must agree: the slot is the earliest of their `earliest`, and all that agree then are
    /// charged.
    Any,
    /// One is enough, and only it is charged: the first of those that agree earliest.
    OneOf,
}

/// Limits that decide together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSet {
    pub(super) limits: Vec<Limit>,
    pub(super) combine: Combine,
    /// For each limit as it was given: which of `limits` it is.
    given: Vec<usize>,
    /// How often each of `limits` was given.
    times: Vec<u32>,
}

/// The costs of one job, by limit's place; 0 beyond the last.
pub type Row = [u32; MAX_LIMITS];

impl LimitSet {
    /// Limits all of which must agree. One that is given twice counts twice.
    ///
    /// # Errors
    /// [`LimitError`] when there is none, there are too many, or two that differ have one name.
    pub fn new(limits: Vec<Limit>) -> Result<Self, LimitError> {
        Self::combined(Combine::All, limits)
    }

    /// Limits one of which must agree; all that agree are charged.
    ///
    /// # Errors
    /// As [`LimitSet::new`].
    pub fn any(limits: Vec<Limit>) -> Result<Self, LimitError> {
        Self::combined(Combine::Any, limits)
    }

    /// Limits one of which must agree; only the first that agrees earliest is charged.
    ///
    /// # Errors
    /// As [`LimitSet::new`].
    pub fn one_of(limits: Vec<Limit>) -> Result<Self, LimitError> {
        Self::combined(Combine::OneOf, limits)
    }

    /// Limits that combine in this way.
    ///
    /// # Errors
    /// As [`LimitSet::new`].
    pub fn combined(combine: Combine, all: Vec<Limit>) -> Result<Self, LimitError> {
        if all.is_empty() {
            return Err(LimitError::Empty);
        }
        let (mut limits, mut given, mut times) = (Vec::<Limit>::new(), vec![], Vec::<u32>::new());
        for limit in all {
            // Read before write would undercount a limit that is there twice: it is one, at twice the cost.
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

    /// The set as policers take it; see [`Limit::policing`].
    #[must_use]
    pub fn policing(self) -> Self {
        let limits = self.limits.into_iter().map(Limit::policing).collect();
        Self { limits, ..self }
    }

    /// The same set, whose limits keep their state under `prefix` and their name.
    pub(crate) fn prefixed(self, prefix: &str) -> Self {
        let named = |limit: Limit| Limit { name: format!("{prefix}{}", limit.name), ..limit };
        let limits = self.limits.into_iter().map(named).collect();
        Self { limits, ..self }
    }

    /// The limits, in the order in which they were given, each once.
    pub fn iter(&self) -> std::slice::Iter<'_, Limit> {
        self.limits.iter()
    }

    /// The limits as they were given: one that was given twice is there twice.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &Limit> {
        self.given.iter().map(|&place| &self.limits[place])
    }

    /// The limit at a place.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&Limit> {
        self.limits.get(place)
    }

    /// The only limit of a set that has one, given once.
    #[must_use]
    #[inline]
    pub fn single(&self) -> Option<&Limit> {
        match (&*self.limits, &*self.times) {
            ([limit], [1]) => Some(limit),
            _ => None,
        }
    }

    /// How many there are: at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(&self) -> usize {
        self.limits.len()
    }

    /// How many costs a job has in [`Costs::PerLimit`]: as many as limits were given.
    #[must_use]
    pub const fn given(&self) -> usize {
        self.given.len()
    }

    /// How they combine.
    #[must_use]
    pub const fn combine(&self) -> Combine {
        self.combine
    }

    /// Whether all are of the GCRA family, whose slots follow from the first one.
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

    /// Takes `cost` at `at` from every limit.
    pub fn commit(&self, states: &mut [State], at: Micros, cost: u32) {
        self.charge(states, at, &self.each(cost), Charge(u32::MAX));
    }

    /// The latest slot at which `cost` can be taken from every limit exactly.
    #[must_use]
    pub fn latest(&self, cost: u32) -> Micros {
        self.iter().map(|limit| limit.latest(cost)).min().unwrap_or(Micros::MAX)
    }

    /// The decision that a verdict is.
    #[must_use]
    pub fn decision(&self, now: Micros, verdict: Verdict) -> Decision {
        let Verdict { earliest, charge, limit, standings } = verdict;
        let allowed = earliest <= now;
        let remaining = |place: &usize| standings.get(*place).map_or(0, |standing| standing.remaining);
        let places = 0..standings.len();
        let binding = match self.combine {
            _ if !allowed => limit,
            Combine::All => places.min_by_key(remaining).unwrap_or(limit),
            // Of several with as many the first. A look charges nothing, and so looks at all.
            Combine::Any | Combine::OneOf => {
                let charged = |place: &usize| charge == Charge::default() || charge.has(*place);
                places.filter(charged).rev().max_by_key(remaining).unwrap_or(limit)
            }
        };
        let Standing { limit, remaining, reset_at } =
            standings.get(binding).copied().unwrap_or(Standing { limit: 0, remaining: 0, reset_at: now });
        let retry_after = earliest.since(now);
        Decision { allowed, limit, remaining, reset_at, retry_after, now, binding, standings }
    }

    /// The marks of states.
    #[must_use]
    pub fn marks(&self, states: &[State]) -> Vec<Mark> {
        self.iter().zip(states).map(|(limit, state)| limit.mark(state)).collect()
    }

    /// The marks once a job is charged.
    #[must_use]
    pub fn marks_after(&self, marks: &[Mark], at: Micros, row: &[u32]) -> Vec<Mark> {
        let each = self.iter().zip(marks).zip(row);
        each.map(|((limit, mark), &cost)| limit.mark_commit(*mark, at, cost)).collect()
    }

    /// What a job of these costs was charged by each limit: 0 by those that it was not charged to.
    #[must_use]
    pub fn charged(&self, row: &Row, charge: Charge) -> Vec<u32> {
        let cost = |(place, cost): (usize, &u32)| if charge.has(place) { *cost } else { 0 };
        row[..self.len()].iter().enumerate().map(cost).collect()
    }

    /// The slowest rate of the set: what it releases in the long run, at cost 1. Of alternatives the
    /// fastest.
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

    /// How much further ahead than a job of cost 1 one of this cost must reach: T for each unit more, of
    /// the limits in which the whole cost has to fit, and comes back unit by unit. With less it would never
    /// find them whole, while jobs of cost 1 take what fits at once. A fixed window or a quota comes back whole
    /// at an edge that all see; a slot there would keep the rest of the window from others.
    #[must_use]
    pub fn reach(&self, cost: u32) -> Duration {
        self.reach_of(&self.each(cost))
    }

    /// [`LimitSet::reach`] of a job that costs each limit its own.
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
            // A limit that it never fits is no alternative.
            Combine::Any | Combine::OneOf => costs.max().unwrap_or(1),
        }
    }

    /// The first job that can never fit, and the most that its costs may be.
    #[must_use]
    pub fn unfit(&self, costs: Costs<'_>) -> Option<(usize, Vec<u32>)> {
        let never = |row: &Row| {
            let mut asked = self.asked(row);
            let fits = |place: usize| row[place] <= self.limits[place].max_cost();
            match self.combine {
                Combine::All => !asked.all(fits),
                // A limit that it never fits is no alternative, but one that cannot count it is none to skip.
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

    /// How many jobs these costs are of.
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

    /// What a unit costs each limit: how often it was given.
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

    /// The places of the limits that a job asks: those that it costs something, or all where it
    /// costs nothing at all.
    pub(super) fn asked<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = usize> + 'a {
        let peek = row.iter().all(|&cost| cost == 0);
        (0..self.len()).filter(move |&place| peek || row[place] > 0)
    }
}
