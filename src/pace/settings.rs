//! The settings of the engine.

use std::sync::Arc;
use std::time::Duration;

use super::LaneId;
use super::lanes::LaneRules;
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
    /// The settings for waiters that are jobs.
    pub(crate) of_jobs: JobSettings,
    /// The revision of the configuration that the limits come from. A lower revision never replaces a higher one.
    pub(crate) revision: Option<u64>,
}

/// The settings of an engine whose waiters are jobs; another engine has none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobSettings {
    /// The bounds of the jobs that the driver holds at once. It is `None` if the driver holds all waiters.
    pub(crate) prefetch: Option<Prefetch>,
    /// The lanes by keys of jobs, if there are any. Then the limits of plans beyond the downstream's are those of each lane.
    pub(crate) lanes: Option<Arc<LaneRules>>,
}

/// The bounds of the jobs that a driver holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefetch {
    /// The most jobs, unless the limits release fewer soon.
    pub(crate) most: u16,
    /// How long a job that cannot be released yet is held, as long as others find room.
    pub(crate) hold_max: Duration,
}

impl Settings {
    /// The sets of limits: the downstream's own, and those of each plan, in the order of [`LaneId::set`].
    pub(crate) fn sets(&self) -> impl Iterator<Item = &LimitSet> {
        std::iter::once(&self.limits).chain(self.plans.iter().map(|plan| &plan.limits))
    }

    /// Whether slots are requested in the same way under these settings and under the others: for the same limits.
    pub(crate) fn paces_like(&self, other: &Self) -> bool {
        let how = |of: &Self| (of.on_limit, of.horizon, of.concurrency);
        how(self) == how(other) && self.of_jobs.lanes == other.of_jobs.lanes && self.sets().eq(other.sets())
    }

    /// Whether these limits may release a job earlier than the others do. It is false where they are the same limits,
    /// with rates that are not higher.
    pub(crate) fn may_release_sooner(&self, than: &Self) -> bool {
        let is_tighter = |new: &Limit, old: &Limit| new.name() == old.name() && new.is_within(old);
        let are_tighter = |(new, old): (&LimitSet, &LimitSet)| {
            new == old
                || (new.combine() == old.combine()
                    && new.len() == old.len()
                    && new.iter().zip(old.iter()).all(|(new, old)| is_tighter(new, old)))
        };
        let paused =
            |of: &Self| of.of_jobs.lanes.as_ref().map(|rules| rules.paused.clone()).unwrap_or_default();
        let is_resumed = !paused(than).is_subset(&paused(self));
        is_resumed || self.plans.len() != than.plans.len() || !self.sets().zip(than.sets()).all(are_tighter)
    }

    /// The limits that apply to this lane. An unknown plan has the downstream's limits.
    pub(crate) fn limits_of(&self, lane: LaneId) -> &LimitSet {
        let plan = lane.plan().and_then(|plan| self.plans.get(plan));
        plan.map_or(&self.limits, |plan| &plan.limits)
    }

    /// The limits of this lane that are not the downstream's.
    pub(crate) fn own_limits(&self, lane: LaneId) -> impl Iterator<Item = &Limit> {
        self.limits_of(lane).iter().skip(self.limits.len())
    }

    /// The limits of this lane that are not the downstream's, as a set; `None` if there are none.
    pub(crate) fn own_set(&self, lane: LaneId) -> Option<LimitSet> {
        LimitSet::new(self.own_limits(lane).cloned().collect()).ok()
    }

    /// The most jobs that the driver holds at once; see [`window`].
    pub(crate) fn window(&self) -> u16 {
        let window = |Prefetch { most, hold_max }| {
            window(most, &self.limits, self.on_limit, hold_max, self.concurrency)
        };
        self.of_jobs.prefetch.map_or(u16::MAX, window)
    }

    /// How long a job that cannot be released yet is held, as long as others find room.
    pub(crate) fn hold_max(&self) -> Duration {
        self.of_jobs.prefetch.map_or(Duration::MAX, |prefetch| prefetch.hold_max)
    }

    /// Whether more jobs may wait elsewhere while the driver holds `in_hand` of them.
    pub(crate) fn may_more_wait(&self, in_hand: usize) -> bool {
        self.of_jobs.prefetch.is_some() && in_hand >= usize::from(self.window())
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
/// limits release in `hold_max` after an idle period, and at least 1. More messages would only be held here, out of reach
/// of other replicas. If the limits police, nothing is held.
///
/// A short `hold_max` leaves room for the jobs that are being sent: as many as may be in progress (`concurrency`), or
/// as the limits release during a slow answer.
#[must_use]
pub fn window(
    prefetch: u16,
    limits: &LimitSet,
    on_limit: OnLimit,
    hold_max: Duration,
    concurrency: usize,
) -> u16 {
    const SLOW_ANSWER: Duration = Duration::from_secs(60);
    if on_limit == OnLimit::Reject {
        return prefetch;
    }
    let sending = slots_within(limits.iter(), SLOW_ANSWER).min(concurrency as u64);
    let window = slots_within(limits.iter(), hold_max).max(sending);
    prefetch.min(u16::try_from(window).unwrap_or(u16::MAX))
}

/// Returns how many units the limits release within `span` after an idle period; at least 1.
pub(crate) fn slots_within<'l>(limits: impl Iterator<Item = &'l Limit>, span: Duration) -> u64 {
    let slots = |limit: &Limit| limit.rate().units_in(span).saturating_add(limit.burst() - 1);
    limits.map(slots).min().unwrap_or(1).max(1)
}

/// Returns how long after the first unit the limits release the unit with this index, counted from 0, after an idle
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_how_long_jobs_are_held_and_leaves_room_for_those_that_are_sent() {
        let window = |rate: &str, seconds, concurrency| {
            let limit = Limit::leaky_bucket("l", rate.parse().unwrap(), 1).unwrap();
            let limits = LimitSet::new(vec![limit]).unwrap();
            let window =
                |on_limit| super::window(1000, &limits, on_limit, Duration::from_secs(seconds), concurrency);
            assert_eq!(window(OnLimit::Reject), 1000);
            window(OnLimit::Wait)
        };
        assert_eq!(window("1/m", 60, 64), 1);
        assert_eq!(window("1/m", 600, 64), 10);
        assert_eq!(window("10/s", 60, 64), 600);
        assert_eq!(window("10/s", 600, 64), 1000);
        assert_eq!(window("10/s", 1, 64), 64);
        assert_eq!(window("10/s", 1, 4), 10);
        assert_eq!(window("1/s", 1, 64), 60, "no more than are sent in a minute");
        assert_eq!(window("200/s", u64::MAX, 64), 1000);
    }
}
