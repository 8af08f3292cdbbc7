//! The checks of a job and its slot before the hand-over to the sink.

use std::sync::Arc;

use super::entry::Entry;
use super::intake::Intake;
use crate::pace::release::{PauseGate, Tolerance};
use crate::pace::{Admission, CancelledIds};
use crate::time::{Deadline, Micros, wall_now};

/// The parts of a downstream that may stop a job which has a slot.
#[derive(Clone, Debug)]
pub(super) struct Preflight {
    /// Closed for slots during a pause.
    pub(super) gate: Arc<PauseGate>,
    /// A slot missed by more than this is given up.
    pub(super) tolerance: Tolerance,
    /// The ids of cancelled jobs.
    pub(super) cancelled: Arc<CancelledIds>,
}

impl Preflight {
    /// Whether the slot lies in a pause.
    pub(super) fn is_paused(&self, slot: Micros, deadline: Deadline) -> bool {
        self.gate.refuses(slot, deadline)
    }

    /// Whether the job was cancelled.
    pub(super) fn is_cancelled(&self, id: &str) -> bool {
        self.cancelled.contains(id)
    }
}

/// Decides which jobs may get a slot.
pub(super) struct JobAdmission<'a> {
    pub(super) intake: &'a Intake,
    pub(super) preflight: &'a Preflight,
}

impl Admission<Box<Entry>> for JobAdmission<'_> {
    /// Whether a job may still get a slot. One that was cancelled, or has ended, would waste it. A job
    /// that was decoded under other limits, and costs more than the present ones can hold, would never get one.
    fn admits(&self, entry: &Box<Entry>) -> bool {
        let has_end = entry.job.times.deadline.is_some() || entry.patience().is_some();
        let is_void = (has_end && entry.has_ended(wall_now())) || self.preflight.is_cancelled(&entry.job.id);
        !is_void && self.intake.fits(entry).is_ok()
    }
}
