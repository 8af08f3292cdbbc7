//! No jobs are taken for a downstream that cannot be used from here, until it can: what [`Health`] decides is
//! done here.
//!
//! A replica that halts suspends its engine, which gives up the slots that it holds, has its source stopped, gives its jobs
//! back for others, and ends its lease, so that the others have the whole pace. Jobs that must not go back are
//! held.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::flight::{self, Contact, Landed, Refused};
use crate::dispatch::health::{Change, Health, State, Verdict};
use crate::dispatch::source::Source;
use crate::pace::meters::Abandoned;
use crate::store::BoxFuture;

mod trial;

/// As many jobs that were not refused yet are kept for trials: a few refused ones may well be at fault.
const UNSUSPECTED: usize = 4;

/// A job that is refused is dead after so long, if it was refused as often as it may be tried. Credentials are
/// mostly put right sooner, and not many jobs are tried as often.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// The same where refused jobs are so long that no other can come: whoever published them must not stop all
/// others for long.
const CROWDED_PATIENCE: Duration = Duration::from_secs(60);

/// What a replica does while it takes no jobs, and what it keeps for trials.
#[derive(Debug, Default)]
pub(super) struct Halt {
    health: Health,
    intake: Intake,
    /// Counts the times that the source was stopped: an answer to an earlier one says nothing.
    stops: u64,
    /// The jobs in the backlog when it was last looked which of them go back.
    swept: Option<usize>,
    /// One of them at a time is sent to find out whether the credentials are accepted again.
    candidates: VecDeque<Entry>,
    /// Why the last trial failed has been logged.
    is_explained: bool,
    /// All that is unsettled was refused, and nothing more comes until something is settled.
    is_crowded: bool,
    /// Jobs that wait for it to be clear whose fault a refusal is, while others are taken: they leave the
    /// window to those.
    extra: u16,
}

/// What the source does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Intake {
    /// It hands out jobs.
    #[default]
    Open,
    /// It was told to stop, and may still hand out some.
    Stopping,
    /// It hands out none.
    Stopped,
    /// It hands out one for a trial.
    One,
}

/// What ended while the replica takes no jobs.
pub(super) enum Step {
    /// The source has stopped, as it was told the last time that has this number.
    SourceStopped(u64),
    /// A connection was tried.
    Connected(Result<(), String>),
    /// The secrets were read again.
    SecretsRead(Result<bool, String>),
}

/// What is under way.
pub(super) type Steps = FuturesUnordered<BoxFuture<'static, Step>>;

impl Halt {
    pub(super) fn is_halted(&self) -> bool {
        !self.health.is_serving()
    }

