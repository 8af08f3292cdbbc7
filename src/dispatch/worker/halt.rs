//! Halts a replica that cannot use its downstream until it can: this module carries out the decisions of [`Health`].
//!
//! A replica that halts suspends its engine, which gives up the slots that it holds, has its source stopped, gives its jobs
//! back for others, and ends its lease, so that the others have the whole pace. Jobs that must not go back are
//! held.

use std::collections::VecDeque;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::flight::Contact;
use crate::dispatch::health::{Change, Health, State};
use crate::dispatch::source::Source;
use crate::pace::Waiter;
use crate::pace::meters::Abandoned;

mod refusal;
mod trial;

/// The number of jobs without a refusal that are kept for trials, since a few refused jobs may well be at fault
/// themselves.
const KEPT_UNREFUSED: usize = 4;

/// The state of a replica that takes no jobs, with the jobs that it keeps for trials.
#[derive(Debug, Default)]
pub(super) struct Halt {
    health: Health,
    source: SourceState,
    /// The number of times that the source was stopped, by which answers to earlier stops are ignored.
    stops: u64,
    /// The number of jobs in the backlog after the last sweep.
    backlog_at_sweep: Option<usize>,
    /// The jobs for trials; one at a time is sent to find out whether the credentials are accepted again.
    candidates: VecDeque<Entry>,
    /// Whether all unsettled jobs were refused, and no more come until one is settled.
    is_crowded: bool,
    /// Why the secrets could not be read again, as last logged, until they can.
    secrets_error: Option<String>,
    /// The number of refused jobs that wait for a decision while others are taken: they do not count for the window.
    extra: u16,
    /// A new bound of unsettled messages, for the source.
    resize: Option<u16>,
}

/// The state of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SourceState {
    /// It hands out jobs.
    #[default]
    Open,
    /// It is stopping, and may still hand out some jobs.
    Stopping,
    /// It hands out none.
    Stopped,
    /// It hands out one job for a trial.
    One,
}

/// The result of an asynchronous step of a halt.
pub(super) enum Step {
    /// The source has stopped, after the stop of this number.
    SourceStopped(u64),
    /// A trial connection was opened, or failed.
    Connected(Result<(), String>),
    /// The secrets were read again.
    SecretsRead(Result<bool, String>),
}

/// The steps in progress.
pub(super) type Steps = FuturesUnordered<BoxFuture<'static, Step>>;

impl Halt {
    pub(super) fn is_halted(&self) -> bool {
        !self.health.is_serving()
    }

    pub(super) fn has_no_jobs(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Takes out the jobs that are kept for trials.
    pub(super) fn take_jobs(&mut self) -> impl Iterator<Item = Entry> {
        self.candidates.drain(..)
    }

    /// Discards the jobs whose connection is lost.
    pub(super) fn drop_stale(&mut self) {
        self.candidates.retain(|entry| entry.ticket.is_live());
    }

    /// Has the source bound its unsettled messages by this window, wider so that refused jobs do not keep others out.
    pub(super) const fn set_window(&mut self, window: u16) {
        self.resize = Some(window.saturating_add(self.extra));
    }

    /// The number of jobs that are kept for trials.
    pub(super) fn jobs(&self) -> usize {
        self.candidates.len()
    }

    /// The reason, as a label of metrics.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self.health.state() {
            State::Serving => None,
            State::Unreachable(_) => Some("unreachable"),
            State::Unauthorized(_) => Some("unauthorized"),
        }
    }

    /// Whether the next trial can begin once it is due.
    fn can_try(&self) -> bool {
        matches!(self.health.state(), State::Unreachable(_)) || self.is_settled()
    }

    /// Whether the source has stopped, except for a job for a trial.
    fn is_settled(&self) -> bool {
        matches!(self.source, SourceState::Stopped | SourceState::One)
    }

    /// Whether a job must not be sent yet for reasons other than the credentials.
    fn is_early(&self, entry: &Entry, now: Instant) -> bool {
        let is_unauthorized = matches!(self.health.state(), State::Unauthorized(_));
        let waits = entry.attempts.refusals.suspicion.is_some() || entry.attempts.unreachable > 0;
        is_unauthorized && entry.since() > now && !waits
    }

    /// Keeps a job for trials, or returns it.
    fn keep(&mut self, entry: Entry) -> Option<Entry> {
        if !matches!(self.health.state(), State::Unauthorized(_)) {
            return Some(entry);
        }
        let is_suspected = entry.attempts.refusals.suspicion.is_some();
        if is_suspected || self.unsuspected() < KEPT_UNREFUSED {
            self.candidates.push_back(entry);
            return None;
        }
        Some(entry)
    }

    fn unsuspected(&self) -> usize {
        self.candidates.iter().filter(|entry| entry.attempts.refusals.suspicion.is_none()).count()
    }

    /// The job for the next trial: jobs with and without a refusal alternate.
    fn next_candidate(&mut self) -> Option<Entry> {
        let first = self.candidates.pop_front()?;
        if first.attempts.refusals.suspicion.is_some() {
            // The next trial takes a job of the other kind.
            let fresh = self.candidates.iter().position(|entry| entry.attempts.refusals.suspicion.is_none());
            if let Some(fresh) = fresh.and_then(|place| self.candidates.remove(place)) {
                self.candidates.push_front(fresh);
            }
        }
        Some(first)
    }
}

