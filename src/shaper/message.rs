//! Messages from callers to the driver of their shaper, and its answers to callers that wait.

use tokio::sync::oneshot;

use super::ReserveError;
use super::grant::{ReserveResult, Taken};
use super::queue::Request;
use crate::pace::{Answered, LaneId, SlotRequest, Unused, Waiter};

/// A message to the driver.
#[derive(Debug)]
pub(super) enum Message {
    /// A caller waits for a slot; `missed` is the slot that it had before and missed.
    Wait { waiting: Waiting, missed: Option<Unused> },
    /// The slot of a waiter has come, and its caller does not use it.
    Unused(Unused),
    /// The waiter with this lane and position in the order of arrival does not wait any longer.
    Withdraw(LaneId, u64),
    /// A caller reserves a slot, however far ahead.
    Reserve { lane: LaneId, key: String, request: Request<ReserveResult> },
    /// A reserved slot is not used.
    Return(Taken),
    /// The store answered a call that the driver did not make. The sender is notified once the answer is taken in.
    Answered(Answered, oneshot::Sender<()>),
    /// Asks the driver to read the store's clock. The sender is notified once the clock is known as well as possible.
    Refresh(oneshot::Sender<()>),
    /// The counts of the limits were reset to 0.
    Reset,
}

/// A caller that waits for a slot.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: SlotRequest,
    pub(super) answer: oneshot::Sender<WaitOutcome>,
}

/// The outcome of waiting.
#[derive(Debug)]
pub(super) enum WaitOutcome {
    /// The slot has come.
    Come(Unused),
    /// The waiter gets no slot.
    Refused(ReserveError),
}

impl Waiter for Waiting {
    fn request(&self) -> &SlotRequest {
        &self.request
    }

    fn request_mut(&mut self) -> &mut SlotRequest {
        &mut self.request
    }

    fn is_live(&self) -> bool {
        !self.answer.is_closed()
    }
}
