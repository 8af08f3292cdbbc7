//! For how many slots to ask the store at once: pure.

use std::time::Duration;

use crate::limit::{Limit, LimitSet, MAX_BATCH};
use crate::store::LONGEST_LEASE;

/// How one replica asks for the slots of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batching {
    horizon: Duration,
    /// What half a horizon releases after a rest: the burst, or the N of a window, besides.
    units_after_rest: u64,
    /// How far apart slots lie, as far as it is known.
    spacing: Duration,
    /// More may go at the instant of the last slot: a burst is not used up, or a window.
    is_burst: bool,
    /// How many replicas share the slots, this one included.
    replicas: u32,
    /// How long a replica counts as alive after a call.
    lease: Duration,
    /// The most slots of a burst that one call takes.
    burst_share: usize,
    /// The free concurrency that is worth a call at once, where concurrency is what is scarce.
    worthwhile: usize,
}

impl Batching {
    /// As if there were no other replica, which the first answer tells.
    pub(crate) fn new(limits: &LimitSet, horizon: Duration, concurrency: usize) -> Self {
        let half = limits.rate().units_in(horizon / 2);
        let after_rest = |limit: &Limit| limit.rate().units_in(horizon / 2).saturating_add(limit.burst() - 1);
        let units_after_rest = limits.iter().map(after_rest).min().unwrap_or(half);
        // A replica renews it by asking, which it does once in every slot that it takes or misses.
        let longest = limits.iter().map(longest_wait).max().unwrap_or_default();
        let lease = longest.max(2 * horizon).clamp(Duration::from_secs(2), LONGEST_LEASE);
        let mut batching = Self {
            horizon,
            units_after_rest,
            spacing: limits.rate().interval(),
            is_burst: false,
            replicas: 1,
            lease,
            burst_share: 1,
            worthwhile: concurrency.div_ceil(4),
        };
        batching.set_replicas(1);
        batching
    }

    /// One that waits for no slot: a call takes all that there is.
    pub(crate) fn at_once(mut self) -> Self {
        (self.units_after_rest, self.is_burst) = (u64::MAX, true);
        self.set_replicas(1);
        self
    }

    /// While a burst lasts all may ask at the same instant: each takes its part of it, or the first would take all.
    pub(crate) fn set_replicas(&mut self, replicas: u32) {
        self.replicas = replicas;
        let share = self.units_after_rest.div_ceil(u64::from(replicas.max(1)));
        self.burst_share = usize::try_from(share).unwrap_or(MAX_BATCH).clamp(1, MAX_BATCH);
    }

    /// How many replicas share the slots, as far as this one knows.
    pub(crate) const fn replicas(&self) -> u32 {
        self.replicas
    }

    /// An answer tells how long after the last slot the next one is: zero, and more may go at the same instant.
    /// `None` if there was no last one: the next is later than now. `told` is how far apart slots will lie, where the
    /// store tells.
    pub(super) fn on_spacing(&mut self, apart: Option<Duration>, told: Option<Duration>) {
        self.is_burst = apart.is_some_and(|apart| apart.is_zero());
        let spacing = told.or(apart).filter(|spacing| !spacing.is_zero());
        self.spacing = spacing.unwrap_or(self.spacing);
    }

    /// How far apart slots lie, as far as it is known.
    pub(crate) const fn spacing(&self) -> Duration {
        self.spacing
    }

    /// Whether more may go at the instant of the last slot.
    pub(crate) const fn is_burst(&self) -> bool {
        self.is_burst
    }

    /// How many slots to ask for, where so many wait and so many would find room at their slots. A call takes at most
    /// `max_units`, without end where a burst begins with it.
    pub(super) fn batch(&self, waiting: usize, room: usize, max_units: u32) -> Batch {
        let is_burst = self.is_burst || max_units == u32::MAX;
        let max_units = usize::try_from(max_units).unwrap_or(MAX_BATCH).min(MAX_BATCH);
        let most = if is_burst { self.burst_share } else { max_units };
        let count = waiting.min(room).min(most);
        let is_scarce = room < waiting.min(most) && room < self.worthwhile;
        Batch { count, is_scarce }
    }

