//! The flight of one job: held until its slot, released to the sink, settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::clock::ReleaseClock;
use super::intake::expired;
use super::lane::Entry;
use super::meters::Meters;
use super::retry::RetryPolicy;
use super::source::{DeadLetter, Report, Ticket};
use crate::job::Reason;
use crate::sink::{Outcome, Receipt, Response, Sink};
use crate::time::{Micros, wall_now};

/// What all flights of a downstream share.
pub(super) struct Gear {
    pub(super) downstream: String,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) clock: Arc<dyn ReleaseClock>,
    pub(super) retry: RetryPolicy,
    /// A slot missed by more than this is given up.
    pub(super) tolerance: Duration,
    /// Counts the steps of the store's clock: slots of an earlier era are given up.
    pub(super) era: AtomicU64,
    pub(super) stop: CancellationToken,
    pub(super) meters: Meters,
}

/// What a flight tells its pacer.
#[derive(Debug)]
pub(super) enum Event {
    /// The slot was given up: the job waits for another one, in its old place.
    Back(Entry),
    /// The job failed and is tried again later.
    Retry(Instant, Entry),
    /// The flight is over; its place is free.
    Landed,
}

/// Tells the pacer that the place is free, however the flight ends.
pub(super) struct Place(mpsc::UnboundedSender<Event>);

impl Event {
    /// The job that comes back with it.
    pub(super) fn into_entry(self) -> Option<Entry> {
        match self {
            Self::Back(entry) | Self::Retry(_, entry) => Some(entry),
            Self::Landed => None,
        }
    }
}

impl Place {
    pub(super) const fn new(events: mpsc::UnboundedSender<Event>) -> Self {
        Self(events)
    }

    fn tell(&self, event: Event) {
        // Without a pacer nobody waits; the job goes back to its broker with the connection.
        let _ = self.0.send(event);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.tell(Event::Landed);
    }
}

/// A job with its slot.
pub(super) struct Flight {
    pub(super) gear: Arc<Gear>,
    pub(super) place: Place,
    pub(super) entry: Entry,
    pub(super) slot: Micros,
    /// The slot on this process's clock, never early.
    pub(super) deadline: Instant,
    pub(super) era: u64,
}

impl Flight {
    /// Holds the job until its slot, releases it to the sink, and settles it by the outcome.
    pub(super) async fn fly(self) {
        let Some(mut held) = self.hold().await else { return };
        held.entry.attempts += 1;
        held.gear.meters.released.increment(1);
        let outcome = held.gear.sink.send(&held.entry.job).await;
        held.settle(outcome).await;
    }

    /// Waits for the slot; `None` when the job is not to be released at it.
    async fn hold(self) -> Option<Self> {
        let gear = Arc::clone(&self.gear);
        tokio::select! {
            biased;
            () = gear.stop.cancelled() => {
                self.place.tell(Event::Back(self.entry));
                return None;
            }
            () = gear.clock.until(self.deadline) => {}
        }
        self.check().await
    }

    /// The last look before the hand-over: is the job still ours, is the slot still now?
    async fn check(self) -> Option<Self> {
        let meters = &self.gear.meters;
        let late = Instant::now().saturating_duration_since(self.deadline);
        meters.lateness.record(late.as_secs_f64());
        if !self.entry.ticket.is_live() {
            meters.stale.increment(1);
            return None;
        }
        if self.era != self.gear.era.load(Ordering::Acquire) {
            meters.stepped.increment(1);
            self.place.tell(Event::Back(self.entry));
            return None;
        }
        if late > self.gear.tolerance {
            tracing::debug!(downstream = self.gear.downstream, ?late, "slot missed, reserving anew");
            meters.late.increment(1);
            self.place.tell(Event::Back(self.entry));
            return None;
        }
        if let Some(deadline) = self.entry.job.deadline.filter(|deadline| *deadline < wall_now()) {
            let report = self.report(None);
            self.bury(expired(deadline, report), Response::default()).await;
            return None;
        }
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
        if entry.job.reply.is_some() {
            entry.ticket.reply(&receipt.response).await;
        }
        gear.meters.delivered.increment(1);
        entry.ticket.ack(receipt, report);
    }

    fn try_again(self, wait: Duration, detail: &str) {
        let id = &self.entry.job.id;
        tracing::debug!(downstream = self.gear.downstream, id, ?wait, detail, "failed, trying again");
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
