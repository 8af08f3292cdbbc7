//! What replicas report to each other through the store: summaries of themselves, how many jobs are parked, and the last
//! changes by operators.

use std::time::Duration;

use super::StoreError;
use super::call::check_replica;
use super::error::ensure;
use crate::time::Micros;

/// The most summaries that [`Store::summaries`](super::Store::summaries) lists: those that end last.
pub const MAX_SUMMARIES: usize = 1_000;

/// The longest summary of a replica, in bytes.
pub const MAX_SUMMARY_BYTES: usize = 1 << 20;

/// The most bytes of summaries that are listed: no replica must run out of memory because of what the others left.
pub(super) const MAX_LISTED_BYTES: usize = 64 << 20;

/// The longest time for which a summary can be left.
pub const LONGEST_SUMMARY: Duration = Duration::from_secs(86_400);

/// How long the number of parked jobs is kept after its last change: longer than a job can be parked.
#[cfg(feature = "redis")]
pub(super) const PARKED_KEPT: Duration = Duration::from_secs(400 * 86_400);

/// The most changes of a downstream that its history has.
pub const MAX_HISTORY: usize = 100;

/// How long a change is in the history.
pub const HISTORY_KEPT: Duration = Duration::from_secs(90 * 86_400);

/// The longest text of a change, in bytes.
pub const MAX_HISTORY_BYTES: usize = 2048;

/// A change of a downstream, for people: one line of at most [`MAX_HISTORY_BYTES`], which is opaque to the store. A history
/// has the last [`MAX_HISTORY`], the oldest first, of the last [`HISTORY_KEPT`]. A store that loses its state loses it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// When it was noted, on the store's clock, in whole milliseconds.
    pub at: Micros,
    /// What was noted; it is opaque to the store.
    pub text: String,
}

/// # Errors
/// [`StoreError::Invalid`] for a text that is empty, too long, or of several lines.
pub(super) fn check_history(text: Option<&str>) -> Result<(), StoreError> {
    let fits = |text: &str| (1..=MAX_HISTORY_BYTES).contains(&text.len()) && !text.contains('\n');
    ensure(text.is_none_or(fits), || {
        format!("no text for a history; use 1 to {MAX_HISTORY_BYTES} bytes on one line")
    })
}

/// The most jobs that are counted as parked: a double holds every number up to it exactly.
pub(super) const MAX_PARKED: i64 = (1 << 53) - 1;

/// # Errors
/// [`StoreError::Invalid`] for a name that no replica has, a summary that is empty or too long, or a time that is too
/// long. If a summary is withdrawn, only the name counts.
pub(super) fn check_summary(replica: &str, summary: &str, ttl: Duration) -> Result<(), StoreError> {
    check_replica(replica)?;
    if ttl.is_zero() {
        return Ok(());
    }
    let (lasts, bytes) = (Duration::from_millis(1)..=LONGEST_SUMMARY, summary.len());
    ensure(lasts.contains(&ttl), || format!("a summary for {ttl:?}; use 1ms to {LONGEST_SUMMARY:?}"))?;
    ensure((1..=MAX_SUMMARY_BYTES).contains(&bytes), || {
        format!("a summary of {bytes} bytes; use 1 to {MAX_SUMMARY_BYTES}")
    })
}

/// The summaries that a list has room for: the first ones, up to [`MAX_LISTED_BYTES`] in all.
#[derive(Debug, Default)]
pub(super) struct List {
    summaries: Vec<String>,
    bytes: usize,
}

impl List {
    /// Adds a summary, and returns whether there was room for it.
    pub(super) fn push(&mut self, summary: String) -> bool {
        self.bytes = self.bytes.saturating_add(summary.len());
        let fits = self.bytes <= MAX_LISTED_BYTES;
        if fits {
            self.summaries.push(summary);
        }
        fits
    }

    pub(super) fn into_inner(self) -> Vec<String> {
        self.summaries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_that_no_store_keeps() {
        let second = Duration::from_secs(1);
        let longest = "x".repeat(MAX_SUMMARY_BYTES);
        assert!(check_summary("one", &longest, LONGEST_SUMMARY).is_ok());
        assert!(check_summary("one", "", Duration::ZERO).is_ok(), "it is withdrawn");
        for (replica, summary, ttl, expected) in [
            ("", "{}", second, "a replica's name of 0 bytes"),
            (&"r".repeat(65), "{}", Duration::ZERO, "a replica's name of 65 bytes"),
            ("one", "", second, "a summary of 0 bytes"),
            ("one", &format!("{longest}x"), second, "a summary of 1048577 bytes"),
            ("one", "{}", Duration::from_micros(999), "a summary for 999µs"),
            ("one", "{}", LONGEST_SUMMARY + second, "a summary for 86401s"),
        ] {
            let error = check_summary(replica, summary, ttl).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_list_has_room_for_so_many_bytes() {
        let mut list = List::default();
        let longest = "x".repeat(MAX_SUMMARY_BYTES);
        assert_eq!((0..100).take_while(|_| list.push(longest.clone())).count(), 64);
        assert!(!list.push("x".to_owned()), "none that follows is listed in place of one that was left out");
        assert_eq!(list.into_inner().len(), 64);
    }
}
