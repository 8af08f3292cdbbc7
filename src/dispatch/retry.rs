//! When a failed job is tried again.

use std::time::Duration;

/// When a failed job is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, the first included.
    pub max_attempts: u32,
    /// The shortest wait.
    pub min_backoff: Duration,
    /// The longest wait.
    pub max_backoff: Duration,
}

impl RetryPolicy {
    /// The wait after `failed` attempts, or `None` when no attempt is left: uniform in
    /// [min, min(max, min * 2^failed)], but at least what the downstream asked for (`after`).
    #[must_use]
    pub fn backoff(&self, failed: u32, after: Option<Duration>) -> Option<Duration> {
        if failed >= self.max_attempts {
            return None;
        }
        let doubled = self.min_backoff.saturating_mul(2_u32.saturating_pow(failed));
        let ceiling = doubled.min(self.max_backoff).max(self.min_backoff);
        let spread = u64::try_from((ceiling - self.min_backoff).as_micros()).unwrap_or(u64::MAX - 1);
        let wait = self.min_backoff + Duration::from_micros(fastrand::u64(0..=spread));
        Some(wait.max(after.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 40,
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
