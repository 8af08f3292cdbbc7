//! The end of a cancelled job: it is settled and not sent.

use super::meters::Meters;
use super::source::{Report, Ticket};
use crate::job::Job;
use crate::sink::Response;

/// Settles a cancelled job: the reply (if one is wanted) is confirmed, then the job is acked.
pub(super) async fn discard(
    (downstream, meters): (&str, &Meters),
    ticket: Box<dyn Ticket>,
    job: &Job,
    report: Report,
) {
    if !ticket.is_live() {
        // Its broker delivers it again.
        return;
    }
    let _settling = meters.settling();
    tracing::debug!(downstream, id = job.id, attempts = report.attempts, "cancelled: not sent");
    if job.reply.is_some() {
        // The status 0 stands for no answer of the downstream.
        let body = match report.attempts {
            0 => "cancelled: an operator cancelled the job before it was sent".to_owned(),
            attempts => format!("cancelled: an operator cancelled the job after {attempts} attempt(s)"),
        };
        ticket.reply(&Response { body: body.into(), ..Response::default() }).await;
    }
    meters.settled.cancelled.increment(1);
    super::job_log::cancelled(downstream, &job.id, report);
    ticket.discard(report);
}
