//! A job that this replica holds.

use std::sync::Arc;

use super::retry::Attempts;
use super::source::Ticket;
use crate::job::Job;
use crate::pace::{SlotRequest, Waiter};

/// A job that this replica holds, with the right to settle it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Arc<Job>,
    /// Whether the job's id is its producer's. Otherwise it was generated here, and changes with each delivery.
    pub(super) has_own_id: bool,
    pub(super) ticket: Box<dyn Ticket>,
    /// The results of the attempts so far.
    pub(super) attempts: Attempts,
    /// What it asks for, and its position in the order.
    pub(super) request: SlotRequest,
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
