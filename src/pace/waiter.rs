//! What waits for a slot.

use tokio::time::Instant;

/// A lane: those who wait for slots of the same limits. The first one has the downstream's own limits alone, and each
/// plan has one of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId(usize);

impl LaneId {
    /// The lane that only the downstream's own limits apply to.
    pub(crate) const DOWNSTREAM: Self = Self(0);

    /// The lane of a job with this plan, or without one.
    pub(crate) const fn of_plan(plan: Option<usize>) -> Self {
        match plan {
            Some(plan) => Self(plan + 1),
            None => Self::DOWNSTREAM,
        }
    }

    /// The lane in this row of a table that has one row for each lane.
    pub(crate) const fn at(row: usize) -> Self {
        Self(row)
    }

    /// Its row in such a table.
    pub(crate) const fn row(self) -> usize {
        self.0
    }

    /// Its plan; none for the downstream's own lane.
    pub(crate) const fn plan(self) -> Option<usize> {
        self.0.checked_sub(1)
    }
}

/// One who waits for a slot: a job in the daemon.
pub(crate) trait Waiter {
    /// The lane that it waits in.
    fn lane(&self) -> LaneId;

    /// 0 to 9; the higher one goes first.
    fn priority(&self) -> u8;

    /// How many units of its limits it takes.
    fn cost(&self) -> u32;

    /// Its place in the order of arrival, which it keeps when it comes back.
    fn seq(&self) -> u64;

    /// Since when it waits for a slot.
    fn since(&self) -> Instant;

    /// It may go from `due` on, and waits for a slot since then.
    fn may_go_from(&mut self, due: Instant);

    /// False once nobody waits for the outcome any more: then it is dropped.
    fn is_live(&self) -> bool;
}

/// A waiter for tests.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) lane: LaneId,
    pub(crate) priority: u8,
    pub(crate) cost: u32,
    pub(crate) seq: u64,
    pub(crate) since: Instant,
    pub(crate) is_live: bool,
}

#[cfg(test)]
impl Caller {
    /// One of cost 1 in the downstream's own lane.
    pub(crate) fn new(seq: u64) -> Self {
        Self { lane: LaneId::DOWNSTREAM, priority: 0, cost: 1, seq, since: Instant::now(), is_live: true }
    }
}

#[cfg(test)]
impl Waiter for Caller {
    fn lane(&self) -> LaneId {
        self.lane
    }

    fn priority(&self) -> u8 {
        self.priority
    }

    fn cost(&self) -> u32 {
        self.cost
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn since(&self) -> Instant {
        self.since
    }

    fn may_go_from(&mut self, due: Instant) {
        self.since = due;
    }

    fn is_live(&self) -> bool {
        self.is_live
    }
}
