//! Something that lasts, such as a failure: the log names it when it begins, and when it is over.

use std::time::Duration;

use tokio::time::Instant;

/// Decides when a line about an episode is due: one when it begins, or has lasted for a while, and one when it is over,
/// if the log has named it. It has no I/O.
///
/// | state | what happens | next state | line |
/// |---|---|---|---|
/// | over | it is noted | continuing | if it need not last |
/// | continuing | it is noted, and has lasted long enough | named | begins |
/// | named | it is noted, and an interval has passed since the last line | named | begins, again |
/// | continuing, named | it is noted for another reason | continuing | if it need not last |
/// | continuing | it ends | over | |
/// | named | it ends | over | is over |
///
/// While it continues for another reason, the line about its end stays due.
#[derive(Debug)]
pub struct Episode<R = ()> {
    after: Duration,
    interval: Option<Duration>,
    present: Option<Present<R>>,
    /// Whether the line about its end is due.
    is_named: bool,
}

/// An episode that continues for one reason.
#[derive(Debug)]
struct Present<R> {
    reason: R,
    since: Instant,
    logged_at: Option<Instant>,
}

impl<R> Default for Episode<R> {
    /// Named at once, and once.
    fn default() -> Self {
        Self { after: Duration::ZERO, interval: None, present: None, is_named: false }
    }
}

impl<R: PartialEq> Episode<R> {
    /// Named once it has been noted for this long, always for the same reason.
    pub fn after(after: Duration) -> Self {
        Self { after, ..Self::default() }
    }

    /// Named at once, and again at this interval.
    pub fn at_interval(interval: Duration) -> Self {
        Self { interval: Some(interval), ..Self::default() }
    }

    /// As [`Episode::note_at`], now.
    pub fn note(&mut self, reason: R) -> bool {
        self.note_at(reason, Instant::now())
    }

    /// Records that it continues at `now`, for this reason. Returns whether the log must name it.
    pub fn note_at(&mut self, reason: R, now: Instant) -> bool {
        let known = self.present.take().filter(|present| present.reason == reason);
        let mut present = known.unwrap_or(Present { reason, since: now, logged_at: None });
        let is_due = match (present.logged_at, self.interval) {
            (None, _) => now.saturating_duration_since(present.since) >= self.after,
            (Some(at), Some(interval)) => now.saturating_duration_since(at) >= interval,
            (Some(_), None) => false,
        };
        if is_due {
            present.logged_at = Some(now);
            self.is_named = true;
        }
        self.present = Some(present);
        is_due
    }

    /// Whether the log has named it, and not yet its end.
    pub const fn is_named(&self) -> bool {
        self.is_named
    }

    /// Records that it is over. Returns whether the log must say so.
    pub fn end(&mut self) -> bool {
        self.present = None;
        std::mem::take(&mut self.is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_is_named_once_and_so_is_its_end() {
        let mut episode = Episode::default();
        assert!(!episode.end(), "it has not begun");
        for _ in 0..2 {
            assert!(episode.note("refused"));
            assert!(!episode.note("refused"));
            assert!(episode.note("timed out"), "another reason is news");
            assert!(episode.note("refused"));
            assert!(episode.end());
            assert!(!episode.end());
        }
    }

    #[test]
    fn what_is_soon_over_is_not_named() {
        let (mut episode, start) = (Episode::after(10 * SECOND), Instant::now());
        let mut note = |reason, second: u32| episode.note_at(reason, start + second * SECOND);
        assert!(!note("a", 0) && !note("a", 9));
        assert!(!note("b", 10) && !note("b", 19), "another reason lasts anew");
        assert!(!note("a", 20), "so does one that is back");
        assert!(!episode.end());
        let mut note = |reason, second: u32| episode.note_at(reason, start + second * SECOND);
        assert!(!note("a", 30) && note("a", 40) && !note("a", 3600));
        assert!(!note("b", 3601));
        assert!(episode.end(), "it was named, for the first reason");
        assert!(!episode.note_at("a", start + 3602 * SECOND), "the next one has to last too");
    }

    #[test]
    fn it_is_named_again_at_an_interval() {
        let (mut episode, start) = (Episode::at_interval(60 * SECOND), Instant::now());
        let mut note = |reason, second: u32| episode.note_at(reason, start + second * SECOND);
        assert!(note("a", 0) && !note("a", 59) && note("a", 60) && !note("a", 119));
        assert!(note("b", 119) && !note("b", 178) && note("b", 179));
        assert!(episode.end() && !episode.end());
    }
}
