use proptest::prelude::*;

use super::*;

/// Grants this many units to lanes that never run out of jobs, each of a class and a rank. Returns what each lane got.
fn saturated(classes: &mut Classes, lanes: &[(&str, u32, usize)], units: usize, cost: u32) -> Vec<usize> {
    let of: Vec<usize> = lanes.iter().map(|(value, weight, _)| classes.join(value, *weight)).collect();
    lanes.iter().enumerate().for_each(|(lane, (.., rank))| {
        classes.push(lane, of[lane], *rank, lane as u64);
    });
    let mut got = vec![0; lanes.len()];
    for unit in 0..units {
        let mut spare = None;
        let turn = classes.pop(&mut spare).unwrap();
        let charge = classes.charge(&turn, cost, &mut spare);
        classes.grant(&charge);
        got[turn.lane] += 1;
        classes.push(turn.lane, turn.class, turn.rank, (lanes.len() + unit) as u64);
    }
    got
}

#[test]
fn weights_share_and_lanes_of_one_value_take_turns() {
    let lanes = [("a", 5, 0), ("b", 3, 0), ("c", 1, 0), ("c", 1, 0)];
    assert_eq!(saturated(&mut Classes::new(0), &lanes, 180, 1), [100, 60, 10, 10]);
}

#[test]
fn the_lowest_priority_keeps_its_share_and_no_more() {
    let lanes = [("a", 1, 0), ("a", 1, 4), ("b", 1, 9)];
    assert_eq!(saturated(&mut Classes::new(50_000), &lanes, 1000, 1), [953, 0, 47]);
    assert_eq!(saturated(&mut Classes::new(0), &lanes, 1000, 1), [1000, 0, 0]);
}

#[test]
fn who_comes_back_has_no_credit() {
    let mut classes = Classes::new(0);
    let [idle, busy] = ["idle", "busy"].map(|value| classes.join(value, 1));
    classes.push(1, busy, 0, 0);
    for _ in 0..100 {
        one(&mut classes, 1);
    }
    classes.push(0, idle, 0, 0);
    let idles = (0..100).filter(|_| one(&mut classes, 1) == 0).count();
    assert!((50..=51).contains(&idles), "{idles}");
}

/// Grants one unit to the class and lane whose turn it is. Returns the lane, which waits on.
fn one(classes: &mut Classes, cost: u32) -> usize {
    let mut spare = None;
    let turn = classes.pop(&mut spare).unwrap();
    let charge = classes.charge(&turn, cost, &mut spare);
    classes.grant(&charge);
    classes.push(turn.lane, turn.class, turn.rank, 0);
    turn.lane
}

#[test]
fn a_low_priority_saves_no_credit_while_a_higher_one_goes() {
    let mut classes = Classes::new(0);
    let [high, early, late] = ["high", "early", "late"].map(|value| classes.join(value, 1));
    classes.push(0, high, 0, 0);
    classes.push(1, early, 9, 0);
    assert!((0..10_000).all(|_| one(&mut classes, 1) == 0));
    classes.push(2, late, 9, 0);
    classes.remove(high, 0, 0);
    let got: Vec<usize> = (0..20).map(|_| one(&mut classes, 1)).collect();
    assert!(got.windows(2).all(|pair| pair[0] != pair[1]), "who waited for long goes no more often: {got:?}");
    // What it was granted at one priority does not count at another one.
    let mut classes = Classes::new(0);
    let [both, other] = ["both", "other"].map(|value| classes.join(value, 1));
    classes.push(0, both, 0, 0);
    (0..1000).for_each(|_| assert_eq!(one(&mut classes, 1), 0));
    classes.remove(both, 0, 0);
    classes.push(0, both, 5, 0);
    classes.push(1, other, 5, 0);
    let got: Vec<usize> = (0..20).map(|_| one(&mut classes, 1)).collect();
    assert!(got.windows(2).all(|pair| pair[0] != pair[1]), "{got:?}");
}

#[test]
fn another_turn_is_another_place_in_the_class_and_no_credit_of_it() {
    let mut classes = Classes::new(0);
    let [a, b] = ["a", "b"].map(|value| classes.join(value, 1));
    for lane in 0..3 {
        classes.push(lane, a, 0, 10 + lane as u64);
    }
    classes.push(3, b, 0, 1);
    classes.turn(a, 0, (12, 3));
    let mut spare = None;
    let order: Vec<usize> = std::iter::from_fn(|| {
        let turn = classes.pop(&mut spare)?;
        classes.charge(&turn, 1, &mut spare);
        Some(turn.lane)
    })
    .collect();
    assert_eq!(order, [2, 3, 0, 1]);
}

#[test]
fn a_charge_is_taken_back_at_the_weight_of_its_time() {
    let mut classes = Classes::new(0);
    let [a, b] = ["a", "b"].map(|value| classes.join(value, 1));
    classes.push(0, a, 0, 0);
    classes.push(1, b, 0, 0);
    let mut spare = None;
    let turn = classes.pop(&mut spare).unwrap();
    let charge = classes.charge(&turn, 10, &mut spare);
    classes.weigh(|_| 5);
    classes.refund(&charge);
    classes.push(turn.lane, turn.class, turn.rank, 0);
    let got: Vec<usize> = (0..10).map(|_| one(&mut classes, 1)).collect();
    assert!(got.windows(2).all(|pair| pair[0] != pair[1]), "{got:?}");
}

