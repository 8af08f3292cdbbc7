//! The checks that every store makes of a call before it decides, so that all stores refuse the same calls.

use std::time::Duration;

use super::error::ensure;
use super::turns::Wants;
use super::{
    Asker, Cancel, Check, LONGEST_LEASE, LONGEST_TURN_LEASE, Lanes, Lease, MAX_BATCH, Reserve, Scope,
    SharedHorizon, Sharing, Status, StoreError,
};
use crate::limit::{Charge, Costs, Keyed, Limit, LimitSet, Plan, Refusal, Row, Span, State, Verdict};
use crate::time::Micros;

impl Scope<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when the downstream's name cannot serve as a hash tag.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        check_downstream(self.downstream)
    }
}

/// # Errors
/// [`StoreError::Invalid`] when the name cannot serve as a hash tag.
pub(crate) fn check_downstream(name: &str) -> Result<(), StoreError> {
    ensure(!name.is_empty() && !name.contains(['{', '}']), || {
        format!("`{name}` cannot name a downstream; use a text that is not empty, without braces")
    })
}

impl Reserve<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when no store may decide on this call.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.scope.check()?;
        match self.sharing {
            Sharing::None => {}
            Sharing::Lease(lease) => check_lease(lease)?,
            Sharing::Horizon(shared) => self.check_shared(&shared)?,
        }
        self.asker.map_or(Ok(()), |asker| check_asker(&asker, self.limits))?;
        check_costs(self.limits, self.costs)?;
        self.lanes.map_or(Ok(()), |lanes| self.check_lanes(&lanes))
    }

    fn check_shared(&self, shared: &SharedHorizon<'_>) -> Result<(), StoreError> {
        check_replica(shared.replica)?;
        ensure(self.lanes.is_none(), || "a shared horizon beside lanes; give one of them".to_owned())
    }

    fn check_lanes(&self, lanes: &Lanes<'_>) -> Result<(), StoreError> {
        let Costs::Each(costs) = self.costs else {
            let text = "jobs of lanes cost every limit the same; give one cost for each";
            return Err(StoreError::Invalid(text.to_owned()));
        };
        let key = self.scope.key;
        ensure(key.is_empty(), || format!("lanes beside the key `{key}`; a lane has its own keys"))?;
        lanes.check(self.limits, costs.len())?;
        for (job, &cost) in costs.iter().enumerate() {
            let most = lanes.lane(job).map_or(u32::MAX, |lane| lane.limits.max_cost());
            ensure(cost <= most, || {
                format!("job {job} of the call costs {cost}, more than ever fits its lane; at most {most}")
            })?;
        }
        Ok(())
    }

    /// Plans slots at `now`: none where the caller's terms are not in force or the downstream is stopped by a pause
    /// without end. No slot lies before `from`.
    pub(super) fn plan(&self, states: &mut [State], (now, from): (Micros, Micros), status: &Status) -> Plan {
        if !status.is_current(self.generation) {
            return Plan::default();
        }
        if status.is_stopped() {
            return self.stopped();
        }
        self.limits.plan(states, from, self.costs, self.until(now))
    }

    /// As [`Reserve::plan`], for a call with lanes.
    pub(super) fn plan_lanes(
        &self,
        (states, keyed): (&mut [State], &mut Keyed<'_>),
        (now, from): (Micros, Micros),
        (status, lanes): (&Status, &Lanes<'_>),
    ) -> Plan {
        if !status.is_current(self.generation) {
            return Plan::default();
        }
        if status.is_stopped() {
            return self.stopped();
        }
        let until = self.until(now);
        let (soon, most) = (now.plus(lanes.lead).max(from), lanes.most.try_into().unwrap_or(usize::MAX));
        keyed.plan(self.limits, states, Span { now: from, until, soon, most })
    }

    /// The plan of a call that is granted nothing, since the downstream is stopped or the terms are outdated.
    fn stopped(&self) -> Plan {
        let jobs = self.limits.jobs(self.costs);
        let refused = (jobs > 0).then_some(Refusal { slot: Micros::MAX, limit: 0 });
        Plan { refused, ..Plan::default() }
    }

    /// The latest slot that may be granted at `now`: the horizon and the end of the caller's turn bound it, and it must
    /// be exact in a double.
    pub(super) fn until(&self, now: Micros) -> Micros {
        let turn = self.asker.and_then(|asker| asker.turn).filter(|turn| turn.is_due(now));
        let turn = turn.map_or(Micros::MAX, |turn| turn.until(now));
        now.plus(self.ahead).min(self.exact()).min(turn)
    }

    /// Returns how many units the asker has left that wait for the downstream's pace, and the cost of the job that
    /// ended the call. `None` means that no turn is booked: no job is left, or none of those left waits for the whole
    /// downstream. `free` is the next slot of a unit.
    pub(super) fn left(&self, asker: &Asker, plan: &Plan, free: Micros) -> Option<Wants> {
        let own = |row: Row| u64::from(row[0] / self.limits.unit()[0].max(1));
        // A job that waits for the end of a window, or for a limit of its plan or lane, needs no turn until then.
        let waits =
            |refusal: &Refusal| refusal.limit < asker.own && !self.limits.waits_for_window(refusal.limit);
        let mut passed = plan.passed.iter().peekable();
        let mut left = asker.waiting;
        for (job, row) in self.limits.rows(self.costs).enumerate().take(plan.slots.len() + plan.passed.len())
        {
            if !passed.next_if(|passed| passed.job == job).is_some_and(|passed| waits(&passed.refusal)) {
                left = left.saturating_sub(own(row));
            }
        }
        let mut cost = 1;
        if let Some(refused) = plan.refused {
            if refused.limit >= asker.own {
                return None;
            }
            let mut rows = self.limits.rows(self.costs).skip(plan.refused_job).map(own);
            cost = rows.next().unwrap_or(1).max(1);
            if refused.slot > free && !waits(&refused) {
                let others: u64 = rows.take(plan.awaiting_window.saturating_sub(1)).sum();
                (left, cost) = (left.saturating_sub(cost + others), 1);
            }
        }
        (left > 0).then(|| Wants { units: left, cost: u32::try_from(cost).unwrap_or(u32::MAX) })
    }

    /// The latest slot at which each of these costs can be computed exactly.
    pub(super) fn exact(&self) -> Micros {
        let highest = highest(self.costs);
        let lanes = self.lanes.iter().flat_map(|lanes| lanes.all);
        let sets = lanes.map(|lane| lane.limits).chain([self.limits]);
        sets.map(|limits| limits.latest(highest)).min().unwrap_or(Micros::MAX)
    }
}

impl Check<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] when no store may decide on this call.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.scope.check()?;
        check_costs(self.limits, self.costs)
    }

    /// Decides on each job at `now`; no job is allowed where the caller's terms are not in force or the downstream is
    /// stopped.
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
    if let Costs::PerLimit(all) = costs {
        let (all, each) = (all.len(), limits.given());
        let problem = || format!("{all} costs; give one per limit and job, {each} for each job");
        ensure(all % each == 0, problem)?;
    }
    let jobs = limits.jobs(costs);
    ensure(jobs <= MAX_BATCH, || format!("{jobs} jobs in one call; at most {MAX_BATCH} fit"))?;
    if let Some((job, most)) = limits.unfit(costs) {
        let most: Vec<String> =
            limits.iter().zip(most).map(|(limit, most)| format!("{most} of `{}`", limit.name())).collect();
        let text = format!("job {job} of the call costs more than ever fits; at most {}", most.join(", "));
        return Err(StoreError::Invalid(text));
    }
    Ok(())
}

