//! Empties the queues of a downstream each time a replica requests that.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::progress::Progress;
use super::{UnparkPermits, Unparking};
use crate::amqp::Options;
use crate::amqp::connection::Backoff;
use crate::amqp::depths::Depths;
use crate::amqp::error::Error;
use crate::amqp::links::Link;
use crate::amqp::rungs::RETRY;
use crate::amqp::supervisor::{Up, up};

/// The number of attempts in quick succession before the log reports the failure.
const ATTEMPTS: u32 = 10;

/// The waits before another check of queues that are empty or did not answer: until a leader is elected, or until a
/// busy leader has caught up with what is being parked.
const AGAIN: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];

/// Brings home the jobs of one downstream on each request.
pub(in crate::amqp) struct Unparker {
    pub(in crate::amqp) options: Arc<Options>,
    pub(in crate::amqp) downstream: String,
    /// The connection for that.
    pub(in crate::amqp) link: Link,
    pub(in crate::amqp) permits: UnparkPermits,
    /// Knows whether the queues exist.
    pub(in crate::amqp) depths: Depths,
    /// The last request: all jobs come home except those that were parked under these versions of the limits.
    pub(in crate::amqp) asked: watch::Receiver<Option<String>>,
    pub(in crate::amqp) closing: CancellationToken,
}

impl Unparker {
    /// Runs until the source is closed.
    pub(in crate::amqp) async fn run(mut self) {
        let closing = self.closing.clone();
        while let Some(Ok(())) = closing.run_until_cancelled(self.asked.changed()).await {
            // Its future is large, and there is one for each downstream.
            Box::pin(self.unpark()).await;
        }
    }

    /// Brings the jobs home, with retries, until they are home, or that is impossible, or it is requested again.
    async fn unpark(&mut self) {
        let versions = self.asked.borrow_and_update().clone();
        if self.depths.lacks_waits(&self.downstream) {
            debug!(
                downstream = self.downstream,
                "limits or pauses changed, but no parked jobs are brought back: their queues were missing at the last check"
            );
            return;
        }
        let (mut attempt, mut backoff) = (0, Backoff::default());
        let (mut progress, mut again) = (Progress::default(), AGAIN.iter());
        while let Some(Some(connection)) = self.closing.run_until_cancelled(up(&mut self.link.current)).await
        {
            let unparked = self.unpark_over(&connection, versions.as_deref(), &mut progress).await;
            // It would keep the socket of a lost connection open.
            drop(connection);
            let downstream = &self.downstream;
            let jobs = std::mem::take(&mut progress.jobs);
            if jobs > 0 {
                info!(
                    downstream,
                    jobs, "jobs that waited for a limit came back, since limits or pauses changed"
                );
            }
            let wait = match unparked {
                Ok(()) => match progress.doubtful().and_then(|_| again.next()) {
                    Some(wait) => *wait / self.options.haste,
                    None => return self.end(&progress),
                },
                Err(error) => {
                    attempt += 1;
                    again = AGAIN.iter();
                    // Where a queue was deleted meanwhile, the others still have jobs.
                    let is_final = error.is_final() && !matches!(error, Error::NotFound { .. });
                    if attempt == ATTEMPTS || is_final {
                        warn!(
                            downstream,
                            %error,
                            "jobs that wait for a limit stay parked for now, although limits or pauses changed: each job comes \
                             back by itself within 68 minutes, or with `paced unpark {downstream}`"
                        );
                    }
                    if is_final {
                        return;
                    }
                    if attempt < ATTEMPTS { backoff.next() } else { RETRY }
                }
            };
            if !self.rest(wait).await {
                return;
            }
        }
    }

    async fn unpark_over(
        &self,
        connection: &Up,
        versions: Option<&str>,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let Self { options, downstream, permits, closing, .. } = self;
        let admissions = &*connection.admissions;
        let asks_queues = false;
        let unparking = Unparking { connection, admissions, permits, closing, versions, asks_queues };
        let began = Instant::now();
        let unparked = unparking.run(options, downstream, progress).await;
        if unparked.is_ok() && progress.has_no_queue() {
            self.depths.waits_missing(downstream, began);
        }
        unparked
    }

    /// Waits. Returns false if it is to end, or was requested again.
    async fn rest(&mut self, wait: Duration) -> bool {
        tokio::select! {
            () = self.closing.cancelled() => false,
            _ = self.asked.changed() => {
                // `run` takes it.
                self.asked.mark_changed();
                false
            }
            () = tokio::time::sleep(wait) => true,
        }
    }

    fn end(&self, progress: &Progress) {
        let downstream = &self.downstream;
        if progress.has_begun() {
            warn!(
                downstream,
                "it is not known whether all jobs that waited for a limit came back, since their queue does not answer: any \
                 others come back by themselves within 68 minutes, or with `paced unpark {downstream}`"
            );
        }
    }
}
