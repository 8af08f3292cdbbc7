//! When a failed job is tried again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::health::Suspicion;
use crate::sink::{AnswerPolicy, Statuses};
use crate::time::Micros;

/// The policy for failed jobs: when they are tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, the first included.
    pub max_attempts: u32,
    /// How often the downstream may throttle the job ([`Outcome::Throttled`](crate::sink::Outcome)); `None` stands for no bound but
    /// the job's deadline. Such an attempt does not count for `max_attempts`.
    pub max_throttled: Option<u32>,
    /// The age at which a job is not tried again: since it was made, by its `timestamp`, or else first taken in. `None`
    /// stands for no bound.
    pub max_age: Option<Duration>,
    /// Whether to wait for a downstream that cannot be reached: a failed connection costs no attempt then, and after
    /// several in a row no more jobs are taken until one succeeds. Otherwise it costs an attempt, which suits a tool
    /// that people wait for.
    pub outlast: bool,
    /// What answers mean.
    pub answers: AnswerPolicy,
    /// The shortest and the longest wait.
    pub backoff: Backoff,
    /// What differs after some answers; the first that contains a status applies.
    pub overrides: Arc<[StatusRetry]>,
    /// The longest wait that an answer may ask for, of all jobs or one.
    pub max_pause: Duration,
    /// The longest wait between two probes where the downstream throttles and names no wait.
    pub max_cooldown: Duration,
}

/// The bounds of the wait for another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The shortest wait.
    pub min: Duration,
    /// The longest wait, unless the downstream asks for a longer one.
    pub max: Duration,
}

/// What differs from the policy after an answer with one of some statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRetry {
    /// The statuses.
    pub statuses: Statuses,
    /// As in [`RetryPolicy::max_attempts`], which counts all failed attempts, with any status.
    pub max_attempts: u32,
    /// As in [`RetryPolicy::backoff`].
    pub backoff: Backoff,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 8,
            max_throttled: None,
            max_age: None,
            outlast: true,
            answers: AnswerPolicy::default(),
            backoff: Backoff { min: Duration::from_secs(1), max: Duration::from_secs(300) },
            overrides: Arc::default(),
            max_pause: Duration::from_secs(300),
            max_cooldown: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// The wait after `failed` attempts, the last of which was answered with this status; `None` if no attempt is
    /// left. It is that of [`Backoff::wait`], but at least what the downstream asked for (`after`).
    #[must_use]
    pub fn backoff(&self, failed: u32, status: Option<u16>, after: Option<Duration>) -> Option<Duration> {
        let (max_attempts, backoff) = self.after_status(status);
        (failed < max_attempts).then(|| backoff.wait(failed).max(after.unwrap_or_default()))
    }

    /// The wait of a job that the downstream has throttled `throttled` times; `None` if no attempt is left. If
    /// `alone` is 0, all jobs wait for what the downstream asked for (`after`). Otherwise the job was throttled that
    /// often in a row while others succeeded, and waits for its own backoff if that is longer.
    #[must_use]
    pub fn throttled(
        &self,
        throttled: u32,
        alone: u32,
        status: u16,
        after: Option<Duration>,
    ) -> Option<Duration> {
        let (_, backoff) = self.after_status(Some(status));
        let own = || if alone == 0 { Duration::ZERO } else { backoff.wait(alone) };
        let may = self.max_throttled.is_none_or(|most| throttled < most);
        may.then(|| own().max(after.unwrap_or_default()))
    }

    /// Whether a job that was made at `born` is too old to be tried again at `next`, both by the same clock.
    #[must_use]
    pub fn is_too_old(&self, born: Micros, next: Micros) -> bool {
        self.max_age.is_some_and(|most| next.since(born) > most)
    }

    /// The highest number of attempts and the waits that apply after an answer with this status.
    fn after_status(&self, status: Option<u16>) -> (u32, Backoff) {
        let applies = |other: &&StatusRetry| status.is_some_and(|status| other.statuses.contains(status));
        match self.overrides.iter().find(applies) {
            Some(StatusRetry { max_attempts, backoff, .. }) => (*max_attempts, *backoff),
            None => (self.max_attempts, self.backoff),
        }
    }
}

impl Backoff {
    /// The wait after this many attempts, however many are left: uniform in [min, min(max, min * 2^failed)].
    #[must_use]
    pub fn wait(&self, failed: u32) -> Duration {
        let doubled = self.min.saturating_mul(2_u32.saturating_pow(failed));
        let ceiling = doubled.min(self.max).max(self.min);
        let spread = u64::try_from((ceiling - self.min).as_micros()).unwrap_or(u64::MAX - 1);
        self.min + Duration::from_micros(fastrand::u64(0..=spread))
    }
}

