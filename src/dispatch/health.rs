//! Determines whether this replica can use its downstream, or the fault lies between them. It has no I/O.
//!
//! One replica may have lost its way to the API, or hold credentials that the API does not accept any more. Its jobs
//! are not to blame: they must not use up their attempts, and the other replicas are to continue at the whole pace. So
//! a replica that detects such a fault stops taking jobs, and makes trials until the downstream can be used again.
//!
//! | state | what is seen | next state | verdict on the job, action |
//! |---|---|---|---|
//! | serving | connection fails, the 1st to 4th in a row | serving | waits |
//! | serving | connection fails, the 5th in a row | unreachable | waits; stop, try a connection soon |
//! | serving | a request was sent | serving | the row of failed connections ends |
//! | serving | refused (401), no job of this row before, or the 2nd | serving | waits, suspected |
//! | serving | refused, suspected in this row already | serving | waits, suspected |
//! | serving | refused, the 5th refusal of this row | unauthorized | waits, suspected; stop, read the secrets again |
//! | serving | refused, suspected in an earlier row | serving | dead |
//! | serving | refused, suspected in an earlier row, blameless now or then | as the first time in this row | waits, suspected |
//! | serving | refused, the 3rd different job of this row | unauthorized | waits, suspected; stop, read the secrets again |
//! | serving | delivered, sent after the last refused one | serving | the row of refused jobs ends |
//! | unreachable | the trial connection fails | unreachable | try again, later each time |
//! | unreachable | the trial connection is open | serving | continue |
//! | unreachable | connection fails, refused, delivered (sent before) | unreachable | waits |
//! | unauthorized | the secrets were read | unauthorized | one job may go as a trial |
//! | unauthorized | the trial is refused, or has another end | unauthorized | waits; read them again, later each time |
//! | unauthorized | delivered, sent after the last refused one | serving | continue; the row of refused jobs ends |
//! | unauthorized | nothing is left to try with | serving | continue |
//!
//! A success that was sent before the last refused job proves nothing: the credentials may have ended in between.

use std::time::Duration;

use tokio::time::Instant;

/// The number of connections in a row that must fail.
const FAILED_CONNECTIONS: u32 = 5;

/// The number of different jobs in a row that must be refused.
const REFUSED_JOBS: u32 = 3;

/// The number of refusals in a row that suffices, even if all are of one job: a quiet downstream may not have three
/// jobs.
const REFUSALS: u32 = 5;

/// The usability of the downstream, as far as this replica has seen.
#[derive(Debug, Default)]
pub(super) struct Health {
    state: State,
    /// The number of connections in a row that failed.
    failed_connections: u32,
    row: Row,
    /// The number of trials since the last success.
    trials: u32,
}

/// The state of a replica towards its downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It takes jobs.
    #[default]
    Serving,
    /// It takes none, for this reason, and makes trials.
    Halted(Reason, Trial),
}

/// Why a replica takes no jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// It cannot connect.
    Unreachable,
    /// Its credentials are refused.
    Unauthorized,
}

/// How far a job got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    /// The job was not sent.
    None,
    /// There was no connection.
    Unreachable,
    /// The job was sent, and not delivered.
    Sent,
    /// The job was sent, and throttled.
    Throttled,
    Delivered,
}

/// How far a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// The trial is due at this instant.
    Due(Instant),
    /// A connection is being opened, or the secrets are being read.
    Begun,
    /// One job may be sent, and its outcome is awaited.
    Job,
}

/// Jobs that were refused in a row, without a success in between.
#[derive(Debug, Default)]
struct Row {
    number: u64,
    jobs: u32,
    /// The number of their refusals.
    refusals: u32,
    /// The instant at which the last of them was sent.
    last_sent: Option<Instant>,
}

/// The mark of a job that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suspicion {
    /// The number of the last row in which it was refused.
    row: u64,
    /// The number of the last row in which it was refused and may have been at fault itself.
    blamed: Option<u64>,
}

/// The decision on a refused job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The job is dead: it is at fault, since others succeed.
    Dead,
    /// The job waits with this mark, as nothing is decided yet.
    Waits(Suspicion),
}

impl Reason {
    pub(super) const ALL: [Self; 2] = [Self::Unreachable, Self::Unauthorized];

    /// The label of metrics.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Unauthorized => "unauthorized",
        }
    }

    /// The backoff of its trials: the first wait, and the longest.
    const fn backoff(self) -> (Duration, Duration) {
        match self {
            Self::Unreachable => (Duration::from_millis(100), Duration::from_secs(2)),
            Self::Unauthorized => (Duration::from_millis(500), Duration::from_secs(5)),
        }
    }
}

impl Health {
    /// Why it takes no jobs; `None` if it does.
    pub(super) const fn halted(&self) -> Option<Reason> {
        match self.state {
            State::Serving => None,
            State::Halted(reason, _) => Some(reason),
        }
    }

    /// The number of different jobs that were refused in a row.
    pub(super) const fn refused_jobs(&self) -> u32 {
        self.row.jobs
    }

