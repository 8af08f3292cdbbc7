//! One line for each job that is settled. Its target is off unless the operator names it.

use std::time::Duration;

use super::source::{DeadLetter, Report};
use crate::time::Micros;

/// The target of these lines.
pub const TARGET: &str = "paced::jobs";

/// Logs, at the level DEBUG, that a job is handed to its API: its slot, how long after that, and when that was on the
/// wall clock (µs since the epoch), since the line itself takes time. The other line of a job is written only when
/// the job is settled. These lines show the pace at the moment of release, also of failed attempts.
pub(super) fn released(downstream: &str, id: &str, slot: Micros, late: Duration, at: Micros) {
    tracing::debug!(target: TARGET, downstream, id, slot = slot.0, ?late, at = at.0, "released");
}

/// Logs a job that was delivered: its slot (µs since the epoch, on the store's clock), how long it waited since it was
/// first taken in, and how long after the slot it was released.
pub(super) fn delivered(
    downstream: &str,
    id: &str,
    Report { attempts, status, released_at }: Report,
    waited: impl FnOnce() -> Duration,
    late: Option<Duration>,
) {
    // The clock is read only if the line is written.
    if tracing::event_enabled!(target: TARGET, tracing::Level::INFO) {
        let (waited, late) = (waited(), late.unwrap_or_default());
        let slot = released_at.map(|slot| slot.0);
        tracing::info!(
            target: TARGET,
            downstream,
            id,
            outcome = "delivered",
            status,
            attempts,
            slot,
            ?waited,
            ?late,
            "job"
        );
    }
}

/// Logs a job whose message was delivered again, and that is not sent again: its outcome was logged before.
pub(super) fn known(downstream: &str, id: &str) {
    tracing::info!(target: TARGET, downstream, id, outcome = "known", "job");
}

/// Logs a job that became a dead letter.
pub(super) fn dead(downstream: &str, id: Option<&str>, letter: &DeadLetter) {
    let Report { attempts, status, .. } = letter.report;
    tracing::info!(target: TARGET, downstream, id, outcome = "dead", reason = %letter.reason, status, attempts, "job");
}

/// Logs a job that was cancelled.
pub(super) fn cancelled(downstream: &str, id: &str, Report { attempts, status, .. }: Report) {
    tracing::info!(target: TARGET, downstream, id, outcome = "cancelled", status, attempts, "job");
}
