//! Trials, which find out whether a downstream can be used again.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Halt, SourceState, Step, Steps};
use crate::dispatch::entry::Entry;
use crate::dispatch::health::State;
use crate::dispatch::preflight::JobAdmission;
use crate::dispatch::source::Source;
use crate::dispatch::worker::Worker;
use crate::pace::{Admission as _, Refusal};

/// The most jobs beyond its window that a replica takes to find one that is not at fault.
const MAX_EXTRA: usize = 64;

impl Halt {
    /// Takes out the jobs kept for trials that `is_meant` selects.
    pub(in crate::dispatch::worker) fn take_if(
        &mut self,
        is_meant: impl Fn(&Entry) -> bool,
    ) -> VecDeque<Entry> {
        let (taken, kept) = self.candidates.drain(..).partition(is_meant);
        self.candidates = kept;
        taken
    }
}

impl Worker {
    /// Opens a trial connection, or reads the secrets again and then sends one job.
    pub(super) fn begin_trial(&mut self, source: &mut impl Source, steps: &Steps, now: Instant) {
        let sink = Arc::clone(&self.context.sink);
        if let State::Unreachable(_) = self.halt.health.state() {
            self.halt.health.try_now();
            steps.push(Box::pin(async move { Step::Connected(sink.try_connection().await) }));
            return;
        }
        // Jobs that were too early may be due by now.
        self.halt.backlog_at_sweep = None;
        self.sweep(now);
        let in_hand = self.halt.candidates.len() + self.engine.waiting();
        if in_hand == 0 {
            let change = self.halt.health.nothing_to_try();
            return self.follow_change(change);
        }
        self.halt.health.try_now();
        steps.push(Box::pin(async move { Step::SecretsRead(sink.read_secrets().await) }));
        let all_suspected = self.halt.unsuspected() == 0;
        self.halt.is_crowded = all_suspected && source.is_full();
        if all_suspected && in_hand < usize::from(self.engine.settings().window()) + MAX_EXTRA {
            // All of these jobs may be at fault themselves, and must not stop all others.
            source.resize(u16::try_from(in_hand + 1).unwrap_or(u16::MAX));
            if self.halt.source != SourceState::One {
                self.halt.source = SourceState::One;
                source.resume();
            }
        }
    }

    /// Handles the result of reading the secrets again, or of fetching new tokens: a job may go as a trial.
    pub(super) fn secrets_read(&mut self, read: Result<bool, String>) {
        let downstream = &self.context.downstream;
        match &read {
            Ok(true) => tracing::info!(downstream, "the secrets were read again and have changed"),
            Ok(false) => tracing::debug!(downstream, "the secrets were read again and are the same"),
            // There is a trial every few seconds, and the log needs to tell only what is new.
            Err(error) if self.halt.secrets_error.as_ref() == Some(error) => {
                tracing::debug!(downstream, error, "the secrets still could not be read again");
            }
            Err(error) => tracing::error!(downstream, error, "the secrets could not be read again"),
        }
        self.halt.secrets_error = read.err();
        self.halt.health.secrets_read();
    }

    /// Sends one job, if a trial waits for that and no other send is in progress that would decide as much.
    pub(super) fn try_job(&mut self, now: Instant) {
        let may = self.halt.health.wants_trial_job() && self.engine.try_at().is_some_and(|at| at <= now);
        if !may {
            return;
        }
        match self.trial_job() {
            Some(entry) => self.engine.try_one(entry),
            // Each trial checks again whether there are jobs.
            None => self.halt.health.trial_job_failed(now),
        }
    }

    /// The job for a trial; jobs whose decision is clear are dead-lettered.
    fn trial_job(&mut self) -> Option<Entry> {
        while let Some(entry) = self.halt.next_candidate() {
            if !entry.ticket.is_live() {
                continue;
            }
            let (rules, preflight) = (&self.intake.rules, &self.context.preflight);
            if (JobAdmission { rules, preflight }).admits(&entry) {
                return Some(entry);
            }
            self.refuse(entry, Refusal::NotAdmitted);
        }
        None
    }

    /// The instant at which a trial is due, or a job may be tried.
    pub(in crate::dispatch::worker) fn trial_wake_at(&self) -> Option<Instant> {
        let due = self.halt.health.trial_due().filter(|_| self.halt.can_try());
        let job = if self.halt.health.wants_trial_job() { self.engine.try_at() } else { None };
        due.into_iter().chain(job).min()
    }
}
