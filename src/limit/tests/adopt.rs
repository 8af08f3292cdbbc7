//! States that were written under other numbers, or by another algorithm.

use super::*;

/// The instant from which units taken count no longer under these numbers, the fraction of a TAT included.
fn settled(limit: &Limit, state: &State) -> i64 {
    let part = i64::from(limit.tat().is_some());
    (limit.whole_at(state).0 + part).max(state.last.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// The latest slot stays, and no wait is longer than the new numbers allow.
    #[test]
    fn the_frontier_stands_and_nobody_stalls(
        was in any_limit(),
        is in any_limit(),
        steps in steps(),
        moved in moves(),
    ) {
        let (state, _) = run(&was, false, &steps);
        let adopted = is.adopt(state.clone());
        prop_assert_eq!(adopted.last, state.last);
        prop_assert_eq!(&is.adopt(adopted.clone()), &adopted, "once is enough");
        let now = state.last.0.max(TODAY) + moved * (span(&is) / 100).max(1);
        let first = is.earliest(&adopted, Micros(now), is.max_cost().min(100)).0;
        prop_assert!(first <= settled(&is, &adopted).max(now));
        if window_of(&is) {
            prop_assert!(first >= state.last.0, "slots do not go back");
            prop_assert!(settled(&is, &adopted) <= state.last.0 + 3 * span(&is), "one period, and buckets");
        }
    }

    /// Other numbers of the same algorithm forget no unit of the present window.
    #[test]
    fn units_taken_stay_taken(
        (was, is) in prop_oneof![
            (counting(), counting()),
            (sliding_window(), sliding_window()),
            (sliding_log(), sliding_log()),
        ],
        steps in steps(),
    ) {
        let (state, taken) = run(&was, false, &steps);
        let Some((last, units)) = taken.last() else { return Ok(()) };
        let adopted = is.adopt(state);
        let remaining = is.standing(&adopted, Micros(*last)).remaining;
        prop_assert!(remaining <= is.burst().saturating_sub(u64::from(*units).min(is.burst())));
    }
}

fn window_of(limit: &Limit) -> bool {
    limit.tat().is_none()
}

#[test]
fn the_units_of_a_window_are_kept_when_its_count_changes() {
    let window = |count| Limit::fixed_window("l", count, Duration::from_secs(60)).unwrap();
    let mut state = window(10).fresh();
    state = window(10).commit(&state, Micros(TODAY), 7);
    for (count, left) in [(10, 3), (8, 1), (7, 0), (5, 0), (100, 93)] {
        let limit = window(count);
        let state = limit.adopt(state.clone());
        assert_eq!(limit.standing(&state, Micros(TODAY)).remaining, left, "of {count}");
    }
}

#[test]
fn buckets_of_another_width_become_one() {
    let window = |buckets| Limit::sliding_window("l", 10, Duration::from_secs(1), buckets).unwrap();
    let mut state = window(10).fresh();
    for (at, cost) in [(0, 2), (150_000, 3), (900_000, 1)] {
        state = window(10).commit(&state, Micros(TODAY + at), cost);
    }
    let last = TODAY + 900_000;
    let limit = window(5);
    let adopted = limit.adopt(state);
    assert_eq!(adopted.last, Micros(last));
    assert_eq!(limit.standing(&adopted, Micros(last)).remaining, 4, "none is forgotten");
}

#[test]
fn another_algorithm_begins_again_but_not_before_the_latest_slot() {
    let log = Limit::sliding_log("l", 3, Duration::from_secs(10)).unwrap();
    let slot = Micros(TODAY + 5 * SECOND);
    let state = log.commit(&log.fresh(), slot, 3);
    let window = Limit::fixed_window("l", 2, Duration::from_secs(1)).unwrap();
    let adopted = window.adopt(state);
    assert_eq!(window.standing(&adopted, Micros(TODAY)).remaining, 2);
    assert_eq!(window.earliest(&adopted, Micros(TODAY), 2), slot);
}
