//! The engine assigns a slot to each waiter, in a fair order, and reports when the slot has come. It is generic over
//! the type of the waiter.
//!
//! | module | responsibility |
//! |---|---|
//! | [`backlog`] | the waiters without a slot, first in, first out within each lane and priority |
//! | [`schedule`] | the choice of the next lane, the instant of the next reserve call, and its size |
//! | [`lanes`] | what makes the lanes of a downstream, and whose state each of their limits has |
//! | [`pacing`] | the source of this replica's slots, as the store is available or not; its reserve calls, its lease and its slot clock |
//! | [`terms`] | the state that all replicas share: the limits in force, pauses, and cancelled waiters |
//! | [`release`] | the waiters that hold a slot until it comes, the concurrency of sends, and the release clock |

mod backlog;
mod engine;
mod lanes;
pub(crate) mod meters;
mod pacing;
pub(crate) mod release;
mod schedule;
mod settings;
mod terms;
#[cfg(test)]
pub(crate) mod tests;
mod waiter;

pub(crate) use engine::{
    Admission, Answered, Effect, Engine, EngineView, Hold, Refusal, Wakeups, Whereabouts,
};
pub use lanes::LaneRules;
pub use pacing::Peers;
pub(crate) use release::Unused;
pub(crate) use schedule::{BusyLane, LaneWait, LanesView, TurnTaking, WaiterPlace};
pub(crate) use settings::{
    DEFAULT_HORIZON, JobSettings, PlanLimits, Prefetch, Settings, limit_delay, slots_within,
};
pub use settings::{OnLimit, OnUnavailable, window};
pub(crate) use terms::{CancelledIds, Paused, ProbeEnd};
#[cfg(test)]
pub(crate) use tests::Caller;
pub(crate) use waiter::{End, LaneId, SlotRequest, Waiter};
