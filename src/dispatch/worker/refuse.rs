//! Jobs that get no slot, and their dead letters.

use std::time::Duration;

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::intake;
use crate::dispatch::source::{DeadLetter, Report};
use crate::job::Reason;
use crate::pace::{Refusal, Waiter as _};
use crate::sink::Response;
use crate::time::wall_now;

impl Worker {
    /// Dead-letters a job that gets no slot, if that still holds under the limits in force now.
    pub(super) fn refuse(&mut self, entry: Box<Entry>, refusal: Refusal) {
        let Some(mut entry) = self.unless_cancelled(entry) else { return };
        let Some((letter, retry_after)) = self.letter(&entry, refusal) else {
            // The wall clock may have been set.
            entry.renew_end();
            return self.engine.offer(entry);
        };
        let seconds = |after: Duration| ("retry-after".to_owned(), after.as_secs().to_string());
        let headers = retry_after.map(seconds).into_iter().collect();
        let response = Response { headers, ..Response::default() };
        let reply = entry.job.reply.is_some().then_some(response);
        self.bury(entry, letter, reply);
    }

    /// The dead letter of a job that gets no slot, and after how long another one may, where that is known; `None` if it
    /// may get one.
    fn letter(&self, entry: &Entry, refusal: Refusal) -> Option<(DeadLetter, Option<Duration>)> {
        let report = Report { attempts: entry.attempts.sent, ..Report::UNSENT };
        if let Refusal::Limited { lane, limit, earliest } = refusal {
            let limit = self.engine.settings().limits_of(lane).get(limit);
            return Some((intake::rejected(limit, earliest, report), None));
        }
        let now = wall_now();
        if let Some(deadline) = entry.job.times.deadline.filter(|deadline| *deadline < now) {
            return Some((intake::expired(deadline, report), None));
        }
        let is_early = refusal == Refusal::Ended { is_early: true };
        if let Some(give_up) = entry.patience().filter(|give_up| is_early || *give_up < now) {
            let bound = give_up.since(entry.age.born);
            if entry.is_tried() {
                return Some((intake::too_old(bound, report), None));
            }
            let expected = self.engine.expected_wait(entry.lane());
            let retry_after = expected.saturating_sub(bound).max(Duration::from_secs(1));
            // Rounded up, so that nobody comes too early.
            let more = u64::from(retry_after.subsec_nanos() > 0);
            let retry_after = Duration::from_secs(retry_after.as_secs() + more);
            return Some((intake::queue_full(bound, retry_after, report), Some(retry_after)));
        }
        let detail = self.intake.fits(entry).err()?;
        Some((DeadLetter::new(Reason::CostTooLarge, detail, report), None))
    }
}
