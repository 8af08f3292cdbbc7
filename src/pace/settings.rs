//! The settings of the engine.

use std::time::Duration;

use super::LaneId;
use crate::limit::{Limit, LimitSet};
use crate::terms::Terms;

/// The default horizon: how far ahead of now a slot may be granted.
pub(crate) const DEFAULT_HORIZON: Duration = Duration::from_millis(100);

/// The handling of a job that the limits do not allow at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnLimit {
    /// It waits for its slot: the limits shape.
    #[default]
    Wait,
    /// It is dead-lettered as `rejected`: the limits police.
    Reject,
}

/// The handling of jobs while the store cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnUnavailable {
    /// They wait: nothing is released without a slot.
    #[default]
    Hold,
    /// Each replica releases its share of the pace: the limits divided by the last known number of replicas. A replica
    /// that has not reached the store yet does not know this number, and waits.
    Local,
    /// They are released as fast as the downstream takes them.
    Open,
}

/// The limits of a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanLimits {
    /// The plan's name.
    pub(crate) name: String,
    /// The downstream's limits, followed by those of the plan.
    pub(crate) limits: LimitSet,
}

/// The settings in force for the engine of one downstream.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The downstream's name.
    pub(crate) downstream: String,
    /// The limits of all waiters of the downstream.
    pub(crate) limits: LimitSet,
    /// The plans, in the order of [`LaneId::plan`].
    pub(crate) plans: Vec<PlanLimits>,
    /// The handling of waiters that the limits do not allow at once.
    pub(crate) on_limit: OnLimit,
    /// The handling of waiters while the store cannot be reached.
    pub(crate) on_unavailable: OnUnavailable,
    /// How far ahead of now a slot may be granted.
    pub(crate) horizon: Duration,
    /// The most sends that may be in progress at once.
    pub(crate) concurrency: usize,
    /// The most jobs that the driver holds at once, unless the limits release fewer soon. It is `None` if the driver
    /// holds all waiters.
    pub(crate) prefetch: Option<u16>,
    /// The revision of the configuration that the limits come from. A lower revision never replaces a higher one.
    pub(crate) revision: Option<u64>,
}

impl Settings {
    /// The limits of each lane, in the order of [`LaneId::row`].
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &LimitSet> {
        std::iter::once(&self.limits).chain(self.plans.iter().map(|plan| &plan.limits))
    }

    /// Whether slots are requested under these settings as under others: of the same limits, in the same way.
    pub(crate) fn paces_like(&self, other: &Self) -> bool {
        let how = |of: &Self| (of.on_limit, of.horizon, of.concurrency);
        how(self) == how(other) && self.lanes().eq(other.lanes())
    }

    /// The limits that apply to this lane. An unknown plan has the downstream's limits.
    pub(crate) fn limits_of(&self, lane: LaneId) -> &LimitSet {
        let plan = lane.plan().and_then(|plan| self.plans.get(plan));
        plan.map_or(&self.limits, |plan| &plan.limits)
    }

    /// The most jobs that the driver holds at once; see [`window`].
    pub(crate) fn window(&self) -> u16 {
        window(self.prefetch.unwrap_or(u16::MAX), &self.limits, self.on_limit)
    }

    /// Whether more jobs may wait elsewhere while the driver holds `in_hand` of them.
    pub(crate) fn may_more_wait(&self, in_hand: usize) -> bool {
        self.prefetch.is_some() && in_hand >= usize::from(self.window())
    }

    /// The terms that all replicas have to agree on: the limits, those of each plan by its name, and the revision.
    pub(crate) fn terms(&self) -> Terms {
        let plans = self.plans.iter().map(|plan| (plan.name.clone(), plan.limits.clone()));
        Terms::new(self.limits.clone(), plans.collect(), self.revision)
    }

    /// Returns the settings with policing limits if `on_limit` asks for them.
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

/// Returns the most messages that a replica holds at once, given the configured `prefetch`: at most as many as the
/// limits release in 60 s after an idle period, and at least 1. More messages would only be held here, out of reach of
/// other replicas. If the limits police, nothing is held.
#[must_use]
pub fn window(prefetch: u16, limits: &LimitSet, on_limit: OnLimit) -> u16 {
    const HOLD_MAX: Duration = Duration::from_secs(60);
    if on_limit == OnLimit::Reject {
        return prefetch;
    }
    prefetch.min(u16::try_from(slots_within(limits.iter(), HOLD_MAX)).unwrap_or(u16::MAX))
}

/// Returns how many units the limits release within `span` after an idle period; at least 1.
pub(crate) fn slots_within<'l>(limits: impl Iterator<Item = &'l Limit>, span: Duration) -> u64 {
    let slots = |limit: &Limit| limit.rate().units_in(span).saturating_add(limit.burst() - 1);
    limits.map(slots).min().unwrap_or(1).max(1)
}

/// Returns how long after the first unit the limits release the unit in this place, counted from 0, after an idle
/// period.
pub(crate) fn limit_delay(limits: &[&Limit], place: u64) -> Duration {
    let delay = |limit: &&Limit| {
        let after = place.saturating_sub(limit.burst() - 1);
        let after = u32::try_from(after).unwrap_or(u32::MAX);
        limit.rate().interval().saturating_mul(after).min(LONGEST_DELAY)
    };
    limits.iter().map(delay).max().unwrap_or_default()
}

/// The longest delay, which can be added to any instant.
const LONGEST_DELAY: Duration = Duration::from_secs(366 * 86_400);
