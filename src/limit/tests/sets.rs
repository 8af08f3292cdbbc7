//! Sets of limits are decided in one pass.

use super::*;

/// A cost for each limit of the set.
pub(crate) fn costs(limits: &LimitSet, wanted: &[u32; 5]) -> Vec<u32> {
    limits.iter().zip(wanted).map(|(limit, cost)| (*cost).min(limit.max_cost())).collect()
}

pub(crate) fn set(combine: Combine) -> impl Strategy<Value = LimitSet> {
    prop::collection::vec(any_limit(), 2..=4).prop_map(move |limits| {
        let name = |(place, limit): (usize, Limit)| limit.named(place.to_string());
        LimitSet::combined(combine, limits.into_iter().enumerate().map(name).collect()).unwrap()
    })
}

type Steps = Vec<(i64, [u32; 5])>;

fn steps() -> impl Strategy<Value = Steps> {
    let cost = prop_oneof![1 => Just(0_u32), 4 => Just(1_u32), 1 => 1_u32..5];
    prop::collection::vec((moves(), prop::array::uniform5(cost)), 60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The latest of the limits' earliest instants fits all of them; and an instant before it does not.
    #[test]
    fn the_latest_of_earliest_is_right_in_one_pass(limits in set(Combine::All), steps in steps()) {
        let longest = limits.iter().map(span).max().unwrap();
        let (mut states, mut now) = (limits.fresh(), TODAY);
        for (moved, cost) in steps {
            now += moved * (longest / 100).max(1);
            let costs = costs(&limits, &cost);
            let asked = |place: &usize| costs[*place] > 0;
            let before = states.clone();
            let plan = limits.plan(&mut states, Micros(now), Costs::PerLimit(&costs), Micros::MAX);
            let slot = plan.slots[0];
            let places: Vec<usize> = (0..limits.len()).filter(asked).collect();
            for &place in &places {
                let limit = limits.get(place).unwrap();
                prop_assert_eq!(limit.earliest(&before[place], slot, costs[place]), slot, "{:?}", limit);
            }
            if slot.0 > now && !places.is_empty() {
                let just_before = Micros(slot.0 - 1);
                let fits = |&place: &usize| {
                    limits.get(place).unwrap().earliest(&before[place], just_before, costs[place]) == just_before
                };
                prop_assert!(!places.iter().all(fits), "one says no before {slot}");
            }
            for (place, (was, is)) in before.iter().zip(&states).enumerate() {
                prop_assert_eq!(was == is, !asked(&place), "all are charged that are asked");
            }
        }
    }

    /// The earliest alternative wins; of those that allow the job then, `any` charges all and `one_of` the first.
    #[test]
    fn alternatives_charge_those_that_agree_first(
        limits in prop_oneof![set(Combine::Any), set(Combine::OneOf)],
        steps in steps(),
    ) {
        let longest = limits.iter().map(span).max().unwrap();
        let (mut states, mut now) = (limits.fresh(), TODAY);
        for (moved, cost) in steps {
            now += moved * (longest / 100).max(1);
            let costs = costs(&limits, &cost);
            let asked: Vec<usize> = (0..limits.len()).filter(|place| costs[*place] > 0).collect();
            let each = asked.iter().map(|&place| {
                (limits.get(place).unwrap().earliest(&states[place], Micros(now), costs[place]), place)
            });
            let each: Vec<_> = each.collect();
            let plan = limits.plan(&mut states, Micros(now), Costs::PerLimit(&costs), Micros::MAX);
            let Some(first) = each.iter().map(|(slot, _)| *slot).min() else {
                prop_assert!(plan.charges[0] == Charge::default(), "a look charges nothing");
                continue;
            };
            prop_assert_eq!(plan.slots[0], first);
            let agree = each.iter().filter(|(slot, _)| *slot == first).map(|(_, place)| 1 << place);
            let expected = match limits.combine() {
                Combine::Any => agree.sum(),
                _ => agree.min().unwrap(),
            };
            prop_assert_eq!(plan.charges[0], Charge(expected));
        }
    }

    /// A policer allows what a shaper would release at once, and charges nothing for what it refuses.
    #[test]
    fn a_policer_allows_what_a_shaper_releases_at_once(
        limits in prop_oneof![set(Combine::All), set(Combine::Any), set(Combine::OneOf)],
        steps in steps(),
    ) {
        let longest = limits.iter().map(span).max().unwrap();
        let (mut states, mut now) = (limits.fresh(), TODAY);
        for (moved, cost) in steps {
            now += moved * (longest / 100).max(1);
            let costs = costs(&limits, &cost);
            let before = states.clone();
            let (mut shaped, costs) = (states.clone(), Costs::PerLimit(&costs));
            let plan = limits.plan(&mut shaped, Micros(now), costs, Micros(now));
            let verdict = limits.police(&mut states, Micros(now), costs).remove(0);
            let decision = limits.decision(Micros(now), verdict.clone());
            prop_assert_eq!(&states, &shaped);
            prop_assert_eq!(decision.allowed, plan.refused.is_none());
            if let Some(refused) = plan.refused {
                prop_assert_eq!((verdict.earliest, decision.binding), (refused.slot, refused.limit));
                prop_assert_eq!(decision.retry_after, refused.slot.since(Micros(now)));
                prop_assert_eq!(&states, &before);
            }
        }
    }
}
