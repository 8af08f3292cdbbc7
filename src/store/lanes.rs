//! Jobs of several lanes in one call, and the outcome of each job of a call.

use std::time::Duration;

use super::error::ensure;
use super::{Granted, Reserve, Reserved, Stamp, StoreError};
#[cfg(feature = "redis")]
use crate::limit::{Charge, Costs, Row};
use crate::limit::{Combine, Limit, LimitSet, MAX_BATCH, Mark, Passed, Refusal};
use crate::time::Micros;

/// The most states of lanes that one call touches: a sliding window counts as one more for each 8 buckets, and a log as
/// 16.
pub const MAX_STATES: usize = 2048;

/// The limits that the jobs of one lane obey besides the downstream's own: all limits of a set, each with the key of
/// its state. Lanes of one tenant share the states of the tenant's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane<'a> {
    /// The limits. All of them must agree.
    pub limits: &'a LimitSet,
    /// The key of each, in the order of [`LimitSet::iter`]; none is empty.
    pub keys: &'a [&'a str],
}

/// The lanes of a call's jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes<'a> {
    /// Each lane once.
    pub all: &'a [Lane<'a>],
    /// The lane of each job, as an index into `all`. A job without a lane obeys the downstream's own limits alone.
    pub of: &'a [Option<u16>],
    /// How far ahead of now a slot may lie where the limits of a lane determine it: the downstream is idle until that
    /// slot.
    pub lead: Duration,
    /// The most slots that the call is granted. More jobs may be offered, since the limits of their lanes may refuse some.
    pub most: u32,
}

/// The outcome of one job of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job was granted this slot.
    Granted(Micros),
    /// The first slot of the job lies beyond the horizon, or its lane is not ready. The job takes nothing.
    NotYet {
        /// The earliest instant at which the job can get a slot, as far as this call knows.
        retry_at: Micros,
        /// The binding limit, as in [`Refusal::limit`].
        limit: usize,
    },
    /// The job would wait longer than [`Reserve::max_wait`] allows. It takes nothing.
    QueueFull {
        /// The time until a job would wait no longer than that, as far as this call knows.
        retry_after: Duration,
        /// As in [`Outcome::NotYet`].
        limit: usize,
    },
    /// The downstream is paused by an operator or by its API. The job takes nothing.
    Paused {
        /// The end of the pause; `None` if it lasts until somebody resumes the downstream.
        until: Option<Micros>,
    },
    /// The terms in force are not those of [`Reserve::generation`]. The job takes nothing.
    Outdated,
}

/// The states that the lanes of a call touch, each listed once, and the indices of each lane's states.
pub(super) struct States<'a> {
    pub(super) all: Vec<(&'a Limit, &'a str)>,
    pub(super) lanes: Vec<Vec<usize>>,
}

impl<'a> Lanes<'a> {
    /// # Errors
    /// [`StoreError::Invalid`] when the lanes are malformed.
    pub(super) fn check(&self, own: &LimitSet, jobs: usize) -> Result<(), StoreError> {
        let sets = self.all.iter().map(|lane| lane.limits).chain([own]);
        let (of, all) = (self.of.len(), self.all.len());
        let agree = sets.clone().all(|set| set.combine() == Combine::All && set.is_plain());
        ensure(agree, || "limits of lanes must all agree, and none be given twice".to_owned())?;
        let are_there = self.of.iter().flatten().all(|&lane| usize::from(lane) < all);
        ensure(of == jobs && are_there, || {
            format!("{of} jobs with lanes of {jobs}, of {all} lanes; name a lane or none for each job")
        })?;
        ensure(all <= MAX_BATCH, || format!("{all} lanes in one call; at most {MAX_BATCH} fit"))?;
        for Lane { limits, keys } in self.all {
            ensure(keys.len() == limits.len() && !keys.contains(&""), || {
                format!("the keys {keys:?} for {} limits; give one for each", limits.len())
            })?;
        }
        let states: usize = self.states()?.all.iter().map(|(limit, _)| limit.weight()).sum();
        ensure(states <= MAX_STATES, || {
            format!("the lanes of one call have {states} states; at most {MAX_STATES} fit")
        })
    }

    /// # Errors
    /// [`StoreError::Invalid`] when two different limits would share one state.
    pub(super) fn states(&self) -> Result<States<'a>, StoreError> {
        let mut places = std::collections::HashMap::new();
        let mut states = States { all: vec![], lanes: Vec::with_capacity(self.all.len()) };
        for Lane { limits, keys } in self.all {
            let mut lane = Vec::with_capacity(limits.len());
            for (limit, key) in limits.iter().zip(*keys) {
                let place = *places.entry((limit.name(), *key)).or_insert(states.all.len());
                if place == states.all.len() {
                    states.all.push((limit, key));
                } else if states.all[place].0 != limit {
                    let text = format!("`{}` of `{key}` is two limits; use one name for each", limit.name());
                    return Err(StoreError::Invalid(text));
                }
                lane.push(place);
            }
            states.lanes.push(lane);
        }
        Ok(states)
    }

    /// The charge of each job if it is granted: it covers all limits of both levels.
    #[cfg(feature = "redis")]
    pub(super) fn charges(&self, own: &LimitSet, costs: Costs<'_>) -> Vec<Charge> {
        let charge = |(job, row): (usize, Row)| {
            let limits = own.len() + self.lane(job).map_or(0, |lane| lane.limits.len());
            Charge::all(limits, row[0])
        };
        own.rows(costs).enumerate().map(charge).collect()
    }

    pub(super) fn lane(&self, job: usize) -> Option<&Lane<'a>> {
        self.of.get(job).copied().flatten().map(|lane| &self.all[usize::from(lane)])
    }
}

