//! Answers what a job waits for.

use super::Worker;
use crate::dispatch::explain::{Explained, Question};

impl Worker {
    /// What the job in question waits for, if it waits here.
    pub(super) fn explain(&self, question: &Question) -> Option<Explained> {
        let (whereabouts, entry) = match question {
            Question::Job(id) => self.engine.find_first(|entry| entry.job.id == *id)?,
            Question::Lane(lane) => self.engine.find_next_of(lane)?,
        };
        Some(Explained {
            id: entry.job.id.clone(),
            is_retry: entry.attempts.has_begun(),
            wait: whereabouts.into(),
        })
    }
}
