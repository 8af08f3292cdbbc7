//! Whether many of the jobs that wait do not have the part by which lanes share. Their producers or `lanes.by` may be
//! wrong, and nobody would notice: all of these jobs share as one tenant, within the limits of one. It has no I/O.

use std::time::Duration;

use tokio::time::Instant;

use crate::episode::Episode;
use crate::failpoint;

/// How long they are many before the log says so.
const AFTER: Duration = Duration::from_secs(60);

/// The fewest jobs that are many.
const LEAST: usize = 10;

/// Follows the jobs that do not have the part by which lanes share.
#[derive(Debug)]
pub(super) struct Unnamed(Episode);

/// What the log is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// They have been many for a while.
    AreMany,
    /// They are few again.
    AreFew,
}

impl Default for Unnamed {
    fn default() -> Self {
        Self(Episode::after(failpoint::interval(AFTER)))
    }
}

impl Unnamed {
    /// Notes how many of the jobs that wait at `now` do not have the part. They are many above a tenth, and few up to a
    /// twentieth.
    pub(super) fn note(&mut self, unnamed: usize, waiting: usize, now: Instant) -> Option<Notice> {
        if unnamed >= LEAST && unnamed.saturating_mul(10) > waiting {
            return self.0.note_at((), now).then_some(Notice::AreMany);
        }
        let are_few = unnamed.saturating_mul(20) <= waiting;
        (are_few && self.0.end()).then_some(Notice::AreFew)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_named_once_they_have_been_many_for_a_minute_and_when_they_are_few() {
        let (mut jobs, start) = (Unnamed::default(), Instant::now());
        let mut note =
            |second: u64, unnamed, waiting| jobs.note(unnamed, waiting, start + Duration::from_secs(second));
        assert_eq!(note(0, 11, 100), None);
        assert_eq!(note(59, 11, 100), None);
        assert_eq!(note(60, 11, 100), Some(Notice::AreMany));
        assert_eq!(note(3600, 100, 100), None, "once");
        assert_eq!(note(3601, 6, 100), None, "neither many nor few");
        assert_eq!(note(3602, 11, 100), None, "it is the same time");
        assert_eq!(note(3603, 5, 100), Some(Notice::AreFew));
        assert_eq!(note(3604, 0, 0), None);
        assert_eq!(note(3605, 50, 100), None, "the next time begins");
        assert_eq!(note(3665, 50, 100), Some(Notice::AreMany));
        assert_eq!(note(3666, 0, 0), Some(Notice::AreFew), "no job waits");
    }

    #[test]
    fn a_tenth_and_a_few_jobs_are_not_many() {
        let (mut jobs, start) = (Unnamed::default(), Instant::now());
        for (unnamed, waiting) in [(10, 100), (9, 9), (0, 1_000_000), (99_999, 1_000_000)] {
            for minute in 0..10 {
                let at = start + Duration::from_secs(60 * minute);
                assert_eq!(jobs.note(unnamed, waiting, at), None, "{unnamed} of {waiting}");
            }
        }
    }
}
