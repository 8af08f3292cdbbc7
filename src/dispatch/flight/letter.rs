//! Makes jobs dead letters.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::FlightContext;
use crate::bounded_log::BoundedLog;
use crate::dispatch::job_log;
use crate::dispatch::source::{DeadLetter, Ticket};
use crate::job::Reason;
use crate::sink::Response;

/// The log of a downstream's dead letters.
pub(in crate::dispatch) fn letter_log(downstream: &str) -> Arc<BoundedLog> {
    let downstream = downstream.to_owned();
    BoundedLog::new(move |summary| {
        let (letters, reasons) = (summary.lines, &summary);
        tracing::warn!(downstream, letters, %reasons, "dead-lettered; too many to log each");
    })
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
        context.letters.line(letter.reason.as_str(), || {
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
