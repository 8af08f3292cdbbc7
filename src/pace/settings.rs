//! What the engine goes by.

use std::time::Duration;

use super::LaneId;
use crate::limit::LimitSet;

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

/// What the engine of one downstream goes by, as it is in force.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The downstream's name.
    pub(crate) downstream: String,
    /// The limits of all who wait for the downstream.
    pub(crate) limits: LimitSet,
    /// For each plan, in the order of [`LaneId::plan`]: the limits again, and then those of the plan.
    pub(crate) plans: Vec<LimitSet>,
    /// What becomes of those whom the limits do not allow at once.
    pub(crate) on_limit: OnLimit,
    /// What becomes of them while the store cannot be reached.
    pub(crate) on_unavailable: OnUnavailable,
    /// How far ahead of now a slot may be granted.
    pub(crate) horizon: Duration,
    /// How many may be sent at once.
    pub(crate) concurrency: usize,
}

impl Settings {
    /// The limits of each lane, in the order of [`LaneId::row`].
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &LimitSet> {
        std::iter::once(&self.limits).chain(&self.plans)
    }

    /// The limits that decide on this lane. A plan that there is not has the downstream's.
    pub(crate) fn limits_of(&self, lane: LaneId) -> &LimitSet {
        lane.plan().and_then(|plan| self.plans.get(plan)).unwrap_or(&self.limits)
    }
}
