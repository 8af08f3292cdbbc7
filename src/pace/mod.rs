//! The engine: gives a slot to each of those who wait, in the order that is fair among them, and says when it has
//! come. It is generic over what waits.
//!
//! | module | what it keeps |
//! |---|---|
//! | [`backlog`] | those who wait for a slot, first in, first out within each lane and priority |
//! | [`schedule`] | whose turn it is, when to ask the store, and for how many |
//! | [`pacing`] | what one replica paces by, as the store is there or away; its calls for slots, its lease and its clock |
//! | [`terms`] | what all replicas hold in common: the limits in force, and pauses |
//! | [`release`] | those who hold a slot until it comes, how many may be sent at once, and the release clock |

mod backlog;
mod engine;
pub(crate) mod meters;
mod pacing;
pub(crate) mod release;
mod schedule;
mod settings;
mod terms;
#[cfg(test)]
pub(crate) mod testing;
mod waiter;

pub(crate) use engine::{Admission, Effect, Engine, Refusal, Stamp, Unused, Wakeups};
pub(crate) use settings::{DEFAULT_HORIZON, PlanLimits, Settings};
pub use settings::{OnLimit, OnUnavailable, window};
#[cfg(test)]
pub(crate) use waiter::Caller;
pub(crate) use waiter::{LaneId, Waiter};
