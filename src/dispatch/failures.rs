//! Follows whether a downstream answers at all, so that the log names a failing one in a few lines, and people see the
//! last failures. It has no I/O.
//!
//! | state | what is seen | next state | line |
//! |---|---|---|---|
//! | answering | a failure, the 1st or 2nd in a row | answering | |
//! | answering | the 3rd failure in a row | failing | begins, unless one began less than a minute ago |
//! | failing | a failure | failing | |
//! | failing | a minute has passed since the last line, and its begin was logged | failing | continues, if more attempts have failed |
//! | failing | a minute has passed since the last line, and its begin was not logged | failing | begins |
//! | failing | the 3rd success in a row, or no more attempts for 5 s after a success | answering | is over, if its begin was logged |

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::sink::{Outcome, Response, excerpt_len};
use crate::text;

/// The number of failures in a row from which on a downstream counts as failing, and of successes that end that.
const IN_A_ROW: u32 = 3;

/// A success that is followed by nothing for this long ends a failure too.
const QUIET: Duration = Duration::from_secs(5);

/// How often the log names a downstream that still fails.
const INTERVAL: Duration = Duration::from_secs(60);

/// How many different failures are remembered.
const MAX_KINDS: usize = 5;

/// The kind under which further kinds of failures of an outage are counted.
const OTHER: &str = "other";

/// The longest text of a failure that is kept, in bytes.
const MAX_DETAIL: usize = 300;

/// How an attempt ended, as far as it shows whether the downstream works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Ending {
    /// Nothing was sent.
    #[default]
    Other,
    Delivered,
    /// The downstream failed, could not be reached, or asked its callers to slow down.
    Failed(Box<Attempt>),
    /// The downstream refused the job: it works, and people may want to know.
    Refused(Box<Attempt>),
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// As in [`Failure::kind`].
    pub(super) kind: String,
    /// The error, for people.
    pub(super) detail: String,
    /// As in [`Failure::response`].
    pub(super) response: Option<Bytes>,
}

/// A kind of failure that was seen lately.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The status as text; without an answer, one of [`crate::sink::RETRY_REASONS`] and the `HOST:PORT` that the attempt went
    /// to, such as `connect api.example.com:443`.
    pub kind: String,
    /// The error of the last one, for people.
    pub detail: String,
    /// The beginning of the body of the last answer, [`MAX_EXCERPT`](crate::sink::MAX_EXCERPT) bytes at most, if it is kept.
    /// It is foreign text, or no text at all.
    pub response: Option<Bytes>,
    /// When the last one was seen.
    pub at: Instant,
    /// How many were seen since this kind was first remembered.
    pub count: u64,
}

/// A downstream that fails attempt after attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outage {
    /// When the first of these attempts ended.
    pub since: Instant,
    /// The kind of the last failure, as in [`Failure::kind`].
    pub kind: String,
    /// The error of the last failure, for people.
    pub detail: String,
    /// The attempts that failed.
    pub attempts: u64,
    /// These by their kind, the most frequent first: the first kinds by name, and the rest together as `other`.
    pub kinds: Vec<KindCount>,
}

/// How many attempts of an outage failed in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindCount {
    /// As in [`Failure::kind`].
    pub kind: String,
    /// The attempts.
    pub count: u64,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Begins(Outage),
    GoesOn(Outage),
    IsOver(Outage),
}

/// What was seen of a downstream.
#[derive(Debug, Default)]
pub(super) struct Failures {
    outage: Option<Outage>,
    /// The failures in a row before it counts as failing.
    suspected: Option<Outage>,
    /// The successes in a row while it counts as failing, and when the last of them ended.
    succeeded: Option<(u32, Instant)>,
    /// When a line was last written about an outage that is in the log; and whether the present one is.
    logged_at: Option<Instant>,
    is_logged: bool,
    /// The attempts in the last line.
    logged_attempts: u64,
    /// The last kinds, newest first.
    recent: VecDeque<Failure>,
}

impl Ending {
    /// How this outcome of an attempt to the host `peer` (a `HOST:PORT`) counts.
    pub(super) fn of(outcome: &Outcome, peer: Option<&str>) -> Self {
        let unanswered = |reason: &str, detail: &str| {
            let kind = peer.map_or_else(|| reason.to_owned(), |peer| format!("{reason} {peer}"));
            Self::Failed(Box::new(Attempt {
                kind: shortened(&kind),
                detail: shortened(detail),
                response: None,
            }))
        };
        match outcome {
            Outcome::Delivered(_) => Self::Delivered,
            Outcome::Missed | Outcome::Dead { status: None, .. } => Self::Other,
            Outcome::Unreachable { detail } => unanswered("connect", detail),
            Outcome::Unreadable { detail } => unanswered("answer", detail),
            Outcome::Throttled { detail, status, response, .. } => {
                Self::Failed(Attempt::answered(*status, detail, response.as_ref()))
            }
            Outcome::Retry { status: Some(status), detail, response, .. }
            | Outcome::Outdated { status, detail, response, .. }
            | Outcome::Unauthorized { status, detail, response }
            | Outcome::Dead { status: Some(status), detail, response, .. } => {
                let attempt = Attempt::answered(*status, detail, response.as_ref());
                if *status >= 500 { Self::Failed(attempt) } else { Self::Refused(attempt) }
            }
            Outcome::Retry { reason, detail, .. } => unanswered(reason, detail),
        }
    }
}

