//! Halts a replica that cannot use its downstream until it can: this module carries out the decisions of [`Health`].
//!
//! A replica that halts suspends its engine, which gives up the slots that it holds. It stops its source, gives its jobs
//! back for others, and ends its lease, so that the others have the whole pace. Jobs that must not go back are held.
//!
//! | the source | while the replica is halted | once it takes jobs again |
//! |---|---|---|
//! | `Open` | is stopped | |
//! | `Stopped` | jobs are given back when no more come; a trial may ask for one | is resumed |
//! | `One` | is stopped when that job is here | is resumed |

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::health::{Contact, Health, Reason};
use crate::dispatch::source::Source;
use crate::episode::Episode;
use crate::pace::Waiter;
use crate::pace::meters::Abandoned;
use candidates::Candidates;

mod candidates;
mod refusal;
mod trial;

/// The state of a replica that takes no jobs, with the jobs that it keeps for trials.
#[derive(Default)]
pub(super) struct Halt {
    health: Health,
    source: SourceState,
    /// Ends when the source hands out no more jobs, after it was stopped.
    pub(super) stopping: Option<BoxFuture<'static, ()>>,
    /// Ends with the result of the trial under way.
    pub(super) trial: Option<BoxFuture<'static, Tried>>,
    /// The window that the source was given last, once that is known.
    given_window: Option<u16>,
    /// The number of jobs in the backlog after the last sweep.
    backlog_at_sweep: Option<usize>,
    /// The jobs for trials; one at a time is sent to find out whether the credentials are accepted again.
    candidates: Candidates,
    /// Whether all unsettled jobs were refused, and no more come until one is settled.
    is_crowded: bool,
    /// Why the secrets cannot be read again.
    secrets_trouble: Episode<String>,
}

/// What the source is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SourceState {
    /// It hands out jobs.
    #[default]
    Open,
    /// It hands out none, except for those that were under way when it was stopped.
    Stopped,
    /// It hands out one job for a trial, in a window of this size.
    One(u16),
}

/// The result of a trial, or of what precedes it.
pub(super) enum Tried {
    /// A connection was opened, or failed.
    Connection(Result<(), String>),
    /// The secrets were read again.
    Secrets(Result<bool, String>),
}

impl Halt {
    /// Why this replica takes no jobs; `None` if it does.
    pub(super) const fn reason(&self) -> Option<Reason> {
        self.health.halted()
    }

    pub(super) fn is_halted(&self) -> bool {
        self.reason().is_some()
    }

    /// The number of jobs that are kept for trials.
    pub(super) fn jobs(&self) -> usize {
        self.candidates.len()
    }

    /// The jobs with this id that are kept for trials.
    pub(super) fn find<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.candidates.iter().filter(move |entry| entry.job.id == id)
    }

    /// Takes out the jobs kept for trials that `is_meant` selects.
    pub(super) fn take_if(&mut self, is_meant: impl Fn(&Entry) -> bool) -> impl Iterator<Item = Box<Entry>> {
        self.candidates.take_if(is_meant)
    }

    /// Discards the jobs whose connection is lost.
    pub(super) fn drop_stale(&mut self) {
        drop(self.take_if(|entry| !entry.ticket.is_live()));
    }

    /// Begins a trial, or what precedes it.
    fn begin(&mut self, trial: impl Future<Output = Tried> + Send + 'static) {
        self.health.trial_begun();
        self.trial = Some(Box::pin(trial));
    }

    /// Whether the source hands out no more jobs, except for one for a trial.
    fn is_settled(&self) -> bool {
        self.source != SourceState::Open && self.stopping.is_none()
    }
}

impl Worker {
    /// The most messages that the source is to hand out unsettled: while jobs are taken, waiting jobs that were refused do
    /// not count.
    pub(super) fn window(&self) -> u16 {
        let refused = u16::try_from(self.halt.health.refused_jobs()).unwrap_or(u16::MAX);
        self.engine.settings().window().saturating_add(refused)
    }

    /// Stops or resumes the source, gives jobs back, and begins a trial that is due.
    pub(super) fn tick_halt(&mut self, source: &mut impl Source, now: Instant) {
        let Some(reason) = self.halt.reason() else {
            return self.hand_out(SourceState::Open, source);
        };
        self.keep_stopped(source);
        self.sweep(reason, now);
        let is_due = self.halt.health.trial_due().is_some_and(|due| due <= now);
        match reason {
            Reason::Unreachable if is_due => self.try_connection(),
            Reason::Unauthorized if is_due && self.halt.is_settled() => self.read_secrets(source, now),
            _ => {}
        }
        self.try_job(now);
    }

    fn keep_stopped(&mut self, source: &mut impl Source) {
        match self.halt.source {
            SourceState::Stopped => self.resize(source),
            SourceState::One(_) if self.is_swept() => self.resize(source),
            _ => (self.halt.source, self.halt.stopping) = (SourceState::Stopped, Some(source.pause())),
        }
    }

    /// Has the source hand out jobs, or one, unless it does so already.
    fn hand_out(&mut self, state: SourceState, source: &mut impl Source) {
        let before = std::mem::replace(&mut self.halt.source, state);
        self.halt.stopping = None;
        self.resize(source);
        if std::mem::discriminant(&before) != std::mem::discriminant(&state) {
            source.resume();
        }
    }

