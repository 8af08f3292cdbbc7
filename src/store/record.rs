//! The record of a downstream, apart from the states of its limits: pauses, a cool-down, and the terms in force.

use std::time::Duration;

use super::StoreError;
use super::error::ensure;
use crate::limit::Limit;
use crate::time::Micros;

mod cool_down;

pub use cool_down::{CoolDown, CoolDownCall};

/// The pauses of a downstream and the generation of its terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The end of the pause that the downstream asked for: no slot lies before it. 0 if it never asked for one.
    pub penalty: Micros,
    /// An operator's pause.
    pub pause: Pause,
    /// The generation of the terms in force; 0 if there are none.
    pub generation: u64,
    /// Rises with every [`Change::Reset`]; 0 if there was none. Counts of limits remembered from before a reset are
    /// obsolete.
    pub reset: u64,
    /// The version of the tombstones of cancelled jobs, which rises with every change of them; 0 if there was none.
    pub tombstones: u64,
}

/// An operator's pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// The end of the pause: no slot lies before it. 0 stands for no pause, [`Micros::MAX`] for one that lasts until
    /// somebody resumes.
    pub until: Micros,
    /// The version rises with every pause and every resume, and is never below the store's now, so that the later one
    /// is known even across losses.
    pub version: u64,
}

impl Status {
    /// The later end of both pauses: no slot lies before it.
    #[must_use]
    #[inline]
    pub fn paused_until(&self) -> Micros {
        self.penalty.max(self.pause.until)
    }

    /// Whether the downstream is stopped until somebody resumes it.
    #[must_use]
    #[inline]
    pub const fn is_stopped(&self) -> bool {
        self.pause.until.0 == Micros::MAX.0
    }

    /// The same instants on a clock that stepped back by `back` µs; forward where that is negative. 0 stays what it stands
    /// for.
    pub(super) fn step_back(&mut self, back: i64) {
        let earlier = |at: Micros| if at == Micros(0) { at } else { Micros((at.0 - back).max(0)) };
        self.penalty = earlier(self.penalty);
        if !self.is_stopped() {
            self.pause.until = earlier(self.pause.until);
        }
    }

    /// Whether a caller may be granted slots under the terms of `generation`: 0 stands for any, others must be in
    /// force.
    #[must_use]
    #[inline]
    pub(super) const fn is_current(&self, generation: u64) -> bool {
        generation == 0 || generation == self.generation
    }
}

/// A change to a downstream's record; see [`Store::update_record`](super::Store::update_record).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Pauses for this long from the store's now on, as the downstream asked for. The latest end of several counts.
    Penalize(Duration),
    /// An operator's pause.
    Pause {
        /// How long it lasts from the store's now on; `None` if until somebody resumes.
        span: Option<Duration>,
        /// Who paused and why: JSON of at most [`LONGEST_NOTE`] bytes, which is opaque to the store; empty for none.
        note: &'a str,
    },
    /// Ends the operator's pause, one that the downstream asked for, and a cool-down.
    Resume,
    /// Puts these terms in force, if those in force are still of generation `of`; they get the next generation.
    Terms {
        /// The generation to replace, as in [`Status::generation`].
        of: u64,
        /// The text of the terms, which is opaque to the store.
        text: &'a str,
    },
    /// The counts of these limits of the whole downstream start again from 0, after the latest slot that each of them
    /// granted. The GCRA family continues at its pace from there, without a burst, and any other charge is discarded; a
    /// window has all its units.
    Reset {
        /// The limits with the numbers in force.
        limits: &'a [Limit],
    },
    /// Restores what a worker remembers of a record that the store has lost.
    Recall(Recall<'a>),
    /// Begins, continues or ends a cool-down.
    CoolDown(CoolDownCall<'a>),
}

/// A worker's memory of a record. Each part is applied only where it is newer than the store's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recall<'a> {
    /// The remaining time of the pause that the downstream asked for.
    pub penalty: Duration,
    /// The remaining time of the operator's pause; `None` if it lasts until somebody resumes.
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

/// The longest note on a pause, in bytes.
pub const LONGEST_NOTE: usize = 1024;

impl Change<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] for a pause of zero length, or a longer one than [`LONGEST_PAUSE`], or a longer note than
    /// [`LONGEST_NOTE`], or as [`CoolDownCall`] says.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let span = match self {
            Change::Pause { note, .. } if note.len() > LONGEST_NOTE => {
                let text = format!("a note of {} bytes on a pause; use up to {LONGEST_NOTE}", note.len());
                return Err(StoreError::Invalid(text));
            }
            Change::Penalize(span) | Change::Pause { span: Some(span), .. } => *span,
            Change::CoolDown(call) => return call.check(),
            _ => return Ok(()),
        };
        ensure((Duration::from_micros(1)..=LONGEST_PAUSE).contains(&span), || {
            format!("a pause of {span:?}; use 1us to 366d, or pause until somebody resumes")
        })
    }
}

/// The answer to a [`Change`]: the record after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordState {
    /// The store's clock when it decided.
    pub now: Micros,
    /// As in [`Stamp::epoch`](super::Stamp::epoch).
    pub epoch: Micros,
    /// The pauses, and the generation of the terms in force.
    pub status: Status,
    /// The terms in force; `None` where there are none, or the store has lost them.
    pub terms: Option<String>,
    /// The note on the operator's pause that is in the status. `None` where there is none, or the store has lost it: a
    /// [`Change::Recall`] does not restore it. It may be forgotten a day after the pause has ended, or after 400 days.
    pub note: Option<String>,
    /// The cool-down; `None` where there is none, or the store has lost it: a [`Change::Recall`] does not restore it.
    pub cool_down: Option<CoolDown>,
}
