//! The scheduling state of one lane.

use std::time::Duration;

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
    /// The cost from which waiters get no slot before a window ends, and the end of the window.
    pub(super) barred: Option<(u32, Instant)>,
    /// The waiters that were passed on to wait elsewhere, if there were any.
    pub(super) passed_on: Option<PassedOn>,
}

/// The waiters of a lane that were passed on to wait elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedOn {
    /// Their number, less those that the limits have released since, as of this instant.
    count: u64,
    at: Instant,
    /// The highest position in the order of arrival that one of them has.
    last: u64,
}

impl PassedOn {
    /// Nobody, if the lane's slots begin at `start`.
    pub(super) const fn nobody(start: Instant) -> Self {
        Self { count: 0, at: start, last: 0 }
    }

    /// Returns those that are left if the lane's slots begin at `start` and are this far apart.
    pub(super) fn less_released(self, start: Instant, apart: Duration) -> Self {
        let released = start.saturating_duration_since(self.at).as_nanos() / apart.as_nanos().max(1);
        match u32::try_from(released) {
            Ok(released) if u64::from(released) < self.count => Self {
                count: self.count - u64::from(released),
                at: self.at + apart.saturating_mul(released),
                ..self
            },
            _ => Self::nobody(start),
        }
    }

    /// Counts the waiter with this position too.
    pub(super) const fn with(self, seq: u64) -> Self {
        let last = if seq > self.last { seq } else { self.last };
        Self { count: self.count + 1, last, ..self }
    }

    /// Returns how many of them come before the waiter with this position: all or none. A waiter that is older than
    /// the last of them was here before, or has come back.
    pub(crate) const fn before(self, seq: u64) -> u64 {
        if seq > self.last { self.count } else { 0 }
    }
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
