//! What every store checks of a call before it decides, so that all refuse the same.

use std::time::Duration;

use super::{
    Asker, Cancel, Check, LONGEST_LEASE, LONGEST_LIFE, Lease, MAX_BATCH, Reserve, Scope, Status, StoreError,
};
use crate::limit::{Charge, Costs, LimitSet, Plan, Refusal, Row, State, Verdict};
use crate::time::Micros;

impl Scope<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when the downstream's name is no hash tag.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        check_downstream(self.downstream)
    }
}

/// # Errors
/// [`StoreError::Invalid`] when the name is no hash tag.
pub(crate) fn check_downstream(name: &str) -> Result<(), StoreError> {
    if name.is_empty() || name.contains(['{', '}']) {
        let text = format!("`{name}` cannot name a downstream; use a text that is not empty, without braces");
        return Err(StoreError::Invalid(text));
    }
    Ok(())
}

impl Reserve<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when no store may decide on this call.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.scope.check()?;
        self.lease.map_or(Ok(()), check_lease)?;
        self.asker.map_or(Ok(()), |asker| check_asker(&asker, self.limits))?;
        check_costs(self.limits, self.costs)
    }

    /// Slots at `now`, as far as the terms of the caller are in force and nobody has stopped them.
    /// Granted are those from `from` on.
    pub(super) fn plan(&self, states: &mut [State], (now, from): (Micros, Micros), status: &Status) -> Plan {
        if !status.is_current(self.generation) {
            return Plan::default();
        }
        if status.is_stopped() {
            let jobs = self.limits.jobs(self.costs);
            let refused = (jobs > 0).then_some(Refusal { slot: Micros::MAX, limit: 0 });
            return Plan { refused, ..Plan::default() };
        }
        self.limits.plan(states, from, self.costs, self.until(now))
    }

    /// The latest slot that may be granted at `now`: as far as the caller wants and its turn goes, and exact.
    pub(super) fn until(&self, now: Micros) -> Micros {
        let turn = self.asker.and_then(|asker| asker.turn);
        let turn = turn.map_or(Micros::MAX, |turn| turn.until(now));
        now.plus(self.ahead).min(self.exact()).min(turn)
    }

    /// How many units the asker has left once so many of the jobs were granted, and the cost of the first of them;
    /// none where it books no turn: it has none left, or the whole downstream keeps none of them waiting.
    pub(super) fn left(&self, asker: &Asker, granted: usize, refused: Option<Refusal>) -> Option<(u64, u32)> {
        let own = |row: &Row| row[0] / self.limits.unit()[0].max(1);
        let mut rows = self.limits.rows(self.costs);
        let taken: u64 = rows.by_ref().take(granted).map(|row| u64::from(own(&row))).sum();
        let cost = refused.and_then(|_| rows.next()).map_or(1, |row| own(&row).max(1));
        let left = asker.waiting.saturating_sub(taken);
        let is_waiting = refused.is_none_or(|refused| refused.limit < asker.own);
        (left > 0 && is_waiting).then_some((left, cost))
    }

    /// The latest slot at which each of these costs is exact.
    pub(super) fn exact(&self) -> Micros {
        self.limits.latest(highest(self.costs))
    }
}

impl Check<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when no store may decide on this call.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.scope.check()?;
        check_costs(self.limits, self.costs)
    }

    /// Verdicts at `now`, as far as the terms of the caller are in force and nobody has stopped all.
    pub(super) fn police(&self, states: &mut [State], now: Micros, status: &Status) -> Vec<Verdict> {
        if !status.is_current(self.generation) {
            return vec![];
        }
        if status.is_stopped() {
            let standings = self.limits.iter().zip(&*states).map(|(limit, state)| limit.standing(state, now));
            let never = Verdict {
                earliest: Micros::MAX,
                charge: Charge::default(),
                limit: 0,
                standings: standings.collect(),
            };
            return vec![never; self.limits.jobs(self.costs)];
        }
        self.limits.police(states, now, self.costs)
    }
}

fn highest(costs: Costs<'_>) -> u32 {
    let (Costs::Each(all) | Costs::PerLimit(all)) = costs;
    all.iter().copied().max().unwrap_or(1)
}

fn check_costs(limits: &LimitSet, costs: Costs<'_>) -> Result<(), StoreError> {
    if let Costs::PerLimit(all) = costs
        && all.len() % limits.given() != 0
    {
        let text =
            format!("{} costs; give one per limit and job, {} for each job", all.len(), limits.given());
        return Err(StoreError::Invalid(text));
    }
    let jobs = limits.jobs(costs);
    if jobs > MAX_BATCH {
        return Err(StoreError::Invalid(format!("{jobs} jobs in one call; at most {MAX_BATCH} fit")));
    }
    if let Some((job, most)) = limits.unfit(costs) {
        let most: Vec<String> =
            limits.iter().zip(most).map(|(limit, most)| format!("{most} of `{}`", limit.name())).collect();
        let text = format!("job {job} of the call costs more than ever fits; at most {}", most.join(", "));
        return Err(StoreError::Invalid(text));
    }
    Ok(())
}

impl Cancel<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when the marks are not those of the limits.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.scope.check()?;
        let (limits, given) = (self.limits.len(), [self.before.len(), self.after.len(), self.charged.len()]);
        if given != [limits; 3] {
            let text = format!("{given:?} marks and costs for {limits} limits; give one for each");
            return Err(StoreError::Invalid(text));
        }
        Ok(())
    }
}

fn check_asker(asker: &Asker, limits: &LimitSet) -> Result<(), StoreError> {
    let lead = asker.turn.map_or(Duration::ZERO, |turn| turn.lead);
    if !(1..=limits.len()).contains(&asker.own) || asker.reach.max(lead) > LONGEST_LIFE {
        return Err(StoreError::Invalid(format!("{asker:?} cannot take turns at {} limits", limits.len())));
    }
    Ok(())
}

fn check_lease(Lease { replica, ttl }: Lease<'_>) -> Result<(), StoreError> {
    if !(1..=64).contains(&replica.len()) {
        let text = format!("a replica's name of {} bytes; use 1 to 64", replica.len());
        return Err(StoreError::Invalid(text));
    }
    if ttl < Duration::from_millis(1) || ttl > LONGEST_LEASE {
        return Err(StoreError::Invalid(format!("a lease of {ttl:?}; use 1ms to {LONGEST_LEASE:?}")));
    }
    Ok(())
}
