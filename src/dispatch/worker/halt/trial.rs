//! Trials, which find out whether a downstream can be used again.

use std::sync::Arc;

use tokio::time::Instant;

use super::{SourceState, Tried};
use crate::dispatch::entry::Entry;
use crate::dispatch::health::{Health, Reason};
use crate::dispatch::preflight::JobAdmission;
use crate::dispatch::source::Source;
use crate::dispatch::worker::Worker;
use crate::pace::{Admission as _, Refusal};

/// The most jobs beyond its window that a replica takes to find one that is not at fault.
const MAX_EXTRA: usize = 64;

impl Worker {
    /// Opens a trial connection.
    pub(super) fn try_connection(&mut self) {
        let sink = Arc::clone(&self.context.sink);
        self.halt.begin(async move { Tried::Connection(sink.try_connection().await) });
    }

    pub(super) fn tried_connection(&mut self, tried: Result<(), String>) {
        if let Err(detail) = &tried {
            // The log has a line that it fails, and why, and repeats it each minute.
            tracing::debug!(
                downstream = self.context.downstream,
                detail,
                "the downstream still cannot be reached"
            );
        }
        self.learn(|health| health.tried_connection(tried.is_ok(), Instant::now()));
    }

    /// Reads the secrets again; then one job is sent.
    pub(super) fn read_secrets(&mut self, source: &mut impl Source, now: Instant) {
        // Jobs that were too early may be due by now.
        self.halt.backlog_at_sweep = None;
        self.sweep(Reason::Unauthorized, now);
        let in_hand = self.halt.jobs() + self.engine.waiting();
        if in_hand == 0 {
            return self.learn(Health::nothing_to_try);
        }
        let sink = Arc::clone(&self.context.sink);
        self.halt.begin(async move { Tried::Secrets(sink.read_secrets().await) });
        let all_refused = !self.halt.candidates.has_unrefused();
        self.halt.is_crowded = all_refused && source.is_full();
        if all_refused && in_hand < usize::from(self.engine.settings().window()) + MAX_EXTRA {
            // All of these jobs may be at fault themselves, and must not stop all others.
            let window = u16::try_from(in_hand + 1).unwrap_or(u16::MAX);
            self.hand_out(SourceState::One(window), source);
        }
    }

    /// Handles the result of reading the secrets again, or of fetching new tokens: a job may go as a trial.
    pub(super) fn secrets_read(&mut self, read: Result<bool, String>) {
        let (downstream, trouble) = (&self.context.downstream, &mut self.halt.secrets_trouble);
        if read.is_ok() {
            trouble.end();
        }
        match read {
            Ok(true) => tracing::info!(downstream, "the secrets were read again and have changed"),
            Ok(false) => tracing::debug!(downstream, "the secrets were read again and are the same"),
            // There is a trial every few seconds, and the log needs only what is new.
            Err(error) if trouble.note(error.clone()) => {
                tracing::error!(downstream, error, "the secrets could not be read again");
            }
            Err(error) => tracing::debug!(downstream, error, "the secrets still could not be read again"),
        }
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
    fn trial_job(&mut self) -> Option<Box<Entry>> {
        while let Some(entry) = self.halt.candidates.next() {
            if !entry.ticket.is_live() {
                continue;
            }
            let (intake, preflight) = (&self.intake, &self.context.preflight);
            if (JobAdmission { intake, preflight }).admits(&entry) {
                return Some(entry);
            }
            self.refuse(entry, Refusal::NotAdmitted);
        }
        None
    }

    /// The instant at which a trial is due, or a job may be tried.
    pub(in crate::dispatch::worker) fn trial_wake_at(&self) -> Option<Instant> {
        let can_try = self.halt.reason() == Some(Reason::Unreachable) || self.halt.is_settled();
        let due = self.halt.health.trial_due().filter(|_| can_try);
        let job = if self.halt.health.wants_trial_job() { self.engine.try_at() } else { None };
        due.into_iter().chain(job).min()
    }
}
