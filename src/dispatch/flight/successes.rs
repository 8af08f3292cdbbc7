//! Whether other jobs succeed: then the downstream that throttles a job again may mean this job alone.

use std::borrow::Cow;
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
    /// The values of the parts. Each delivery needs them, so they are borrowed where the parts are adjacent.
    fn values<'k>(&self, key: &'k [String]) -> Cow<'k, [String]> {
        let first = self.parts.first().copied().unwrap_or_default();
        let are_adjacent = self.parts.iter().copied().eq(first..first + self.parts.len());
        let adjacent = key.get(first..first + self.parts.len()).filter(|_| are_adjacent);
        let value = |part: &usize| key.get(*part).cloned().unwrap_or_default();
        adjacent.map_or_else(|| self.parts.iter().map(value).collect(), Cow::Borrowed)
    }
}

impl Successes {
    /// From now on, jobs with the same values of these parts wait together in a pause.
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
            let own = latest.of_throttled.get_mut(&*values);
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
            // Each of these lanes is paused once more than necessary.
            latest.of_throttled.clear();
        }
        let values = latest.values(key).into_owned();
        latest.of_throttled.entry(values).or_default();
    }

    /// Whether a job was delivered that was sent after this instant and waits together in a pause with jobs of this key.
    pub(super) fn is_any_after(&self, at: Instant, key: &[String]) -> bool {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = match latest.parts.is_empty() {
            true => latest.of_all,
            false => latest.of_throttled.get(&*latest.values(key)).copied().flatten(),
        };
        sent.is_some_and(|sent| sent > at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_success_counts_for_the_jobs_with_the_same_values_of_the_parts() {
        let key = |values: [&str; 3]| values.map(str::to_owned);
        let (throttled, delivered) = (key(["a", "x", "1"]), key(["a", "y", "1"]));
        for (parts, counts) in [
            (&[0][..], true),
            (&[1], false),
            (&[2], true),
            (&[0, 1], false),
            (&[1, 2], false),
            (&[0, 2], true),
            (&[2, 0], true),
            (&[0, 1, 2], false),
        ] {
            let (successes, start) = (Successes::default(), Instant::now());
            successes.follow(parts);
            successes.note_throttled(&throttled);
            successes.note(start + Duration::from_secs(1), &delivered);
            assert_eq!(successes.is_any_after(start, &throttled), counts, "{parts:?}");
            successes.note(start + Duration::from_secs(1), &throttled);
            assert!(successes.is_any_after(start, &throttled), "{parts:?}");
        }
    }
}
