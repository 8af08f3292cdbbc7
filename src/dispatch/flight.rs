//! The flight of one job: it is released to the sink at its slot, and settled by the outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::entry::Entry;
use super::intake::expired;
use super::meters::Meters;
use super::retry::RetryPolicy;
use super::sending::{SendGuard, Sending};
use super::source::{DeadLetter, Report, Ticket};
use crate::bounded_log::BoundedLog;
use crate::job::Reason;
use crate::pace::meters::Abandoned;
use crate::pace::release::{Held, PauseGate, Tolerance};
use crate::sink::{Outcome, Receipt, Response, Sink};
use crate::time::{Deadline, Micros, wall_now};

/// How often a job with an unintelligible answer is repeated: each time the work may have been done.
const MAX_UNREADABLE: u32 = 1;

/// The parts that all flights of a downstream share.
pub(super) struct FlightContext {
    pub(super) downstream: String,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) retry: RetryPolicy,
    /// The longest pause that the downstream may ask for.
    pub(super) max_pause: Duration,
    /// Closed for slots during a pause.
    pub(super) gate: Arc<PauseGate>,
    /// A slot missed by more than this is given up.
    pub(super) tolerance: Tolerance,
    pub(super) meters: Meters,
    /// The log of dead letters is bounded, since anybody who publishes can cause them.
    pub(super) letters: Arc<BoundedLog>,
    /// The sends in progress.
    pub(super) sending: Arc<Sending>,
}

/// An event that a flight reports to its dispatcher.
#[derive(Debug)]
pub(super) enum Event {
    /// The slot was given up: the job waits for another one, in its old position.
    Back(Entry),
    /// The job failed and is tried again later.
    Retry(Instant, Entry),
    /// A job is parked, or its message is not live any more.
    Parked,
    /// The job cannot be parked: it waits here until this instant.
    Unparked(Instant, Entry),
    /// The downstream asks for a pause until this instant.
    Pause(Deadline),
    /// The downstream refused the credentials of the request.
    Refused(Box<Refused>),
    /// The send is over.
    Ended(FlightEnd),
}

/// A job that was refused, and the dead letter that it becomes if the job itself is at fault.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) entry: Entry,
    pub(super) sent: Instant,
    pub(super) letter: DeadLetter,
    pub(super) response: Response,
}

/// The end of a flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlightEnd {
    /// The instant at which it began.
    pub(super) since: Instant,
    /// How long the downstream took, if it answered.
    pub(super) took: Option<Duration>,
    pub(super) contact: Contact,
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
    Delivered,
}

/// Reports to the dispatcher that the send is over, however the flight ends.
pub(super) struct FlightGuard {
    events: mpsc::UnboundedSender<Event>,
    end: FlightEnd,
}

impl Event {
    /// The job that was put back with it, if any.
    pub(super) fn into_entry(self) -> Option<Entry> {
        match self {
            Self::Back(entry) | Self::Retry(_, entry) | Self::Unparked(_, entry) => Some(entry),
            Self::Refused(refused) => Some(refused.entry),
            Self::Pause(_) | Self::Parked | Self::Ended(_) => None,
        }
    }
}

impl FlightGuard {
    pub(super) fn new(events: mpsc::UnboundedSender<Event>) -> Self {
        let end = FlightEnd { since: Instant::now(), took: None, contact: Contact::None };
        Self { events, end }
    }

    fn send(&self, event: Event) {
        // Without a dispatcher nobody receives the event; the job returns to its broker with the connection.
        let _ = self.events.send(event);
    }
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        self.send(Event::Ended(self.end));
    }
}

/// A job whose slot has come.
pub(super) struct Flight {
    context: Arc<FlightContext>,
    place: FlightGuard,
    entry: Entry,
    slot: Micros,
    deadline: Deadline,
    underway: SendGuard,
}

impl Flight {
    /// A flight is boxed because it passes through many futures: each of them holds a pointer.
    pub(super) fn new(context: Arc<FlightContext>, place: FlightGuard, held: Held<Entry>) -> Box<Self> {
        let Held { waiter: entry, slot, deadline } = held;
        let underway = context.sending.begin(&entry);
        Box::new(Self { context, place, entry, slot, deadline, underway })
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
        let meters = &self.context.meters;
        if !self.entry.ticket.is_live() {
            meters.abandoned(Abandoned::Stale);
            self.give_up();
            return None;
        }
        if self.context.gate.refuses(self.slot, self.deadline) {
            meters.abandoned(Abandoned::Paused);
            self.give_up();
            return None;
        }
        if self.deadline.late() > self.context.tolerance.at_handover {
            meters.abandoned(Abandoned::Late);
            self.give_up();
            return None;
        }
        if let Some(deadline) = self.entry.job.deadline.filter(|deadline| *deadline < wall_now()) {
            meters.abandoned(Abandoned::Expired);
            let report = self.report(None);
            self.adopt_redelivered_ticket();
            Box::pin(self.dead_letter(expired(deadline, report), Response::default())).await;
            return None;
        }
        Some(self)
    }

