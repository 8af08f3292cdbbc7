//! The tombstones of cancelled jobs: a store keeps them, and every replica learns from it what not to send.

use std::sync::Arc;
use std::time::Duration;

use super::error::ensure;
use super::{LONGEST_PAUSE, Status, StoreError};
use crate::time::Micros;

/// The most tombstones that a store keeps for one downstream, including those that were undone.
pub const MAX_TOMBSTONES: usize = 100_000;

/// The most ids in one call, and in one answer.
pub const MAX_TOMBSTONE_BATCH: usize = 1_000;

/// The longest time that a job can be cancelled for.
pub const LONGEST_TOMBSTONE: Duration = LONGEST_PAUSE;

/// The longest id of a job, in bytes.
const LONGEST_ID: usize = 255;

/// A cancelled job, or one that was cancelled and is not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The id of the job.
    pub id: Arc<str>,
    /// The end of the tombstone on the store's clock. Of several for one id the latest counts, so each change moves it
    /// to a later instant.
    pub until: Micros,
    /// Whether it was undone: the job may be sent. It is kept until it ends, so that no replica that does not know
    /// it restores the tombstone after a loss of the store.
    pub is_undone: bool,
}

/// A call about the tombstones of a downstream; see [`Store::tombstones`](super::Store::tombstones).
#[derive(Clone, Copy, Debug)]
pub enum TombstoneCall<'a> {
    /// Cancels the jobs with these ids for this long from the store's now on. One that is cancelled for longer already
    /// stays so.
    Cancel {
        /// The ids, at most [`MAX_TOMBSTONE_BATCH`].
        ids: &'a [Arc<str>],
        /// At most [`LONGEST_TOMBSTONE`].
        span: Duration,
    },
    /// Ends the tombstones of these ids. Ids that are not cancelled are ignored.
    Undo {
        /// The ids, at most [`MAX_TOMBSTONE_BATCH`].
        ids: &'a [Arc<str>],
    },
    /// Restores tombstones that the store has lost. Each is applied only where it ends later than the store's.
    Recall {
        /// At most [`MAX_TOMBSTONE_BATCH`].
        tombstones: &'a [Tombstone],
    },
    /// Reads the tombstones that changed after this version.
    Read {
        /// As in [`TombstoneReply::up_to`]; 0 for all.
        after: u64,
    },
}

/// The answer to a [`TombstoneCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TombstoneReply {
    /// The store's clock when it decided.
    pub now: Micros,
    /// As in [`Stamp::epoch`](super::Stamp::epoch).
    pub epoch: Micros,
    /// As in [`Stamp::status`](super::Stamp::status).
    pub status: Status,
    /// How many ids the call changed.
    pub changed: usize,
    /// The version of the tombstones before the call.
    pub before: u64,
    /// What [`TombstoneCall::Read`] asks for, by version, at most [`MAX_TOMBSTONE_BATCH`].
    pub page: Vec<Tombstone>,
    /// The version up to which all changes are in `page`; there are more if it is not that of the status.
    pub up_to: u64,
}

impl TombstoneCall<'_> {
    /// # Errors
    /// [`StoreError::Invalid`] for ids that no job has, too many of them, or a span that is zero or too long.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match *self {
            Self::Cancel { ids, span } => {
                ensure((Duration::from_micros(1)..=LONGEST_TOMBSTONE).contains(&span), || {
                    format!("jobs cannot be cancelled for {span:?}; use 1us to 366d")
                })?;
                check_ids(ids.iter())
            }
            Self::Undo { ids } => check_ids(ids.iter()),
            Self::Recall { tombstones } => check_ids(tombstones.iter().map(|tombstone| &tombstone.id)),
            Self::Read { .. } => Ok(()),
        }
    }
}

/// The error of a store that keeps as many tombstones as it may.
pub(super) fn too_many(downstream: &str) -> StoreError {
    StoreError::Invalid(format!(
        "`{downstream}` would have more than {MAX_TOMBSTONES} cancelled jobs, and none was added; cancel for a shorter \
         time, or wait until some have ended"
    ))
}

fn check_ids<'a>(mut ids: impl ExactSizeIterator<Item = &'a Arc<str>>) -> Result<(), StoreError> {
    let count = ids.len();
    ensure(count <= MAX_TOMBSTONE_BATCH, || {
        format!("{count} ids in one call; at most {MAX_TOMBSTONE_BATCH} fit, so use several")
    })?;
    ids.try_for_each(|id| {
        ensure(is_id(id), || {
            let shown: String = id.escape_debug().take(40).collect();
            format!("`{shown}` is no job id; use 1 to {LONGEST_ID} visible ASCII characters")
        })
    })
}

/// Whether a job can have this id.
fn is_id(text: &str) -> bool {
    (1..=LONGEST_ID).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_no_store_answers() {
        let ids = |count: usize| vec![Arc::from("a"); count];
        let day = Duration::from_secs(86_400);
        let check = |call: TombstoneCall<'_>| call.check().map_err(|error| error.to_string());
        assert_eq!(check(TombstoneCall::Cancel { ids: &ids(1000), span: 366 * day }), Ok(()));
        assert_eq!(check(TombstoneCall::Read { after: 0 }), Ok(()));
        let long = [Arc::from("x".repeat(256))];
        for (call, expected) in [
            (TombstoneCall::Cancel { ids: &ids(1), span: 367 * day }, "use 1us to 366d"),
            (TombstoneCall::Cancel { ids: &ids(1), span: Duration::ZERO }, "use 1us to 366d"),
            (TombstoneCall::Undo { ids: &ids(1001) }, "1001 ids in one call; at most 1000 fit"),
            (TombstoneCall::Undo { ids: &[Arc::from("")] }, "`` is no job id"),
            (TombstoneCall::Undo { ids: &[Arc::from("a\n")] }, "`a\\n` is no job id; use 1 to 255"),
            (TombstoneCall::Undo { ids: &long }, "is no job id"),
        ] {
            let error = check(call).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
