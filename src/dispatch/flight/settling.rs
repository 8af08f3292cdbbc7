//! How a job is settled by the outcome of its attempt.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::letter::Doomed;
use super::outcome::about_job;
use super::{Event, Flight, FlightContext, Refused, dead_letter};
use crate::dispatch::entry::Entry;
use crate::dispatch::job_log;
use crate::dispatch::retry::Attempts;
use crate::dispatch::source::{DeadLetter, Report};
use crate::dispatch::unsettled::{Delivered, LeftOver};
use crate::job::{Job, Reason};
use crate::sink::{Outcome, Receipt, Response};
use crate::time::{Deadline, Micros, wall_now};

/// How often a job with an unintelligible answer is repeated: each time the work may have been done.
const MAX_UNREADABLE: u32 = 1;

/// How many refusals of credentials that have been replaced do not count against the job.
const MAX_OUTDATED: u32 = 3;

impl Flight {
    /// Settles by any outcome.
    pub(super) async fn settle_any(mut self, outcome: Outcome) {
        let context = Arc::clone(&self.context);
        let retry = &context.retry;
        // A job that is refused with any credentials may be at fault itself.
        let is_old = self.entry.attempts.refusals.outdated >= MAX_OUTDATED;
        match if is_old { about_job(outcome) } else { outcome } {
            Outcome::Delivered(receipt) => ended(self.deliver(receipt)).await,
            Outcome::Missed => self.give_up(),
            Outcome::Unreachable { detail } => {
                context.meters.retry("connect");
                let Attempts { unreachable, .. } = self.entry.attempts;
                let outlasted = retry.outlast.then(|| retry.backoff.wait(unreachable));
                let wait = outlasted.or_else(|| retry.backoff(self.entry.attempts.failed(), None, None));
                self.try_again(wait, detail, (None, None), Event::Retry).await;
            }
            Outcome::Throttled { detail, status, after, is_final: true, response } => {
                after.into_iter().for_each(|after| self.pause(after));
                self.die((Reason::Status, detail, Some(status)), response).await;
            }
            Outcome::Throttled { detail, status, after, is_final: false, response } => {
                context.meters.retry("throttled");
                let wait = self.throttled(status, after.map(|after| after.min(retry.max_pause)));
                self.try_again(wait, detail, (Some(status), response), Event::Throttled).await;
            }
            Outcome::Unreadable { detail } => {
                context.meters.retry("answer");
                self.entry.attempts.unreadable += 1;
                if self.entry.attempts.unreadable > MAX_UNREADABLE {
                    let letter = DeadLetter::new(Reason::Status, detail, self.report(None));
                    return self.dead_letter(letter, Response::default()).await;
                }
                let wait = retry.backoff(self.entry.attempts.failed(), None, None);
                self.try_again(wait, detail, (None, None), Event::Retry).await;
            }
            Outcome::Outdated { detail, status, replaced, response, .. } => {
                self.entry.attempts.refused += 1;
                if !replaced {
                    self.entry.attempts.refusals.blameless += 1;
                    return self.refuse((Reason::Status, detail, Some(status)), response, true);
                }
                self.entry.attempts.refusals.outdated += 1;
                context.meters.retry("unauthorized");
                self.try_again(Some(Duration::ZERO), detail, (Some(status), response), Event::Retry).await;
            }
            Outcome::Unauthorized { detail, status, response } => {
                self.entry.attempts.refused += 1;
                self.refuse((Reason::Status, detail, Some(status)), response, false);
            }
            Outcome::Retry { reason, detail, status, after, response } => {
                context.meters.retry(reason);
                let after = after.map(|after| after.min(context.retry.max_pause));
                let wait = retry.backoff(self.entry.attempts.failed(), status, after);
                self.try_again(wait, detail, (status, response), Event::Retry).await;
            }
            Outcome::Dead { reason, detail, status, response } => {
                self.die((reason, detail, status), response).await;
            }
        }
    }

