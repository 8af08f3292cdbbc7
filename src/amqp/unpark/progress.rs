//! What is known about the queues of a downstream that are being emptied. It has no I/O.

use std::collections::BTreeMap;

/// The queues of a downstream, since somebody requested the jobs in them.
///
/// The broker answers a check with the numbers of messages and of holders: consumers, and other clients that have
/// messages unacked. It answers 0 and 0 for a queue that is empty, and for one that did not answer the broker in
/// time.
///
/// | state | 0 and 0 | no message, and holders | messages | emptied | missing |
/// |---|---|---|---|---|---|
/// | new | `Silent` | `Empty` | `Begun` | | new |
/// | `Silent` | `Silent` | `Empty` | `Begun` | | new |
/// | `Begun` | `Begun` | `Empty` | `Begun` | `Empty` | new |
///
/// A replica does not ask for an `Empty` one again.
#[derive(Debug, Default)]
pub(super) struct Progress {
    queues: BTreeMap<String, State>,
    /// Whether the latest check found no queue.
    has_no_queue: bool,
    /// The jobs that were brought home.
    pub(super) jobs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is empty, or did not answer.
    Silent,
    /// It had jobs, which may still be there.
    Begun,
    Empty,
}

impl Progress {
    /// Records the answer to a check. Returns true if there were checks of this queue before and none of them found a message.
    pub(super) fn seen(&mut self, queue: &str, messages: u32, holders: u32) -> bool {
        let state = match (messages, holders, self.queues.get(queue)) {
            (0, 0, Some(State::Begun)) => State::Begun,
            (0, 0, _) => State::Silent,
            (0, ..) => State::Empty,
            _ => State::Begun,
        };
        self.has_no_queue = false;
        self.queues.insert(queue.to_owned(), state) == Some(State::Silent)
    }

    /// Records that a queue was emptied.
    pub(super) fn emptied(&mut self, queue: &str) {
        self.queues.insert(queue.to_owned(), State::Empty);
    }

    /// Records that a queue does not exist.
    pub(super) fn missing(&mut self, queue: &str) {
        self.queues.remove(queue);
    }

    /// Records that no queue exists.
    pub(super) fn all_missing(&mut self) {
        self.queues.clear();
        self.has_no_queue = true;
    }

    /// Whether the latest check found that no queue exists.
    pub(super) const fn has_no_queue(&self) -> bool {
        self.has_no_queue
    }

    /// Whether it is certain that the queue is empty.
    pub(super) fn is_empty(&self, queue: &str) -> bool {
        self.queues.get(queue) == Some(&State::Empty)
    }

    /// A queue that must be checked again.
    pub(super) fn doubtful(&self) -> Option<&str> {
        self.queues.iter().find(|(_, state)| **state != State::Empty).map(|(queue, _)| queue.as_str())
    }

    /// Whether there is a queue that had jobs, and never reported that it has none any more.
    pub(super) fn has_begun(&self) -> bool {
        self.queues.values().any(|state| *state == State::Begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of these checks of one queue: whether it is certainly empty, must be checked again, and may have
    /// jobs.
    fn after(checks: &[(u32, u32)]) -> (bool, bool, bool) {
        let mut progress = Progress::default();
        for (messages, holders) in checks {
            progress.seen("q", *messages, *holders);
        }
        (progress.is_empty("q"), progress.doubtful().is_some(), progress.has_begun())
    }

    #[test]
    fn a_zero_counts_where_the_queue_itself_has_answered() {
        let (empty, silent, begun) = ((true, false, false), (false, true, false), (false, true, true));
        assert_eq!(after(&[]), (false, false, false));
        for before in [&[][..], &[(0, 0)], &[(5, 0)], &[(5, 1), (0, 0)]] {
            let had_jobs = before.iter().any(|(messages, _)| *messages > 0);
            let then = |check| after(&[before, &[check]].concat());
            assert_eq!(then((0, 0)), if had_jobs { begun } else { silent }, "{before:?}");
            assert_eq!(then((0, 1)), empty, "{before:?}");
            assert_eq!((then((3, 0)), then((3, 2))), (begun, begun), "{before:?}");
        }
    }

    #[test]
    fn what_a_queue_had_before_is_known_of_each_alone() {
        let mut progress = Progress::default();
        assert!(!progress.seen("a", 0, 0) && !progress.seen("b", 7, 0), "the first check");
        assert!(progress.seen("a", 0, 0) && !progress.seen("b", 0, 0) && !progress.seen("c", 7, 0));
        assert!(progress.seen("a", 7, 0), "it had none");
        // It failed with some of them still there.
        assert!(!progress.seen("a", 5, 0) && !progress.seen("a", 0, 0) && !progress.seen("a", 5, 0));
        progress.missing("a");
        assert!(!progress.seen("a", 5, 0), "it was declared anew");
    }

    #[test]
    fn each_queue_is_known_alone() {
        let mut progress = Progress::default();
        assert!(!progress.has_no_queue(), "nothing was checked");
        progress.seen("a", 0, 0);
        progress.seen("b", 7, 0);
        progress.emptied("b");
        assert_eq!(
            (progress.is_empty("b"), progress.doubtful(), progress.has_begun()),
            (true, Some("a"), false)
        );
        progress.missing("a");
        assert_eq!((progress.is_empty("a"), progress.doubtful()), (false, None));
        progress.seen("c", 7, 0);
        assert_eq!((progress.doubtful(), progress.has_begun()), (Some("c"), true));
        assert!(!progress.has_no_queue());
        progress.all_missing();
        assert_eq!((progress.doubtful(), progress.has_begun()), (None, false));
        assert!(progress.has_no_queue());
        progress.seen("a", 0, 0);
        assert!(!progress.has_no_queue());
    }
}