    /// Where there are other replicas, a random part of this: so those of unequal distance to the
    /// store get equal shares.
    pub(crate) fn jitter(&self, most: Duration) -> Duration {
        // Between the slots of a very slow limit leases end, and who seems alone need not be.
        if self.replicas <= 1 && self.lease < LONGEST_LEASE {
            return Duration::ZERO;
        }
        let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(fastrand::u64(0..=most))
    }

    /// How long a lease is to last: over several calls.
    pub(crate) const fn lease(&self) -> Duration {
        self.lease
    }

    /// How long a call for few slots waits at most for more concurrency to be free.
    pub(crate) fn batch_delay(&self) -> Duration {
        self.horizon / 32
    }
}

/// How long a replica may go without a call where there are jobs: several slots, or a whole window.
fn longest_wait(limit: &Limit) -> Duration {
    let slots = match limit.is_even() {
        true => 4,
        // N times the interval is the period.
        false => u32::try_from(limit.burst()).unwrap_or(u32::MAX).max(4),
    };
    limit.rate().interval().saturating_mul(slots)
}

/// What the next call would ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Slots.
    pub(crate) count: usize,
    /// Little concurrency is free while more jobs wait: more may be free in a moment.
    pub(crate) is_scarce: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    const H: Duration = Duration::from_millis(100);

    fn batching(rate: &str, concurrency: usize) -> Batching {
        let limit = Limit::leaky_bucket("l", rate.parse().unwrap(), 1).unwrap();
        Batching::new(&LimitSet::new(vec![limit]).unwrap(), H, concurrency)
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
            let mut batching = Batching::new(&LimitSet::new(limits).unwrap(), H, 64);
            let count = |batching: &Batching, most| batching.batch(5000, 5000, most).count;
            assert_eq!(count(&batching, 8), 8, "a turn's");
            assert_eq!(count(&batching, u32::MAX), open, "a burst is to come");
            batching.on_spacing(Some(Duration::ZERO), None);
            assert_eq!(count(&batching, 8), open);
            batching.set_replicas(4);
            assert_eq!(count(&batching, 8), open.div_ceil(4));
            batching.on_spacing(None, None);
            assert_eq!(count(&batching, 8), 8);
        }
    }

    #[test]
    fn slots_lie_as_far_apart_as_was_told_last() {
        let mut batching = batching("10/s", 64);
        assert_eq!(batching.spacing(), H);
        batching.on_spacing(Some(55 * H), Some(H / 20));
        assert_eq!(batching.spacing(), H / 20, "behind the end of a window");
        batching.on_spacing(Some(Duration::ZERO), Some(Duration::ZERO));
        assert_eq!(batching.spacing(), H / 20, "a burst says nothing");
        batching.on_spacing(Some(2 * H), None);
        assert_eq!(batching.spacing(), 2 * H);
    }

    #[test]
    fn a_lease_outlasts_a_window() {
        let lease = |limit| Batching::new(&LimitSet::new(vec![limit]).unwrap(), H, 64).lease();
        let window = |secs| Limit::fixed_window("w", 1000, Duration::from_secs(secs)).unwrap();
        assert_eq!(lease(window(30)), Duration::from_secs(30));
        assert_eq!(lease(window(3600)), LONGEST_LEASE);
        assert_eq!(lease(Limit::gcra("g", "1/s".parse().unwrap(), 1000).unwrap()), Duration::from_secs(4));
    }

    #[test]
    fn a_policer_asks_for_all_that_can_be_sent() {
        let batching = batching("1/m", 64).at_once();
        assert_eq!(batching.batch(100, 64, 1), Batch { count: 64, is_scarce: false });
        assert_eq!(batching.batch(5000, 5000, 1).count, MAX_BATCH);
    }

    #[test]
    fn asks_for_no_more_than_wait_or_can_be_sent() {
        let batching = batching("200/s", 8);
        assert_eq!(batching.batch(3, 8, 10), Batch { count: 3, is_scarce: false });
        assert_eq!(batching.batch(100, 8, 10), Batch { count: 8, is_scarce: false });
        assert_eq!(batching.batch(100, 2, 10), Batch { count: 2, is_scarce: false });
        assert_eq!(batching.batch(100, 1, 10), Batch { count: 1, is_scarce: true });
        assert_eq!(batching.batch(2, 2, 10), Batch { count: 2, is_scarce: false });
    }
}
