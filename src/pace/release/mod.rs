//! Those who hold a slot, until it comes.

pub(crate) mod clock;
mod concurrency;
mod held;
mod pause_gate;

pub(crate) use concurrency::Concurrency;
pub(crate) use held::{Held, HeldQueue};
pub(crate) use pause_gate::{Closed, PauseGate};
