//! How many units are released in any window of one period, on clocks that step back too; and the two algorithms with a
//! weaker bound.

use super::*;

/// The most units taken in any window of this length.
fn most(taken: &Taken, length: i64) -> u64 {
    let in_window = |first: i64| -> u64 {
        let inside = taken.iter().filter(|(slot, _)| (first..first + length).contains(slot));
        inside.map(|(_, units)| u64::from(*units)).sum()
    };
    taken.iter().map(|(slot, _)| in_window(*slot)).max().unwrap_or(0)
}

/// Steps of one unit each.
fn ones(steps: Vec<i64>) -> Vec<(i64, u32)> {
    steps.into_iter().map(|moved| (moved, 1)).collect()
}

/// A limit whose steps are about an emission interval, so that it is nearly full; not the whole period of its rate.
fn dense(limit: &Limit) -> Limit {
    let rate = limit.rate();
    let count = rate.count().min(40);
    let period = rate.period_micros().max(count);
    let rate = Rate::new(count, Duration::from_micros(period)).unwrap();
    let burst = u32::try_from(limit.burst()).unwrap();
    match limit.algorithm() {
        Algorithm::LeakyBucket(_) => Limit::leaky_bucket("l", rate, burst).unwrap(),
        Algorithm::Gcra(_) => Limit::gcra("l", rate, burst).unwrap(),
        _ => Limit::token_bucket("l", rate, burst).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// At N per P and a burst, at most N + burst - 1 jobs are released in any P, whether they wait or are refused.
    #[test]
    fn gcra_family_by_jobs(
        limit in prop_oneof![leaky_bucket(), gcra()],
        steps in prop::collection::vec(moves(), 1..200),
        police in any::<bool>(),
    ) {
        let limit = dense(&limit);
        let (_, taken) = run(&limit, police, &ones(steps));
        let (n, period) = (limit.rate().count(), limit.rate().period_micros());
        let most = most(&taken, i64::try_from(period).unwrap());
        prop_assert!(most < n + limit.burst(), "{most} of {n} with {}", limit.burst());
    }

    /// With costs the same bound holds of their sum. The leaky bucket charges behind, so there the last job
    /// of a window may cost more than is left: at most N + burst - 1 + (its cost - 1).
    #[test]
    fn gcra_family_by_units(
        limit in prop_oneof![leaky_bucket(), gcra()],
        steps in prop::collection::vec((moves(), 1_u32..6), 1..200),
        police in any::<bool>(),
    ) {
        let limit = dense(&limit);
        let (_, taken) = run(&limit, police, &steps);
        let (n, period) = (limit.rate().count(), limit.rate().period_micros());
        let behind = if limit.is_behind() { 4 } else { 0 };
        let most = most(&taken, i64::try_from(period).unwrap());
        prop_assert!(most < n + limit.burst() + behind, "{most} of {n} with {}", limit.burst());
    }

    /// A log lets N through in any period.
    #[test]
    fn log(limit in sliding_log(), steps in prop::collection::vec((moves(), 1_u32..6), 1..200), police in any::<bool>()) {
        let (_, taken) = run(&limit, police, &steps);
        prop_assert!(most(&taken, span(&limit)) <= limit.burst());
    }

    /// A quota lets N through in each of its windows.
    #[test]
    fn quota(limit in counting(), steps in prop::collection::vec((moves(), 1_u32..6), 1..200), police in any::<bool>()) {
        let (_, taken) = run(&limit, police, &steps);
        let Algorithm::Quota(counting) = limit.algorithm() else { unreachable!() };
        let mut end = i64::MIN;
        let mut used = 0;
        for (slot, units) in taken {
            if slot >= end {
                (end, used) = (counting.edges().after(Micros(slot)).0, 0);
            }
            used += u64::from(units);
            prop_assert!(used <= counting.count(), "until {end}");
        }
        prop_assert!(limit.burst() == counting.count());
    }

    /// Windows and counters let at most 2N through in any period, in the worst case.
    #[test]
    fn never_more_than_twice(
        limit in prop_oneof![counting(), sliding_window()],
        steps in prop::collection::vec((moves(), 1_u32..6), 1..200),
        police in any::<bool>(),
    ) {
        let (_, taken) = run(&limit, police, &steps);
        // A month may be 28 days.
        let length = match limit.algorithm() {
            Algorithm::Quota(counting) if counting.edges().longest() == 31 * DAY => 28 * DAY,
            _ => span(&limit),
        };
        prop_assert!(most(&taken, length) <= 2 * limit.burst());
    }
}

/// Takes as many units as fit at `at`.
fn drain(limit: &Limit, state: &mut State, at: i64) -> u64 {
    let remaining = limit.standing(state, Micros(at)).remaining;
    let cost = u32::try_from(remaining).unwrap();
    assert_eq!(limit.earliest(state, Micros(at), cost), Micros(at));
    assert!(limit.earliest(state, Micros(at), cost + 1) > Micros(at));
    *state = limit.commit(state, Micros(at), cost);
    remaining
}

#[test]
fn a_sliding_counter_lets_199_of_100_through_with_any_buckets() {
    for buckets in [1, 2, 5, 10, 20, 100] {
        let limit = Limit::sliding_window("l", 100, Duration::from_secs(1), buckets).unwrap();
        let (mut state, width) = (limit.fresh(), SECOND / i64::from(buckets));
        // All units are taken at the end of a bucket, and again when that bucket is about to leave, except for one µs
        // in two.
        let first = TODAY.div_euclid(width) * width + width - 1;
        let second = first + SECOND - 1;
        let taken = drain(&limit, &mut state, first) + drain(&limit, &mut state, second);
        assert_eq!(taken, 199, "{buckets} buckets, within {} µs", second - first + 1);
    }
}

#[test]
fn a_fixed_window_lets_2n_through_at_its_edge() {
    let limit = Limit::fixed_window("l", 100, Duration::from_secs(1)).unwrap();
    let mut state = limit.fresh();
    let edge = TODAY.div_euclid(SECOND) * SECOND + SECOND;
    let taken = drain(&limit, &mut state, edge - 1) + drain(&limit, &mut state, edge);
    assert_eq!(taken, 200, "within 2 µs");

    // The window is begun by the first unit: one unit then, and the rest at its end.
    let limit = Limit::first_hit_window("l", 100, Duration::from_secs(1)).unwrap();
    let mut state = limit.commit(&limit.fresh(), Micros(TODAY), 1);
    let taken = drain(&limit, &mut state, TODAY + SECOND - 1) + drain(&limit, &mut state, TODAY + SECOND);
    assert_eq!(taken, 199, "within 2 µs");
}

#[test]
fn exactly_the_burst_then_one_per_interval() {
    let rate: Rate = "10/s".parse().unwrap();
    for limit in [
        Limit::leaky_bucket("l", rate, 5).unwrap(),
        Limit::leaky_bucket("l", rate, 5).unwrap().policing(),
        Limit::gcra("l", rate, 5).unwrap(),
        Limit::token_bucket("l", rate, 5).unwrap(),
    ] {
        let (mut state, mut slots) = (limit.fresh(), vec![]);
        for _ in 0..9 {
            let slot = limit.earliest(&state, Micros(TODAY), 1);
            state = limit.commit(&state, slot, 1);
            slots.push((slot.0 - TODAY) / 1000);
        }
        assert_eq!(slots, [0, 0, 0, 0, 0, 100, 200, 300, 400], "{limit:?}");
    }
}

#[test]
fn a_clock_that_steps_back_lets_nothing_more_through() {
    for limit in five_of_each() {
        let mut state = limit.fresh();
        assert_eq!(drain(&limit, &mut state, TODAY), 5);
        for back in [1, 1000, SECOND, 3 * SECOND, 5 * DAY] {
            let now = Micros(TODAY - back);
            assert!(limit.earliest(&state, now, 1) > now, "{back} µs back: {limit:?}");
            assert_eq!(limit.standing(&state, now).remaining, 0, "{back} µs back: {limit:?}");
        }
    }
}
