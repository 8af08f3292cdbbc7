//! The releases of earlier runs, by which a later run continues at the same pace.

use crate::limit::LimitSet;
use crate::store::MemoryStore;
use crate::time::{Clock, Micros, SystemClock};

/// The releases that outcomes report: their slots, and what each job cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Releases(Vec<(Micros, u32)>);

impl Releases {
    pub(super) fn add(&mut self, slot: Micros, cost: u32) {
        self.0.push((slot, cost));
    }

    /// Charges the limits of a downstream with them, as if this process had released each of them alone: limits without a
    /// burst, so that the one counts that holds the next job back for longest. Together they would count at a rate that was
    /// not theirs. A slot in the future, of a clock that was ahead, counts as now.
    pub fn charge(self, store: &MemoryStore, downstream: &str, limits: &LimitSet) {
        self.charge_at(SystemClock::new().now(), store, downstream, limits);
    }

    fn charge_at(self, now: Micros, store: &MemoryStore, downstream: &str, limits: &LimitSet) {
        for limit in limits.iter() {
            let fresh = limit.fresh();
            let alone = |&(slot, cost): &(Micros, u32)| {
                limit.commit(&fresh, slot.min(now), cost.min(limit.max_cost()))
            };
            let states = self.0.iter().map(alone);
            if let Some(latest) = states.max_by_key(|state| limit.earliest(state, Micros(0), 1)) {
                store.put_state(downstream, limit, latest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::limit::{Costs, Limit};
    use crate::store::{Reserve, Scope, Store as _};
    use crate::time::ManualClock;

    const NOW: Micros = Micros(1_760_000_000_000_000);
    const SECOND: i64 = 1_000_000;

    /// The next slot at 1/min after these releases: seconds from now, and costs.
    async fn next(releases: &[(i64, u32)]) -> i64 {
        let limit = Limit::leaky_bucket("rate", "1/min".parse().unwrap(), 1).unwrap();
        let limits = LimitSet::new(vec![limit]).unwrap();
        let store = MemoryStore::with_clock(Arc::new(ManualClock::new(NOW)));
        let mut all = Releases::default();
        releases.iter().for_each(|&(second, cost)| all.add(Micros(NOW.0 + second * SECOND), cost));
        all.charge_at(NOW, &store, "pipe", &limits);
        let scope = Scope { downstream: "pipe", key: "" };
        let call = Reserve::new(scope, &limits, Costs::Each(&[1]), Duration::from_secs(3600));
        (store.reserve(call).await.unwrap().slots[0].0 - NOW.0) / SECOND
    }

    #[tokio::test]
    async fn the_next_slot_is_behind_those_of_earlier_runs() {
        assert_eq!(next(&[]).await, 0);
        assert_eq!(next(&[(-10, 1)]).await, 50);
        assert_eq!(next(&[(-10, 1), (-70, 1)]).await, 50, "in any order");
        assert_eq!(next(&[(-10, 5)]).await, 290);
        assert_eq!(next(&[(-10, 1), (-200, 5)]).await, 100, "the one that holds longest");
        assert_eq!(next(&[(-61, 1)]).await, 0, "that was long ago");
        assert_eq!(next(&[(0, 1); 100]).await, 60, "a hundred at a higher rate");
        assert_eq!(next(&[(86_400, 1)]).await, 60, "the clock was ahead then");
    }
}
