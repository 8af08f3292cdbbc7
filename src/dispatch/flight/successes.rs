//! Whether other jobs succeed: then the downstream that throttles a job again may mean this job alone.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// The most lanes that are followed at one time.
const MAX_THROTTLED: usize = 10_000;

/// When the latest job was sent that was delivered.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct Successes(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    of_all: Option<Instant>,
    /// The parts by whose values jobs wait together in a pause; without any all do.
    parts: Vec<usize>,
    /// The latest one of the values that were throttled.
    of_throttled: HashMap<Vec<String>, Option<Instant>>,
}

impl Latest {
    fn values(&self, key: &[String]) -> Vec<String> {
        self.parts.iter().map(|part| key.get(*part).cloned().unwrap_or_default()).collect()
    }
}

impl Successes {
    /// Has jobs wait together in a pause by their values of these parts from now on.
    pub(in crate::dispatch) fn follow(&self, parts: &[usize]) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.parts != parts {
            *latest = Latest { of_all: latest.of_all, parts: parts.to_vec(), ..Latest::default() };
        }
    }

    /// Records that a job with this key was delivered, which was sent at `sent`.
    pub(super) fn note(&self, sent: Instant, key: &[String]) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.of_all = latest.of_all.max(Some(sent));
        if !latest.of_throttled.is_empty() {
            let values = latest.values(key);
            let own = latest.of_throttled.get_mut(&values);
            own.into_iter().for_each(|own| *own = (*own).max(Some(sent)));
        }
    }

    /// Records that a job with this key was throttled.
    pub(super) fn note_throttled(&self, key: &[String]) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.parts.is_empty() {
            return;
        }
        if latest.of_throttled.len() >= MAX_THROTTLED {
            // Each of them is paused once more than it would be.
            latest.of_throttled.clear();
        }
        let values = latest.values(key);
        latest.of_throttled.entry(values).or_default();
    }

    /// Whether a job was delivered that was sent after this instant and waits together in a pause with jobs of this key.
    pub(super) fn is_any_after(&self, at: Instant, key: &[String]) -> bool {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = match latest.parts.is_empty() {
            true => latest.of_all,
            false => latest.of_throttled.get(&latest.values(key)).copied().flatten(),
        };
        sent.is_some_and(|sent| sent > at)
    }
}
