//! Whether a slot may be used, as pauses have it: what the engine knows, for those that are on their way.

use std::sync::{Mutex, PoisonError};

use crate::store::{Mapping, SlotClock};
use crate::time::{Deadline, Micros};

/// Closed for the slots that lie in a pause. The engine sets it, those who are about to be sent look at it last of all.
#[derive(Debug, Default)]
pub(crate) struct PauseGate(Mutex<Closed>);

/// Slots before these ends are not used.
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

    /// Where the end of the pauses that the store knows of lies on this process's clock; none before the store was heard.
    pub(crate) fn closed_until(&self, slots: &SlotClock) -> Option<Mapping> {
        slots.mapping(self.closed().until)
    }

    /// Whether it stays closed until somebody resumes.
    pub(crate) fn is_closed_for_good(&self) -> bool {
        self.closed().until == Micros::MAX
    }

    fn closed(&self) -> Closed {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this slot lies in a pause: also in one that is over by now, since whoever was late for it
    /// would be one too many behind the pause.
    pub(crate) fn refuses(&self, slot: Micros, deadline: Deadline) -> bool {
        let Closed { own, until } = self.closed();
        slot < until || own.is_some_and(|own| deadline < own)
    }
}
