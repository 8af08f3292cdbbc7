//! Makes jobs dead letters.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::FlightContext;
use crate::bounded_log::BoundedLog;
use crate::dispatch::entry::Entry;
use crate::dispatch::job_log;
use crate::dispatch::source::{DeadLetter, Ticket, Unburied};
use crate::dispatch::unsettled::{LeftOver, Track};
use crate::job::Reason;
use crate::sink::Response;

/// A message of which a dead letter is made.
pub(in crate::dispatch) struct Doomed {
    ticket: Box<dyn Ticket>,
    /// The id of its job, if it is one.
    id: Option<String>,
    has_own_id: bool,
    track: Track,
}

impl Doomed {
    /// A job.
    pub(in crate::dispatch) fn of(entry: Box<Entry>) -> Self {
        let Entry { job, has_own_id, ticket, track, .. } = *entry;
        Self { ticket, id: Some(job.id.clone()), has_own_id, track }
    }

    /// A message that is no job.
    pub(in crate::dispatch) fn message(ticket: Box<dyn Ticket>) -> Self {
        Self { ticket, id: None, has_own_id: false, track: Track::default() }
    }
}

/// The log of a downstream's single jobs. It is bounded, since every producer can cause dead letters, and the API can
/// answer anything.
#[derive(Clone, Debug)]
pub(in crate::dispatch) struct Logs {
    letters: Arc<BoundedLog>,
    answers: Arc<BoundedLog>,
    throttled: Arc<BoundedLog>,
    downstream: Arc<str>,
}

impl Logs {
    pub(in crate::dispatch) fn new(downstream: &str) -> Self {
        let [letters, answers, throttled] = [(); 3].map(|()| downstream.to_owned());
        Self {
            downstream: downstream.into(),
            letters: BoundedLog::new(move |summary| {
                let (downstream, letters, reasons) = (&letters, summary.lines, &summary);
                tracing::warn!(downstream, letters, %reasons, "dead-lettered; too many to log each");
            }),
            answers: BoundedLog::with_bound(1, Duration::from_secs(1), move |summary| {
                let (downstream, jobs) = (&answers, summary.lines);
                tracing::info!(
                    downstream,
                    jobs,
                    "delivered, with remarks on the answers; too many to log each"
                );
            }),
            throttled: BoundedLog::with_bound(10, Duration::from_secs(60), move |summary| {
                let (downstream, pauses) = (&throttled, summary.lines);
                tracing::info!(downstream, pauses, "the downstream throttles lanes; too many to log each");
            }),
        }
    }

    /// Logs that lanes wait alone from now on.
    pub(in crate::dispatch) fn throttled(&self, lanes: &str) {
        let downstream = &*self.downstream;
        self.throttled.line("throttled", || {
            tracing::info!(
                downstream,
                lanes,
                "the downstream throttles these lanes: their jobs wait, and no others"
            );
        });
    }

    /// Logs a delivery with a remark on its answer.
    pub(super) fn delivered(&self, downstream: &str, id: &str, remark: &str) {
        self.answers.line("answer", || {
            tracing::info!(downstream, id, remark, "delivered, with a remark on the answer")
        });
    }
}

/// Makes a job a dead letter, in this order: the reply (if one is wanted) is confirmed, the copy is confirmed, the job
/// is acked.
pub(in crate::dispatch) async fn dead_letter(
    context: Arc<FlightContext>,
    doomed: Doomed,
    letter: DeadLetter,
    mut reply: Option<Response>,
) {
    let id = doomed.id.as_deref();
    let DeadLetter { reason, detail, .. } = &letter;
    let (downstream, is_logged) = (&context.downstream, context.is_failing.load(Ordering::Relaxed));
    // The configuration asks for these two, and they may happen to any number of jobs.
    if matches!(reason, Reason::Rejected | Reason::QueueFull)
        || (is_logged && *reason == Reason::AttemptsExhausted)
    {
        tracing::debug!(downstream, id, %reason, detail, "dead-lettered");
    } else {
        context.logs.letters.line(letter.reason.as_str(), || {
            tracing::warn!(downstream, id, %reason, detail, "dead-lettered");
        });
    }
    job_log::dead(downstream, id, &letter);
    for response in reply.iter_mut().filter(|response| response.status == 0 && response.body.is_empty()) {
        // The job never got an answer, so the reply contains the reason.
        response.body = format!("{}: {}", letter.reason, letter.detail).into();
    }
    context.meters.dead(letter.reason);
    bury(&context, doomed, letter, reply).await;
}

/// Publishes the reply and the letter of a dead job, and acks it. If its channel is lost meanwhile, the rest is done once its
/// message is delivered again.
pub(in crate::dispatch) async fn bury(
    context: &FlightContext,
    mut doomed: Doomed,
    mut letter: DeadLetter,
    mut reply: Option<Response>,
) {
    let _settling = context.meters.settling();
    loop {
        let Doomed { mut ticket, id, has_own_id, mut track } = doomed;
        if let Some(redelivered) = track.redelivered() {
            ticket = redelivered;
        }
        if let Some(response) = &reply
            && ticket.is_live()
            && ticket.reply(response).await
        {
            reply = None;
        }
        let rest = match (reply, ticket.is_live()) {
            (None, true) => match ticket.dead_letter(letter).await {
                None => return track.end(),
                Some(Unburied::Unpublished(letter)) => LeftOver::Dead(letter, None),
                Some(Unburied::Published(letter)) => LeftOver::Buried(letter.report),
            },
            (reply, _) => LeftOver::Dead(letter, reply),
        };
        match track.leave(has_own_id, rest) {
            Some((track, ticket, LeftOver::Dead(rest, left))) => {
                (letter, reply) = (rest, left);
                doomed = Doomed { ticket, id, has_own_id, track };
            }
            Some((_, ticket, LeftOver::Buried(report))) => return ticket.discard(report),
            _ => return,
        }
    }
}
