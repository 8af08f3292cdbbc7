//! The flight of one job: it is released to the sink at its slot, and settled by the outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

mod event;
mod letter;
mod outcome;

use super::discard::discard;
use super::entry::Entry;
use super::failures::Ending;
use super::intake::expired;
use super::job_log;
use super::meters::Meters;
use super::preflight::Preflight;
use super::retry::RetryPolicy;
use super::sending::{SendGuard, Sending};
use super::source::{DeadLetter, Report};
use crate::bounded_log::BoundedLog;
use crate::job::Reason;
use crate::pace::Waiter;
use crate::pace::meters::Abandoned;
use crate::pace::release::Held;
use crate::sink::{Outcome, Receipt, Response, Sink};
use crate::time::{Deadline, Micros, wall_now};
pub(super) use event::{Contact, Event, FlightGuard, Refused};
pub(super) use letter::{dead_letter, letter_log};
use outcome::{about_job, contact, is_answered, judged};

/// How often a job with an unintelligible answer is repeated: each time the work may have been done.
const MAX_UNREADABLE: u32 = 1;

/// How often a refusal of credentials that have been replaced is taken not to be about the job.
const MAX_OUTDATED: u32 = 3;

/// The parts that all flights of a downstream share.
pub(super) struct FlightContext {
    pub(super) downstream: String,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) retry: RetryPolicy,
    /// The longest pause that the downstream may ask for.
    pub(super) max_pause: Duration,
    /// The checks before the hand-over.
    pub(super) preflight: Preflight,
    pub(super) meters: Meters,
    /// The log of dead letters is bounded, since anybody who publishes can cause them.
    pub(super) letters: Arc<BoundedLog>,
    /// The sends in progress.
    pub(super) sending: Arc<Sending>,
    /// Whether attempt after attempt fails, which the log tells of: then it need not tell of each job.
    pub(super) is_failing: Arc<AtomicBool>,
}

/// A job whose slot has come.
pub(super) struct Flight {
    context: Arc<FlightContext>,
    place: FlightGuard,
    entry: Entry,
    slot: Micros,
    deadline: Deadline,
    /// How long after its slot it was handed over, once it was.
    late: Option<Duration>,
    underway: SendGuard,
}

impl Flight {
    /// A flight is boxed because it passes through many futures: each of them holds a pointer.
    pub(super) fn new(context: Arc<FlightContext>, place: FlightGuard, held: Held<Entry>) -> Box<Self> {
        let Held { waiter: entry, slot, deadline } = held;
        let underway = context.sending.begin(&entry);
        Box::new(Self { context, place, entry, slot, deadline, late: None, underway })
    }

    /// Checks the job once more, releases it to the sink, and settles it by the outcome.
    pub(super) async fn run(self: Box<Self>) {
        let Some(mut cleared) = self.check().await else { return };
        let outcome = cleared.release().await;
        cleared.context.meters.dispatched(&outcome, cleared.place.end.since.elapsed());
        cleared.settle(outcome).await;
    }

    /// The check before the hand-over: whether the job is still live, and its slot still valid and due.
    async fn check(mut self: Box<Self>) -> Option<Box<Self>> {
        let preflight = &self.context.preflight;
        if !self.entry.ticket.is_live() {
            self.abandon(Abandoned::Stale);
            self.give_up();
            return None;
        }
        if preflight.is_cancelled(&self.entry.job.id) {
            self.abandon(Abandoned::Cancelled);
            Box::pin(self.discard()).await;
            return None;
        }
        if preflight.is_paused(self.slot, self.deadline) {
            self.abandon(Abandoned::Paused);
            self.give_up();
            return None;
        }
        if self.deadline.late() > preflight.tolerance.at_handover {
            self.abandon(Abandoned::Late);
            self.give_up();
            return None;
        }
        if let Some(deadline) = self.entry.job.times.deadline.filter(|deadline| *deadline < wall_now()) {
            self.abandon(Abandoned::Expired);
            let report = self.report(None);
            self.adopt_redelivered_ticket();
            Box::pin(self.dead_letter(expired(deadline, report), Response::default())).await;
            return None;
        }
        Some(self)
    }

