//! The waiters of the engine, and their requests for slots.

use std::sync::Arc;

use tokio::time::Instant;

use crate::limit::JobCost;

/// A lane: the waiters whose slots keep the same limits. Where the downstream has lanes by keys, each of these has a
/// row of its own. Otherwise the first lane has only the downstream's own limits, and each plan has a lane of its
/// own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId {
    row: usize,
    set: usize,
}

impl LaneId {
    /// The lane to which only the downstream's own limits apply.
    pub(crate) const DOWNSTREAM: Self = Self::at(0);

    /// Returns the lane of a job with this plan, or without one.
    pub(crate) const fn of_plan(plan: Option<usize>) -> Self {
        match plan {
            Some(plan) => Self::at(plan + 1),
            None => Self::DOWNSTREAM,
        }
    }

    /// Returns the lane in this row of a table that has one row for each set of limits: the downstream's own, and those of
    /// each plan.
    pub(crate) const fn at(row: usize) -> Self {
        Self { row, set: row }
    }

    /// Returns the lane of the same limits in this row of a backlog.
    pub(crate) const fn in_row(self, row: usize) -> Self {
        Self { row, ..self }
    }

    /// Returns the row of this lane in a backlog.
    pub(crate) const fn row(self) -> usize {
        self.row
    }

    /// Returns the row of its limits.
    pub(crate) const fn set(self) -> usize {
        self.set
    }

    /// Returns the plan of this lane; `None` for the downstream's own lane.
    pub(crate) const fn plan(self) -> Option<usize> {
        self.set.checked_sub(1)
    }
}

/// The request of a waiter for a slot, and its position in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRequest {
    /// The lane in which the waiter waits.
    pub(crate) lane: LaneId,
    /// The priority from 0 to 9; the higher priority is first.
    pub(crate) priority: u8,
    /// The cost that the waiter takes from its limits.
    pub(crate) cost: JobCost,
    /// The position in the order of arrival, which a waiter keeps when it returns to the backlog.
    pub(crate) seq: u64,
    /// The instant since which the waiter has been ready for a slot.
    pub(crate) since: Instant,
    /// When the waiter gives up, if it does.
    pub(crate) end: Option<End>,
    /// Whether no other waiter of its lane waited here for a slot when it came. Unless lanes are made by keys it is false.
    pub(crate) is_quiet: bool,
}

/// The instant at which a waiter gives up if it was granted no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) at: Instant,
    /// Whether it gives up as soon as it is clear that it cannot have a slot before that instant.
    pub(crate) is_early: bool,
}

impl End {
    /// Whether the waiter gives up as soon as it is clear that this is its first slot.
    pub(crate) fn is_early_for(self, slot: Instant) -> bool {
        self.is_early && self.at < slot
    }
}

/// A waiter for a slot: a job in the daemon, a call of `acquire` in the library.
pub(crate) trait Waiter {
    fn request(&self) -> &SlotRequest;

    fn request_mut(&mut self) -> &mut SlotRequest;

    /// Whether the outcome still has a receiver. A waiter without one is dropped.
    fn is_live(&self) -> bool;

    /// Whether it may be taken out to wait elsewhere while it waits for a time.
    fn may_wait_elsewhere(&self) -> bool {
        false
    }

    /// Until when it is expected to wait for a limit, if that was estimated before by this version of the limits, or
    /// by any version if the version is not known.
    fn expected(&self, limits: Option<&str>) -> Option<Instant> {
        let _ = limits;
        None
    }

    /// The values of its key, if it has any; they determine its lane.
    fn key(&mut self) -> Option<&mut Arc<[String]>> {
        None
    }

    fn lane(&self) -> LaneId {
        self.request().lane
    }

    fn priority(&self) -> u8 {
        self.request().priority
    }

    fn cost(&self) -> JobCost {
        self.request().cost
    }

    fn seq(&self) -> u64 {
        self.request().seq
    }

    fn since(&self) -> Instant {
        self.request().since
    }

    fn end(&self) -> Option<End> {
        self.request().end
    }
}

/// A waiter that is large is boxed: it passes through many queues and calls, which then move a pointer.
impl<W: Waiter> Waiter for Box<W> {
    fn request(&self) -> &SlotRequest {
        (**self).request()
    }

    fn request_mut(&mut self) -> &mut SlotRequest {
        (**self).request_mut()
    }

    fn is_live(&self) -> bool {
        (**self).is_live()
    }

    fn may_wait_elsewhere(&self) -> bool {
        (**self).may_wait_elsewhere()
    }

    fn expected(&self, limits: Option<&str>) -> Option<Instant> {
        (**self).expected(limits)
    }

    fn key(&mut self) -> Option<&mut Arc<[String]>> {
        (**self).key()
    }
}
