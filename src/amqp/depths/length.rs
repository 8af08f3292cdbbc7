//! The known lengths of queues. It has no I/O.

use std::time::Duration;

use tokio::time::Instant;

/// The first wait before another check of a queue that could not be checked. It doubles each time: the broker closes
/// a channel at each such check, and logs that.
const FIRST_RETRY: Duration = Duration::from_secs(5);

/// The longest of these waits.
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// The first and the longest wait for a queue that is often missing.
const SELDOM: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(1800)];

/// The result of the latest checks of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No sweep has read it yet, or none could.
    Unknown,
    /// It was missing when a check began at this time.
    Missing { at: Instant },
    /// `last` is the result of the latest check, and `believed` is the length that counts.
    Found { believed: u32, last: u32 },
}

/// The length of one queue over time.
#[derive(Debug)]
pub(super) struct Length {
    /// The first wait after a failed check, and the longest.
    retries: [Duration; 2],
    state: State,
    /// The number of failed checks in a row, and when the next check is due.
    failures: u32,
    retry_at: Option<Instant>,
}

impl Length {
    /// A queue whose length is not known yet; `haste` divides the first wait after a failure.
    pub(super) fn new(haste: u32) -> Self {
        let retries = [FIRST_RETRY / haste, LONGEST_RETRY];
        Self { retries, state: State::Unknown, failures: 0, retry_at: None }
    }

    /// As [`Length::new`], for a queue that few downstreams have.
    pub(super) fn seldom(haste: u32) -> Self {
        let [first, longest] = SELDOM;
        Self { retries: [first / haste, longest], ..Self::new(haste) }
    }

    /// Forgets the length, which is outdated.
    pub(super) const fn forget(&mut self) {
        if matches!(self.state, State::Found { .. }) {
            self.state = State::Unknown;
        }
    }

    /// Makes the next sweep read the queue, which was declared just now.
    pub(super) const fn declared(&mut self) {
        (self.failures, self.retry_at) = (0, None);
    }

    /// The length that counts; `None` if the queue is missing, or cannot be checked.
    pub(super) const fn get(&self) -> Option<u32> {
        match self.state {
            State::Found { believed, .. } => Some(believed),
            State::Unknown | State::Missing { .. } => None,
        }
    }

    /// When the latest check began, if the queue was missing.
    pub(super) const fn missing_at(&self) -> Option<Instant> {
        match self.state {
            State::Missing { at } => Some(at),
            State::Unknown | State::Found { .. } => None,
        }
    }

    /// Whether the latest check found no queue, so that the next one probably finds none either.
    pub(super) const fn is_missing(&self) -> bool {
        matches!(self.state, State::Missing { .. }) && self.failures > 0
    }

    /// Whether the next check is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.retry_at.is_none_or(|at| at <= now)
    }

    /// Records the result of a check. A drop to 0 counts once the next check finds it too: the broker also reports 0
    /// for a queue that does not answer in time.
    pub(super) fn found(&mut self, messages: u32) {
        let believed = match self.state {
            State::Found { believed, last } if messages == 0 && last > 0 => believed,
            _ => messages,
        };
        *self = Self {
            retries: self.retries,
            state: State::Found { believed, last: messages },
            failures: 0,
            retry_at: None,
        };
    }

    /// Records that the queue is missing.
    pub(super) fn missing(&mut self, now: Instant) {
        self.state = State::Missing { at: now };
        self.wait(now);
    }

    /// Records that the queue cannot be checked. Returns whether this is the first such failure in a row.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let is_first = self.failures == 0 || self.state != State::Unknown;
        self.state = State::Unknown;
        self.wait(now);
        is_first
    }

    fn wait(&mut self, now: Instant) {
        let [first, longest] = self.retries;
        let wait = (first * (1 << self.failures.min(10))).min(longest);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_to_zero_counts_at_the_second_look() {
        let mut length = Length::new(1);
        assert_eq!(length.get(), None);
        let mut looks = |found: &[u32]| -> Vec<u32> {
            let check = |messages: &u32| {
                length.found(*messages);
                length.get().unwrap()
            };
            found.iter().map(check).collect()
        };
        assert_eq!(looks(&[0, 5, 3, 0, 4, 0, 0, 0, 7]), [0, 5, 3, 3, 4, 4, 0, 0, 7]);
    }

    #[test]
    fn what_was_found_before_a_change_makes_no_drop_to_zero_doubtful() {
        let mut length = Length::new(1);
        length.found(5);
        length.forget();
        assert_eq!(length.get(), None, "nobody knows");
        length.found(0);
        assert_eq!(length.get(), Some(0));
        let now = Instant::now();
        length.missing(now);
        length.forget();
        assert_eq!((length.get(), length.missing_at()), (None, Some(now)));
    }

    #[test]
    fn a_queue_that_was_missing_is_looked_at_as_soon_as_it_is_declared() {
        let (mut length, now) = (Length::seldom(1), Instant::now());
        for _ in 0..9 {
            length.missing(now);
        }
        let [first, longest] = SELDOM;
        assert!(!length.is_due(now + longest - first) && length.is_due(now + longest));
        length.declared();
        assert!(length.is_due(now));
        length.missing(now);
        assert!(length.is_due(now + first), "it was deleted meanwhile");
    }

    #[test]
    fn a_queue_that_cannot_be_looked_at_is_looked_at_ever_less() {
        let (mut length, start) = (Length::new(1), Instant::now());
        let mut now = start;
        assert!(length.is_due(now));
        let mut first_failures = 0;
        for wait in [5, 10, 20, 40, 80, 160, 300, 300] {
            first_failures += u32::from(length.failed(now));
            let next = now + Duration::from_secs(wait);
            assert!(!length.is_due(next - Duration::from_millis(1)) && length.is_due(next), "{wait} s");
            now = next;
        }
        assert_eq!((first_failures, length.get()), (1, None));
        length.found(2);
        assert!(length.is_due(now));
        length.missing(now);
        assert_eq!(length.get(), None);
        assert!(length.is_due(now + FIRST_RETRY) && !length.is_due(now));
        assert!(length.failed(now), "it is another reason");
    }
}
