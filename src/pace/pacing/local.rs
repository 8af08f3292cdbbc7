//! The local pace of one replica while the store is unavailable.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use super::snapshot::SharedSnapshot;
use crate::limit::{Level, LimitSet, Mark, State, Window, replica_share};
use crate::pace::{LaneId, OnLimit, PlanLimits, Settings};
use crate::store::{Change, LONGEST_PAUSE, MemoryStore, SlotClock, Store as _};
use crate::time::{Clock, Deadline, Micros, SystemClock};

/// A store in memory that paces by this replica's share of the limits.
#[derive(Clone, Debug)]
pub(crate) struct LocalPace {
    pub(crate) store: Arc<MemoryStore>,
    /// The settings with the share of the limits.
    pub(crate) settings: Arc<Settings>,
}

/// The store's clock, extrapolated while the store is unavailable.
#[derive(Debug)]
struct ExtrapolatedClock {
    slots: Arc<SlotClock>,
    /// The clock to use before the store has ever answered.
    own: SystemClock,
}

impl Clock for ExtrapolatedClock {
    fn now(&self) -> Micros {
        self.slots.store_now().unwrap_or_else(|| self.own.now())
    }
}

impl LocalPace {
    /// Creates a local pace that continues the shared one as last seen. Other replicas may hold slots up to `reach` ahead.
    /// It is `None` if nothing is known of the shared pace, or this replica's share of a limit would be zero.
    pub(crate) fn behind(
        shared: &SharedSnapshot,
        settings: &Settings,
        slots: &Arc<SlotClock>,
        reach: Duration,
    ) -> Option<Self> {
        let now = slots.store_now()?;
        let (of, polices) = (shared.replicas(), settings.on_limit == OnLimit::Reject);
        let share = |plan: &PlanLimits| {
            let limits = replica_share(&plan.limits, of, polices)?;
            Some(PlanLimits { name: plan.name.clone(), limits })
        };
        let limits = replica_share(&settings.limits, of, polices)?;
        let plans = settings.plans.iter().map(share).collect::<Option<_>>()?;
        let settings = Arc::new(Settings { limits, plans, ..settings.clone() });
        let clock = ExtrapolatedClock { slots: Arc::clone(slots), own: SystemClock::new() };
        let store = Arc::new(MemoryStore::with_clock(Arc::new(clock)));
        let local = Self { store, settings };
        for (row, limits) in local.settings.sets().enumerate() {
            local.take_over(shared, LaneId::at(row), limits);
        }
        if !polices {
            // Each replica starts at a random phase between two of its slots; otherwise all would release at the same
            // instants.
            let apart = u64::try_from(local.settings.limits.spacing().as_micros()).unwrap_or(u64::MAX - 1);
            let phase = Duration::from_micros(fastrand::u64(0..=apart));
            // The slots that others were granted last are not known here, but lie no further ahead than this.
            let begun = shared.next_slot().since(now).max(reach);
            local.pause(begun + phase);
        }
        Some(local)
    }

    /// Continues with this replica's share of the usage of windows.
    fn take_over(&self, shared: &SharedSnapshot, lane: LaneId, limits: &LimitSet) {
        let Some((now, marks, units)) = shared.usage(lane) else { return };
        for (limit, mark) in limits.iter().zip(marks) {
            let Mark::Window { window, .. } = mark else { continue };
            // This assumes that the other replicas have used as much as this one since then.
            let before = window.used.div_ceil(u64::from(shared.replicas().max(1)));
            let state = if window.end > now {
                let used = before.saturating_add(units).min(u64::from(limit.max_cost()));
                State { last: now, level: Level::Window(Window { used, ..*window }) }
            } else {
                let used = u32::try_from(units).unwrap_or(u32::MAX).min(limit.max_cost());
                limit.commit(&limit.fresh(), now, used)
            };
            self.store.put_state(&self.settings.downstream, limit, state);
        }
    }

    /// Applies a pause until `end` to this pace too.
    pub(crate) fn pause_until(&self, end: Deadline) {
        self.pause(end.left().max(Duration::from_micros(1)).min(LONGEST_PAUSE));
    }

    fn pause(&self, span: Duration) {
        // The store in memory answers at once, and this change cannot fail.
        let _ = self.store.update_record(&self.settings.downstream, Change::Penalize(span)).now_or_never();
    }
}