    /// Hands the job to the sink, unless its slot is missed, or lies in a pause, or the job is cancelled, once there is a
    /// connection.
    async fn release(&mut self) -> Outcome {
        let Self { context, entry, slot, deadline, .. } = self;
        let [paused, cancelled] = [const { AtomicBool::new(false) }; 2];
        let handed_over = OnceLock::new();
        let preflight = &context.preflight;
        let look = || {
            if preflight.is_cancelled(&entry.job.id) {
                cancelled.store(true, Ordering::Relaxed);
                return false;
            }
            if preflight.is_paused(*slot, *deadline) {
                paused.store(true, Ordering::Relaxed);
                return false;
            }
            let late = deadline.late();
            let in_time = late <= preflight.tolerance.while_connecting;
            // If a connection turns out to be closed, the check runs twice, and the job is sent once.
            if in_time && handed_over.set(late).is_ok() {
                context.meters.release(late);
            }
            in_time
        };
        let outcome = context.sink.release(&entry.job, &look).await;
        self.late = handed_over.into_inner();
        let missed = matches!(outcome, Outcome::Missed);
        if self.late.is_none() {
            self.abandon(match missed {
                true if cancelled.into_inner() => Abandoned::Cancelled,
                true if paused.into_inner() => Abandoned::Paused,
                true => Abandoned::Late,
                // There was no connection for the hand-over.
                false => Abandoned::Unreachable,
            });
        }
        let Self { context, entry, .. } = self;
        if matches!(outcome, Outcome::Unreachable { .. }) {
            entry.attempts.unreachable += 1;
            entry.attempts.sent += u32::from(!context.retry.outlast);
        } else if !missed {
            entry.attempts.unreachable = 0;
            entry.attempts.sent += 1;
        }
        let end = &mut self.place.end;
        end.contact = contact(&outcome);
        end.ending = Ending::of(&outcome);
        if is_answered(&outcome) {
            end.took = Some(end.since.elapsed());
        }
        outcome
    }

    /// Records that nothing is sent at the slot.
    fn abandon(&self, reason: Abandoned) {
        let Self { context, place, entry, slot, .. } = self;
        context.meters.abandoned(reason);
        // Where nothing outlasts the outage, the pace is all that spaces the attempts.
        if reason == Abandoned::Unreachable && !context.retry.outlast {
            return;
        }
        place.send(Event::Unused { lane: entry.lane(), cost: entry.cost(), slot: *slot });
    }

    /// Ends the send. If its message was delivered again meanwhile, the job continues with the ticket of that delivery.
    fn adopt_redelivered_ticket(&mut self) {
        if let Some(redelivered) = self.underway.end() {
            self.entry.ticket = redelivered;
        }
    }

    /// Gives up the slot: the job waits for another one.
    fn give_up(mut self: Box<Self>) {
        self.adopt_redelivered_ticket();
        let (downstream, late) = (&self.context.downstream, self.deadline.late());
        tracing::debug!(downstream, ?late, "slot not used, reserving anew");
        self.place.send(Event::Back(self.entry));
    }

    /// Settles a job that was cancelled before it was handed over.
    async fn discard(mut self: Box<Self>) {
        self.adopt_redelivered_ticket();
        let report = self.report(None);
        let Self { context, place, entry, .. } = *self;
        drop(place);
        discard((&context.downstream, &context.meters), entry.ticket, &entry.job, report).await;
    }

    async fn settle(mut self: Box<Self>, outcome: Outcome) {
        self.adopt_redelivered_ticket();
        match outcome {
            Outcome::Delivered(receipt) => self.deliver(receipt).await,
            // Its future is large, and few jobs need it.
            outcome => Box::pin(self.settle_any(outcome)).await,
        }
    }

    /// Returns the outcome as the policy judges it. A pause is for all jobs, whatever becomes of this one.
    fn judge(&self, outcome: Outcome) -> Outcome {
        let (context, attempts) = (&self.context, &self.entry.attempts);
        let outcome = match outcome {
            // It is refused whatever the credentials: the policy says what that means.
            outcome @ Outcome::Outdated { .. } if attempts.outdated >= MAX_OUTDATED => about_job(outcome),
            outcome => outcome,
        };
        if let Outcome::Throttled { after: Some(after), .. } = outcome
            && !after.is_zero()
        {
            let span = after.min(context.max_pause);
            self.place.send(Event::Pause(Deadline::at(Instant::now() + span)));
        }
        judged(outcome, &context.retry)
    }

    /// Settles by any outcome.
    async fn settle_any(mut self: Box<Self>, outcome: Outcome) {
        let context = Arc::clone(&self.context);
        let retry = &context.retry;
        match self.judge(outcome) {
            Outcome::Delivered(receipt) => self.deliver(receipt).await,
            Outcome::Missed => self.give_up(),
            Outcome::Unreachable { detail } => {
                context.meters.retry("connect");
                let attempts = self.entry.attempts;
                let wait = match retry.outlast {
                    true => Some(retry.backoff.wait(attempts.unreachable)),
                    false => retry.backoff(attempts.failed(), None, None),
                };
                self.try_again(wait, detail, None, None).await;
            }
            Outcome::Throttled { detail, status, after, response } => {
                context.meters.retry("throttled");
                self.entry.attempts.throttled += 1;
                let after = after.map(|after| after.min(context.max_pause));
                let wait = retry.throttled(self.entry.attempts.throttled, status, after);
                self.try_again(wait, detail, Some(status), response).await;
            }
            Outcome::Unreadable { detail } => {
                context.meters.retry("answer");
                self.entry.attempts.unreadable += 1;
                if self.entry.attempts.unreadable > MAX_UNREADABLE {
                    let letter = DeadLetter::new(Reason::Status, detail, self.report(None));
                    return self.dead_letter(letter, Response::default()).await;
                }
                let wait = retry.backoff(self.entry.attempts.failed(), None, None);
                self.try_again(wait, detail, None, None).await;
            }
            Outcome::Outdated { detail, status, replaced, response } => {
                self.entry.attempts.refused += 1;
                if !replaced {
                    self.entry.attempts.blameless += 1;
                    return self.refuse((Reason::Status, detail, Some(status)), response, true);
                }
                self.entry.attempts.outdated += 1;
                context.meters.retry("unauthorized");
                self.try_again(Some(Duration::ZERO), detail, Some(status), response).await;
            }
            Outcome::Retry { reason, detail, status, after, response } => {
                context.meters.retry(reason);
                let after = after.map(|after| after.min(context.max_pause));
                let wait = retry.backoff(self.entry.attempts.failed(), status, after);
                self.try_again(wait, detail, status, response).await;
            }
            Outcome::Dead { reason, detail, status, response } => {
                self.settle_dead((reason, detail), status, response).await;
            }
        }
    }

