//! The scheduling state of one lane.

use tokio::time::Instant;

use super::batching::Batching;
use crate::limit::LimitSet;
use crate::pace::{OnLimit, Settings};

/// The scheduling state of a lane.
#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) batching: Batching,
    /// Whether its slots lie further apart than the downstream's, according to the last answer, or to its limits before
    /// the first answer.
    pub(super) slower_than_downstream: bool,
    /// The sleep until its next slot, if its own limits determine that.
    pub(super) sleeping: Option<Sleep>,
    /// The virtual time at which its next grant starts, which is the end of its last grant.
    pub(super) start_tag: u64,
    /// The cost from which on waiters get no slot before a window ends, and the end of the window.
    pub(super) barred: Option<(u32, Instant)>,
    /// The number of waiters that were passed on to wait elsewhere, less those that the limits have released since,
    /// as of this instant.
    pub(super) passed_on: Option<(u64, Instant)>,
}

/// The sleep of a lane until a slot that its own limits determine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sleep {
    pub(super) until: Instant,
    /// When to request that slot, if no other lane has waiters.
    pub(super) ask_at: Instant,
}

impl LaneState {
    pub(super) fn new(limits: &LimitSet, settings: &Settings) -> Self {
        let batching = Batching::new(limits, settings.horizon, settings.concurrency);
        let polices = settings.on_limit == OnLimit::Reject;
        let batching = if polices { batching.at_once() } else { batching };
        let is_slower = limits.rate().interval() > settings.limits.rate().interval();
        Self {
            batching,
            slower_than_downstream: !polices && is_slower,
            sleeping: None,
            start_tag: 0,
            barred: None,
            passed_on: None,
        }
    }

    /// Whether its own limits allow a slot at `instant`, as far as is known.
    pub(super) fn is_awake_at(&self, instant: Instant) -> bool {
        self.sleeping.is_none_or(|sleep| sleep.until <= instant)
    }
}