/// The results of the attempts at one job so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempts {
    /// The number of hand-overs to the sink in which it was sent, or may have been.
    pub(super) sent: u32,
    /// How many of these the downstream throttled, and when it last did so to this replica.
    pub(super) throttled: u32,
    pub(super) throttled_at: Option<Instant>,
    /// How many of the last of them came in a row while other jobs succeeded.
    pub(super) alone: u32,
    /// Whether an attempt of this replica ended without an answer: the work may have been done, or be under way.
    pub(super) is_unanswered: bool,
    /// How many of these the downstream answered by refusing the credentials.
    pub(super) refused: u32,
    /// The number of failed connections in a row.
    pub(super) unreachable: u32,
    /// The number of unintelligible answers.
    pub(super) unreadable: u32,
    pub(super) refusals: Refusals,
}

/// What is known of the refusals of the credentials of one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusals {
    /// How many were of credentials that have been replaced since.
    pub(super) outdated: u32,
    /// How many were certainly not about the job, though nothing could replace the credentials.
    pub(super) blameless: u32,
    /// The mark of the row of refused jobs that it was in, if the credentials may be at fault.
    pub(super) suspicion: Option<Suspicion>,
    /// The instant of its first refusal since the last other answer, where the job itself may be at fault.
    pub(super) since: Option<Instant>,
}

impl Attempts {
    /// How many of [`RetryPolicy::max_attempts`] are used up.
    pub(super) const fn failed(self) -> u32 {
        self.sent - self.throttled - self.refused
    }

    /// Whether an attempt was made, or failed before anything was sent.
    pub(super) const fn has_begun(&self) -> bool {
        self.sent > 0 || self.unreachable > 0 || self.refusals.suspicion.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> RetryPolicy {
        RetryPolicy { max_attempts: 40, max_throttled: Some(3), ..RetryPolicy::default() }
    }

    fn seconds(min: u64, max: u64) -> Backoff {
        Backoff { min: Duration::from_secs(min), max: Duration::from_secs(max) }
    }

    #[test]
    fn stays_between_its_bounds() {
        let policy = policy();
        for failed in 1..40 {
            let ceiling = Duration::from_secs(1 << failed.min(20)).min(policy.backoff.max);
            for _ in 0..200 {
                let wait = policy.backoff(failed, None, None).unwrap();
                assert!(wait >= policy.backoff.min && wait <= ceiling, "{failed}: {wait:?}");
            }
        }
    }

    #[test]
    fn ends_after_the_last_attempt() {
        assert_eq!(policy().backoff(40, Some(500), None), None);
        assert!(policy().backoff(39, Some(500), None).is_some());
    }

    #[test]
    fn throttling_has_a_budget_of_its_own() {
        assert_eq!(policy().throttled(2, 0, 429, None), Some(Duration::ZERO), "all wait for the pause");
        assert_eq!(policy().throttled(3, 0, 429, None), None);
        let unlimited = RetryPolicy { max_throttled: None, ..policy() };
        let alone = unlimited.throttled(u32::MAX, u32::MAX, 429, None).unwrap();
        assert!((unlimited.backoff.min..=unlimited.backoff.max).contains(&alone), "{alone:?}");
        let attempts = Attempts { sent: 7, throttled: 5, refused: 1, unreachable: 9, ..Attempts::default() };
        assert_eq!(attempts.failed(), 1);
    }

    #[test]
    fn a_status_may_have_attempts_and_waits_of_its_own() {
        let own = |statuses: &str, max_attempts, backoff| StatusRetry {
            statuses: statuses.parse().unwrap(),
            max_attempts,
            backoff,
        };
        let overrides = [own("503", 50, seconds(1000, 1000)), own("5xx", 2, seconds(500, 500))];
        let policy = RetryPolicy { overrides: overrides.into(), ..policy() };
        assert_eq!(policy.backoff(49, Some(503), None), Some(Duration::from_secs(1000)), "the first applies");
        assert_eq!(policy.backoff(50, Some(503), None), None);
        assert_eq!(policy.backoff(1, Some(502), None), Some(Duration::from_secs(500)));
        assert_eq!(policy.backoff(2, Some(502), None), None);
        assert!(policy.backoff(39, Some(408), None).is_some());
        assert!(policy.backoff(39, None, None).is_some(), "there was no answer");
        assert_eq!(policy.throttled(1, 1, 503, None), Some(Duration::from_secs(1000)));
    }

    #[test]
    fn a_job_can_become_too_old_to_be_tried_again() {
        let (born, hour) = (Micros(1_800_000_000_000_000), Duration::from_secs(3600));
        assert!(!policy().is_too_old(born, Micros::MAX));
        let policy = RetryPolicy { max_age: Some(hour), ..policy() };
        assert!(!policy.is_too_old(born, born.plus(hour)));
        assert!(policy.is_too_old(born, born.plus(hour + Duration::from_micros(1))));
        assert!(!policy.is_too_old(born, born.minus(hour)));
    }

    #[test]
    fn waits_as_long_as_asked() {
        let asked = Duration::from_secs(1000);
        assert_eq!(policy().backoff(1, Some(500), Some(asked)), Some(asked));
        assert_eq!(policy().throttled(1, 0, 429, Some(asked)), Some(asked));
    }

    #[test]
    fn a_maximum_below_the_minimum_is_harmless() {
        let policy = RetryPolicy { backoff: seconds(1, 0), ..policy() };
        assert_eq!(policy.backoff(3, None, None), Some(policy.backoff.min));
    }
}
