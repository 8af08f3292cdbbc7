//! Messages that are delivered again.

use std::sync::Arc;

use tokio::time::Instant;

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::flight::{self, Doomed, settle_delivered};
use crate::dispatch::job_log;
use crate::dispatch::unsettled::{Known, LeftOver};

impl Worker {
    /// The job, and from when on it may be sent if it waited here before; unless its message was delivered again and this
    /// replica settles it otherwise, or it was cancelled.
    pub(super) fn unless_ended(&self, entry: Box<Entry>) -> Option<(Box<Entry>, Option<Instant>)> {
        let id = entry.ticket.is_redelivered().then(|| entry.job.id.clone());
        let (downstream, context) = (&self.context.downstream, Arc::clone(&self.context));
        let Some((mut entry, known)) = entry.claim(&context.unsettled) else {
            tracing::debug!(
                downstream,
                id,
                "delivered again while it is being sent: waiting for that outcome"
            );
            return None;
        };
        let until = match known {
            Known::Nothing => None,
            Known::Waits(until, _) => Some(until).filter(|until| *until > Instant::now()),
            Known::Ended(rest) => {
                tracing::debug!(downstream, id, "delivered again: it is not sent again, but settled");
                job_log::known(downstream, &entry.job.id);
                entry.begin(&context.unsettled);
                self.flights.spawn(async move {
                    match rest {
                        LeftOver::Delivered(sent) => settle_delivered(&context, entry, sent, |_| {}).await,
                        LeftOver::Dead(letter, reply) => {
                            flight::bury(&context, Doomed::of(entry), letter, reply).await;
                        }
                        LeftOver::Buried(report) => entry.ticket.discard(report),
                    }
                });
                return None;
            }
        };
        self.unless_cancelled(entry).map(|entry| (entry, until))
    }
}
