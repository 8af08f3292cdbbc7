//! Makes jobs dead letters.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::FlightContext;
use crate::bounded_log::BoundedLog;
use crate::dispatch::job_log;
use crate::dispatch::source::{DeadLetter, Ticket};
use crate::job::Reason;
use crate::sink::Response;

/// What the log says of a downstream's single jobs. It is bounded, since anybody who publishes can cause dead letters, and
/// the API can answer what it wants.
#[derive(Clone, Debug)]
pub(in crate::dispatch) struct Logs {
    letters: Arc<BoundedLog>,
    answers: Arc<BoundedLog>,
}

impl Logs {
    pub(in crate::dispatch) fn new(downstream: &str) -> Self {
        let (letters, answers) = (downstream.to_owned(), downstream.to_owned());
        Self {
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
        }
    }

    /// Tells of a delivery whose answer people should know something of.
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
    (ticket, id): (Box<dyn Ticket>, Option<String>),
    letter: DeadLetter,
    reply: Option<Response>,
) {
    let _settling = context.meters.settling();
    let DeadLetter { reason, detail, .. } = &letter;
    let (downstream, is_told) = (&context.downstream, context.is_failing.load(Ordering::Relaxed));
    // The configuration asks for these two, and they may befall any number of jobs.
    if matches!(reason, Reason::Rejected | Reason::QueueFull)
        || (is_told && *reason == Reason::AttemptsExhausted)
    {
        tracing::debug!(downstream, id, %reason, detail, "dead-lettered");
    } else {
        context.logs.letters.line(letter.reason.as_str(), || {
            tracing::warn!(downstream, id, %reason, detail, "dead-lettered");
        });
    }
    job_log::dead(downstream, id.as_deref(), &letter);
    if let Some(mut response) = reply {
        if response.status == 0 && response.body.is_empty() {
            // The job never got an answer, so the reply contains the reason.
            response.body = format!("{}: {}", letter.reason, letter.detail).into();
        }
        ticket.reply(&response).await;
    }
    context.meters.dead(letter.reason);
    ticket.dead_letter(letter).await;
}
