//! The flight of one job: it is released to the sink at its slot, and settled by the outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

mod event;
mod letter;
mod outcome;
mod settling;
mod successes;

use super::discard::discard;
use super::entry::Entry;
use super::failures::Ending;
use super::intake::expired;
use super::job_log;
use super::meters::Meters;
use super::preflight::Preflight;
use super::retry::RetryPolicy;
use super::unsettled::Unsettled;
use crate::pace::Waiter;
use crate::pace::meters::Abandoned;
use crate::pace::release::Held;
use crate::sink::{Handover, Outcome, Peer, Response, Sink};
use crate::time::{Deadline, Micros, wall_now};
pub(super) use event::{Event, FlightGuard, Refused};
pub(super) use letter::{Doomed, Logs, bury, dead_letter};
use outcome::{contact, is_answered, naming};
use settling::ended;
pub(super) use settling::settle_delivered;
pub(super) use successes::Successes;

/// The parts that all flights of a downstream share.
#[derive(Clone)]
pub(super) struct FlightContext {
    pub(super) downstream: String,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) retry: RetryPolicy,
    /// The checks before the hand-over.
    pub(super) preflight: Preflight,
    pub(super) meters: Meters,
    /// The logs of single jobs.
    pub(super) logs: Logs,
    /// The jobs that were sent and are not settled.
    pub(super) unsettled: Arc<Unsettled>,
    /// Whether attempt after attempt fails, and the log says so: then it need not name each job.
    pub(super) is_failing: Arc<AtomicBool>,
    pub(super) successes: Arc<Successes>,
}

/// A job whose slot has come.
pub(super) struct Flight {
    context: Arc<FlightContext>,
    place: FlightGuard,
    entry: Box<Entry>,
    slot: Micros,
    deadline: Deadline,
    /// How long after its slot it was handed over, once it was.
    late: Option<Duration>,
}

impl Flight {
    pub(super) fn new(context: Arc<FlightContext>, place: FlightGuard, held: Held<Box<Entry>>) -> Self {
        let Held { waiter: mut entry, slot, deadline } = held;
        entry.begin(&context.unsettled);
        Self { context, place, entry, slot, deadline, late: None }
    }

    /// Checks the job once more, releases it to the sink, and settles it by the outcome.
    pub(super) async fn run(self) {
        let Some(mut cleared) = self.check().await else { return };
        let outcome = cleared.release().await;
        let end = &cleared.place.end;
        cleared.context.meters.dispatched(&outcome, end.took.unwrap_or_else(|| end.since.elapsed()));
        ended(cleared.settle(outcome)).await;
    }

    /// The check before the hand-over: whether the job is still live, and its slot still valid and due.
    async fn check(self) -> Option<Self> {
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
            Box::pin(self.dead_letter(expired(deadline, report), Response::default())).await;
            return None;
        }
        Some(self)
    }

    /// Hands the job to the sink once there is a connection, unless by then its slot is missed or lies in a pause, or
    /// the job is cancelled.
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
            let (late, at) = (deadline.late(), wall_now());
            let in_time = late <= preflight.tolerance.while_connecting;
            // If a connection turns out to be closed, the check runs twice, and the job is sent once.
            if in_time && handed_over.set(late).is_ok() {
                context.meters.release(late);
                job_log::released(&context.downstream, &entry.job.id, *slot, late, at);
            }
            in_time
        };
        let repeats_unanswered = entry.attempts.is_unanswered;
        let (answers, peer) = (&context.retry.answers, Peer::default());
        let closing = context.unsettled.closing();
        let handover = Handover { look: &look, answers, repeats_unanswered, peer: &peer, closing };
        let outcome = context.sink.release(&entry.job, handover).await;
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
            entry.attempts.is_unanswered |= matches!(outcome, Outcome::Retry { status: None, .. });
        }
        let end = &mut self.place.end;
        end.contact = contact(&outcome);
        end.ending = Ending::of(&outcome, peer.address());
        if is_answered(&outcome) {
            end.took = Some(end.since.elapsed());
        }
        naming(outcome, peer.address())
    }

    /// Records that nothing is sent at the slot.
    fn abandon(&self, reason: Abandoned) {
        let Self { context, place, entry, slot, .. } = self;
        context.meters.abandoned(reason);
        // If retries do not outlast the outage, only the pace spaces the attempts.
        if reason == Abandoned::Unreachable && !context.retry.outlast {
            return;
        }
        place.send(Event::Unused { lane: entry.lane(), cost: entry.cost(), slot: *slot });
    }

    /// Gives up the slot: the job waits for another one.
    fn give_up(mut self) {
        self.entry.land(Instant::now());
        let (downstream, late) = (&self.context.downstream, self.deadline.late());
        tracing::debug!(downstream, ?late, "slot not used; reserving another one");
        self.place.send(Event::Back(self.entry));
    }

    /// Settles a job that was cancelled before it was handed over.
    async fn discard(mut self) {
        self.entry.adopt();
        let report = self.report(None);
        let Self { context, place, entry, .. } = self;
        drop(place);
        discard((&context.downstream, &context.meters), entry.ticket, &entry.job, report).await;
    }

    /// Settles by the outcome, and returns the rest of the work as a future. Most jobs have none; without the box the
    /// future of every flight would be large.
    fn settle(self, outcome: Outcome) -> Option<BoxFuture<'static, ()>> {
        match outcome {
            Outcome::Delivered(receipt) => self.deliver(receipt),
            outcome => Some(Box::pin(self.settle_any(outcome))),
        }
    }
}
