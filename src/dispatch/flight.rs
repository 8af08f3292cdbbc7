//! The flight of one job: released to the sink at its slot, settled by the outcome.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::held::Held;
use super::intake::expired;
use super::lane::Entry;
use super::meters::Meters;
use super::retry::RetryPolicy;
use super::source::{DeadLetter, Report, Ticket};
use crate::job::Reason;
use crate::sink::{Outcome, Receipt, Response, Sink};
use crate::time::{Deadline, Micros, wall_now};

/// What all flights of a downstream share.
pub(super) struct Gear {
    pub(super) downstream: String,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) retry: RetryPolicy,
    /// A slot missed by more than this is given up.
    pub(super) tolerance: Duration,
    pub(super) meters: Meters,
}

/// What a flight tells its pacer.
#[derive(Debug)]
pub(super) enum Event {
    /// The slot was given up: the job waits for another one, in its old place.
    Back(Entry),
    /// The job failed and is tried again later.
    Retry(Instant, Entry),
    /// Nothing is being sent any more; for how long it was.
    Landed(Duration),
}

/// Tells the pacer that the place is free, however the flight ends.
pub(super) struct Place {
    events: mpsc::UnboundedSender<Event>,
    since: Instant,
}

impl Event {
    /// The job that comes back with it.
    pub(super) fn into_entry(self) -> Option<Entry> {
        match self {
            Self::Back(entry) | Self::Retry(_, entry) => Some(entry),
            Self::Landed(_) => None,
        }
    }
}

impl Place {
    pub(super) fn new(events: mpsc::UnboundedSender<Event>) -> Self {
        Self { events, since: Instant::now() }
    }

    fn tell(&self, event: Event) {
        // Without a pacer nobody waits; the job goes back to its broker with the connection.
        let _ = self.events.send(event);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.tell(Event::Landed(self.since.elapsed()));
    }
}

/// A job whose slot has come.
pub(super) struct Flight {
    gear: Arc<Gear>,
    place: Place,
    entry: Entry,
    slot: Micros,
    deadline: Deadline,
}

impl Flight {
    pub(super) fn new(gear: Arc<Gear>, place: Place, held: Held) -> Self {
        let Held { entry, slot, deadline } = held;
        Self { gear, place, entry, slot, deadline }
    }

    /// Takes a last look, releases the job to the sink, and settles it by the outcome.
    pub(super) async fn fly(self) {
        let Some(mut cleared) = self.check().await else { return };
        cleared.entry.attempts += 1;
        let outcome = cleared.gear.sink.send(&cleared.entry.job).await;
        cleared.gear.meters.dispatched(&outcome, cleared.place.since.elapsed());
        cleared.settle(outcome).await;
    }

    /// The last look before the hand-over: is the job still ours, is the slot still now?
    async fn check(self) -> Option<Self> {
        let meters = &self.gear.meters;
        if !self.entry.ticket.is_live() {
            meters.stale.increment(1);
            return None;
        }
        let late = self.deadline.late();
        if late > self.gear.tolerance {
            tracing::debug!(downstream = self.gear.downstream, ?late, "slot missed, reserving anew");
            meters.late.increment(1);
            self.place.tell(Event::Back(self.entry));
            return None;
        }
        if let Some(deadline) = self.entry.job.deadline.filter(|deadline| *deadline < wall_now()) {
            meters.slot_outdated();
            let report = self.report(None);
            self.bury(expired(deadline, report), Response::default()).await;
            return None;
        }
        meters.release(late);
        Some(self)
    }

    async fn settle(self, outcome: Outcome) {
        match outcome {
            Outcome::Delivered(receipt) => self.deliver(receipt).await,
            Outcome::Retry { reason, detail, status, after, response } => {
                self.gear.meters.retry(reason);
                match self.gear.retry.backoff(self.entry.attempts, after) {
                    Some(wait) => self.try_again(wait, &detail),
                    None => {
                        let response = response.unwrap_or_else(|| Response::without_body(status));
                        let (reason, report) = (Reason::AttemptsExhausted, self.report(status));
                        self.bury(DeadLetter { reason, detail, report }, response).await;
                    }
                }
            }
            Outcome::Dead { reason, detail, status, response } => {
                let response = response.unwrap_or_else(|| Response::without_body(status));
                let report = self.report(status);
                self.bury(DeadLetter { reason, detail, report }, response).await;
            }
        }
    }

    /// In this order: the reply confirmed, the ack.
    async fn deliver(self, receipt: Receipt) {
        let report = self.report(Some(receipt.response.status));
        let Self { gear, place, entry, .. } = self;
        // Nothing is being sent any more: a reply that takes long must not hold up others.
        drop(place);
        let _settling = gear.meters.settling();
        if entry.job.reply.is_some() {
            entry.ticket.reply(&receipt.response).await;
        }
        gear.meters.delivered.increment(1);
        entry.ticket.ack(receipt, report);
    }

    fn try_again(self, wait: Duration, detail: &str) {
        let id = &self.entry.job.id;
        tracing::debug!(downstream = self.gear.downstream, id, ?wait, detail, "failed, trying again");
        self.gear.meters.retried.increment(1);
        self.place.tell(Event::Retry(Instant::now() + wait, self.entry));
    }

    async fn bury(self, letter: DeadLetter, response: Response) {
        let Self { gear, place, entry, .. } = self;
        drop(place);
        let response = entry.job.reply.is_some().then_some(response);
        bury(gear, entry.ticket, letter, response).await;
    }

    fn report(&self, status: Option<u16>) -> Report {
        let released_at = (self.entry.attempts > 0).then_some(self.slot);
        Report { attempts: self.entry.attempts, status, released_at }
    }
}

/// Makes a job a dead letter, in this order: the reply (where one is wanted) confirmed, the copy
/// confirmed, the ack.
pub(super) async fn bury(
    gear: Arc<Gear>,
    ticket: Box<dyn Ticket>,
    letter: DeadLetter,
    reply: Option<Response>,
) {
    let _settling = gear.meters.settling();
    let downstream = &gear.downstream;
    tracing::warn!(downstream, reason = %letter.reason, detail = letter.detail, "dead-lettered");
    if let Some(mut response) = reply {
        if response.status == 0 && response.body.is_empty() {
            // It never got an answer: say what became of it.
            response.body = format!("{}: {}", letter.reason, letter.detail).into();
        }
        ticket.reply(&response).await;
    }
    gear.meters.dead.increment(1);
    gear.meters.rejected(letter.reason);
    ticket.bury(letter).await;
}
