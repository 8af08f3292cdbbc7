//! The largest numbers that are accepted: no result and no intermediate result exceeds 2^53. Above that, doubles, and
//! so Lua, skip integers.

use super::*;

const EXACT: i128 = 1 << 53;

/// Numbers of every size, small ones as likely as big ones.
fn any_size(most: u64) -> impl Strategy<Value = u64> {
    let bits = 64 - most.leading_zeros();
    (1..=bits, any::<u64>()).prop_map(move |(bits, n)| (n >> (64 - bits)).clamp(1, most))
}

const LONGEST: u64 = 366 * DAY as u64;

/// A period, a count up to the highest that makes a rate with it, and the remainder of the random choice.
fn numbers() -> impl Strategy<Value = (Duration, u64)> {
    (any_size(LONGEST), any_size(LONGEST), any::<bool>()).prop_map(|(period, count, most)| {
        (Duration::from_micros(period), if most { period } else { count.min(period) })
    })
}

/// Commits the highest cost at the latest slot, to an empty state and once more, and computes when it equals absence.
fn latest_slot(limit: &Limit) -> Result<(), TestCaseError> {
    let cost = limit.max_cost();
    let latest = limit.latest(cost);
    prop_assert!(latest.0 >= 1_990_000_000_000_000, "exact until 2033 at least: {latest}");
    let state = limit.commit(&limit.fresh(), latest, cost);
    prop_assert!(limit.whole_at(&state) <= Micros::MAX, "{state:?}");
    let next = limit.earliest(&state, latest, cost);
    prop_assert!(next <= Micros::MAX, "{next} after {latest}");
    let Standing { limit: n, remaining, reset_after } = limit.standing(&state, latest);
    let reset_at = i128::from(latest.0) + i128::try_from(reset_after.as_micros()).unwrap();
    prop_assert!(i128::from(n) < EXACT && remaining <= n && reset_at <= i128::from(Micros::MAX.0));
    prop_assert_eq!(limit.earliest(&state, Micros::MAX, 1), Micros::MAX);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn windows((period, count) in numbers(), first_hit in any::<bool>()) {
        let new = if first_hit { Limit::first_hit_window } else { Limit::fixed_window };
        let limit = new("l", count, period).unwrap();
        // The sum used + cost, both at most N, is compared with N.
        prop_assert!(i128::from(count) + i128::from(limit.max_cost()) < EXACT);
        latest_slot(&limit)?;
    }

    #[test]
    fn calendars(count in any_size(LONGEST), unit in 0..3_usize, offset in -840_i64..=840) {
        let unit = [Unit::Day, Unit::Week, Unit::Month][unit];
        let edges = Edges::Calendar(Calendar::new(unit, offset).unwrap());
        let count = count.min(u64::try_from(edges.longest()).unwrap());
        latest_slot(&Limit::quota("l", count, edges).unwrap())?;
    }

    #[test]
    fn logs((period, count) in numbers()) {
        let limit = Limit::sliding_log("l", count.min(LONGEST_LOG), period).unwrap();
        latest_slot(&limit)?;
    }

    /// The products of the sliding window: units times width, and the intermediate number that is rounded up.
    #[test]
    fn sliding_windows((period, count) in numbers(), buckets in 1_u32..=120) {
        let micros = u64::try_from(period.as_micros()).unwrap();
        let buckets = u64::from(buckets).min(micros);
        let period = Duration::from_micros(micros / buckets * buckets);
        let (count, buckets) = (count.min(micros / buckets * buckets), u32::try_from(buckets).unwrap());
        let limit = match Limit::sliding_window("l", count, period, buckets) {
            Ok(limit) => limit,
            Err(LimitError::CoarseBuckets { enough, .. }) => {
                // The number of buckets that the error suggests is accepted.
                if let Some(enough) = enough {
                    prop_assert!(Limit::sliding_window("l", count, period, enough).is_ok());
                }
                return Ok(());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        let Algorithm::SlidingWindow(window) = limit.algorithm() else { unreachable!() };
        let (n, width) = (i128::from(window.count()), i128::from(window.width()));
        prop_assert!(n * width < EXACT, "room * width");
        prop_assert!(width * n + width - 1 < EXACT, "what the leaving bucket weighs, rounded up");
        prop_assert!(n + i128::from(limit.max_cost()) < EXACT, "full + cost");
        latest_slot(&limit)?;
    }

    /// The highest count that is accepted with this width is exact, and one more is not accepted.
    #[test]
    fn the_highest_count_of_a_sliding_window(width in 8_700_000_u64..LONGEST / 120) {
        let new = |count| Limit::sliding_window("l", count, Duration::from_micros(width * 120), 120);
        let most = (1_u64 << 53) / width - 1;
        latest_slot(&new(most).unwrap())?;
        prop_assert!(i128::from(most) * i128::from(width) + i128::from(width) - 1 < EXACT);
        let refused = new(most + 1);
        prop_assert!(matches!(refused, Err(LimitError::CoarseBuckets { enough: None, .. })), "{refused:?}");
    }

    /// The GCRA and the token bucket need the whole cost to fit, so both their look-back and their look-ahead must be
    /// exact.
    #[test]
    fn gcras((period, count) in numbers(), burst in any_size(u32::MAX.into()), bucket in any::<bool>()) {
        let rate = Rate::new(count, period).unwrap();
        let burst = u32::try_from(burst).unwrap();
        let new = if bucket { Limit::token_bucket } else { Limit::gcra };
        let Ok(limit) = new("l", rate, burst) else { return Ok(()) };
        let (pace, _) = limit.tat().unwrap();
        let (n, period) = (i128::from(rate.count()), i128::from(rate.period_micros()));
        let most = i128::from(burst) + i128::from(limit.max_cost()) + 1;
        prop_assert!(n - 1 + most * (period % n) < EXACT, "rem + k * r");
        prop_assert!(most * (period / n) < EXACT, "k * q");
        latest_slot(&limit)?;
        let cost = limit.max_cost();
        prop_assert!(pace.due(Tat::ZERO, 0).0.abs() < Micros::MAX.0);
        // The highest state from which the latest slot is granted, and the state after it.
        let fullest = pace.advance(Tat::whole(limit.latest(cost)), i64::from(burst) - i64::from(cost));
        let after = pace.commit(fullest, limit.latest(cost), cost);
        prop_assert!(after.at < Micros::MAX);
    }
}
