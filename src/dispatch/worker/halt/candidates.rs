//! The jobs that are kept for trials.

use std::collections::VecDeque;

use crate::dispatch::entry::Entry;

/// The number of jobs without a refusal that are kept for trials, since a few refused jobs may well be at fault
/// themselves.
const KEPT_UNREFUSED: usize = 4;

/// The jobs that are kept for trials: those that were refused, and a few others. The two kinds take turns.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    refused: VecDeque<Box<Entry>>,
    unrefused: VecDeque<Box<Entry>>,
    /// Whether the last one was refused before.
    was_refused: bool,
}

impl Candidates {
    /// Keeps a job, or returns it.
    pub(super) fn keep(&mut self, entry: Box<Entry>) -> Option<Box<Entry>> {
        if entry.attempts.refusals.suspicion.is_some() {
            self.refused.push_back(entry);
        } else if self.unrefused.len() < KEPT_UNREFUSED {
            self.unrefused.push_back(entry);
        } else {
            return Some(entry);
        }
        None
    }

    /// The job for the next trial.
    pub(super) fn next(&mut self) -> Option<Box<Entry>> {
        self.was_refused = self.unrefused.is_empty() || !self.was_refused && !self.refused.is_empty();
        if self.was_refused { self.refused.pop_front() } else { self.unrefused.pop_front() }
    }

    pub(super) fn has_unrefused(&self) -> bool {
        !self.unrefused.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.refused.len() + self.unrefused.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.refused.iter().chain(&self.unrefused).map(|entry| &**entry)
    }

    /// Takes out the jobs that `is_meant` selects.
    pub(super) fn take_if(&mut self, is_meant: impl Fn(&Entry) -> bool) -> impl Iterator<Item = Box<Entry>> {
        let kinds = [&mut self.refused, &mut self.unrefused].map(|kind| {
            let (taken, kept) = kind.drain(..).partition::<VecDeque<_>, _>(|entry| is_meant(entry));
            *kind = kept;
            taken
        });
        kinds.into_iter().flatten()
    }
}
