//! What the engine goes by.

use std::time::Duration;

use super::LaneId;
use crate::limit::{Limit, LimitSet};
use crate::terms::Terms;

/// How far ahead of now slots are granted, where nothing else is said.
pub(crate) const DEFAULT_HORIZON: Duration = Duration::from_millis(100);

/// What becomes of a job that the limits do not allow at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnLimit {
    /// It waits for its slot: the limits shape.
    #[default]
    Wait,
    /// It is dead-lettered as `rejected`: the limits police.
    Reject,
}

/// What becomes of the jobs while the store cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnUnavailable {
    /// They wait: nothing is released without a slot.
    #[default]
    Hold,
    /// Each replica releases its part of the pace: the limits divided by the replicas last known. One that has
    /// not reached the store yet knows of none, and waits.
    Local,
    /// They are released as fast as the downstream takes them.
    Open,
}

/// The limits of a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanLimits {
    /// The plan's name.
    pub(crate) name: String,
    /// The downstream's limits, and then those of the plan.
    pub(crate) limits: LimitSet,
}

/// What the engine of one downstream goes by, as it is in force.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The downstream's name.
    pub(crate) downstream: String,
    /// The limits of all who wait for the downstream.
    pub(crate) limits: LimitSet,
    /// The plans, in the order of [`LaneId::plan`].
    pub(crate) plans: Vec<PlanLimits>,
    /// What becomes of those whom the limits do not allow at once.
    pub(crate) on_limit: OnLimit,
    /// What becomes of them while the store cannot be reached.
    pub(crate) on_unavailable: OnUnavailable,
    /// How far ahead of now a slot may be granted.
    pub(crate) horizon: Duration,
    /// How many may be sent at once.
    pub(crate) concurrency: usize,
    /// How many the driver has in hand at most, where the limits do not release fewer soon.
    /// None where all who wait are in hand.
    pub(crate) prefetch: Option<u16>,
    /// The revision of the configuration that the limits come from: a lower one never replaces a higher one.
    pub(crate) revision: Option<u64>,
}

impl Settings {
    /// The limits of each lane, in the order of [`LaneId::row`].
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &LimitSet> {
        std::iter::once(&self.limits).chain(self.plans.iter().map(|plan| &plan.limits))
    }

    /// The limits that decide on this lane. A plan that there is not has the downstream's.
    pub(crate) fn limits_of(&self, lane: LaneId) -> &LimitSet {
        let plan = lane.plan().and_then(|plan| self.plans.get(plan));
        plan.map_or(&self.limits, |plan| &plan.limits)
    }

    /// How many the driver has in hand at most; see [`window`].
    pub(crate) fn window(&self) -> u16 {
        window(self.prefetch.unwrap_or(u16::MAX), &self.limits, self.on_limit)
    }

    /// Whether more may wait elsewhere while so many are in hand.
    pub(crate) fn may_more_wait(&self, in_hand: usize) -> bool {
        self.prefetch.is_some() && in_hand >= usize::from(self.window())
    }

    /// What all replicas are to agree on: the limits, those of each plan by its name, and the revision.
    pub(crate) fn terms(&self) -> Terms {
        let plans = self.plans.iter().map(|plan| (plan.name.clone(), plan.limits.clone()));
        Terms::new(self.limits.clone(), plans.collect(), self.revision)
    }

    /// The same where the limits only police, if that is wanted.
    pub(crate) fn policing(mut self) -> Self {
        if self.on_limit == OnLimit::Reject {
            self.limits = self.limits.policing();
            for plan in &mut self.plans {
                plan.limits = plan.limits.clone().policing();
            }
        }
        self
    }
}

/// How many messages a replica has in hand at most, where `prefetch` is what was asked for: at most the slots
/// that the limits have in 60 s after a rest, and at least 1. More would only be held here, out of reach of
/// other replicas. Where the limits police nothing is held.
#[must_use]
pub fn window(prefetch: u16, limits: &LimitSet, on_limit: OnLimit) -> u16 {
    const HOLD_MAX: Duration = Duration::from_secs(60);
    if on_limit == OnLimit::Reject {
        return prefetch;
    }
    let slots = |limit: &Limit| limit.rate().units_in(HOLD_MAX).saturating_add(limit.burst() - 1);
    let least = limits.iter().map(slots).min().unwrap_or(1);
    prefetch.min(u16::try_from(least).unwrap_or(u16::MAX)).max(1)
}
