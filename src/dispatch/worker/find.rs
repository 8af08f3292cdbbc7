//! Answers questions: where a job is, and what it waits for.

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::find::{Found, FoundJob, JobPlace, MOST_FOUND, Question, Sought};
use crate::pace::Whereabouts;

impl Worker {
    /// Answers a question. It visits all jobs here, so those who ask bound how often they do.
    pub(super) fn answer(&self, Sought { question, answer }: Sought) {
        let found = match question {
            Question::Id(id) => self.find(&id),
            Question::Lane(lane) => Found { jobs: self.next_of(&lane), ..Found::default() },
        };
        // Who asked may have gone.
        let _ = answer.send(found);
    }

    fn find(&self, id: &str) -> Found {
        let waiters = self.engine.all().filter(|(_, entry)| entry.job.id == id);
        let mut has_turn = false;
        let waiters = waiters.map(|(whereabouts, entry)| {
            // Each turn costs as much as all else.
            let is_first = whereabouts == Whereabouts::Ready && !std::mem::replace(&mut has_turn, true);
            let turn = is_first.then(|| self.engine.place_of(entry).into());
            FoundJob { turn, ..found(place_of(whereabouts, entry), entry) }
        });
        let halted = self.halt.find(id).map(|entry| found(JobPlace::Halted, entry));
        let working = FoundJob {
            id: id.to_owned(),
            place: JobPlace::Working,
            turn: None,
            first_seen: None,
            attempts: None,
        };
        let working = std::iter::repeat_n(working, self.context.unsettled.at_work(id));
        let jobs: Vec<FoundJob> = waiters.chain(halted).chain(working).take(MOST_FOUND).collect();
        // A job that is among these may still be on its way to the broker.
        let parked = self.parking.lately.get(id).filter(|_| jobs.is_empty());
        Found { jobs, parked, is_cancelled: self.context.preflight.is_cancelled(id) }
    }

    /// The next job of a lane that waits for a slot.
    fn next_of(&self, lane: &str) -> Vec<FoundJob> {
        let next = self.engine.next_of(lane).map(|entry| {
            let turn = Some(self.engine.place_of(entry).into());
            FoundJob { turn, ..found(JobPlace::Waiting, entry) }
        });
        next.into_iter().collect()
    }
}

fn found(place: JobPlace, entry: &Entry) -> FoundJob {
    FoundJob {
        id: entry.job.id.clone(),
        place,
        turn: None,
        first_seen: Some(entry.age.first_seen),
        attempts: Some(entry.attempts.sent),
    }
}

fn place_of(whereabouts: Whereabouts, entry: &Entry) -> JobPlace {
    match whereabouts {
        Whereabouts::Ready | Whereabouts::Requested => JobPlace::Waiting,
        Whereabouts::Window(ends) => JobPlace::Window(ends),
        Whereabouts::Later(due) if entry.attempts.has_begun() => JobPlace::Retrying(due),
        Whereabouts::Later(due) => JobPlace::Delayed(due),
        Whereabouts::Held(at) => JobPlace::Slot(at),
    }
}
