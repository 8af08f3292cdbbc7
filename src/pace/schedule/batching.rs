//! The number of slots to request at once. It is pure.

use std::time::Duration;

use crate::limit::{Limit, LimitSet, MAX_BATCH};
use crate::store::LONGEST_LEASE;

/// The batching of one replica's requests for slots of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batching {
    horizon: Duration,
    /// The units that half a horizon releases after an idle period, including the burst, or the N of a window.
    units_after_rest: u64,
    /// The known spacing of slots.
    spacing: Duration,
    /// Whether the instant of the last slot has more slots, since a burst or a window is not used up.
    is_burst: bool,
    /// The number of replicas that share the slots, this one included.
    replicas: u32,
    /// The time for which a replica counts as alive after a call.
    lease: Duration,
    /// The most slots of a burst that one call takes.
    burst_share: usize,
    /// The free concurrency that is worth a call at once while concurrency is scarce.
    worthwhile: usize,
}

impl Batching {
    /// Creates the batching for a single replica; the first answer has the number of replicas.
    pub(crate) fn new(limits: &LimitSet, horizon: Duration, concurrency: usize) -> Self {
        let half = limits.rate().units_in(horizon / 2);
        let after_rest = |limit: &Limit| limit.rate().units_in(horizon / 2).saturating_add(limit.burst() - 1);
        let units_after_rest = limits.iter().map(after_rest).min().unwrap_or(half);
        // A replica renews its lease by reserve calls, which it makes at least once for every slot that it takes or
        // misses.
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

    /// Turns it into the batching of a policer, whose calls take all waiters.
    pub(crate) fn at_once(mut self) -> Self {
        (self.units_after_rest, self.is_burst) = (u64::MAX, true);
        self.set_replicas(1);
        self
    }

    /// Sets the number of replicas. During a burst all may call at the same instant: each takes its share, since
    /// otherwise the first would take all.
    pub(crate) fn set_replicas(&mut self, replicas: u32) {
        self.replicas = replicas;
        let share = self.units_after_rest.div_ceil(u64::from(replicas.max(1)));
        self.burst_share = usize::try_from(share).unwrap_or(MAX_BATCH).clamp(1, MAX_BATCH);
    }

    /// Returns the known number of replicas that share the slots.
    pub(crate) const fn replicas(&self) -> u32 {
        self.replicas
    }

    /// Records the spacing from an answer; see [`Spacing`](super::Spacing) for `apart` and `announced`.
    pub(super) fn on_spacing(&mut self, apart: Option<Duration>, announced: Option<Duration>) {
        self.is_burst = apart.is_some_and(|apart| apart.is_zero());
        let spacing = announced.or(apart).filter(|spacing| !spacing.is_zero());
        self.spacing = spacing.unwrap_or(self.spacing);
    }

    /// The known spacing of slots.
    pub(crate) const fn spacing(&self) -> Duration {
        self.spacing
    }

    /// Whether the instant of the last slot has more slots.
    pub(crate) const fn is_burst(&self) -> bool {
        self.is_burst
    }

    /// Returns how many slots to request for the `waiting` jobs. At their slots the concurrency has room for `room`
    /// of them. A call takes at most `max_units`, unless a burst is open; that is `u32::MAX` if a burst begins with
    /// it.
    pub(super) fn batch(&self, waiting: usize, room: usize, max_units: u32) -> Batch {
        let is_burst = self.is_burst || max_units == u32::MAX;
        let max_units = usize::try_from(max_units).unwrap_or(MAX_BATCH).min(MAX_BATCH);
        let most = if is_burst { self.burst_share } else { max_units };
        let count = waiting.min(room).min(most);
        let is_scarce = room < waiting.min(most) && room < self.worthwhile;
        Batch { count, is_scarce }
    }

    /// Returns a random part of `most` if there are other replicas, so that replicas at different distances from the
    /// store get equal shares.
    pub(crate) fn jitter(&self, most: Duration) -> Duration {
        // Leases end between the slots of a very slow limit, so a replica that seems alone may not be alone.
        if self.replicas <= 1 && self.lease < LONGEST_LEASE {
            return Duration::ZERO;
        }
        let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(fastrand::u64(0..=most))
    }

    /// Returns the time to live of leases, which covers several calls.
    pub(crate) const fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns for how long at most a call for few slots is delayed, so that more concurrency becomes free.
    pub(crate) fn batch_delay(&self) -> Duration {
        self.horizon / 32
    }
}

/// Returns how long a replica with waiters may go without a call: several slots, or a whole window.
fn longest_wait(limit: &Limit) -> Duration {
    let slots = match limit.is_even() {
        true => 4,
        // N times the interval is the period.
        false => u32::try_from(limit.burst()).unwrap_or(u32::MAX).max(4),
    };
    limit.rate().interval().saturating_mul(slots)
}

/// The size of the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The number of slots to request.
    pub(crate) count: usize,
    /// Whether little concurrency is free while more waiters are ready, so that a short delay may free more.
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
            // A limit that spaces the slots leaves no burst.
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
