//! When to ask the store for slots, and for how many at once: pure.

use std::time::Duration;

use crate::limit::{Algorithm, Limit, LimitSet, MAX_BATCH};
use crate::store::LONGEST_LEASE;
use crate::time::Micros;

/// How one replica asks for the slots of one downstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    horizon: Duration,
    /// What half a horizon releases in the long run.
    half: u64,
    /// What half a horizon releases after a rest: the burst, or the N of a window, besides.
    rested: u64,
    /// What half a horizon releases if slots go on as far apart as the latest: a quota that has units
    /// left, and a burst, space out nothing, whatever they allow in the long run.
    near: u64,
    /// More may go at the instant of the last slot: a burst is not used up, or a window.
    open: bool,
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
        let rested = |limit: &Limit| limit.rate().units_in(horizon / 2).saturating_add(limit.burst() - 1);
        let rested = limits.iter().map(rested).min().unwrap_or(half);
        // A replica renews it by asking, which it does once in every slot that it takes or misses.
        let longest = limits.iter().map(longest_wait).max().unwrap_or_default();
        let lease = longest.max(2 * horizon).clamp(Duration::from_secs(2), LONGEST_LEASE);
        let quorum = concurrency.div_ceil(4);
        let (near, open) = (0, false);
        let mut asking = Self { horizon, half, rested, near, open, replicas: 1, lease, cap: 1, quorum };
        asking.share(1);
        asking
    }

    /// One that waits for no slot: a call takes all that there is.
    pub(super) fn at_once(mut self) -> Self {
        (self.half, self.rested) = (u64::MAX, u64::MAX);
        self.share(1);
        self
    }

    /// One call takes what half a horizon releases, shared among so many replicas: as slots come now,
    /// or after a rest while a burst lasts.
    ///
    /// Asking per slot costs a call a job; asking for the whole horizon lets the first replica that
    /// asks take every slot of it.
    pub(super) fn share(&mut self, replicas: u32) {
        self.replicas = replicas;
        let all = if self.open { self.rested } else { self.near.min(self.rested).max(self.half) };
        let share = all.div_ceil(u64::from(replicas.max(1)));
        self.cap = usize::try_from(share).unwrap_or(MAX_BATCH).clamp(1, MAX_BATCH);
    }

    /// How many replicas share the slots, as far as this one knows.
    pub(super) const fn replicas(&self) -> u32 {
        self.replicas
    }

    /// How long after the last slot the next one is, as the last answer has it: zero, and more may go at
    /// the same instant. `None` if there was no last one: the next is later than now.
    pub(super) fn spaced(&mut self, apart: Option<Duration>) {
        self.open = apart.is_some_and(|apart| apart.is_zero());
        if let Some(apart) = apart.filter(|apart| !apart.is_zero()) {
            let slots = (self.horizon / 2).as_micros().div_ceil(apart.as_micros().max(1));
            self.near = u64::try_from(slots).unwrap_or(u64::MAX);
        }
        self.share(self.replicas);
    }

    /// Whether more may go at the instant of the last slot.
    pub(super) const fn is_open(&self) -> bool {
        self.open
    }

    /// How many slots to ask for, and whether more jobs wait than there are places.
    pub(super) fn batch(&self, waiting: usize, places: usize) -> Batch {
        let count = waiting.min(places).min(self.cap);
        let scarce = places < waiting.min(self.cap) && places < self.quorum;
        Batch { count, scarce }
    }

    /// How long after the store's `now` to ask again, once `next` is the next slot that is free.
    ///
    /// Half a horizon before that slot, and later by some [`Asking::jitter`].
    pub(super) fn pause(&self, now: Micros, next: Micros) -> Duration {
        let early = next.minus(self.horizon / 2);
        if early <= now {
            return Duration::ZERO;
        }
        early.since(now) + self.jitter(self.horizon / 4)
    }

    /// Where there are other replicas, a random part of this: so those of unequal distance to the
    /// store get equal shares.
    pub(super) fn jitter(&self, most: Duration) -> Duration {
        // Between the slots of a very slow limit leases end, and who seems alone need not be.
        if self.replicas <= 1 && self.lease < LONGEST_LEASE {
            return Duration::ZERO;
        }
        let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(fastrand::u64(0..=most))
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

/// How long a replica may go without a call where there are jobs: several slots, or a whole window.
fn longest_wait(limit: &Limit) -> Duration {
    let slots = match limit.algorithm() {
        Algorithm::LeakyBucket(_) | Algorithm::Gcra(_) | Algorithm::TokenBucket(_) => 4,
        // N times the interval is the period.
        _ => u32::try_from(limit.burst()).unwrap_or(u32::MAX).max(4),
    };
    limit.rate().interval().saturating_mul(slots)
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
    fn a_call_takes_a_share_of_a_burst_while_it_lasts() {
        const SECOND: Duration = Duration::from_secs(1);
        let window = Limit::fixed_window("w", 1000, 60 * SECOND).unwrap();
        let log = Limit::sliding_log("s", 50, SECOND).unwrap();
        let shaper = Limit::leaky_bucket("l", "200/s".parse().unwrap(), 1).unwrap();
        for (limits, steady, open) in [
            (vec![window.clone()], 1, 1000),
            (vec![window.clone(), log.clone()], 1, 52),
            // What spaces the slots out leaves no burst.
            (vec![window, log, shaper.clone()], 1, 10),
            (vec![shaper], 10, 10),
        ] {
            let mut asking = Asking::new(&LimitSet::new(limits).unwrap(), H, 64);
            assert_eq!(asking.cap, steady);
            asking.spaced(Some(Duration::ZERO));
            assert_eq!(asking.cap, open);
            asking.share(4);
            assert_eq!(asking.cap, open.div_ceil(4));
            asking.spaced(None);
            assert_eq!(asking.cap, steady.div_ceil(4));
        }
    }

    #[test]
    fn what_spaces_no_slots_out_takes_nothing_from_a_call() {
        let second = Duration::from_secs(1);
        let limits = vec![
            Limit::leaky_bucket("l", "1000/s".parse().unwrap(), 1).unwrap(),
            Limit::fixed_window("w", 1000, 100 * second).unwrap(),
        ];
        let mut asking = Asking::new(&LimitSet::new(limits).unwrap(), H, 64);
        assert_eq!(asking.cap, 1, "10/s in the long run");
        asking.spaced(Some(Duration::from_millis(1)));
        assert_eq!(asking.cap, 50, "but 1000/s now");
        asking.share(4);
        assert_eq!(asking.cap, 13);
        // The window is used up.
        asking.spaced(Some(99 * second));
        assert_eq!(asking.cap, 1);
        asking.spaced(Some(Duration::from_micros(1)));
        assert_eq!(asking.cap, 13, "no more than a limit releases that spaces them out");
    }

    #[test]
    fn a_lease_outlasts_a_window() {
        let lease = |limit| Asking::new(&LimitSet::new(vec![limit]).unwrap(), H, 64).lease();
        let window = |secs| Limit::fixed_window("w", 1000, Duration::from_secs(secs)).unwrap();
        assert_eq!(lease(window(30)), Duration::from_secs(30));
        assert_eq!(lease(window(3600)), LONGEST_LEASE);
        assert_eq!(lease(Limit::gcra("g", "1/s".parse().unwrap(), 1000).unwrap()), Duration::from_secs(4));
    }

    #[test]
    fn a_policer_asks_for_all_that_can_be_sent() {
        let asking = asking("1/m", 64, 1).at_once();
        assert_eq!(asking.batch(100, 64), Batch { count: 64, scarce: false });
        assert_eq!(asking.batch(5000, 5000).count, MAX_BATCH);
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
