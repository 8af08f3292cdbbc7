//! When a failed job is tried again.

use std::time::Duration;

use tokio::time::Instant;

use super::health::Suspicion;

/// The policy for failed jobs: when they are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, the first included.
    pub max_attempts: u32,
    /// How often the downstream may throttle the job (429, and 503 with `Retry-After`); `None` stands for no bound but
    /// the job's deadline. Such an attempt does not count for `max_attempts`.
    pub max_throttled: Option<u32>,
    /// Whether to wait for a downstream that cannot be reached: a failed connection costs no attempt then, and after
    /// several in a row no more jobs are taken until one succeeds. Otherwise it costs an attempt, which suits a tool
    /// that people wait for.
    pub outlast: bool,
    /// The answers that may mean that this replica's credentials are refused, whatever the job.
    pub on_unauthorized: RefusalStatuses,
    /// The shortest wait.
    pub min_backoff: Duration,
    /// The longest wait.
    pub max_backoff: Duration,
}

/// Statuses by which a downstream may refuse the caller's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalStatuses(u8);

impl RefusalStatuses {
    /// The statuses that the set can contain.
    pub const KNOWN: [u16; 3] = [401, 403, 407];
    /// The empty set: each refusal concerns its job.
    pub const NONE: Self = Self(0);

    /// The set of these statuses; `None` if one of them is not among [`RefusalStatuses::KNOWN`].
    #[must_use]
    pub fn new(statuses: &[u16]) -> Option<Self> {
        statuses.iter().try_fold(Self::NONE, |all, status| Some(Self(all.0 | Self::bit(*status)?)))
    }

    /// Whether the set contains this status.
    #[must_use]
    pub fn contains(self, status: u16) -> bool {
        Self::bit(status).is_some_and(|bit| self.0 & bit != 0)
    }

    fn bit(status: u16) -> Option<u8> {
        Self::KNOWN.iter().position(|known| *known == status).map(|place| 1 << place)
    }
}

impl Default for RefusalStatuses {
    /// The set of 401 alone: a 403 is more often about the job's request.
    fn default() -> Self {
        Self(1)
    }
}

impl RetryPolicy {
    /// The wait after `failed` attempts, or `None` when no attempt is left: uniform in
    /// [min, min(max, min * 2^failed)], but at least what the downstream asked for (`after`).
    #[must_use]
    pub fn backoff(&self, failed: u32, after: Option<Duration>) -> Option<Duration> {
        (failed < self.max_attempts).then(|| self.wait(failed, after))
    }

    /// As [`RetryPolicy::backoff`], after this many attempts that the downstream throttled.
    #[must_use]
    pub fn throttled(&self, throttled: u32, after: Option<Duration>) -> Option<Duration> {
        self.max_throttled.is_none_or(|most| throttled < most).then(|| self.wait(throttled, after))
    }

    /// The wait after this many attempts, however many are left.
    #[must_use]
    pub fn wait(&self, failed: u32, after: Option<Duration>) -> Duration {
        let doubled = self.min_backoff.saturating_mul(2_u32.saturating_pow(failed));
        let ceiling = doubled.min(self.max_backoff).max(self.min_backoff);
        let spread = u64::try_from((ceiling - self.min_backoff).as_micros()).unwrap_or(u64::MAX - 1);
        let wait = self.min_backoff + Duration::from_micros(fastrand::u64(0..=spread));
        wait.max(after.unwrap_or_default())
    }
}

/// The results of the attempts at one job so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempts {
    /// The number of hand-overs to the sink in which it was sent, or may have been.
    pub(super) sent: u32,
    /// How many of these the downstream throttled.
    pub(super) throttled: u32,
    /// How many of these the downstream answered by refusing the credentials.
    pub(super) refused: u32,
    /// The number of failed connections in a row.
    pub(super) unreachable: u32,
    /// The number of unintelligible answers.
    pub(super) unreadable: u32,
    /// The mark of the row of refused jobs that it was in, if the credentials may be at fault.
    pub(super) suspicion: Option<Suspicion>,
    /// The instant of its first refusal since the last other answer.
    pub(super) refused_since: Option<Instant>,
}

impl Attempts {
    /// How many of [`RetryPolicy::max_attempts`] are used up.
    pub(super) const fn failed(self) -> u32 {
        self.sent - self.throttled - self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 40,
        max_throttled: Some(3),
        outlast: true,
        on_unauthorized: RefusalStatuses::NONE,
        min_backoff: Duration::from_secs(1),
        max_backoff: Duration::from_secs(300),
    };

    #[test]
    fn stays_between_its_bounds() {
        for failed in 1..40 {
            let ceiling = Duration::from_secs(1 << failed.min(20)).min(POLICY.max_backoff);
            for _ in 0..200 {
                let wait = POLICY.backoff(failed, None).unwrap();
                assert!(wait >= POLICY.min_backoff && wait <= ceiling, "{failed}: {wait:?}");
            }
        }
    }

    #[test]
    fn ends_after_the_last_attempt() {
        assert_eq!(POLICY.backoff(40, None), None);
        assert!(POLICY.backoff(39, None).is_some());
    }

    #[test]
    fn throttling_has_a_budget_of_its_own() {
        assert!(POLICY.throttled(2, None).is_some());
        assert_eq!(POLICY.throttled(3, None), None);
        let unlimited = RetryPolicy { max_throttled: None, ..POLICY };
        assert!(unlimited.throttled(u32::MAX, None).unwrap() <= POLICY.max_backoff);
        let attempts = Attempts { sent: 7, throttled: 5, refused: 1, unreachable: 9, ..Attempts::default() };
        assert_eq!(attempts.failed(), 1);
    }

    #[test]
    fn statuses_that_refuse_credentials() {
        let default = RefusalStatuses::default();
        assert!(default.contains(401) && !default.contains(403) && !default.contains(200));
        let both = RefusalStatuses::new(&[403, 401, 403]).unwrap();
        assert!(both.contains(401) && both.contains(403) && !both.contains(407));
        assert_eq!(RefusalStatuses::new(&[]), Some(RefusalStatuses::NONE));
        assert_eq!(RefusalStatuses::new(&[401, 404]), None);
    }

    #[test]
    fn waits_as_long_as_asked() {
        let asked = Duration::from_secs(1000);
        assert_eq!(POLICY.backoff(1, Some(asked)), Some(asked));
    }

    #[test]
    fn a_maximum_below_the_minimum_is_harmless() {
        let policy = RetryPolicy { max_backoff: Duration::ZERO, ..POLICY };
        assert_eq!(policy.backoff(3, None), Some(policy.min_backoff));
    }
}
