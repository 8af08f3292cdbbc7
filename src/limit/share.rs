//! One replica's share of limits while the replicas cannot share their state. It has no I/O.

use std::time::Duration;

use super::{Algorithm, Limit, LimitError, LimitSet};
use crate::rate::Rate;

/// The limits of one of `of` replicas. All of them together release no more than the given limits allow; `None` where
/// the share is too slow to be a limit.
///
/// A limit whose units come back one by one gets the same count in a period `of` times as long, and its share of the
/// burst, at least 1; where it shapes it charges behind, so that a job may cost more than that share. Windows get
/// their share of the count. Sliding windows, and those of fewer units than there are replicas, become equally spaced
/// slots, because the replica does not know how much of them was used before.
pub(crate) fn replica_share(set: &LimitSet, of: u32, is_policing: bool) -> Option<LimitSet> {
    let limits = set.listed().map(|limit| share_of(limit, of.max(1), is_policing));
    LimitSet::combined(set.combine(), limits.collect::<Option<_>>()?).ok()
}

fn share_of(limit: &Limit, of: u32, is_policing: bool) -> Option<Limit> {
    let (name, rate) = (limit.name(), limit.rate());
    let period = Duration::from_micros(rate.period_micros()).checked_mul(of)?;
    let rate = Rate::new(rate.count(), period).ok()?;
    let even = |burst: u32| {
        let burst = (burst / of).max(1);
        if is_policing { Limit::gcra(name, rate, burst) } else { Limit::leaky_bucket(name, rate, burst) }
    };
    let part: Result<Limit, LimitError> = match limit.algorithm() {
        Algorithm::LeakyBucket(bucket) => even(bucket.burst()),
        Algorithm::Gcra(gcra) => even(gcra.burst()),
        Algorithm::TokenBucket(bucket) => even(bucket.capacity()),
        Algorithm::FixedWindow(window) | Algorithm::Quota(window) if window.count() >= u64::from(of) => {
            Limit::quota(name, window.count() / u64::from(of), window.edges())
        }
        Algorithm::FixedWindow(_)
        | Algorithm::Quota(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_) => even(1),
    };
    part.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn of(limit: Limit, replicas: u32) -> Limit {
        let set = LimitSet::new(vec![limit]).unwrap();
        replica_share(&set, replicas, false).unwrap().get(0).unwrap().clone()
    }

    #[test]
    fn parts_together_are_no_more_than_the_whole() {
        let rate: Rate = "200/s".parse().unwrap();
        for limit in [
            Limit::leaky_bucket("l", rate, 10).unwrap(),
            Limit::gcra("l", rate, 10).unwrap(),
            Limit::token_bucket("l", rate, 10).unwrap(),
            Limit::fixed_window("l", 1000, 60 * SECOND).unwrap(),
            Limit::first_hit_window("l", 10, 60 * SECOND).unwrap(),
            Limit::sliding_window("l", 1000, 60 * SECOND, 6).unwrap(),
            Limit::sliding_log("l", 7, 60 * SECOND).unwrap(),
        ] {
            for replicas in 1..=12 {
                let part = of(limit.clone(), replicas);
                let (whole, sum) =
                    (limit.rate().per_second(), part.rate().per_second() * f64::from(replicas));
                assert!(sum <= whole * (1.0 + 1e-9), "{replicas} times {part:?} are {sum}/s of {limit:?}");
                let bursts = part.burst() * u64::from(replicas);
                assert!(bursts <= limit.burst().max(u64::from(replicas)), "{part:?} of {limit:?}");
                assert_eq!(part.name(), "l");
            }
        }
    }

    #[test]
    fn fewer_units_than_replicas_are_spread_over_a_longer_time() {
        let window = Limit::fixed_window("w", 2, 60 * SECOND).unwrap();
        assert_eq!(of(window, 4).rate().interval(), 120 * SECOND);
        let month = "1/30d".parse().unwrap();
        let set = LimitSet::new(vec![Limit::leaky_bucket("l", month, 1).unwrap()]).unwrap();
        assert_eq!(replica_share(&set, 100, false), None, "over a year between two is no limit");
    }
}
