//! Where jobs are and what they wait for, as far as one dispatcher knows.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::source::ParkReason;
use super::view::{Binding, lane_binding};
use crate::pace::WaiterPlace;
use crate::time::Micros;

/// The most jobs that an answer has: many may have the same id.
pub(super) const MOST_FOUND: usize = 10;

/// The most jobs that were parked last and are remembered.
const MOST_PARKED: usize = 500;

/// The jobs that a question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Those with this id.
    Id(String),
    /// The next one without a slot of the lane with this name.
    Lane(String),
}

/// What a dispatcher knows of the jobs in question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The jobs that it holds: ten at most.
    pub jobs: Vec<FoundJob>,
    /// The last job with the id in question that it parked, unless that came back to it.
    pub parked: Option<ParkedJob>,
    /// Whether jobs with that id are cancelled.
    pub is_cancelled: bool,
}

/// A job that a dispatcher holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundJob {
    /// Its id.
    pub id: String,
    /// Where it is.
    pub place: JobPlace,
    /// Its place among those that wait for a slot; only the first job found that waits for one has it.
    pub turn: Option<Turn>,
    /// When a replica first took it, by the wall clock; `None` where that is not known.
    pub first_seen: Option<Micros>,
    /// How often it was handed to the sink before; `None` where that is not known.
    pub attempts: Option<u32>,
}

/// The place of a job that a dispatcher holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPlace {
    /// It waits for a slot, or for the answer of the store, which is asked for one.
    Waiting,
    /// It waits for the end of a window of the downstream's limits at this instant, since it costs more than is left of the
    /// window.
    Window(Instant),
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

/// The place of a job among those that wait for a slot here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The name of its lane; `None` without `lanes.by`.
    pub lane: Option<String>,
    /// The number of jobs of its lane, or of its plan without lanes.
    pub waiting: usize,
    /// The number of those that go before it.
    pub ahead: usize,
    /// The number of jobs of all lanes that go before it, besides those that have a slot.
    pub before: u64,
    /// When the downstream has its next slot for these jobs and this one, as far as is known.
    pub next: Instant,
    /// When the limits and pauses of its lane allow it, if none is added.
    pub own: Instant,
    /// The one of them that allows it last; `None` if they allow it now.
    pub binding: Option<Binding>,
}

/// A job that a dispatcher parked: it is in the broker, or another replica has taken it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedJob {
    /// When that was, by the wall clock.
    pub at: Micros,
    /// Until when it waits, by the wall clock; an estimate if it waits for a limit.
    pub until: Micros,
    /// The reason.
    pub reason: ParkReason,
}

/// A question, and where its answer goes.
#[derive(Debug)]
pub(super) struct Sought {
    pub(super) question: Question,
    pub(super) answer: oneshot::Sender<Found>,
}

/// The jobs that were parked last. Each call takes the same time, however many are remembered: a whole window may be parked, or
/// come back, at once.
#[derive(Debug, Default)]
pub(super) struct ParkedLately {
    /// The latest of each id, with the number of its parking.
    jobs: HashMap<String, (u64, ParkedJob)>,
    /// The ids and numbers of the last parkings in their order, those of jobs that came back among them.
    order: VecDeque<(String, u64)>,
    /// The number of all parkings.
    count: u64,
}

impl ParkedLately {
    /// Remembers a job that is parked. If too many are remembered, it replaces the one that was parked first.
    pub(super) fn add(&mut self, id: &str, job: ParkedJob) {
        self.count += 1;
        self.jobs.insert(id.to_owned(), (self.count, job));
        self.order.push_back((id.to_owned(), self.count));
        if self.order.len() > MOST_PARKED
            && let Some((id, number)) = self.order.pop_front()
            && self.jobs.get(&id).is_some_and(|(latest, _)| *latest == number)
        {
            self.jobs.remove(&id);
        }
    }

    /// Forgets a job, since it came back or was not parked.
    pub(super) fn forget(&mut self, id: &str) {
        self.jobs.remove(id);
    }

    /// The job with this id.
    pub(super) fn get(&self, id: &str) -> Option<ParkedJob> {
        self.jobs.get(id).map(|(_, job)| *job)
    }
}

impl From<WaiterPlace> for Turn {
    fn from(place: WaiterPlace) -> Self {
        let WaiterPlace { lane, waiting, ahead, before, next, own, wait } = place;
        Self { lane, waiting, ahead, before, next, own, binding: lane_binding(wait) }
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
        parked.add("1", job(1000));
        assert_eq!((parked.get("0"), parked.get("1")), (None, Some(job(1000))), "the first one is replaced");
        parked.add("new", job(1001));
        assert_eq!(
            (parked.get("1"), parked.get("2")),
            (Some(job(1000)), Some(job(2))),
            "it was parked again"
        );
        parked.forget("new");
        parked.forget("never");
        assert_eq!(parked.get("new"), None);
        let (jobs, order) = (parked.jobs.len(), parked.order.len());
        assert_eq!((jobs, order), (MOST_PARKED - 1, MOST_PARKED), "one came back");
        (0..).zip(0..2 * MOST_PARKED).for_each(|(at, _)| parked.add("same", job(at)));
        assert_eq!((parked.jobs.len(), parked.order.len()), (1, MOST_PARKED));
    }
}