    /// Makes all jobs wait for this long, or those of some lanes alone.
    fn pause(&self, span: Duration) {
        let end = Instant::now() + span.min(self.context.retry.max_pause);
        self.place.send(Event::Pause(Deadline::at(end), Arc::clone(&self.entry.key)));
    }

    /// Records that the downstream throttled the job; `after` is the wait that it asked for, if it did. Returns how
    /// long the job waits; `None` if no attempt is left. All jobs that share a pause wait with it, unless another one
    /// of them succeeded since this job was last throttled: then the throttling is about this job alone.
    fn throttled(&mut self, status: u16, after: Option<Duration>) -> Option<Duration> {
        let (successes, key) = (&self.context.successes, &self.entry.key);
        successes.note_throttled(key);
        let attempts = &mut self.entry.attempts;
        let (now, before) = (Instant::now(), attempts.throttled_at);
        (attempts.throttled, attempts.throttled_at) = (attempts.throttled + 1, Some(now));
        if before.is_some_and(|before| successes.is_any_after(before, key)) {
            attempts.alone += 1;
        } else {
            attempts.alone = 0;
            match after {
                Some(after) => self.pause(after),
                None => self.place.send(Event::CoolDown(self.place.end.since, Arc::clone(key))),
            }
        }
        let Attempts { throttled, alone, .. } = self.entry.attempts;
        self.context.retry.throttled(throttled, alone, status, after)
    }

    /// Reports that the credentials were refused, with the dead letter that the job becomes if it is at fault itself.
    fn refuse(self, why: (Reason, String, Option<u16>), response: Option<Response>, is_blameless: bool) {
        let (letter, response) = self.letter(why, response);
        let Self { place, mut entry, .. } = self;
        entry.land(Instant::now());
        let sent = place.end.since;
        place.send(Event::Refused(Box::new(Refused { entry, sent, letter, response, is_blameless })));
    }

    /// The dead letter that the job would be, and the answer to a producer that waits for a reply.
    fn letter(
        &self,
        (reason, detail, status): (Reason, String, Option<u16>),
        response: Option<Response>,
    ) -> (DeadLetter, Response) {
        let (excerpt, status, response) = as_failure(status, response);
        (DeadLetter::new(reason, detail, self.report(status)).with_response(excerpt), response)
    }

    /// Acks the job. If its producer waits for a reply, returns the future that first has the reply confirmed.
    pub(super) fn deliver(self, receipt: Receipt) -> Option<BoxFuture<'static, ()>> {
        if let Some(rest) = receipt.rest {
            self.pause(rest);
        }
        let report = self.report(Some(receipt.response.status));
        let Self { context, place, entry, late, .. } = self;
        // The send is over: a reply that takes long must not hold up others.
        context.successes.note(place.end.since, &entry.key);
        drop(place);
        let record =
            Record { report, remark: receipt.remark.clone(), first_seen: entry.age.first_seen, late };
        let is_replied = entry.job.reply.is_none();
        let sent = Delivered { receipt, report, is_replied };
        if is_replied {
            let mut record = Some(|job: &Job| record.note(&context, job));
            let mut left = Some((entry, sent));
            while let Some((mut entry, sent)) = left.take() {
                entry.adopt();
                left = end(entry, sent, &mut record);
            }
            return None;
        }
        Some(Box::pin(async move {
            settle_delivered(&context, entry, sent, |job| record.note(&context, job)).await;
        }))
    }

    /// Schedules another attempt after this wait. Without a wait no attempt is left, and the job becomes a dead
    /// letter; so does a job that would be too old by then.
    async fn try_again(
        mut self,
        mut wait: Option<Duration>,
        mut detail: String,
        (status, response): (Option<u16>, Option<Response>),
        event: impl FnOnce(Instant, Box<Entry>) -> Event,
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
            return self.die((Reason::AttemptsExhausted, detail, status), response).await;
        };
        let id = &self.entry.job.id;
        tracing::debug!(downstream = self.context.downstream, id, ?wait, detail, "failed, trying again");
        self.context.meters.settled.retried.increment(1);
        let until = Instant::now() + wait;
        self.entry.land(until);
        self.place.send(event(until, self.entry));
    }

    /// Dead-letters the job for this reason.
    async fn die(self, why: (Reason, String, Option<u16>), response: Option<Response>) {
        let (letter, response) = self.letter(why, response);
        self.dead_letter(letter, response).await;
    }

    pub(super) async fn dead_letter(self, letter: DeadLetter, response: Response) {
        let Self { context, place, entry, .. } = self;
        drop(place);
        let response = entry.job.reply.is_some().then_some(response);
        dead_letter(context, Doomed::of(entry), letter, response).await;
    }

    pub(super) fn report(&self, status: Option<u16>) -> Report {
        let attempts = self.entry.attempts.sent;
        Report { attempts, status, released_at: (attempts > 0).then_some(self.slot) }
    }
}

