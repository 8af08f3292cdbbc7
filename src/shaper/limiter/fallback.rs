//! Decisions while the store cannot be reached: no check waits for it then.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;
use crate::store::StoreError;

/// How a limiter answers checks while its store cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimiterFallback {
    /// With [`CheckError::Store`](super::CheckError::Store): the caller decides.
    #[default]
    Fail,
    /// All are allowed, as if nothing had been taken.
    Allow,
    /// By the same limits, with states of this process alone: of several processes, each allows as much. The store does not
    /// learn what was taken so.
    Local,
}

/// The wait before the store is tried again: the first one, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A trial whose outcome nobody has reported after this time is taken to be lost.
const LOST: Duration = Duration::from_secs(60);

/// Knows whether the store is away. It is tried again when somebody checks, who does not wait for the outcome.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    away: Mutex<Option<Away>>,
    /// How often the store has come back.
    returns: AtomicU64,
}

#[derive(Debug)]
struct Away {
    error: StoreError,
    /// When the store is to be tried again.
    retry_at: Instant,
    backoff: Duration,
}

impl Away {
    /// Sets when the store is tried again: after the wait, or up to a half sooner, so that not all processes try at once.
    fn wait(&mut self, backoff: Duration) {
        self.backoff = backoff;
        self.retry_at = Instant::now() + backoff.mul_f64(1.0 - fastrand::f64() / 2.0);
    }
}

/// The state of the store for a check.
pub(super) enum Reachable {
    Yes,
    /// It is away. If `is_due`, this caller has to try it again, and to report the outcome.
    No {
        error: StoreError,
        is_due: bool,
    },
}

impl Breaker {
    /// Returns whether a check may be sent to the store.
    pub(super) fn reachable(&self) -> Reachable {
        let (mut known, now) = (lock(&self.away), Instant::now());
        let Some(away) = &mut *known else { return Reachable::Yes };
        let is_due = away.retry_at <= now;
        if is_due {
            away.retry_at = now + LOST;
        }
        Reachable::No { error: away.error.clone(), is_due }
    }

    /// Returns why the store is away, if it is.
    pub(super) fn error(&self) -> Option<StoreError> {
        lock(&self.away).as_ref().map(|away| away.error.clone())
    }

    /// Records that a check failed. Returns whether the store was not known to be away.
    pub(super) fn failed(&self, error: &StoreError) -> bool {
        let mut known = lock(&self.away);
        let is_news = known.is_none();
        if is_news {
            let away = Away { error: error.clone(), retry_at: Instant::now(), backoff: BACKOFF.0 };
            known.insert(away).wait(BACKOFF.0);
        }
        is_news
    }

    /// Records the outcome of a trial. Returns whether the store has come back.
    pub(super) fn tried(&self, outcome: Result<(), StoreError>) -> bool {
        let mut known = lock(&self.away);
        match (&mut *known, outcome) {
            (Some(away), Err(error)) => {
                away.error = error;
                away.wait((away.backoff * 2).min(BACKOFF.1));
                false
            }
            (_, outcome) => {
                let is_back = outcome.is_ok() && known.take().is_some();
                self.returns.fetch_add(is_back.into(), Ordering::Relaxed);
                is_back
            }
        }
    }

    /// Returns how often the store has come back.
    pub(super) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