impl Worker {
    /// Stops or resumes the source, gives jobs back, and begins a trial that is due.
    pub(super) fn tick_halt(&mut self, source: &mut impl Source, steps: &Steps, now: Instant) {
        match (self.halt.is_halted(), self.halt.source) {
            (true, SourceState::Open) => self.stop_source(source, steps),
            (true, SourceState::One) if self.halt.backlog_at_sweep != Some(self.engine.waiting()) => {
                self.stop_source(source, steps)
            }
            (false, SourceState::Stopping | SourceState::Stopped | SourceState::One) => {
                self.halt.source = SourceState::Open;
                source.resize(self.engine.settings().window().saturating_add(self.halt.extra));
                source.resume();
            }
            _ => {}
        }
        self.sweep(now);
        let is_due = self.halt.health.trial_due().is_some_and(|due| due <= now);
        if is_due && self.halt.can_try() {
            self.begin_trial(source, steps, now);
        }
        self.try_job(now);
        if let Some(window) = self.halt.resize.take() {
            source.resize(window);
        }
    }

    fn stop_source(&mut self, source: &mut impl Source, steps: &Steps) {
        self.halt.source = SourceState::Stopping;
        self.halt.stops += 1;
        let (stopped, number) = (source.pause(), self.halt.stops);
        steps.push(Box::pin(async move {
            stopped.await;
            Step::SourceStopped(number)
        }));
    }

    /// Handles the result of a step.
    pub(super) fn stepped(&mut self, step: Step) {
        let downstream = &self.context.downstream;
        match step {
            Step::SourceStopped(number) => {
                if number == self.halt.stops && self.halt.source == SourceState::Stopping {
                    (self.halt.source, self.halt.backlog_at_sweep) = (SourceState::Stopped, None);
                }
            }
            Step::Connected(tried) => {
                if let Err(detail) = &tried {
                    // The log has told that it fails, and why, and tells so each minute.
                    tracing::debug!(downstream, detail, "the downstream is still not reached");
                }
                let change = self.halt.health.tried_connection(tried.is_ok(), Instant::now());
                self.follow_change(change);
            }
            Step::SecretsRead(read) => self.secrets_read(read),
        }
    }

    /// Records the end of a flight.
    pub(super) fn judge(&mut self, since: Instant, contact: Contact) {
        let (now, health) = (Instant::now(), &mut self.halt.health);
        let change = match contact {
            Contact::None => None,
            Contact::Unreachable if !self.context.retry.outlast => None,
            Contact::Unreachable => {
                health.trial_job_failed(now);
                health.unreachable(now)
            }
            Contact::Sent | Contact::Throttled => {
                health.connected();
                health.trial_job_failed(now);
                None
            }
            Contact::Delivered => {
                health.connected();
                health.delivered(since)
            }
        };
        self.follow_change(change);
        self.make_room();
    }