    /// Gives the source another window, if it has changed. It was made with the first one.
    fn resize(&mut self, source: &mut impl Source) {
        let window = match self.halt.source {
            SourceState::One(window) => window,
            _ => self.window(),
        };
        if self.halt.given_window.replace(window).is_some_and(|given| given != window) {
            source.resize(window);
        }
    }

    /// Handles that the source hands out no more jobs: all that are here are swept.
    pub(super) const fn source_stopped(&mut self) {
        self.halt.backlog_at_sweep = None;
    }

    /// Handles the result of a trial, or of what precedes it.
    pub(super) fn tried(&mut self, tried: Tried) {
        match tried {
            Tried::Connection(tried) => self.tried_connection(tried),
            Tried::Secrets(read) => self.secrets_read(read),
        }
    }

    /// Records the end of a flight that began at `since`.
    pub(super) fn judge(&mut self, since: Instant, contact: Contact) {
        // Otherwise a failed connection costs an attempt.
        let counts = contact != Contact::Unreachable || self.context.retry.outlast;
        let contact = if counts { contact } else { Contact::None };
        self.learn(|health| health.ended(contact, since, Instant::now()));
    }

    /// Records something about the downstream. If that changes whether it can be used, the replica halts or
    /// continues.
    fn learn<T>(&mut self, note: impl FnOnce(&mut Health) -> T) -> T {
        let before = self.halt.reason();
        let output = note(&mut self.halt.health);
        match (before, self.halt.reason()) {
            (None, Some(reason)) => self.halt(reason),
            (Some(_), None) => self.go_on(),
            _ => {}
        }
        output
    }

    fn halt(&mut self, reason: Reason) {
        self.halt.backlog_at_sweep = None;
        self.context.meters.stopped_for(reason.as_str(), true);
        let downstream = &self.context.downstream;
        match reason {
            Reason::Unreachable => {
                self.engine.suspend(Abandoned::Unreachable);
                let (kind, detail) = self.last_failure().unzip();
                tracing::warn!(
                    downstream,
                    kind,
                    detail,
                    "the downstream cannot be reached from here: this replica takes no jobs for it until a connection opens"
                );
            }
            Reason::Unauthorized => {
                self.engine.suspend(Abandoned::Unauthorized);
                tracing::error!(
                    downstream,
                    "the downstream refuses the credentials, job after job: this replica takes no jobs for it, reads its \
                     secrets again and tries one job at a time; correct the values in `headers` or `oauth2` of the downstream, \
                     or their files"
                );
            }
        }
    }

    fn go_on(&mut self) {
        let now = Instant::now();
        for reason in Reason::ALL {
            self.context.meters.stopped_for(reason.as_str(), false);
        }
        tracing::info!(
            downstream = self.context.downstream,
            "the downstream can be used again: this replica takes jobs for it"
        );
        // Its result would come too late.
        self.halt.trial = None;
        self.halt.is_crowded = false;
        // The jobs that waited for this decision are released.
        let mut entries: Vec<Box<Entry>> = self.halt.take_if(|_| true).collect();
        entries.extend(self.engine.take_waiting());
        for mut entry in entries {
            if is_early(&entry, now) {
                self.engine.offer_later(entry.since(), entry);
            } else {
                entry.request.since = entry.since().min(now);
                self.engine.offer(entry);
            }
        }
        self.engine.resume();
    }

    /// Gives back jobs that others can send, and keeps those needed for trials. Jobs that must not be given back are
    /// held.
    fn sweep(&mut self, reason: Reason, now: Instant) {
        if !self.halt.is_settled() || self.is_swept() {
            return;
        }
        let keeps = reason == Reason::Unauthorized;
        let mut entries = self.engine.take_waiting();
        entries.retain(|entry| entry.ticket.is_live());
        // Those that may not go yet come last.
        entries.sort_by_key(|entry| (keeps && is_early(entry, now), entry.seq()));
        for mut entry in entries {
            let mut may_go_back = entry.ticket.may_be_given_back();
            if keeps && is_early(&entry, now) {
                // If it were given back, it would come again before a job that can be tried.
                may_go_back &= self.halt.candidates.has_unrefused();
            } else if keeps {
                match self.halt.candidates.keep(entry) {
                    Some(other) => entry = other,
                    None => continue,
                }
            }
            if may_go_back {
                self.context.meters.settled.returned.increment(1);
                entry.ticket.give_back();
            } else if entry.since() > now && entry.attempts.unreachable == 0 {
                self.engine.offer_later(entry.since(), entry);
            } else {
                self.engine.offer(entry);
            }
        }
        self.halt.backlog_at_sweep = Some(self.engine.waiting());
    }

    /// Whether no job has come since the last sweep.
    fn is_swept(&self) -> bool {
        self.halt.backlog_at_sweep == Some(self.engine.waiting())
    }
}

/// Whether a job must not be sent yet for reasons other than the downstream that cannot be used.
fn is_early(entry: &Entry, now: Instant) -> bool {
    let waits = entry.attempts.refusals.suspicion.is_some() || entry.attempts.unreachable > 0;
    entry.since() > now && !waits
}
