//! Helpers for the tests of several modules.

use std::time::Duration;

use tokio::time::Instant;

use super::{End, JobSettings, LaneId, OnLimit, OnUnavailable, Prefetch, Settings, SlotRequest, Waiter};
use crate::limit::{JobCost, Limit, LimitSet};

/// Returns settings with one shaping leaky bucket of this rate.
pub(crate) fn settings(rate: &str) -> Settings {
    let limit = Limit::leaky_bucket("rate", rate.parse().unwrap(), 1).unwrap();
    Settings {
        downstream: "billing".to_owned(),
        limits: LimitSet::new(vec![limit]).unwrap(),
        plans: vec![],
        on_limit: OnLimit::Wait,
        on_unavailable: OnUnavailable::Hold,
        horizon: Duration::from_millis(100),
        concurrency: 64,
        of_jobs: JobSettings {
            prefetch: Some(Prefetch { most: 1000, hold_max: Duration::from_secs(60) }),
            lanes: None,
        },
        revision: None,
    }
}

/// A waiter for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) request: SlotRequest,
    pub(crate) is_live: bool,
    pub(crate) is_movable: bool,
}

impl Caller {
    /// Creates a waiter of cost 1 in the downstream's own lane.
    pub(crate) fn new(seq: u64) -> Self {
        let (lane, since) = (LaneId::DOWNSTREAM, Instant::now());
        let cost = JobCost::each(1);
        let request = SlotRequest { lane, priority: 0, cost, seq, since, end: None, is_quiet: false };
        Self { request, is_live: true, is_movable: false }
    }

    /// Sets when it gives up.
    pub(crate) fn end(mut self, at: Instant, is_early: bool) -> Self {
        self.request.end = Some(End { at, is_early });
        self
    }

    /// Sets the cost.
    pub(crate) fn cost(mut self, cost: u32) -> Self {
        self.request.cost = cost.into();
        self
    }

    /// Sets the lane.
    pub(crate) fn lane(mut self, lane: LaneId) -> Self {
        self.request.lane = lane;
        self
    }

    /// Sets the priority.
    pub(crate) fn priority(mut self, priority: u8) -> Self {
        self.request.priority = priority;
        self
    }
}

impl Waiter for Caller {
    fn request(&self) -> &SlotRequest {
        &self.request
    }

    fn request_mut(&mut self) -> &mut SlotRequest {
        &mut self.request
    }

    fn is_live(&self) -> bool {
        self.is_live
    }

    fn may_wait_elsewhere(&self) -> bool {
        self.is_movable
    }
}
