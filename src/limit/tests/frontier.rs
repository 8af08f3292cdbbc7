//! The frontier law, and that `earliest` is the first instant: against oracles that count units one by one.

use super::*;

/// Whether `cost` fits at `at`, which is not before any of the units taken: by the definition of the algorithm, from
/// all units ever taken.
fn fits(limit: &Limit, taken: &Taken, at: i64, cost: u32) -> bool {
    let sum = |counts: &dyn Fn(i64) -> bool| -> i128 {
        taken.iter().filter(|(slot, _)| counts(*slot)).map(|(_, units)| i128::from(*units)).sum()
    };
    let cost = i128::from(cost);
    match limit.algorithm() {
        Algorithm::FixedWindow(counting) | Algorithm::Quota(counting) => {
            let used = match counting.edges() {
                Edges::FirstHit { period } => {
                    let begin = first_hit(taken, period).filter(|begin| at < begin + period);
                    begin.map_or(0, |begin| sum(&|slot| slot >= begin))
                }
                edges => sum(&|slot| edges.after(Micros(slot)) == edges.after(Micros(at))),
            };
            used + cost <= i128::from(counting.count())
        }
        Algorithm::SlidingWindow(window) => {
            let (width, buckets) = (window.width(), i64::from(window.buckets()));
            let number = at.div_euclid(width);
            let full = sum(&|slot| slot.div_euclid(width) > number - buckets);
            let leaving = sum(&|slot| slot.div_euclid(width) == number - buckets);
            let left = i128::from((number + 1) * width - at);
            (full + cost) * i128::from(width) + leaving * left
                <= i128::from(window.count()) * i128::from(width)
        }
        Algorithm::SlidingLog(log) => sum(&|slot| slot > at - log.period()) + cost <= i128::from(log.count()),
        _ => unreachable!("no window"),
    }
}

/// The beginning of the last window that a first unit opened.
fn first_hit(taken: &Taken, period: i64) -> Option<i64> {
    taken.iter().fold(None, |begin, (slot, _)| match begin {
        Some(begin) if *slot < begin + period => Some(begin),
        _ => Some(*slot),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// A cost that fits at one instant fits at every later one until more is taken, and `earliest` is the first such
    /// instant.
    #[test]
    fn what_fits_once_fits_from_then_on_and_never_before(
        limit in window(),
        steps in steps(),
        police in any::<bool>(),
        cost in 1_u32..6,
        moved in moves(),
        looks in prop::collection::vec(0_i64..1000, 12),
    ) {
        let (state, taken) = run(&limit, police, &steps);
        let last = taken.last().map_or(0, |(slot, _)| *slot);
        prop_assert_eq!(state.last.0, last);
        let now = TODAY.max(last) + moved * (span(&limit) / 100).max(1);
        let (from, cost) = (now.max(last), clamp(&limit, cost));
        let first = limit.earliest(&state, Micros(now), cost).0;
        prop_assert!(first >= from);
        prop_assert!(fits(&limit, &taken, first, cost), "it fits at {first}");
        if first > from {
            prop_assert!(!fits(&limit, &taken, first - 1, cost), "not just before {first}");
        }
        for look in looks {
            let before = from + (first - from) * look / 1000;
            if before < first {
                prop_assert!(!fits(&limit, &taken, before, cost), "not at {before}, before {first}");
                prop_assert_eq!(limit.earliest(&state, Micros(before), cost).0, first);
            }
            let after = first + 2 * span(&limit) * look / 1000;
            prop_assert!(fits(&limit, &taken, after, cost), "at {after}, after {first}");
            prop_assert_eq!(limit.earliest(&state, Micros(after), cost).0, after);
        }
    }

    /// The units reported as remaining fit, and one more does not.
    #[test]
    fn what_remains_fits_and_one_more_does_not(
        limit in prop_oneof![window(), gcra()],
        steps in steps(),
        police in any::<bool>(),
        moved in 0_i64..130,
    ) {
        let (state, taken) = run(&limit, police, &steps);
        let last = taken.last().map_or(TODAY, |(slot, _)| *slot);
        let now = Micros(last + moved * (span(&limit) / 100).max(1));
        let standing = limit.standing(&state, now);
        let remaining = u32::try_from(standing.remaining).unwrap();
        prop_assert!(standing.limit == limit.burst() && standing.remaining <= standing.limit);
        prop_assert!(remaining == 0 || limit.earliest(&state, now, remaining) == now, "{remaining} fit");
        prop_assert!(limit.earliest(&state, now, remaining + 1) > now, "{remaining} + 1 do not");
    }
}
