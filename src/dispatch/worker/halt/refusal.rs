//! Jobs whose credentials are refused: they wait until it is clear what is at fault.

use std::time::Duration;

use tokio::time::Instant;

use crate::dispatch::flight::Refused;
use crate::dispatch::health::{Health, Verdict};
use crate::dispatch::retry::Attempts;
use crate::dispatch::source::ParkReason;
use crate::dispatch::worker::Worker;

/// A job that is refused is dead after this time, if it was refused as often as it may be tried. Credentials are
/// usually corrected sooner, and few jobs are tried as often.
const MAX_REFUSED_TIME: Duration = Duration::from_secs(15 * 60);

/// The same time where refused jobs fill the window, so that no other can come: they must not stop all others for long.
const MAX_REFUSED_TIME_FULL: Duration = Duration::from_secs(60);

impl Worker {
    /// Handles a refusal of a job's credentials: the job waits until it is clear what is at fault.
    pub(in crate::dispatch::worker) fn refused(&mut self, refused: Refused) {
        let Refused { mut entry, sent, letter, response, is_blameless } = refused;
        if !entry.ticket.is_live() {
            return;
        }
        let now = Instant::now();
        let before = entry.attempts.refusals.suspicion;
        let verdict = self.learn(|health| health.refused(before, is_blameless, sent, now));
        let is_worn = !is_blameless && self.is_worn(&mut entry.attempts, now);
        if is_blameless {
            // The time of an outage that the job is not to blame for must not count.
            entry.attempts.refusals.since = None;
        }
        match if is_worn { Verdict::Dead } else { verdict } {
            Verdict::Dead => {
                let reply = entry.job.reply.is_some().then_some(response);
                self.bury(entry, letter, reply);
            }
            Verdict::Waits(suspicion) => {
                self.context.meters.retry("unauthorized");
                self.context.meters.settled.retried.increment(1);
                entry.attempts.refusals.suspicion = Some(suspicion);
                entry.hold.reason = ParkReason::Retry;
                let wait = self.context.retry.backoff.wait(entry.attempts.refused);
                self.wait(now + wait, entry);
            }
        }
    }

    /// Whether a job that is refused now, and may be at fault itself, was refused for so long and so often that it
    /// becomes a dead letter.
    fn is_worn(&self, attempts: &mut Attempts, now: Instant) -> bool {
        let since = *attempts.refusals.since.get_or_insert(now);
        let patience = if self.halt.is_crowded { MAX_REFUSED_TIME_FULL } else { MAX_REFUSED_TIME };
        let blamed = attempts.refused.saturating_sub(attempts.refusals.blameless);
        blamed >= self.context.retry.max_attempts && now - since >= patience
    }

    /// Handles a change of the statuses that count as refusals: whether jobs are refused must be found out anew.
    pub(in crate::dispatch::worker) fn refusals_changed(&mut self) {
        self.learn(Health::nothing_to_try);
    }
}
