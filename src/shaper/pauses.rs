//! Pauses of a downstream that a program asks for.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::time::Instant;

use super::Shaper;
use crate::store::{Change, LONGEST_PAUSE, Stamp, StoreError};
use crate::terms::Replica;

/// The note on a pause, which says who paused: this process.
static NOTE: LazyLock<String> =
    LazyLock::new(|| serde_json::json!({ "by": Replica::of_this_process().to_string() }).to_string());

impl Shaper {
    /// Pauses the downstream for `span` from now, for every worker on it, the daemon included. It is meant for a
    /// downstream that asks for a pause ([`retry_after`](crate::retry_after)). Of several pauses the latest end counts.
    ///
    /// Slots before its end are missed ([`Reservation::is_missed`](super::Reservation::is_missed)); [`Shaper::acquire`] gives them up and waits for
    /// others. After the pause, work continues at the pace of its limits, without a burst. Other processes are notified
    /// at once if the store can do so (Redis: pub/sub), and see the pause with their next call at the latest.
    ///
    /// Cancel safe: the pause is made, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not do it. Nothing is paused then, and the call may be repeated.
    pub async fn penalize(&self, span: Duration) -> Result<(), StoreError> {
        if span.is_zero() {
            return Ok(());
        }
        self.update(Change::Penalize(span.clamp(Duration::from_micros(1), LONGEST_PAUSE))).await
    }

    /// Pauses the downstream for all processes that work on it, as `paced pause` does: for `span` from now, or until
    /// somebody resumes. It replaces an earlier pause of an operator or a program with its reason, also by an earlier end.
    /// Slots in the pause are missed, as [`Shaper::penalize`] says.
    ///
    /// The host and the id of this process are shown as who paused. Neither the audit log of a daemon nor the history of
    /// changes has the pause.
    ///
    /// Cancel safe: the pause is made, or not.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a span below 1 µs, or of more than 366 days. Any other error when the store did not do
    /// it; the call may then be repeated.
    pub async fn pause(&self, span: Option<Duration>) -> Result<(), StoreError> {
        self.update(Change::Pause { span, note: &NOTE }).await
    }

    /// Ends every pause of the downstream for all processes that work on it, as `paced resume` does: that of an operator
    /// or a program, one that the downstream asked for, and a cool-down. Work continues at the pace of the limits,
    /// without a burst.
    ///
    /// Cancel safe: the pauses are ended, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not do it; the call may then be repeated.
    pub async fn resume(&self) -> Result<(), StoreError> {
        self.update(Change::Resume).await
    }

    async fn update(&self, change: Change<'static>) -> Result<(), StoreError> {
        let (core, sent) = (Arc::clone(&self.core), Instant::now());
        let updated = async move { core.store.update_record(&core.given.downstream, change).await };
        let record = self.core.call(updated).await?;
        let stamp = Stamp { now: record.now, epoch: record.epoch, status: record.status };
        self.core.forward_answer(sent, stamp).await;
        Ok(())
    }
}
