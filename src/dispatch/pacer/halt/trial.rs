//! Trials: what tells whether a downstream can be used again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Intake, Step, Steps};
use crate::dispatch::entry::Entry;
use crate::dispatch::health::State;
use crate::dispatch::intake::expired;
use crate::dispatch::pacer::Pacer;
use crate::dispatch::pacer::call::Call;
use crate::dispatch::source::{DeadLetter, Report, Source};
use crate::job::Reason;
use crate::pace::Waiter as _;
use crate::pace::release::Held;
use crate::time::{Deadline, wall_now};

/// This many jobs more than its window a replica takes at most, to find one that is not at fault.
const EXTRA: usize = 64;

impl Pacer {
    /// Tries a connection, or reads the secrets again and then has one job sent.
    pub(super) fn begin_trial(&mut self, source: &mut impl Source, steps: &Steps, now: Instant) {
        let sink = Arc::clone(&self.gear.sink);
        if let State::Unreachable(_) = self.halt.health.state() {
            self.halt.health.try_now();
            steps.push(Box::pin(async move { Step::Connected(sink.try_connection().await) }));
            return;
        }
        // Some that were early may go by now.
        self.halt.swept = None;
        self.sweep(now);
        let in_hand = self.halt.candidates.len() + self.backlog.len();
        if in_hand == 0 {
            let change = self.halt.health.nothing_to_try();
            return self.follow_change(change);
        }
        self.halt.health.try_now();
        steps.push(Box::pin(async move { Step::SecretsRead(sink.read_secrets().await) }));
        let all_suspected = self.halt.unsuspected() == 0;
        self.halt.is_crowded = all_suspected && source.is_full();
        if all_suspected && in_hand < usize::from(self.window()) + EXTRA {
            // All of these may be at fault themselves: whoever published them must not stop all others.
            source.resize(u16::try_from(in_hand + 1).unwrap_or(u16::MAX));
            if self.halt.intake != Intake::One {
                self.halt.intake = Intake::One;
                source.resume();
            }
        }
    }

    /// Asks for a slot for the job that tries whether the credentials are accepted again.
    pub(in crate::dispatch::pacer) fn ask_for_trial(&mut self, now: Instant) -> Option<Call> {
        if !self.may_try_job() || now < self.ask_from() {
            return None;
        }
        let entry = self.trial_job(now)?;
        Some(self.call(entry.lane(), self.settings.horizon, VecDeque::from([entry]), None, now))
    }

    /// The job for a trial; those that need none any more are buried.
    fn trial_job(&mut self, now: Instant) -> Option<Entry> {
        while let Some(entry) = self.halt.next_candidate() {
            let report = Report { attempts: entry.tries.sent, ..Report::UNSENT };
            if !entry.ticket.is_live() {
                continue;
            }
            let letter = if let Some(deadline) = entry.job.deadline.filter(|deadline| *deadline < wall_now())
            {
                expired(deadline, report)
            } else if let Err(detail) = self.rules.fits(entry.job.plan, entry.job.cost) {
                DeadLetter { reason: Reason::CostTooLarge, detail, report }
            } else {
                return Some(entry);
            };
            self.bury(entry.ticket, letter, entry.job.reply.is_some());
        }
        // Each trial looks again whether there are jobs.
        self.halt.health.trial_job_failed(now);
        None
    }

    /// Releases the job for a trial without a slot, where nothing paces.
    pub(in crate::dispatch::pacer) fn try_openly(&mut self, now: Instant) {
        if !self.halt.health.wants_trial_job() || !self.release.is_quiet() {
            return;
        }
        if let Some(entry) = self.trial_job(now) {
            let slot = self.slots.store_now().unwrap_or_else(wall_now);
            self.release.hold_at_once(Held { waiter: entry, slot, deadline: Deadline::at(now) });
        }
    }

    /// Whether a job may be tried, and nothing else is on its way that would tell as much.
    fn may_try_job(&self) -> bool {
        self.halt.health.wants_trial_job() && self.release.is_quiet() && self.may_ask()
    }

    /// When a trial is due, or is to be asked a slot for.
    pub(in crate::dispatch::pacer) fn trial_wake(&self, calling: bool) -> Option<Instant> {
        let due = self.halt.health.trial_due().filter(|_| self.halt.can_try());
        let ask = (!calling && self.may_try_job()).then(|| self.ask_from().max(self.soon()));
        due.into_iter().chain(ask).min()
    }

    /// A trial that found no slot asks again when others would.
    fn soon(&self) -> Instant {
        Instant::now() + Duration::from_millis(1)
    }
}