    /// Hands the job to the sink, unless its slot is missed, or lies in a pause, once there is a connection.
    async fn release(&mut self) -> Outcome {
        let Self { context, entry, slot, deadline, .. } = self;
        let (counted, paused) = (AtomicBool::new(false), AtomicBool::new(false));
        let look = || {
            if context.gate.refuses(*slot, *deadline) {
                paused.store(true, Ordering::Relaxed);
                return false;
            }
            let late = deadline.late();
            let in_time = late <= context.tolerance.while_connecting;
            // If a connection turns out to be closed, the check runs twice, and the job is sent once.
            if in_time && !counted.swap(true, Ordering::Relaxed) {
                context.meters.release(late);
            }
            in_time
        };
        let outcome = context.sink.release(&entry.job, &look).await;
        let (released, missed) = (counted.into_inner(), matches!(outcome, Outcome::Missed));
        match (released, missed) {
            (true, _) => {}
            (false, true) if paused.into_inner() => context.meters.abandoned(Abandoned::Paused),
            (false, true) => context.meters.abandoned(Abandoned::Late),
            // There was no connection for the hand-over.
            (false, false) => context.meters.abandoned(Abandoned::Unreachable),
        }
        if matches!(outcome, Outcome::Unreachable { .. }) {
            entry.attempts.unreachable += 1;
            entry.attempts.sent += u32::from(!context.retry.outlast);
        } else if !missed {
            entry.attempts.unreachable = 0;
            entry.attempts.sent += 1;
        }
        let end = &mut self.place.end;
        end.contact = contact(&outcome);
        if is_answered(&outcome) {
            end.took = Some(end.since.elapsed());
        }
        outcome
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

    async fn settle(mut self: Box<Self>, outcome: Outcome) {
        self.adopt_redelivered_ticket();
        match outcome {
            Outcome::Delivered(receipt) => self.deliver(receipt).await,
            // Its future is large, and few jobs need it.
            outcome => Box::pin(self.settle_any(outcome)).await,
        }
    }

    /// Settles by any outcome.
    async fn settle_any(mut self: Box<Self>, outcome: Outcome) {
        match outcome {
            Outcome::Delivered(receipt) => self.deliver(receipt).await,
            Outcome::Missed => self.give_up(),
            Outcome::Unreachable { detail } => {
                self.context.meters.retry("connect");
                let (retry, attempts) = (self.context.retry, self.entry.attempts);
                let wait = match retry.outlast {
                    true => Some(retry.wait(attempts.unreachable, None)),
                    false => retry.backoff(attempts.failed(), None),
                };
                self.try_again(wait, detail, None, None).await;
            }
            Outcome::Throttled { detail, status, after, response } => {
                self.context.meters.retry("throttled");
                self.entry.attempts.throttled += 1;
                let after = after.map(|after| after.min(self.context.max_pause));
                if let Some(span) = after.filter(|span| !span.is_zero()) {
                    self.place.send(Event::Pause(Deadline::at(Instant::now() + span)));
                }
                let wait = self.context.retry.throttled(self.entry.attempts.throttled, after);
                self.try_again(wait, detail, Some(status), response).await;
            }
            Outcome::Unreadable { detail } => {
                self.context.meters.retry("answer");
                self.entry.attempts.unreadable += 1;
                if self.entry.attempts.unreadable > MAX_UNREADABLE {
                    let letter = DeadLetter { reason: Reason::Status, detail, report: self.report(None) };
                    return self.dead_letter(letter, Response::default()).await;
                }
                let wait = self.context.retry.backoff(self.entry.attempts.failed(), None);
                self.try_again(wait, detail, None, None).await;
            }
            Outcome::Retry { reason, detail, status, after, response } => {
                self.context.meters.retry(reason);
                let after = after.map(|after| after.min(self.context.max_pause));
                let wait = self.context.retry.backoff(self.entry.attempts.failed(), after);
                self.try_again(wait, detail, status, response).await;
            }
            Outcome::Dead { reason, detail, status: Some(status), response }
                if self.context.retry.on_unauthorized.contains(status) =>
            {
                self.entry.attempts.refused += 1;
                let response = response.unwrap_or_else(|| Response::without_body(Some(status)));
                let letter = DeadLetter { reason, detail, report: self.report(Some(status)) };
                let Self { place, entry, .. } = *self;
                let sent = place.end.since;
                place.send(Event::Refused(Box::new(Refused { entry, sent, letter, response })));
            }
            Outcome::Dead { reason, detail, status, response } => {
                let response = response.unwrap_or_else(|| Response::without_body(status));
                let report = self.report(status);
                self.dead_letter(DeadLetter { reason, detail, report }, response).await;
            }
        }
    }

    /// The reply is confirmed first, then the job is acked.
    async fn deliver(self: Box<Self>, receipt: Receipt) {
        let report = self.report(Some(receipt.response.status));
        let Self { context, place, entry, .. } = *self;
        // The send is over: a reply that takes long must not hold up others.
        drop(place);
        let _settling = context.meters.settling();
        if entry.job.reply.is_some() {
            entry.ticket.reply(&receipt.response).await;
        }
        context.meters.delivered.increment(1);
        entry.ticket.ack(receipt, report);
    }

    /// Schedules another attempt after this wait; without a wait no attempt is left, and the job is dead.
    async fn try_again(
        self: Box<Self>,
        wait: Option<Duration>,
        detail: String,
        status: Option<u16>,
        response: Option<Response>,
    ) {
        let Some(wait) = wait else {
            let response = response.unwrap_or_else(|| Response::without_body(status));
            let (reason, report) = (Reason::AttemptsExhausted, self.report(status));
            return self.dead_letter(DeadLetter { reason, detail, report }, response).await;
        };
        let id = &self.entry.job.id;
        tracing::debug!(downstream = self.context.downstream, id, ?wait, detail, "failed, trying again");
        self.context.meters.retried.increment(1);
        self.place.send(Event::Retry(Instant::now() + wait, self.entry));
    }

    async fn dead_letter(self: Box<Self>, letter: DeadLetter, response: Response) {
        let Self { context, place, entry, .. } = *self;
        drop(place);
        let response = entry.job.reply.is_some().then_some(response);
        dead_letter(context, entry.ticket, letter, response).await;
    }

    fn report(&self, status: Option<u16>) -> Report {
        let attempts = self.entry.attempts.sent;
        Report { attempts, status, released_at: (attempts > 0).then_some(self.slot) }
    }
}

const fn contact(outcome: &Outcome) -> Contact {
    match outcome {
        Outcome::Missed => Contact::None,
        Outcome::Unreachable { .. } => Contact::Unreachable,
        Outcome::Delivered(_) => Contact::Delivered,
        // Without a status the request could not even be built.
        Outcome::Dead { status: None, .. } => Contact::None,
        Outcome::Throttled { .. }
        | Outcome::Unreadable { .. }
        | Outcome::Retry { .. }
        | Outcome::Dead { .. } => Contact::Sent,
    }
}

/// Whether the time that it took is one of the downstream: that of a refused connection is not.
const fn is_answered(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Delivered(_) => true,
        Outcome::Missed | Outcome::Unreachable { .. } => false,
        Outcome::Throttled { .. } | Outcome::Unreadable { .. } => true,
        Outcome::Retry { status, .. } | Outcome::Dead { status, .. } => status.is_some(),
    }
}

