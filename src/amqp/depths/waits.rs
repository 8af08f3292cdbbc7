//! The queues of jobs that wait for a limit: the jobs in each, and the downstreams that have no such queues. It has
//! no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The jobs that are parked for a limit in one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// They come back after this time at the latest, and ask for a slot.
    pub within: Duration,
    /// Their number.
    pub jobs: u32,
}

/// How long the queues of a downstream count as missing after a check, since the broker logs each check of a missing
/// queue. If another replica declares them meanwhile, it also brings home the jobs that it parks there.
const COUNTS_FOR: Duration = Duration::from_secs(300);

/// The downstreams whose wait queues were missing in a check.
#[derive(Debug, Default)]
pub(super) struct MissingWaits {
    /// When the last check began that found none.
    missing: BTreeMap<String, Instant>,
    /// When this process declared them last.
    declared: BTreeMap<String, Instant>,
}

impl MissingWaits {
    /// Records that a check which began at this time found none. A later declaration takes precedence.
    pub(super) fn found(&mut self, downstream: &str, at: Instant) {
        if self.declared.get(downstream).is_none_or(|declared| *declared < at) {
            let last = self.missing.entry(downstream.to_owned()).or_insert(at);
            *last = at.max(*last);
        }
    }

    /// Notes that this process has declared them.
    pub(super) fn declared(&mut self, downstream: &str, at: Instant) {
        self.missing.remove(downstream);
        self.declared.insert(downstream.to_owned(), at);
    }

    /// Notes that a check which began at this time found some.
    pub(super) fn seen(&mut self, downstream: &str, at: Instant) {
        if self.missing.get(downstream).is_some_and(|missing| *missing <= at) {
            self.missing.remove(downstream);
        }
    }

    /// Forgets a downstream that is served no more.
    pub(super) fn forget(&mut self, downstream: &str) {
        self.missing.remove(downstream);
        self.declared.remove(downstream);
    }

    /// Whether they count as missing.
    pub(super) fn has(&self, downstream: &str, now: Instant) -> bool {
        self.missing.get(downstream).is_some_and(|at| now < *at + COUNTS_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_was_missing_counts_as_missing_for_a_while() {
        let (mut missing, before) = (MissingWaits::default(), Instant::now());
        let start = before + SECOND;
        assert!(!missing.has("billing", start), "nothing was checked");
        missing.found("billing", start);
        assert!(missing.has("billing", start) && !missing.has("other", start));
        missing.found("billing", before);
        assert!(missing.has("billing", start + COUNTS_FOR - SECOND));
        assert!(!missing.has("billing", start + COUNTS_FOR));
    }

    #[test]
    fn what_another_replica_has_declared_is_not_missing_once_it_was_seen() {
        let (mut missing, start) = (MissingWaits::default(), Instant::now());
        missing.found("billing", start + SECOND);
        missing.seen("billing", start);
        assert!(missing.has("billing", start + SECOND), "that check began before");
        missing.seen("billing", start + 2 * SECOND);
        assert!(!missing.has("billing", start + 2 * SECOND));
    }

    #[test]
    fn a_downstream_that_is_added_again_begins_anew() {
        let (mut missing, start) = (MissingWaits::default(), Instant::now());
        missing.declared("billing", start + SECOND);
        missing.forget("billing");
        missing.found("billing", start);
        assert!(missing.has("billing", start), "it was declared for another");
        missing.forget("billing");
        assert!(!missing.has("billing", start));
        assert!(missing.missing.is_empty() && missing.declared.is_empty());
    }

    #[test]
    fn a_look_that_began_before_they_were_declared_says_nothing() {
        let (mut missing, start) = (MissingWaits::default(), Instant::now());
        missing.found("billing", start);
        missing.declared("billing", start + SECOND);
        missing.found("billing", start);
        assert!(!missing.has("billing", start + SECOND));
        missing.found("billing", start + 2 * SECOND);
        assert!(missing.has("billing", start + 2 * SECOND), "they were deleted");
    }
}