    /// While jobs are taken, waiting jobs that were refused do not count for the window.
    fn make_room(&mut self) {
        if self.halt.is_halted() {
            return;
        }
        let extra = u16::try_from(self.halt.health.refused_jobs()).unwrap_or(u16::MAX);
        if extra != self.halt.extra {
            self.halt.extra = extra;
            self.halt.set_window(self.engine.settings().window());
        }
    }

    fn follow_change(&mut self, change: Option<Change>) {
        match change {
            Some(Change::Stop) => self.halt(),
            Some(Change::GoOn) => self.go_on(),
            None => {}
        }
    }

    fn halt(&mut self) {
        let Some(reason) = self.halt.reason() else { return };
        self.engine.suspend(match reason {
            "unauthorized" => Abandoned::Unauthorized,
            _ => Abandoned::Unreachable,
        });
        self.halt.backlog_at_sweep = None;
        self.context.meters.stopped_for(reason, true);
        let downstream = &self.context.downstream;
        if reason == "unreachable" {
            tracing::warn!(
                downstream,
                "the downstream cannot be reached from here: this replica takes no jobs for it until a connection opens"
            );
        } else {
            tracing::error!(
                downstream,
                "the downstream refuses the credentials, job after job: this replica takes no jobs for it, reads its \
                 secrets again and tries one job at a time; put right what `headers` or `oauth2` of the downstream hold, or their files"
            );
        }
    }

    fn go_on(&mut self) {
        let now = Instant::now();
        for reason in ["unreachable", "unauthorized"] {
            self.context.meters.stopped_for(reason, false);
        }
        tracing::info!(
            downstream = self.context.downstream,
            "the downstream can be used again: this replica takes jobs for it"
        );
        // The jobs that waited for this decision are released.
        let mut entries: Vec<Entry> = self.halt.take_jobs().collect();
        entries.extend(self.engine.take_waiting());
        for mut entry in entries {
            let waited = entry.attempts.refusals.suspicion.is_some() || entry.attempts.unreachable > 0;
            match entry.since() {
                due if due > now && !waited => self.engine.offer_later(due, entry),
                since => {
                    entry.request.since = since.min(now);
                    self.engine.offer(entry);
                }
            }
        }
        self.halt.is_crowded = false;
        self.engine.resume();
    }

    /// Gives back jobs that others can send, and keeps those needed for trials. Jobs that must not be given back are
    /// held.
    fn sweep(&mut self, now: Instant) {
        let is_settled = self.halt.is_halted() && self.halt.is_settled();
        if !is_settled || self.halt.backlog_at_sweep == Some(self.engine.waiting()) {
            return;
        }
        let mut entries = self.engine.take_waiting();
        entries.retain(|entry| entry.ticket.is_live());
        entries.sort_by_key(Waiter::seq);
        let (early, entries): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| self.halt.is_early(entry, now));
        for entry in entries {
            let Some(entry) = self.halt.keep(entry) else { continue };
            if entry.ticket.may_be_given_back() {
                self.context.meters.settled.returned.increment(1);
                entry.ticket.give_back();
            } else if entry.since() > now && entry.attempts.unreachable == 0 {
                self.engine.offer_later(entry.since(), entry);
            } else {
                self.engine.offer(entry);
            }
        }
        // If these were given back, they would come again before a job that can be tried.
        let holds = self.halt.unsuspected() == 0;
        for entry in early {
            if entry.ticket.may_be_given_back() && !holds {
                self.context.meters.settled.returned.increment(1);
                entry.ticket.give_back();
            } else {
                self.engine.offer_later(entry.since(), entry);
            }
        }
        self.halt.backlog_at_sweep = Some(self.engine.waiting());
    }
}
