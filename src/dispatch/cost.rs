//! The highest cost of one job. It has no I/O.

use std::time::Duration;

use crate::job::{CostBound, MaxCost};
use crate::limit::{Limit, LimitSet};

/// The longest time that one job may hold up those behind it.
const MINUTE: Duration = Duration::from_secs(60);

/// As [`max_cost`], for the limits that have no costs of their own; `own` names those that have.
pub fn max_cost_without(limits: &LimitSet, own: &[&str], given: Option<u32>) -> MaxCost {
    let rest: Vec<Limit> = limits.listed().filter(|limit| !own.contains(&limit.name())).cloned().collect();
    match LimitSet::new(rest) {
        Ok(rest) => max_cost(&rest, given),
        Err(_) => {
            let bound = if given.is_some() { CostBound::Given } else { CostBound::Uncounted };
            MaxCost { units: given.unwrap_or(u32::MAX), bound, given }
        }
    }
}

/// As [`max_cost`], of the limit of this name alone; `None` where there is none.
pub fn max_cost_of(limits: &LimitSet, name: &str, given: Option<u32>) -> Option<MaxCost> {
    let of: Vec<Limit> = limits.listed().filter(|limit| limit.name() == name).cloned().collect();
    LimitSet::new(of).ok().map(|limits| max_cost(&limits, given))
}

/// The highest cost of one job under these limits, and the bound that sets it: `given` where there is one, otherwise
/// the least over the limits of what each releases in a minute, but at least its burst and 1. It is never more than the
/// limits can hold: a call for such a job would be repeated for ever, and hold up all others.
pub fn max_cost(limits: &LimitSet, given: Option<u32>) -> MaxCost {
    let each = || limits.iter().zip(limits.unit());
    let named = |limit: &Limit, units: u32, times: u32| (units / times.max(1), limit.name().to_owned());
    let held = each().map(|(limit, times)| named(limit, limit.max_cost(), times)).min();
    // A set has at least one limit. A limit that was given so often that no unit fits is useless anyway.
    let (held, holder) = held.unwrap_or((1, String::new()));
    let (units, bound) = match given {
        Some(given) => (given, CostBound::Given),
        None => {
            let soon = each().map(|(limit, times)| named(limit, in_a_minute(limit), times)).min();
            let (units, name) = soon.unwrap_or((1, String::new()));
            (units, CostBound::Minute(name))
        }
    };
    let (units, bound) = if held <= units { (held, CostBound::Held(holder)) } else { (units, bound) };
    MaxCost { units: units.max(1), bound, given }
}

fn in_a_minute(limit: &Limit) -> u32 {
    u32::try_from(limit.rate().units_in(MINUTE).max(limit.burst())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limits: Vec<Limit>, given: Option<u32>) -> (u32, CostBound) {
        let MaxCost { units, bound, .. } = max_cost(&LimitSet::new(limits).unwrap(), given);
        (units, bound)
    }

    fn leaky(name: &str, rate: &str, burst: u32) -> Limit {
        Limit::leaky_bucket(name, rate.parse().unwrap(), burst).unwrap()
    }

    fn gcra(name: &str, rate: &str, burst: u32) -> Limit {
        Limit::gcra(name, rate.parse().unwrap(), burst).unwrap()
    }

    fn minute(name: &str) -> CostBound {
        CostBound::Minute(name.to_owned())
    }

    fn held(name: &str) -> CostBound {
        CostBound::Held(name.to_owned())
    }

    #[test]
    fn by_default_it_is_what_the_slowest_limit_releases_in_a_minute() {
        assert_eq!(of(vec![leaky("a", "50/s", 1)], None), (3000, minute("a")));
        assert_eq!(of(vec![leaky("a", "50/s", 1), leaky("b", "2/s", 1)], None), (120, minute("b")));
        assert_eq!(of(vec![leaky("a", "1/h", 1)], None), (1, minute("a")), "at least 1");
        assert_eq!(of(vec![leaky("a", "1/h", 20)], None), (20, minute("a")), "at least its burst");
        assert_eq!(of(vec![gcra("a", "10/s", 20)], None), (20, held("a")), "what it holds");
        assert_eq!(of(vec![leaky("a", "50/s", 1), gcra("b", "10/s", 20)], None), (20, held("b")));
        let quota = Limit::fixed_window("q", 1000, Duration::from_secs(3600)).unwrap();
        assert_eq!(of(vec![quota], None), (1000, held("q")));
        let twice = vec![leaky("a", "1/s", 1), leaky("a", "1/s", 1)];
        assert_eq!(of(twice, None), (30, minute("a")), "a unit costs it twice");
    }

    #[test]
    fn what_is_given_counts_as_far_as_the_limits_hold_it() {
        assert_eq!(of(vec![leaky("a", "1/h", 1)], Some(500)), (500, CostBound::Given));
        assert_eq!(of(vec![leaky("a", "50/s", 1)], Some(2)), (2, CostBound::Given));
        assert_eq!(of(vec![gcra("a", "10/s", 20)], Some(500)), (20, held("a")));
    }

    #[test]
    fn each_limit_with_costs_of_its_own_has_its_own_bound() {
        let limits = LimitSet::new(vec![leaky("a", "1/s", 1), leaky("b", "2/s", 1)]).unwrap();
        let bound = |most: MaxCost| (most.units, most.bound);
        assert_eq!(bound(max_cost_without(&limits, &["a"], None)), (120, minute("b")));
        assert_eq!(bound(max_cost_without(&limits, &["a", "b"], None)), (u32::MAX, CostBound::Uncounted));
        assert_eq!(bound(max_cost_without(&limits, &["a", "b"], Some(7))), (7, CostBound::Given));
        assert_eq!(max_cost_of(&limits, "a", None).map(bound), Some((60, minute("a"))));
        assert_eq!(max_cost_of(&limits, "a", Some(90)).map(bound), Some((90, CostBound::Given)));
        assert_eq!(max_cost_of(&limits, "c", None), None);
    }
}