    /// Records the end of an attempt that began at `sent`, unless its credentials were refused; see [`Health::refused`].
    pub(super) fn ended(&mut self, contact: Contact, sent: Instant, now: Instant) {
        match (self.state, contact) {
            (_, Contact::None) | (State::Halted(Reason::Unreachable, _), _) => {}
            (State::Serving, Contact::Unreachable) => {
                self.failed_connections += 1;
                if self.failed_connections >= FAILED_CONNECTIONS {
                    self.halt(Reason::Unreachable, now);
                }
            }
            (State::Serving, Contact::Sent | Contact::Throttled) => self.failed_connections = 0,
            (_, Contact::Delivered) => self.delivered(sent),
            (State::Halted(Reason::Unauthorized, _), _) => self.trial_job_failed(now),
        }
    }

    fn delivered(&mut self, sent: Instant) {
        self.failed_connections = 0;
        if self.row.last_sent.is_none_or(|last| sent > last) {
            self.trials = 0;
            self.end_row();
            self.serve();
        }
    }

    /// Records that a job that was sent at `sent` was refused; `before` is its mark, if it was refused before. A
    /// blameless refusal does not make the job a dead letter, neither now nor together with a later refusal.
    pub(super) fn refused(
        &mut self,
        before: Option<Suspicion>,
        is_blameless: bool,
        sent: Instant,
        now: Instant,
    ) -> Verdict {
        let is_serving = self.state == State::Serving;
        let row = self.row.number;
        let blamed = before.and_then(|before| before.blamed);
        if is_serving && !is_blameless && blamed.is_some_and(|before| before != row) {
            return Verdict::Dead;
        }
        let is_new = before.is_none_or(|before| before.row != row);
        let this = Suspicion { row, blamed: if is_blameless { blamed } else { Some(row) } };
        self.row.last_sent = self.row.last_sent.max(Some(sent));
        self.row.jobs = self.row.jobs.saturating_add(u32::from(is_new));
        self.row.refusals = self.row.refusals.saturating_add(1);
        if is_serving && (self.row.jobs >= REFUSED_JOBS || self.row.refusals >= REFUSALS) {
            self.halt(Reason::Unauthorized, now);
        }
        Verdict::Waits(this)
    }

    /// The instant at which the next trial is due.
    pub(super) const fn trial_due(&self) -> Option<Instant> {
        match self.state {
            State::Halted(_, Trial::Due(due)) => Some(due),
            _ => None,
        }
    }

    /// Records that a trial has begun.
    pub(super) const fn trial_begun(&mut self) {
        if let State::Halted(_, trial) = &mut self.state {
            *trial = Trial::Begun;
        }
    }

    /// Records the result of a trial connection.
    pub(super) fn tried_connection(&mut self, is_open: bool, now: Instant) {
        match self.state {
            State::Halted(Reason::Unreachable, _) if is_open => self.serve(),
            State::Halted(Reason::Unreachable, _) => self.try_later(Reason::Unreachable, now),
            _ => {}
        }
    }

    /// Records that the secrets were read again: one job may be sent as a trial.
    pub(super) const fn secrets_read(&mut self) {
        if let State::Halted(Reason::Unauthorized, trial) = &mut self.state {
            *trial = Trial::Job;
        }
    }

    /// Whether one job may be sent as a trial.
    pub(super) const fn wants_trial_job(&self) -> bool {
        matches!(self.state, State::Halted(_, Trial::Job))
    }

    /// Records that a trial job was not delivered, whether or not it was sent.
    pub(super) fn trial_job_failed(&mut self, now: Instant) {
        if let State::Halted(reason, Trial::Job) = self.state {
            self.try_later(reason, now);
        }
    }

    /// Records that there is no job left for a trial, or that the statuses that count as refusals have changed.
    pub(super) fn nothing_to_try(&mut self) {
        if let State::Halted(Reason::Unauthorized, _) = self.state {
            self.end_row();
            self.serve();
        }
    }

    fn halt(&mut self, reason: Reason, now: Instant) {
        if reason == Reason::Unauthorized && self.trials == 0 {
            // The new secrets may be there already.
            self.state = State::Halted(reason, Trial::Due(now));
        } else {
            self.try_later(reason, now);
        }
    }

    const fn serve(&mut self) {
        (self.state, self.failed_connections) = (State::Serving, 0);
    }

    fn end_row(&mut self) {
        if self.row.refusals > 0 {
            self.row = Row { number: self.row.number + 1, ..Row::default() };
        }
    }

    /// Makes the next trial wait for a backoff, until a random instant, so that replicas do not try at the same time.
    fn try_later(&mut self, reason: Reason, now: Instant) {
        let (first, most) = reason.backoff();
        let ceiling = first.saturating_mul(2_u32.saturating_pow(self.trials)).min(most);
        self.trials = self.trials.saturating_add(1);
        let due = now + ceiling.mul_f64(0.5 + 0.5 * fastrand::f64());
        self.state = State::Halted(reason, Trial::Due(due));
    }
}

#[cfg(test)]
mod tests;