/// The log of a downstream's dead letters.
pub(super) fn letter_log(downstream: &str) -> Arc<BoundedLog> {
    let downstream = downstream.to_owned();
    BoundedLog::new(move |summary| {
        let (letters, reasons) = (summary.lines, &summary);
        tracing::warn!(downstream, letters, %reasons, "dead-lettered; too many to log each");
    })
}

/// Makes a job a dead letter, in this order: the reply (if one is wanted) is confirmed, the copy is confirmed, the job
/// is acked.
pub(super) async fn dead_letter(
    context: Arc<FlightContext>,
    ticket: Box<dyn Ticket>,
    letter: DeadLetter,
    reply: Option<Response>,
) {
    let _settling = context.meters.settling();
    let downstream = &context.downstream;
    if letter.reason == Reason::Rejected {
        // The statuses are expected, as the configuration names them.
        tracing::debug!(downstream, reason = %letter.reason, detail = letter.detail, "dead-lettered");
    } else {
        context.letters.line(letter.reason.as_str(), || {
            tracing::warn!(downstream, reason = %letter.reason, detail = letter.detail, "dead-lettered");
        });
    }
    if let Some(mut response) = reply {
        if response.status == 0 && response.body.is_empty() {
            // The job never got an answer, so the reply contains the reason.
            response.body = format!("{}: {}", letter.reason, letter.detail).into();
        }
        ticket.reply(&response).await;
    }
    context.meters.dead.increment(1);
    context.meters.rejected(letter.reason);
    ticket.dead_letter(letter).await;
}
