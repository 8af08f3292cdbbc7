//! What one job of this replica waits for, when somebody asks.

use thiserror::Error;
use tokio::time::Instant;

use super::view::{Binding, lane_binding};
use crate::pace::{WaiterPlace, Whereabouts};

/// A question to a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// About the job with this id.
    Job(String),
    /// About the next job of the lane with this name.
    Lane(String),
}

/// The answer about a job that is here and not being sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explained {
    /// The id of the job.
    pub id: String,
    /// Whether it was tried before.
    pub is_retry: bool,
    /// What it waits for.
    pub wait: JobWait,
}

/// What a job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobWait {
    /// A slot.
    Slot(Turn),
    /// The answer of the store, which is asked for a slot for it.
    Answer,
    /// The slot that it has, at this instant.
    Release(Instant),
    /// The end of a window of the downstream's limits, since it costs more than is left of the window.
    Window(Instant),
    /// A time before which it may have no slot.
    Time(Instant),
}

/// The place of a job among those that wait for a slot here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// The name of its lane; `None` without `lanes.by`.
    pub lane: Option<String>,
    /// The number of jobs of its lane, or of its plan without lanes.
    pub waiting: usize,
    /// The number of those that go before it.
    pub ahead: usize,
    /// The number of jobs of all lanes that go before it.
    pub before: u64,
    /// When the downstream has its next slot for these jobs and this one, as far as is known.
    pub next: Instant,
    /// When the limits and pauses of its lane let it go, if none is added.
    pub own: Instant,
    /// Which of them is the last one to do so; `None` if they let it go now.
    pub binding: Option<Binding>,
}

/// A question was not asked, since as many wait for their answers as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too many questions wait for an answer; try again in a second")]
pub struct Busy;

impl From<Whereabouts> for JobWait {
    fn from(whereabouts: Whereabouts) -> Self {
        match whereabouts {
            Whereabouts::Waits(WaiterPlace { lane, waiting, ahead, before, next, own, wait }) => {
                let binding = lane_binding(wait);
                Self::Slot(Turn { lane, waiting, ahead, before, next, own, binding })
            }
            Whereabouts::Requested => Self::Answer,
            Whereabouts::Held(slot) => Self::Release(slot),
            Whereabouts::Window(ends) => Self::Window(ends),
            Whereabouts::Later(due) => Self::Time(due),
        }
    }
}
