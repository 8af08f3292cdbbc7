//! When to ask the store for slots, and for how many at once: pure.

use std::time::Duration;

use crate::limit::{LimitSet, MAX_BATCH};
use crate::store::LONGEST_LEASE;
use crate::time::Micros;

/// How one replica asks for the slots of one downstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    horizon: Duration,
    /// What half a horizon releases.
    half: u64,
    /// How many replicas share the slots, this one included.
    replicas: u32,
    /// How long a replica counts as alive after a call.
    lease: Duration,
    /// The most slots that one call takes.
    cap: usize,
    /// Free places that are worth a call at once, where places are what is scarce.
    quorum: usize,
}

impl Asking {
    /// As if there were no other replica, which the first answer tells.
    pub(super) fn new(limits: &LimitSet, horizon: Duration, concurrency: usize) -> Self {
        let half = limits.rate().units_in(horizon / 2);
        // A replica renews it by asking, which it does once in every slot that it takes or misses.
        let lease = (4 * limits.rate().interval()).max(2 * horizon);
        let lease = lease.clamp(Duration::from_secs(2), LONGEST_LEASE);
        let mut asking = Self { horizon, half, replicas: 1, lease, cap: 1, quorum: concurrency.div_ceil(4) };
        asking.share(1);
        asking
    }

    /// One call takes what half a horizon releases, shared among so many replicas.
    ///
    /// Asking per slot costs a call a job; asking for the whole horizon lets the first replica that
    /// asks take every slot of it.
    pub(super) fn share(&mut self, replicas: u32) {
        self.replicas = replicas;
        let share = self.half.div_ceil(u64::from(replicas.max(1)));
        self.cap = usize::try_from(share).unwrap_or(MAX_BATCH).clamp(1, MAX_BATCH);
    }

    /// How many slots to ask for, and whether more jobs wait than there are places.
    pub(super) fn batch(&self, waiting: usize, places: usize) -> Batch {
        let count = waiting.min(places).min(self.cap);
        let scarce = places < waiting.min(self.cap) && places < self.quorum;
        Batch { count, scarce }
    }

    /// How long after the store's `now` to ask again, once `next` is the next slot that is free.
    ///
    /// Half a horizon before that slot. Where there are other replicas, a random part of a quarter
    /// later, so that those of unequal distance to the store get equal shares.
    pub(super) fn pause(&self, now: Micros, next: Micros) -> Duration {
        let early = next.minus(self.horizon / 2);
        if early <= now {
            return Duration::ZERO;
        }
        // Between the slots of a very slow limit leases end, and who seems alone need not be.
        if self.replicas <= 1 && self.lease < LONGEST_LEASE {
            return early.since(now);
        }
        let quarter = u64::try_from((self.horizon / 4).as_micros()).unwrap_or(u64::MAX - 1);
        early.since(now) + Duration::from_micros(fastrand::u64(0..=quarter))
    }

    /// How long a lease is to last: over several calls.
    pub(super) const fn lease(&self) -> Duration {
        self.lease
    }

    /// How long to gather free places at most, before a call for few of them.
    pub(super) fn gathering(&self) -> Duration {
        self.horizon / 32
    }
}

/// What the next call would ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// Slots.
    pub(super) count: usize,
    /// Few places are free while more jobs wait: worth gathering for a moment.
    pub(super) scarce: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    const H: Duration = Duration::from_millis(100);

    fn asking(rate: &str, concurrency: usize, replicas: u32) -> Asking {
        let limit = Limit::leaky_bucket("l", rate.parse().unwrap(), 1).unwrap();
        let mut asking = Asking::new(&LimitSet::new(vec![limit]).unwrap(), H, concurrency);
        asking.share(replicas);
        asking
    }

    #[test]
    fn a_call_takes_half_a_horizon_of_slots() {
        assert_eq!(asking("200/s", 64, 1).cap, 10);
        assert_eq!(asking("200/s", 64, 4).cap, 3);
        assert_eq!(asking("1/m", 64, 1).cap, 1);
        assert_eq!(asking("1000000/s", 64, 1).cap, MAX_BATCH);
    }

    #[test]
    fn asks_for_no_more_than_wait_or_can_be_sent() {
        let asking = asking("200/s", 8, 1);
        assert_eq!(asking.batch(3, 8), Batch { count: 3, scarce: false });
        assert_eq!(asking.batch(100, 8), Batch { count: 8, scarce: false });
        assert_eq!(asking.batch(100, 2), Batch { count: 2, scarce: false });
        assert_eq!(asking.batch(100, 1), Batch { count: 1, scarce: true });
        assert_eq!(asking.batch(2, 2), Batch { count: 2, scarce: false });
    }

    #[test]
    fn asks_again_half_a_horizon_before_the_next_slot() {
        let (alone, asking) = (asking("200/s", 64, 1), asking("200/s", 64, 2));
        let now = Micros(1_000_000);
        assert_eq!(alone.pause(now, now.plus(H)), H / 2);
        assert_eq!(asking.pause(now, now.plus(H / 2)), Duration::ZERO);
        for _ in 0..100 {
            let pause = asking.pause(now, now.plus(H));
            assert!(pause >= H / 2 && pause <= H / 2 + H / 4, "{pause:?}");
        }
    }
}