impl Attempt {
    fn answered(status: u16, detail: &str, response: Option<&Response>) -> Box<Self> {
        let excerpt = response.map(|response| response.excerpt.slice(..excerpt_len(&response.excerpt)));
        Box::new(Self {
            kind: status.to_string(),
            detail: shortened(detail),
            response: excerpt.filter(|excerpt| !excerpt.is_empty()),
        })
    }
}

impl Outage {
    fn new(since: Instant) -> Self {
        Self { since, kind: String::new(), detail: String::new(), attempts: 0, kinds: Vec::new() }
    }

    fn add(&mut self, Attempt { kind, detail, .. }: Attempt) {
        self.attempts += 1;
        let is_known = self.kinds.iter().any(|known| known.kind == kind);
        let counted = if is_known || self.kinds.len() < MAX_KINDS { &kind } else { OTHER };
        match self.kinds.iter_mut().find(|known| known.kind == counted) {
            Some(known) => known.count += 1,
            None => self.kinds.push(KindCount { kind: counted.to_owned(), count: 1 }),
        }
        self.kinds.sort_by_key(|known| Reverse(known.count));
        (self.kind, self.detail) = (kind, detail);
    }

    /// The kinds and their counts as text, such as `429 ×411, timeout api.example.com:443 ×3`.
    pub(super) fn kinds(&self) -> String {
        text::counts(self.kinds.iter().map(|known| (&*known.kind, known.count)))
    }
}

/// The text, cut where it is long.
fn shortened(text: &str) -> String {
    let mut end = text.len().min(MAX_DETAIL);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl Failures {
    /// The outage, while the downstream fails attempt after attempt.
    pub(super) const fn outage(&self) -> Option<&Outage> {
        self.outage.as_ref()
    }

    /// The last kinds of failures, newest first.
    pub(super) fn recent(&self) -> impl Iterator<Item = &Failure> {
        self.recent.iter()
    }

    /// Records the end of an attempt.
    pub(super) fn ended(&mut self, ending: Ending, now: Instant) -> Option<Line> {
        match ending {
            Ending::Other => None,
            Ending::Refused(attempt) => {
                self.remember(*attempt, now);
                self.answered(now)
            }
            Ending::Delivered => self.answered(now),
            Ending::Failed(attempt) => {
                self.remember((*attempt).clone(), now);
                self.failed(*attempt, now)
            }
        }
    }

    /// Does what is due at `now`.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Line> {
        if self.quiet_at().is_some_and(|at| at <= now) {
            return self.is_over();
        }
        if self.log_again_at().is_some_and(|at| at <= now) {
            self.logged_at = Some(now);
            let outage = self.outage.clone()?;
            let before = std::mem::replace(&mut self.logged_attempts, outage.attempts);
            if !std::mem::replace(&mut self.is_logged, true) {
                return Some(Line::Begins(outage));
            }
            // Without new attempts there is nothing to log.
            return (outage.attempts > before).then_some(Line::GoesOn(outage));
        }
        None
    }

    /// Whether the log has named the present outage.
    pub(super) const fn is_logged(&self) -> bool {
        self.outage.is_some() && self.is_logged
    }

    /// The instant of the next [`Failures::tick`].
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.quiet_at().into_iter().chain(self.log_again_at()).min()
    }

    fn quiet_at(&self) -> Option<Instant> {
        self.outage.as_ref().and(self.succeeded).map(|(_, at)| at + QUIET)
    }

    fn log_again_at(&self) -> Option<Instant> {
        self.outage.as_ref().and(self.logged_at).map(|at| at + INTERVAL)
    }

    fn answered(&mut self, now: Instant) -> Option<Line> {
        self.suspected = None;
        self.outage.as_ref()?;
        let row = self.succeeded.map_or(0, |(row, _)| row) + 1;
        self.succeeded = Some((row, now));
        if row >= IN_A_ROW { self.is_over() } else { None }
    }

    fn is_over(&mut self) -> Option<Line> {
        self.succeeded = None;
        let outage = self.outage.take();
        outage.filter(|_| std::mem::take(&mut self.is_logged)).map(Line::IsOver)
    }

    fn failed(&mut self, attempt: Attempt, now: Instant) -> Option<Line> {
        self.succeeded = None;
        if let Some(outage) = &mut self.outage {
            outage.add(attempt);
            return None;
        }
        let mut outage = self.suspected.take().unwrap_or_else(|| Outage::new(now));
        outage.add(attempt);
        if outage.attempts < IN_A_ROW.into() {
            self.suspected = Some(outage);
            return None;
        }
        self.outage = Some(outage.clone());
        // A downstream that fails and answers by turns is logged once a minute.
        self.is_logged = self.logged_at.is_none_or(|at| at + INTERVAL <= now);
        if !self.is_logged {
            return None;
        }
        (self.logged_at, self.logged_attempts) = (Some(now), outage.attempts);
        Some(Line::Begins(outage))
    }

    fn remember(&mut self, Attempt { kind, detail, response }: Attempt, now: Instant) {
        let known = self.recent.iter().position(|failure| failure.kind == kind);
        let count = known.and_then(|place| self.recent.remove(place)).map_or(0, |failure| failure.count);
        self.recent.push_front(Failure { kind, detail, response, at: now, count: count + 1 });
        self.recent.truncate(MAX_KINDS);
    }
}

#[cfg(test)]
mod tests;
