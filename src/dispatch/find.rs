//! Where the jobs with an id are, as far as one dispatcher knows.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::source::ParkReason;
use crate::time::Micros;

/// The most jobs that an answer has: many may have the same id.
pub(super) const MOST_FOUND: usize = 10;

/// The most parked jobs that are remembered.
const MOST_PARKED: usize = 500;

/// What a dispatcher knows of the jobs with an id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The jobs that it holds: ten at most.
    pub jobs: Vec<FoundJob>,
    /// The last job with this id that it parked, unless that came back to it.
    pub parked: Option<ParkedJob>,
    /// Whether jobs with this id are cancelled.
    pub is_cancelled: bool,
}

/// A job that a dispatcher holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundJob {
    /// Where it is.
    pub place: JobPlace,
    /// When a replica first took it, by the wall clock; `None` where that is not known.
    pub first_seen: Option<Micros>,
    /// How often it was handed to the sink before; `None` where that is not known.
    pub attempts: Option<u32>,
}

/// Where a job is that a dispatcher holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPlace {
    /// It waits for a slot.
    Waiting {
        /// The number of jobs of its lane that are before it here.
        ahead: usize,
    },
    /// It may only go from this instant on.
    Delayed(Instant),
    /// It waits for another attempt, until this instant.
    Retrying(Instant),
    /// It has a slot, which comes at this instant.
    Slot(Instant),
    /// It is being sent, settled or parked.
    Working,
    /// It waits until this replica can use the downstream again.
    Halted,
}

/// A job that a dispatcher parked: it is in the broker, or another replica has taken it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedJob {
    /// When that was, by the wall clock.
    pub at: Micros,
    /// Until when it is to wait, by the wall clock; an estimate if it waits for a limit.
    pub until: Micros,
    /// The reason.
    pub reason: ParkReason,
}

/// A question about an id.
#[derive(Debug)]
pub(super) struct Sought {
    pub(super) id: String,
    pub(super) answer: oneshot::Sender<Found>,
}

/// The jobs that were parked last, the latest at the end.
#[derive(Debug, Default)]
pub(super) struct ParkedLately(VecDeque<(String, ParkedJob)>);

impl ParkedLately {
    /// Remembers a job that is parked, in place of the one that was parked first.
    pub(super) fn add(&mut self, id: &str, job: ParkedJob) {
        self.forget(id);
        if self.0.len() >= MOST_PARKED {
            self.0.pop_front();
        }
        self.0.push_back((id.to_owned(), job));
    }

    /// Forgets a job, since it came back or was not parked.
    pub(super) fn forget(&mut self, id: &str) {
        self.0.retain(|(other, _)| other != id);
    }

    /// The job with this id.
    pub(super) fn get(&self, id: &str) -> Option<ParkedJob> {
        self.0.iter().find(|(other, _)| other == id).map(|(_, job)| *job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jobs_that_were_parked_last_are_remembered() {
        let job = |at| ParkedJob { at: Micros(at), until: Micros(2 * at), reason: ParkReason::Retry };
        let mut parked = ParkedLately::default();
        for (at, id) in (0..).zip(0..MOST_PARKED) {
            parked.add(&id.to_string(), job(at));
        }
        assert_eq!(parked.get("0"), Some(job(0)));
        parked.add("7", job(1000));
        assert_eq!((parked.0.len(), parked.get("7")), (MOST_PARKED, Some(job(1000))), "each once");
        parked.add("new", job(1001));
        assert_eq!(
            (parked.0.len(), parked.get("0"), parked.get("new")),
            (MOST_PARKED, None, Some(job(1001)))
        );
        parked.forget("new");
        assert_eq!(parked.get("new"), None);
    }
}
