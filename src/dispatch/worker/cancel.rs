//! Jobs that were cancelled are settled as soon as that is known, wherever they wait.

use std::sync::Arc;

use super::Worker;
use crate::dispatch::discard::discard;
use crate::dispatch::entry::Entry;
use crate::dispatch::source::Report;

impl Worker {
    /// The job, unless it was cancelled: then it is settled.
    pub(super) fn unless_cancelled(&self, entry: Box<Entry>) -> Option<Box<Entry>> {
        if self.context.preflight.is_cancelled(&entry.job.id) {
            self.discard(entry);
            return None;
        }
        Some(entry)
    }

    /// Settles a job that was cancelled.
    fn discard(&self, entry: Box<Entry>) {
        let context = Arc::clone(&self.context);
        let report = Report { attempts: entry.attempts.sent, ..Report::UNSENT };
        let Entry { job, ticket, .. } = *entry;
        self.flights.spawn(async move {
            discard((&context.downstream, &context.meters), ticket, &job, report).await;
        });
    }

    /// Settles the jobs that were cancelled while they wait here, with or without a slot.
    pub(super) fn discard_cancelled(&mut self) {
        let cancelled = Arc::clone(&self.context.preflight.cancelled);
        let mut taken = self.engine.take_cancelled(|entry| cancelled.contains(&entry.job.id));
        taken.extend(self.halt.take_if(|entry| cancelled.contains(&entry.job.id)));
        taken.into_iter().for_each(|entry| self.discard(entry));
    }
}
