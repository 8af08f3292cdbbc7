//! Makes jobs dead letters.

use std::sync::Arc;

use super::FlightContext;
use crate::bounded_log::BoundedLog;
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
    ticket: Box<dyn Ticket>,
    letter: DeadLetter,
    reply: Option<Response>,
) {
    let _settling = context.meters.settling();
    let downstream = &context.downstream;
    if matches!(letter.reason, Reason::Rejected | Reason::QueueFull) {
        // The configuration asks for it, and it may befall any number of jobs.
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