impl<'a> Cancel<'a> {
    /// The limits that the reservation was charged to, each with its key.
    pub(super) fn states(&self) -> impl Iterator<Item = (&'a Limit, &'a str)> + Clone + use<'a> {
        let key = self.scope.key;
        let lane = self.lane.into_iter().flat_map(|lane| lane.limits.iter().zip(lane.keys.iter().copied()));
        self.limits.iter().map(move |limit| (limit, key)).chain(lane)
    }

    /// # Errors
    /// [`StoreError::Invalid`] when the marks are not those of the limits.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.scope.check()?;
        let limits = self.limits.len() + self.lane.map_or(0, |lane| lane.limits.len());
        let given = [self.before.len(), self.after.len(), self.charged.len()];
        ensure(given == [limits; 3], || {
            format!("{given:?} marks and costs for {limits} limits; give one for each")
        })
    }
}

fn check_asker(asker: &Asker, limits: &LimitSet) -> Result<(), StoreError> {
    let lead = asker.turn.map_or(Duration::ZERO, |turn| turn.lead);
    let holds = (1..=limits.len()).contains(&asker.own) && asker.reach.max(lead) <= LONGEST_TURN_LEASE;
    ensure(holds, || format!("{asker:?} cannot take turns at {} limits", limits.len()))
}

pub(super) fn check_replica(name: &str) -> Result<(), StoreError> {
    let bytes = name.len();
    ensure((1..=64).contains(&bytes), || format!("a replica's name of {bytes} bytes; use 1 to 64"))
}

fn check_lease(Lease { replica, ttl }: Lease<'_>) -> Result<(), StoreError> {
    check_replica(replica)?;
    let lasts = Duration::from_millis(1)..=LONGEST_LEASE;
    ensure(lasts.contains(&ttl), || format!("a lease of {ttl:?}; use 1ms to {LONGEST_LEASE:?}"))
}
