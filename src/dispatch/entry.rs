//! A job in this replica's hands.

use std::sync::Arc;

use tokio::time::Instant;

use super::retry::Tries;
use super::source::Ticket;
use crate::job::Job;
use crate::pace::{LaneId, Waiter};

/// A job in this replica's hands, with the right to settle it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Arc<Job>,
    /// The job's id is its producer's. Otherwise it was made up here, and again with each delivery.
    pub(super) has_own_id: bool,
    pub(super) ticket: Box<dyn Ticket>,
    /// What became of the attempts at it so far.
    pub(super) tries: Tries,
    /// When it could have gone, had there been a slot.
    pub(super) since: Instant,
    /// Its place in the order of arrival, which it keeps when it comes back.
    pub(super) seq: u64,
}

impl Waiter for Entry {
    fn lane(&self) -> LaneId {
        LaneId::of_plan(self.job.plan)
    }

    fn priority(&self) -> u8 {
        self.job.priority
    }

    fn cost(&self) -> u32 {
        self.job.cost
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
        self.ticket.is_live()
    }
}
