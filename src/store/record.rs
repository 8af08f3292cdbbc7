//! What holds for a whole downstream, whoever asks for slots: pauses, and the terms in force.

use std::time::Duration;

use super::StoreError;
use crate::limit::Limit;
use crate::time::Micros;

/// What a downstream's record says besides slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// No slot lies before it, since the downstream asked for a pause; 0: it never did.
    pub penalty: Micros,
    /// An operator's pause.
    pub pause: Pause,
    /// The generation of the terms in force; 0: there are none.
    pub generation: u64,
    /// Rises with every [`Change::Reset`]; 0: there was none. What is remembered of limits from before it
    /// says nothing any more.
    pub reset: u64,
}

/// An operator's pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// No slot lies before it; 0: none was paused. [`Micros::MAX`]: there are no slots until somebody
    /// resumes.
    pub until: Micros,
    /// Rises with every pause and every resume, also over losses, so that the later one is known: not below
    /// the store's now.
    pub version: u64,
}

impl Status {
    /// No slot lies before it: the later end of both pauses.
    #[must_use]
    #[inline]
    pub fn paused_until(&self) -> Micros {
        self.penalty.max(self.pause.until)
    }

    /// Whether there are no slots at all, until somebody resumes.
    #[must_use]
    #[inline]
    pub const fn is_stopped(&self) -> bool {
        self.pause.until.0 == Micros::MAX.0
    }

    /// The same instants on a clock that stepped back by `back` µs.
    pub(super) fn step_back(&mut self, back: i64) {
        let earlier = |at: Micros| Micros((at.0 - back).max(0));
        self.penalty = earlier(self.penalty);
        if !self.is_stopped() {
            self.pause.until = earlier(self.pause.until);
        }
    }

    /// Whether a caller who goes by the terms of `generation` (0: by any) goes by those in force.
    #[must_use]
    #[inline]
    pub(super) const fn is_current(&self, generation: u64) -> bool {
        generation == 0 || generation == self.generation
    }
}

/// What is to change in a downstream's record; see [`Store::update_record`](super::Store::update_record).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// No slot for so long from the store's now on. Of several the latest end counts.
    Penalize(Duration),
    /// An operator's pause for so long from the store's now on, or until somebody resumes.
    Pause(Option<Duration>),
    /// Ends the operator's pause, and one that the downstream asked for.
    Resume,
    /// These terms, if those in force are still of generation `of`: then theirs is the next one.
    Terms {
        /// As in [`Status::generation`].
        of: u64,
        /// Opaque to the store.
        text: &'a str,
    },
    /// The counts of these limits of the whole downstream begin at 0, behind the latest slot that each of
    /// them granted. The GCRA family goes on at its pace from there, without a burst, and whatever else was
    /// charged is forgotten; a window has all its units.
    Reset {
        /// As they are in force.
        limits: &'a [Limit],
    },
    /// What a worker knows of a record that the store has lost.
    Recall(Recall<'a>),
}

/// A worker's memory of a record. Each part counts only where it is newer than the store's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recall<'a> {
    /// How much of the pause that the downstream asked for is left.
    pub penalty: Duration,
    /// How much of the operator's pause is left; `None`: all, it lasts until somebody resumes.
    pub pause: Option<Duration>,
    /// As in [`Pause::version`].
    pub version: u64,
    /// As in [`Status::generation`].
    pub generation: u64,
    /// The terms of that generation.
    pub terms: Option<&'a str>,
}

/// The longest pause that can be asked for.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(366 * 86_400);

impl Change<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] for a pause that is none, or too long.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let span = match self {
            Change::Penalize(span) | Change::Pause(Some(span)) => *span,
            _ => return Ok(()),
        };
        if span < Duration::from_micros(1) || span > LONGEST_PAUSE {
            let text = format!("a pause of {span:?}; use 1us to 366d, or pause until somebody resumes");
            return Err(StoreError::Invalid(text));
        }
        Ok(())
    }
}

/// The answer to a [`Change`]: how the record is after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordState {
    /// The store's clock when it decided.
    pub now: Micros,
    /// As in [`Reserved::epoch`](super::Reserved::epoch).
    pub epoch: Micros,
    /// How things stand now.
    pub status: Status,
    /// The terms in force; `None` where there are none, or the store has lost them.
    pub terms: Option<String>,
}