    /// Dead-letters a job, unless its answer may be about the credentials.
    async fn settle_dead(
        mut self: Box<Self>,
        (reason, detail): (Reason, String),
        status: Option<u16>,
        response: Option<Response>,
    ) {
        let is_refused = status.is_some_and(|status| self.context.retry.on_unauthorized.contains(status));
        if is_refused {
            self.entry.attempts.refused += 1;
            return self.refuse((reason, detail, status), response, false);
        }
        let (letter, response) = self.letter((reason, detail, status), response);
        self.dead_letter(letter, response).await;
    }

    /// Reports that the credentials were refused, with the dead letter that the job becomes if it is at fault itself.
    fn refuse(
        self: Box<Self>,
        why: (Reason, String, Option<u16>),
        response: Option<Response>,
        is_blameless: bool,
    ) {
        let (letter, response) = self.letter(why, response);
        let Self { place, entry, .. } = *self;
        let sent = place.end.since;
        place.send(Event::Refused(Box::new(Refused { entry, sent, letter, response, is_blameless })));
    }

    /// The dead letter that the job would be, and the answer for whoever waits for a reply.
    fn letter(
        &self,
        (reason, detail, status): (Reason, String, Option<u16>),
        response: Option<Response>,
    ) -> (DeadLetter, Response) {
        let mut response = response.unwrap_or_else(|| Response::without_body(status));
        let excerpt = std::mem::take(&mut response.excerpt);
        (DeadLetter::new(reason, detail, self.report(status)).with_response(excerpt), response)
    }

    /// The reply is confirmed first, then the job is acked.
    async fn deliver(self: Box<Self>, receipt: Receipt) {
        let report = self.report(Some(receipt.response.status));
        let Self { context, place, entry, late, .. } = *self;
        // The send is over: a reply that takes long must not hold up others.
        drop(place);
        let _settling = context.meters.settling();
        if entry.job.reply.is_some() {
            entry.ticket.reply(&receipt.response).await;
        }
        context.meters.delivered();
        let waited = || wall_now().since(entry.first_seen);
        job_log::delivered(&context.downstream, &entry.job.id, report, waited, late);
        entry.ticket.ack(receipt, report);
    }

    /// Schedules another attempt after this wait; without a wait no attempt is left, and the job is dead. So is a job
    /// that would be too old by then.
    async fn try_again(
        self: Box<Self>,
        mut wait: Option<Duration>,
        mut detail: String,
        status: Option<u16>,
        mut response: Option<Response>,
    ) {
        let retry = &self.context.retry;
        if wait.is_some_and(|wait| retry.is_too_old(self.entry.age.born, wall_now().plus(wait))) {
            wait = None;
            let most = retry.max_age.unwrap_or_default();
            detail.push_str(&format!(
                "; by the next attempt the job would be older than retry.max_age ({most:?})"
            ));
        }
        let Some(wait) = wait else {
            let excerpt = response.as_mut().map(|response| std::mem::take(&mut response.excerpt));
            // A success that throttles must not look like one to whoever waits for the reply.
            let is_failure = |status: u16| !(200..300).contains(&status);
            let response = response.filter(|response| is_failure(response.status));
            let status = status.filter(|status| is_failure(*status));
            let response = response.unwrap_or_else(|| Response::without_body(status));
            let letter = DeadLetter::new(Reason::AttemptsExhausted, detail, self.report(status));
            return self.dead_letter(letter.with_response(excerpt.unwrap_or_default()), response).await;
        };
        let id = &self.entry.job.id;
        tracing::debug!(downstream = self.context.downstream, id, ?wait, detail, "failed, trying again");
        self.context.meters.settled.retried.increment(1);
        self.place.send(Event::Retry(Instant::now() + wait, self.entry));
    }

    async fn dead_letter(self: Box<Self>, letter: DeadLetter, response: Response) {
        let Self { context, place, entry, .. } = *self;
        drop(place);
        let response = entry.job.reply.is_some().then_some(response);
        dead_letter(context, (entry.ticket, Some(entry.job.id.clone())), letter, response).await;
    }

    fn report(&self, status: Option<u16>) -> Report {
        let attempts = self.entry.attempts.sent;
        Report { attempts, status, released_at: (attempts > 0).then_some(self.slot) }
    }
}