/// Waits for what is left of a settlement, if anything is.
pub(super) async fn ended(rest: Option<BoxFuture<'static, ()>>) {
    if let Some(rest) = rest {
        rest.await;
    }
}

/// What is noted of a job that was delivered.
struct Record {
    report: Report,
    remark: Option<String>,
    first_seen: Micros,
    late: Option<Duration>,
}

impl Record {
    fn note(self, context: &FlightContext, job: &Job) {
        context.meters.delivered();
        if let Some(remark) = &self.remark {
            context.logs.delivered(&context.downstream, &job.id, remark);
        }
        let waited = || wall_now().since(self.first_seen);
        job_log::delivered(&context.downstream, &job.id, self.report, waited, self.late);
    }
}

/// Settles a job that was delivered: the reply is confirmed first, then it is noted, then acked. If its channel is lost
/// meanwhile, the rest is done once its message is delivered again.
pub(in crate::dispatch) async fn settle_delivered(
    context: &FlightContext,
    mut entry: Box<Entry>,
    mut sent: Delivered,
    note: impl FnOnce(&Job),
) {
    let _settling = context.meters.settling();
    let mut note = Some(note);
    loop {
        entry.adopt();
        if !sent.is_replied && entry.ticket.is_live() {
            sent.is_replied = entry.ticket.reply(&sent.receipt.response).await;
        }
        let Some(left) = end(entry, sent, &mut note) else { return };
        (entry, sent) = left;
    }
}

/// Notes and acks a job that was delivered and replied to. If its channel is lost, what is left is remembered, or returned
/// if its message was delivered again meanwhile.
fn end(
    mut entry: Box<Entry>,
    sent: Delivered,
    note: &mut Option<impl FnOnce(&Job)>,
) -> Option<(Box<Entry>, Delivered)> {
    if sent.is_replied || !entry.ticket.is_live() {
        note.take().into_iter().for_each(|note| note(&entry.job));
    }
    if sent.is_replied && entry.ticket.is_live() {
        entry.track.end();
        entry.ticket.ack(sent.receipt, sent.report);
        return None;
    }
    let track = std::mem::take(&mut entry.track);
    match track.leave(entry.has_own_id, LeftOver::Delivered(sent)) {
        Some((track, ticket, LeftOver::Delivered(rest))) => {
            (entry.track, entry.ticket) = (track, ticket);
            Some((entry, rest))
        }
        _ => None,
    }
}

/// For a job that becomes a dead letter: the beginning of the answer, its status, and the reply. If the answer was a
/// success, neither the status nor the reply shows it: the reply must not look like a success.
fn as_failure(status: Option<u16>, response: Option<Response>) -> (Bytes, Option<u16>, Response) {
    let is_failure = |status: u16| !(200..300).contains(&status);
    let status = status.filter(|status| is_failure(*status));
    let mut response = response.unwrap_or_else(|| Response::without_body(status));
    let excerpt = std::mem::take(&mut response.excerpt);
    if !is_failure(response.status) {
        response = Response::without_body(status);
    }
    (excerpt, status, response)
}