    pub(super) fn has_no_jobs(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Takes the jobs that are kept for trials.
    pub(super) fn take_jobs(&mut self) -> impl Iterator<Item = Entry> {
        self.candidates.drain(..)
    }

    /// Forgets the jobs whose connection is gone.
    pub(super) fn drop_stale(&mut self) {
        self.candidates.retain(|entry| entry.ticket.is_live());
    }

    /// By how much the window is wider, so that refused jobs do not keep others out.
    pub(super) const fn extra(&self) -> u16 {
        self.extra
    }

    /// The reason as metrics have it.
    fn reason(&self) -> Option<&'static str> {
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

    /// Whether no jobs are on their way from the source, but one for a trial.
    fn is_settled(&self) -> bool {
        matches!(self.intake, Intake::Stopped | Intake::One)
    }

    /// Whether a job may not go yet, which is no matter of the credentials.
    fn is_early(&self, entry: &Entry, now: Instant) -> bool {
        let is_unauthorized = matches!(self.health.state(), State::Unauthorized(_));
        let waits = entry.tries.suspicion.is_some() || entry.tries.unreachable > 0;
        is_unauthorized && entry.since > now && !waits
    }

    /// Keeps a job for trials, or hands it back.
    fn keep(&mut self, entry: Entry) -> Option<Entry> {
        if !matches!(self.health.state(), State::Unauthorized(_)) {
            return Some(entry);
        }
        let is_suspected = entry.tries.suspicion.is_some();
        if is_suspected || self.unsuspected() < UNSUSPECTED {
            self.candidates.push_back(entry);
            return None;
        }
        Some(entry)
    }

    fn unsuspected(&self) -> usize {
        self.candidates.iter().filter(|entry| entry.tries.suspicion.is_none()).count()
    }

    /// The job for the next trial: one that was not refused yet, after one that was.
    fn next_candidate(&mut self) -> Option<Entry> {
        let first = self.candidates.pop_front()?;
        if first.tries.suspicion.is_some() {
            // The next time it is the turn of another.
            let fresh = self.candidates.iter().position(|entry| entry.tries.suspicion.is_none());
            if let Some(fresh) = fresh.and_then(|place| self.candidates.remove(place)) {
                self.candidates.push_front(fresh);
            }
        }
        Some(first)
    }
}

impl Worker {
    /// Stops the source or lets it go on, gives back what is for others, and begins a trial that is due.
    pub(super) fn tick_halt(&mut self, source: &mut impl Source, steps: &Steps, now: Instant) {
        match (self.halt.is_halted(), self.halt.intake) {
            (true, Intake::Open) => self.stop_source(source, steps),
            (true, Intake::One) if self.halt.swept != Some(self.engine.waiting()) => {
                self.stop_source(source, steps)
            }
            (false, Intake::Stopping | Intake::Stopped | Intake::One) => {
                self.halt.intake = Intake::Open;
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
    }

    fn stop_source(&mut self, source: &mut impl Source, steps: &Steps) {
        self.halt.intake = Intake::Stopping;
        self.halt.stops += 1;
        let (stopped, number) = (source.pause(), self.halt.stops);
        steps.push(Box::pin(async move {
            stopped.await;
            Step::SourceStopped(number)
        }));
    }

    /// Something ended that was done meanwhile.
    pub(super) fn stepped(&mut self, step: Step) {
        let downstream = &self.context.downstream;
        match step {
            Step::SourceStopped(number) => {
                if number == self.halt.stops && self.halt.intake == Intake::Stopping {
                    (self.halt.intake, self.halt.swept) = (Intake::Stopped, None);
                }
            }
            Step::Connected(tried) => {
                if let Err(detail) = &tried {
                    if self.halt.is_explained {
                        tracing::debug!(downstream, detail, "the downstream is still not reached");
                    } else {
                        tracing::warn!(downstream, detail, "the downstream is still not reached; trying on");
                    }
                    self.halt.is_explained = true;
                }
                let change = self.halt.health.tried_connection(tried.is_ok(), Instant::now());
                self.follow_change(change);
            }
            Step::SecretsRead(read) => {
                match read {
                    Ok(true) => tracing::info!(downstream, "the secrets were read again and have changed"),
                    Ok(false) => tracing::debug!(downstream, "the secrets were read again and are the same"),
                    Err(error) => {
                        tracing::error!(downstream, error, "the secrets could not be read again");
                    }
                }
                self.halt.health.secrets_read();
            }
        }
    }

    /// Learns from a flight that ended.
    pub(super) fn judge(&mut self, Landed { since, contact, .. }: Landed) {
        let (now, health) = (Instant::now(), &mut self.halt.health);
        let change = match contact {
            Contact::None => None,
            Contact::Unreachable if !self.context.retry.outlast => None,
            Contact::Unreachable => {
                health.trial_job_failed(now);
                health.unreachable(now)
            }
            Contact::Sent => {
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

    /// While jobs are taken, those that were refused and wait are none of the window.
    fn make_room(&mut self) {
        if self.halt.is_halted() {
            return;
        }
        let extra = u16::try_from(self.halt.health.refused_jobs()).unwrap_or(u16::MAX);
        if extra != self.halt.extra {
            self.halt.extra = extra;
            self.resize = Some(self.engine.settings().window().saturating_add(extra));
        }
    }

    /// The downstream refused the credentials of a job: it waits until it is clear whose fault that is.
    pub(super) fn refused(&mut self, Refused { mut entry, sent, letter, response }: Refused) {
        if !entry.ticket.is_live() {
            return;
        }
        let now = Instant::now();
        let (verdict, change) = self.halt.health.refused(entry.tries.suspicion, sent, now);
        let since = *entry.tries.refused_since.get_or_insert(now);
        let patience = if self.halt.is_crowded { CROWDED_PATIENCE } else { PATIENCE };
        let is_worn = entry.tries.refused >= self.context.retry.max_attempts && now - since >= patience;
        match if is_worn { Verdict::Dead } else { verdict } {
            Verdict::Dead => {
                let reply = entry.job.reply.is_some().then_some(response);
                self.flights.spawn(flight::dead_letter(
                    Arc::clone(&self.context),
                    entry.ticket,
                    letter,
                    reply,
                ));
            }
            Verdict::Waits(suspicion) => {
                self.context.meters.retry("unauthorized");
                self.context.meters.retried.increment(1);
                entry.tries.suspicion = Some(suspicion);
                let wait = self.context.retry.wait(entry.tries.refused, None);
                self.engine.offer_later(now + wait, entry);
            }
        }
        self.follow_change(change);
        self.make_room();
    }

    /// Other answers count as refusals from now on: whether jobs are refused is to be seen anew.
    pub(super) fn refusals_changed(&mut self) {
        let change = self.halt.health.nothing_to_try();
        self.follow_change(change);
        self.make_room();
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
        self.halt.swept = None;
        self.halt.is_explained = false;
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
                 secrets again and tries one job at a time; put right what `headers` of the downstream hold, or their files"
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
        // What waited for this has waited long enough.
        let mut entries: Vec<Entry> = self.halt.take_jobs().collect();
        entries.extend(self.engine.take_waiting());
        for mut entry in entries {
            let waited = entry.tries.suspicion.is_some() || entry.tries.unreachable > 0;
            match entry.since {
                due if due > now && !waited => self.engine.offer_later(due, entry),
                since => {
                    entry.since = since.min(now);
                    self.engine.offer(entry);
                }
            }
        }
        self.halt.is_crowded = false;
        self.engine.resume();
    }

    /// Gives back what others can send, and keeps what is needed for trials. What must not go back is held.
    fn sweep(&mut self, now: Instant) {
        let is_settled = self.halt.is_halted() && self.halt.is_settled();
        if !is_settled || self.halt.swept == Some(self.engine.waiting()) {
            return;
        }
        let mut entries = self.engine.take_waiting();
        entries.retain(|entry| entry.ticket.is_live());
        entries.sort_by_key(|entry| entry.seq);
        let (early, entries): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| self.halt.is_early(entry, now));
        for entry in entries {
            let Some(entry) = self.halt.keep(entry) else { continue };
            if entry.ticket.may_be_given_back() {
                self.context.meters.returned.increment(1);
                entry.ticket.give_back();
            } else if entry.since > now && entry.tries.unreachable == 0 {
                self.engine.offer_later(entry.since, entry);
            } else {
                self.engine.offer(entry);
            }
        }
        // Given back, these would come again before one that can be tried.
        let holds = self.halt.unsuspected() == 0;
        for entry in early {
            if entry.ticket.may_be_given_back() && !holds {
                self.context.meters.returned.increment(1);
                entry.ticket.give_back();
            } else {
                self.engine.offer_later(entry.since, entry);
            }
        }
        self.halt.swept = Some(self.engine.waiting());
    }
}
