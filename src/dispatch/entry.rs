//! A job that this replica holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::retry::Attempts;
use super::source::{ParkReason, Stay, Ticket};
use crate::job::Job;
use crate::pace::{SlotRequest, Waiter};
use crate::time::{Micros, wall_now};

/// A job that this replica holds, with the right to settle it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Arc<Job>,
    /// Whether the job's id is its producer's. Otherwise it was generated here, and changes with each delivery.
    pub(super) has_own_id: bool,
    pub(super) ticket: Box<dyn Ticket>,
    /// When the job was first taken in, by the wall clock.
    pub(super) first_seen: Micros,
    /// Whether the job may be parked: not after that was refused once.
    pub(super) may_park: bool,
    /// The results of the attempts so far.
    pub(super) attempts: Attempts,
    /// What it asks for, and its position in the order.
    pub(super) request: SlotRequest,
}

impl Entry {
    /// Whether the job can be parked.
    pub(super) fn can_park(&self) -> bool {
        self.may_park && self.ticket.can_park()
    }

    /// The instant from which on the job has expired, if that is earlier than `due`; or else `due`. Whatever a job waits
    /// for, its deadline ends that.
    pub(super) fn due_or_expired(&self, due: Instant) -> Instant {
        let Some(deadline) = self.job.deadline else { return due };
        // It has expired once the deadline has passed.
        due.min(Instant::now() + deadline.since(wall_now()) + Duration::from_millis(1))
    }

    /// The stay of this job until `until`, by the wall clock.
    pub(super) fn stay(&self, until: Micros, reason: ParkReason) -> Stay {
        let Attempts { sent, throttled, refused, unreadable, .. } = self.attempts;
        let assigned_id = (!self.has_own_id).then(|| self.job.id.clone());
        let first_seen = self.first_seen;
        Stay { until, reason, attempts: sent, throttled, refused, unreadable, first_seen, assigned_id }
    }
}

impl Waiter for Entry {
    fn request(&self) -> &SlotRequest {
        &self.request
    }

    fn request_mut(&mut self) -> &mut SlotRequest {
        &mut self.request
    }

    fn is_live(&self) -> bool {
        self.ticket.is_live()
    }
}
