//! Determines which downstream ends the shared connection. It has no I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// This many losses within [`SPAN`], each while something came for the same downstream, are taken for more than chance.
const LOSSES: usize = 3;

const SPAN: Duration = Duration::from_secs(60);

/// How many downstreams get connections of their own at once: if the broker itself flaps, all of them are suspected at
/// each loss, and a connection for each might be more than it and this process can bear.
const AT_ONCE: usize = 4;

/// The last losses of the shared connection.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    losses: BTreeMap<String, VecDeque<Instant>>,
}

impl Suspicion {
    /// Records that the connection was lost soon after it was made, while something came for these downstreams. Returns
    /// those of them that are to get a connection of their own.
    ///
    /// If several were involved each time, they are moved a few at a time: each works as well alone, and only the one
    /// at fault continues to lose its connection. The others stay suspected.
    pub(super) fn lost(&mut self, now: Instant, recent: BTreeSet<String>) -> Vec<String> {
        for name in recent {
            self.losses.entry(name).or_default().push_back(now);
        }
        for losses in self.losses.values_mut() {
            while losses.front().is_some_and(|at| now.duration_since(*at) > SPAN) {
                losses.pop_front();
            }
        }
        let guilty = self.losses.iter().filter(|(_, losses)| losses.len() >= LOSSES);
        let guilty: Vec<_> = guilty.map(|(name, _)| name.clone()).take(AT_ONCE).collect();
        self.losses.retain(|name, losses| !losses.is_empty() && !guilty.contains(name));
        guilty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_there_at_each_of_three_losses_is_moved_once() {
        let mut suspicion = Suspicion::default();
        let now = Instant::now();
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        assert!(suspicion.lost(at(0), set(&["a", "b"])).is_empty());
        assert!(suspicion.lost(at(1), set(&["b", "c"])).is_empty());
        assert_eq!(suspicion.lost(at(2), set(&["a", "b"])), ["b"]);
        // The others are suspected as before, and the first one anew.
        assert!(suspicion.lost(at(3), set(&["b"])).is_empty());
        assert_eq!(suspicion.lost(at(4), set(&["a"])), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_flaps_separates_a_few_at_a_time() {
        let mut suspicion = Suspicion::default();
        let all = set(&["a", "b", "c", "d", "e", "f"]);
        let now = Instant::now();
        assert!(suspicion.lost(now, all.clone()).is_empty());
        assert!(suspicion.lost(now, all.clone()).is_empty());
        assert_eq!(suspicion.lost(now, all), ["a", "b", "c", "d"]);
        assert_eq!(suspicion.lost(now, set(&["e"])), ["e", "f"], "they were suspected before");
    }

    #[tokio::test(start_paused = true)]
    async fn losses_that_are_far_apart_or_nobody_s_count_for_nothing() {
        let mut suspicion = Suspicion::default();
        let now = Instant::now();
        for minute in 0..10 {
            let at = now + Duration::from_secs(31 * minute);
            assert!(suspicion.lost(at, set(if minute % 2 == 0 { &["a"] } else { &[] })).is_empty());
        }
    }
}
