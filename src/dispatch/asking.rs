//! When to ask the store for slots, and for how many at once: pure.

use std::time::Duration;

use crate::limit::{Algorithm, Limit, LimitSet, MAX_BATCH};
use crate::store::LONGEST_LEASE;

/// How one replica asks for the slots of the jobs of one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    horizon: Duration,
    /// What half a horizon releases after a rest: the burst, or the N of a window, besides.
    rested: u64,
    /// How far apart slots lie, as far as it is known.
    spacing: Duration,
    /// More may go at the instant of the last slot: a burst is not used up, or a window.
    open: bool,
    /// How many replicas share the slots, this one included.
    replicas: u32,
    /// How long a replica counts as alive after a call.
    lease: Duration,
    /// The most slots of a burst that one call takes.
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
        let spacing = limits.rate().interval();
        let mut asking = Self { horizon, rested, spacing, open: false, replicas: 1, lease, cap: 1, quorum };
        asking.share(1);
        asking
    }

    /// One that waits for no slot: a call takes all that there is.
    pub(super) fn at_once(mut self) -> Self {
        (self.rested, self.open) = (u64::MAX, true);
        self.share(1);
        self
    }

    /// While a burst lasts all may ask at the same instant: each takes its part of it, or the first would take all.
    pub(super) fn share(&mut self, replicas: u32) {
        self.replicas = replicas;
        let share = self.rested.div_ceil(u64::from(replicas.max(1)));
        self.cap = usize::try_from(share).unwrap_or(MAX_BATCH).clamp(1, MAX_BATCH);
    }

    /// How many replicas share the slots, as far as this one knows.
    pub(super) const fn replicas(&self) -> u32 {
        self.replicas
    }

    /// How long after the last slot the next one is, as the last answer has it: zero, and more may go at
    /// the same instant. `None` if there was no last one: the next is later than now. `spacing`: how far apart
    /// slots will lie, where that is told.
    pub(super) fn spaced(&mut self, apart: Option<Duration>, spacing: Option<Duration>) {
        self.open = apart.is_some_and(|apart| apart.is_zero());
        let spaced = spacing.or(apart).filter(|spacing| !spacing.is_zero());
        self.spacing = spaced.unwrap_or(self.spacing);
    }

    /// How far apart slots lie, as far as it is known.
    pub(super) const fn spacing(&self) -> Duration {
        self.spacing
    }

    /// Whether more may go at the instant of the last slot.
    pub(super) const fn is_open(&self) -> bool {
        self.open
    }

    /// How many slots to ask for, and whether more jobs wait than there are places. A call takes so many at `most`,
    /// without end where a burst begins with it.
    pub(super) fn batch(&self, waiting: usize, places: usize, most: u32) -> Batch {
        let is_burst = self.open || most == u32::MAX;
        let most = usize::try_from(most).unwrap_or(MAX_BATCH).min(MAX_BATCH);
        let cap = if is_burst { self.cap } else { most };
        let count = waiting.min(places).min(cap);
        let scarce = places < waiting.min(cap) && places < self.quorum;
        Batch { count, scarce }
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

    fn asking(rate: &str, concurrency: usize) -> Asking {
        let limit = Limit::leaky_bucket("l", rate.parse().unwrap(), 1).unwrap();
        Asking::new(&LimitSet::new(vec![limit]).unwrap(), H, concurrency)
    }

    #[test]
    fn a_call_takes_a_share_of_a_burst_while_it_lasts() {
        const SECOND: Duration = Duration::from_secs(1);
        let window = Limit::fixed_window("w", 1000, 60 * SECOND).unwrap();
        let log = Limit::sliding_log("s", 50, SECOND).unwrap();
        let shaper = Limit::leaky_bucket("l", "200/s".parse().unwrap(), 1).unwrap();
        for (limits, open) in [
            (vec![window.clone()], 1000),
            (vec![window.clone(), log.clone()], 52),
            // What spaces the slots out leaves no burst.
            (vec![window, log, shaper.clone()], 10),
            (vec![shaper], 10),
        ] {
            let mut asking = Asking::new(&LimitSet::new(limits).unwrap(), H, 64);
            let count = |asking: &Asking, most| asking.batch(5000, 5000, most).count;
            assert_eq!(count(&asking, 8), 8, "a turn's");
            assert_eq!(count(&asking, u32::MAX), open, "a burst is to come");
            asking.spaced(Some(Duration::ZERO), None);
            assert_eq!(count(&asking, 8), open);
            asking.share(4);
            assert_eq!(count(&asking, 8), open.div_ceil(4));
            asking.spaced(None, None);
            assert_eq!(count(&asking, 8), 8);
        }
    }

    #[test]
    fn slots_lie_as_far_apart_as_was_told_last() {
        let mut asking = asking("10/s", 64);
        assert_eq!(asking.spacing(), H);
        asking.spaced(Some(55 * H), Some(H / 20));
        assert_eq!(asking.spacing(), H / 20, "behind the end of a window");
        asking.spaced(Some(Duration::ZERO), Some(Duration::ZERO));
        assert_eq!(asking.spacing(), H / 20, "a burst says nothing");
        asking.spaced(Some(2 * H), None);
        assert_eq!(asking.spacing(), 2 * H);
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
        let asking = asking("1/m", 64).at_once();
        assert_eq!(asking.batch(100, 64, 1), Batch { count: 64, scarce: false });
        assert_eq!(asking.batch(5000, 5000, 1).count, MAX_BATCH);
    }

    #[test]
    fn asks_for_no_more_than_wait_or_can_be_sent() {
        let asking = asking("200/s", 8);
        assert_eq!(asking.batch(3, 8, 10), Batch { count: 3, scarce: false });
        assert_eq!(asking.batch(100, 8, 10), Batch { count: 8, scarce: false });
        assert_eq!(asking.batch(100, 2, 10), Batch { count: 2, scarce: false });
        assert_eq!(asking.batch(100, 1, 10), Batch { count: 1, scarce: true });
        assert_eq!(asking.batch(2, 2, 10), Batch { count: 2, scarce: false });
    }
}
