//! Answers who looks for a job by its id.

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::find::{Found, FoundJob, JobPlace, MOST_FOUND, Sought};
use crate::pace::FoundAt;

impl Worker {
    /// Answers a question about an id. It goes over all jobs here, so that those who ask bound how often they do.
    pub(super) fn answer(&self, Sought { id, answer }: Sought) {
        // Who asked may have gone.
        let _ = answer.send(self.find(&id));
    }

    fn find(&self, id: &str) -> Found {
        let waiters = self.engine.find(|entry| entry.job.id == id).into_iter();
        let mut jobs: Vec<FoundJob> =
            waiters.map(|(place, entry)| found(place_of(place, entry), entry)).collect();
        jobs.extend(self.halt.find(id).map(|entry| found(JobPlace::Halted, entry)));
        let working = FoundJob { place: JobPlace::Working, first_seen: None, attempts: None };
        jobs.extend(std::iter::repeat_n(working, self.context.unsettled.at_work(id)));
        jobs.truncate(MOST_FOUND);
        // One that is here may still be on its way to the broker.
        let parked = self.parking.lately.get(id).filter(|_| jobs.is_empty());
        Found { jobs, parked, is_cancelled: self.context.preflight.is_cancelled(id) }
    }
}

fn found(place: JobPlace, entry: &Entry) -> FoundJob {
    FoundJob { place, first_seen: Some(entry.age.first_seen), attempts: Some(entry.attempts.sent) }
}

fn place_of(place: FoundAt, entry: &Entry) -> JobPlace {
    match place {
        FoundAt::Ready { ahead } => JobPlace::Waiting { ahead },
        FoundAt::Later(due) if entry.attempts.has_begun() => JobPlace::Retrying(due),
        FoundAt::Later(due) => JobPlace::Delayed(due),
        FoundAt::Slot(at) => JobPlace::Slot(at),
    }
}