impl Reserved {
    /// The indices of the jobs that were granted a slot, in the order of [`Reserved::slots`].
    pub fn jobs(&self) -> impl Iterator<Item = usize> {
        let mut passed = self.passed.iter().map(|passed| passed.job).peekable();
        let is_granted = move |job: &usize| passed.next_if_eq(job).is_none();
        (0..self.jobs_decided()).filter(is_granted)
    }

    /// The number of jobs that were granted a slot or passed over. In a call without lanes it is the index of the job
    /// that ended the call.
    pub(crate) fn jobs_decided(&self) -> usize {
        self.slots.len() + self.passed.len()
    }

    /// The outcome of each job of the call. In a call without lanes, the jobs behind the one that ended it get its
    /// outcome: they were not decided on, and one that costs less might have got a slot.
    #[must_use]
    pub fn outcomes(&self, call: &Reserve<'_>) -> Vec<Outcome> {
        let jobs = call.limits.jobs(call.costs);
        let rest = self.refused.map_or(Outcome::Outdated, |refusal| self.refusal(call, refusal));
        let mut outcomes = vec![rest; jobs];
        for (job, slot) in self.jobs().zip(&self.slots) {
            outcomes[job] = Outcome::Granted(*slot);
        }
        for &Passed { job, refusal } in &self.passed {
            outcomes[job] = self.refusal(call, refusal);
        }
        outcomes
    }

    fn refusal(&self, call: &Reserve<'_>, Refusal { slot, limit }: Refusal) -> Outcome {
        // A pause that ends before the job's longest wait counts as part of that wait.
        let Stamp { now, status, .. } = self.stamp;
        let latest = call.max_wait.map(|wait| now.plus(wait));
        match status.paused_until() {
            Micros::MAX => Outcome::Paused { until: None },
            until if until > latest.unwrap_or(now) => Outcome::Paused { until: Some(until) },
            _ => match latest.filter(|latest| slot > *latest) {
                Some(latest) => Outcome::QueueFull { retry_after: slot.since(latest), limit },
                None => Outcome::NotYet { retry_at: slot, limit },
            },
        }
    }

    /// The slots granted to a call with lanes, each with what giving it back needs: the costs and marks of the
    /// downstream's limits, and behind them those of the job's lane.
    #[must_use]
    pub fn granted_in_lanes(&self, call: &Reserve<'_>) -> Vec<Granted> {
        if call.lanes.is_none() {
            return self.granted(call.limits, call.costs);
        }
        let mut granted: Vec<(usize, Granted)> = Vec::with_capacity(self.slots.len());
        self.take_in_lanes(call, |place, marks, limits, (slot, cost)| {
            let marks_of = |marks: &[Mark]| limits.iter().map(|(_, at)| marks[*at]).collect();
            let before = marks_of(marks);
            commit(marks, limits, slot, cost);
            granted.push((
                place,
                Granted { slot, charged: vec![cost; limits.len()], before, after: marks_of(marks) },
            ));
        });
        granted.sort_unstable_by_key(|(place, _)| *place);
        granted.into_iter().map(|(_, granted)| granted).collect()
    }

    /// The mark of each state after all slots were taken.
    #[cfg(feature = "redis")]
    pub(super) fn marks_after(&self, call: &Reserve<'_>) -> Vec<Mark> {
        let limits = call.limits;
        if call.lanes.is_some() {
            return self
                .take_in_lanes(call, |_, marks, limits, (slot, cost)| commit(marks, limits, slot, cost));
        }
        let mut granted = self.jobs().peekable();
        let rows = limits.rows(call.costs).enumerate().filter(|(job, _)| granted.next_if_eq(job).is_some());
        let each = self.slots.iter().zip(&self.charges.jobs).zip(rows);
        each.fold(self.charges.before.clone(), |marks, ((&slot, &charge), (_, row))| {
            limits.marks_after(&marks, slot, &limits.charged(&row, charge))
        })
    }

    /// Calls `take` for each slot granted to a call with lanes, in the order in which they were taken, with the limits
    /// of the job and the indices of their marks. Returns the final marks.
    fn take_in_lanes(
        &self,
        call: &Reserve<'_>,
        mut take: impl FnMut(usize, &mut [Mark], &[(&Limit, usize)], (Micros, u32)),
    ) -> Vec<Mark> {
        let mut marks = self.charges.before.clone();
        let Some((lanes, states)) = call.lanes.and_then(|lanes| Some((lanes, lanes.states().ok()?))) else {
            return marks;
        };
        let own = call.limits.len();
        let costs: Vec<u32> = call.limits.rows(call.costs).map(|row| row[0]).collect();
        // Sorted by slot; jobs that share a slot keep their order in the call.
        let mut taken: Vec<(usize, usize)> = self.jobs().enumerate().collect();
        taken.sort_by_key(|&(place, job)| (self.slots[place], job));
        let mut limits: Vec<(&Limit, usize)> = vec![];
        for (place, job) in taken {
            let lane = lanes.of[job].map(|lane| &states.lanes[usize::from(lane)]);
            let keyed = lane.into_iter().flatten().map(|&state| (states.all[state].0, own + state));
            limits.clear();
            limits.extend(call.limits.iter().zip(0..).chain(keyed));
            take(place, &mut marks, &limits, (self.slots[place], costs[job]));
        }
        marks
    }
}

/// Commits `cost` at `slot` to the limits, whose marks are at these indices.
fn commit(marks: &mut [Mark], limits: &[(&Limit, usize)], slot: Micros, cost: u32) {
    for (limit, at) in limits {
        marks[*at] = limit.mark_commit(marks[*at], slot, cost);
    }
}
