//! A gate that is closed for slots in a pause: the engine's knowledge of pauses, shared with sends that are being
//! prepared.

use std::sync::{Mutex, PoisonError};

use crate::store::{Mapping, SlotClock};
use crate::time::{Deadline, Micros};

/// The gate that is closed for slots in a pause. The engine sets it; each send reads it last before it begins.
#[derive(Debug, Default)]
pub(crate) struct PauseGate(Mutex<Closed>);

/// The ends before which slots are not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Closed {
    /// The end of a pause that the store does not know of yet, on this process's clock.
    pub(crate) own: Option<Deadline>,
    /// The end of the pauses that the store knows of, on its clock: compared there, as slots are, to the µs.
    pub(crate) until: Micros,
}

impl PauseGate {
    pub(crate) fn set(&self, closed: Closed) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = closed;
    }

    /// Returns the end of the pauses that the store knows of, on this process's clock; `None` before the store has
    /// answered.
    pub(crate) fn closed_until(&self, slots: &SlotClock) -> Option<Mapping> {
        slots.mapping(self.closed().until)
    }

    /// Whether it stays closed until an operator resumes.
    pub(crate) fn is_closed_for_good(&self) -> bool {
        self.closed().until == Micros::MAX
    }

    fn closed(&self) -> Closed {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this slot lies in a pause, even in one that is over by now: a late send would be one too many after
    /// the pause.
    pub(crate) fn refuses(&self, slot: Micros, deadline: Deadline) -> bool {
        let Closed { own, until } = self.closed();
        slot < until || own.is_some_and(|own| deadline < own)
    }
}