#[test]
fn what_is_refunded_costs_nothing() {
    let mut classes = Classes::new(500_000);
    let [a, b] = ["a", "b"].map(|value| classes.join(value, 1));
    classes.push(0, a, 0, 0);
    classes.push(1, b, 9, 0);
    let mut order = vec![];
    for _ in 0..30 {
        // Both are offered, and the first of them is granted.
        let mut spare = None;
        let turns: Vec<(Turn, Charge)> = std::iter::from_fn(|| {
            let turn = classes.pop(&mut spare)?;
            let charge = classes.charge(&turn, 1, &mut spare);
            Some((turn, charge))
        })
        .collect();
        for (place, (turn, charge)) in turns.iter().enumerate() {
            if place == 0 {
                classes.grant(charge);
                order.push(turn.lane);
            } else {
                classes.refund(charge);
            }
            classes.push(turn.lane, turn.class, turn.rank, 0);
        }
    }
    assert_eq!(
        order.iter().filter(|lane| **lane == 1).count(),
        10,
        "half a turn for each one before: {order:?}"
    );
}

/// Virtual time does not count offers that were refused before the job that was granted.
#[test]
fn a_class_that_comes_after_a_call_with_many_refusals_is_not_behind() {
    let mut classes = Classes::new(0);
    let [old, new] = ["old", "new"].map(|value| classes.join(value, 1));
    (0..20).for_each(|lane| classes.push(lane, old, 0, lane as u64));
    let mut spare = None;
    let charges: Vec<Charge> = std::iter::from_fn(|| {
        let turn = classes.pop(&mut spare)?;
        Some(classes.charge(&turn, 1, &mut spare))
    })
    .collect();
    assert_eq!(charges.len(), 20);
    classes.settle(charges.iter().enumerate().map(|(place, charge)| (charge, place == 19)));
    classes.push(0, old, 0, 0);
    classes.push(1, new, 0, 0);
    let got: Vec<usize> = (0..20).map(|_| one(&mut classes, 1)).collect();
    assert!(got.windows(2).all(|pair| pair[0] != pair[1]), "{got:?}");
}

#[test]
fn a_class_without_lanes_is_forgotten() {
    let mut classes = Classes::new(0);
    for value in 0..100 {
        let class = classes.join(&value.to_string(), 1);
        classes.push(value, class, 3, 7);
        classes.remove(class, 3, 7);
        classes.leave(class);
    }
    assert_eq!((classes.len(), classes.all.len()), (0, 1));
    assert!(!classes.has_waiting());
}

proptest! {
    /// Within any interval in which both have work, two classes' work per weight differs by at most one grant of each
    /// (theorem 1 of the paper), for any costs.
    #[test]
    fn work_per_weight_differs_by_one_grant_each(
        classes in prop::collection::vec((1u32..10, 1u32..20), 2..6),
        grants in 10usize..200,
    ) {
        let mut fair = Classes::new(0);
        for (lane, (weight, _)) in classes.iter().enumerate() {
            let class = fair.join(&lane.to_string(), *weight);
            fair.push(lane, class, 0, 0);
        }
        let mut work = vec![0.0; classes.len()];
        for _ in 0..grants {
            let mut spare = None;
            let turn = fair.pop(&mut spare).unwrap();
            let (weight, cost) = classes[turn.lane];
            let charge = fair.charge(&turn, cost, &mut spare);
            fair.grant(&charge);
            work[turn.lane] += f64::from(cost) / f64::from(weight);
            fair.push(turn.lane, turn.class, turn.rank, 0);
            for (one, other) in (0..work.len()).flat_map(|one| (0..work.len()).map(move |other| (one, other))) {
                let span = |lane: usize| f64::from(classes[lane].1) / f64::from(classes[lane].0);
                prop_assert!((work[one] - work[other]).abs() <= span(one) + span(other) + 1e-6, "{work:?}");
            }
        }
    }

    /// Without a guard, no lower priority goes while a higher one waits, and every lane is taken once.
    #[test]
    fn the_highest_priority_goes_first(lanes in prop::collection::vec((0usize..4, 0usize..RANKS), 1..40)) {
        let mut fair = Classes::new(0);
        for (lane, (value, rank)) in lanes.iter().enumerate() {
            let class = fair.join(&value.to_string(), 1);
            fair.push(lane, class, *rank, lane as u64);
        }
        let mut ranks = vec![];
        let mut spare = None;
        while let Some(turn) = fair.pop(&mut spare) {
            fair.charge(&turn, 1, &mut spare);
            ranks.push(turn.rank);
        }
        prop_assert!(ranks.is_sorted() && ranks.len() == lanes.len(), "{ranks:?}");
    }
}
