//! Leases: what is written of a state ahead of its grants never allows more than these leave.

use super::*;

/// The most that one lease charges: twice half a second of slots, or half a second of units.
fn is_bounded(limit: &Limit, state: &State, leased: &State) -> bool {
    let half = i64::try_from(LEASE.as_micros()).unwrap();
    match (&state.level, &leased.level) {
        (Level::Tat(tat, _), Level::Tat(ahead, _)) => ahead.at.0 - tat.at.0 <= 2 * half,
        _ => {
            let units = |state: &State| limit.standing(state, leased.last).remaining;
            units(state) - units(leased) <= limit.rate().units_in(LEASE)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// A lease covers its state. While it covers the later states too, no job fits the lease earlier than the state,
    /// under these numbers or under others that replace them.
    #[test]
    fn what_fits_a_lease_fits_what_it_covers(
        limit in any_limit(),
        other in any_limit(),
        (before, after) in (steps(), steps()),
        scale in 1_i64..60,
        looks in prop::collection::vec((-50_i64..400, 1_u32..6), 1..8),
    ) {
        let (mut state, _) = run(&limit, false, &before);
        let hundredth = (span(&limit) / 100).max(1);
        let leased = limit.leased(&state, micros(scale * hundredth));
        prop_assert!(limit.covers(&leased, &state));
        let mut now = state.last.0;
        for (moved, cost) in after {
            now += moved.max(0) * hundredth / 20;
            let cost = clamp(&limit, cost);
            state = limit.commit(&state, limit.earliest(&state, Micros(now), cost), cost);
            if !limit.covers(&leased, &state) {
                break;
            }
            for (moved, cost) in &looks {
                let at = Micros(state.last.0 + moved * hundredth);
                for limit in [&limit, &other] {
                    let cost = clamp(limit, *cost);
                    let earliest = |state: &State| limit.earliest(&limit.adopt(state.clone()), at, cost);
                    prop_assert!(earliest(&leased) >= earliest(&state), "at {at}: {leased:?} {state:?}");
                }
            }
        }
    }

    /// A kill loses a second of slots at most, and of a slow limit none.
    #[test]
    fn a_lease_is_a_second_of_slots_at_most(limit in any_limit(), steps in steps()) {
        let (state, _) = run(&limit, false, &steps);
        let leased = limit.leased(&state, LEASE);
        prop_assert!(is_bounded(&limit, &state, &leased));
        if limit.rate().interval() > LEASE {
            prop_assert_eq!(leased, state);
        }
    }

    /// On a clock that stepped forward nothing fits earlier than it did, on the machine's own time.
    #[test]
    fn no_step_forward_gives_units(limit in any_limit(), steps in steps(), by in 1_i64..300, cost in 1_u32..6) {
        let (state, _) = run(&limit, false, &steps);
        let (by, cost) = (by * (span(&limit) / 100).max(1), clamp(&limit, cost));
        let moved = limit.step_back(state.clone(), -by);
        let (before, after) = (state.last, Micros(state.last.0 + by));
        let window = matches!(limit.algorithm(), Algorithm::Quota(counting) if !matches!(counting.edges(), Edges::FirstHit { .. }));
        if window {
            // The windows are the clock's own: what was used counts in the one in which the latest slot lies now.
            let left = |state: &State| limit.standing(state, state.last).remaining;
            prop_assert_eq!(left(&moved), left(&state));
            prop_assert!(limit.earliest(&moved, after, limit.max_cost()) <= Micros(after.0 + 2 * span(&limit)), "no stall");
        } else {
            let waits = limit.earliest(&state, before, cost).since(before);
            prop_assert!(limit.earliest(&moved, after, cost).since(after) >= waits);
        }
    }
}

/// While jobs come at the rate, a lease serves many of them.
#[test]
fn a_lease_serves_more_than_one_grant() {
    for limit in five_of_each() {
        let state = limit.commit(&limit.fresh(), Micros(TODAY), 1);
        let leased = limit.leased(&state, LEASE);
        let next = limit.commit(&state, Micros(TODAY + 200_000), 1);
        let serves = limit.covers(&leased, &next);
        assert_eq!(serves, !matches!(limit.algorithm(), Algorithm::Quota(_)), "{limit:?}");
        assert!(!limit.covers(&leased, &limit.commit(&next, Micros(TODAY + 600_000), 1)), "{limit:?}");
        assert!(limit.covers(&next, &state) && !limit.covers(&state, &next), "{limit:?}");
    }
}
