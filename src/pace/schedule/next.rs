//! The choice of a lane, and what an answer reports about its slots.

use std::time::Duration;

use super::turn_taking::SentTurn;
use crate::pace::LaneId;

/// The lane whose turn it is, and the bounds of the call for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) lane: LaneId,
    /// The highest rank that is taken: waiters of a lower priority wait behind the first waiter of another lane.
    pub(crate) rank: u8,
    /// How far ahead of now a slot may lie.
    pub(crate) ahead: Duration,
    /// Whether other lanes wait for slots that this lane could not use.
    pub(super) is_contended: bool,
    /// The turn that the call is sent with.
    pub(super) turn: Option<SentTurn>,
    /// The most units of the call.
    pub(super) max_units: u32,
    /// Whether other lanes use the same turn afterwards.
    pub(super) goes_on: bool,
}

impl Next {
    /// Whether the call is sent with a turn.
    pub(crate) const fn has_turn(&self) -> bool {
        self.turn.is_some()
    }
}

/// The spacing of a lane's slots, according to an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spacing {
    /// The time from the last granted slot to the next one; zero means that the same instant has more slots. It is
    /// `None` if none was granted and the next one is later than now.
    pub(crate) apart: Option<Duration>,
    /// The cost of the waiter that was granted the last slot.
    pub(crate) last_cost: Option<u32>,
    /// The spacing of further slots, if the answer has it.
    pub(crate) announced: Option<Duration>,
}
