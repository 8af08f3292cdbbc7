//! The settings of a replica under terms that another replica may have loaded. It is pure.

use std::sync::Arc;

use crate::limit::{Limit, LimitError, LimitSet};
use crate::pace::lanes::LaneRules;
use crate::pace::{JobSettings, PlanLimits, Settings};
use crate::terms::{Terms, Values};
use crate::time::Micros;

/// Returns the settings under these terms. A plan that the terms do not have keeps its own limits behind the
/// downstream's, and behind those of lanes: otherwise one state of these would have two limits.
pub(super) fn effective(given: &Settings, terms: &Terms, now: Micros) -> Result<Settings, LimitError> {
    let (limits, mut plans) = terms.effective(now);
    let with_lanes = plans.values().find(|set| given.of_jobs.lanes.is_some() && has_any_of_lanes(set));
    let of_lanes = with_lanes.map(|set| set.listed().filter(is_of_lanes).cloned().collect::<Vec<_>>());
    let plans = given.plans.iter().map(|plan| {
        let set = match plans.remove(&plan.name) {
            Some(set) => of_lanes_here(set, plan, given)?,
            None => {
                let own = plan.limits.listed().skip(given.limits.given());
                let own = own.filter(|limit| of_lanes.is_none() || !is_of_lanes(limit));
                let all = limits.listed().chain(of_lanes.iter().flatten()).chain(own);
                LimitSet::new(all.cloned().collect())?
            }
        };
        Ok(PlanLimits { name: plan.name.clone(), limits: set })
    });
    let plans = plans.collect::<Result<_, LimitError>>()?;
    Ok(Settings { limits, plans, of_jobs: with_values(&given.of_jobs, terms.values(), now), ..given.clone() })
}

/// The same with the weights and pauses that operators set for values of the part by which lanes share.
fn with_values(given: &JobSettings, values: &Values, now: Micros) -> JobSettings {
    let live = given.lanes.as_ref().filter(|_| !values.is_empty()).map(|rules| {
        let mut rules = (**rules).clone();
        rules.weights.extend(values.weights_at(now).map(|(value, weight)| (value.to_owned(), weight)));
        rules.paused = values.paused_at(now).map(str::to_owned).collect();
        Arc::new(rules)
    });
    JobSettings { lanes: live.or_else(|| given.lanes.clone()), ..given.clone() }
}

fn is_of_lanes(limit: &&Limit) -> bool {
    limit.name().starts_with(LaneRules::OF_LANES)
}

fn has_any_of_lanes(set: &LimitSet) -> bool {
    set.iter().any(|limit| is_of_lanes(&limit))
}

/// The limits of a plan under the terms. Limits of lanes are kept only if this replica has lanes.
///
/// While replicas are restarted with `lanes.by`, or without it, the limits of each lane would otherwise hold for all
/// jobs of a plan together, or for none.
fn of_lanes_here(set: LimitSet, own: &PlanLimits, given: &Settings) -> Result<LimitSet, LimitError> {
    match (&given.of_jobs.lanes, has_any_of_lanes(&own.limits), has_any_of_lanes(&set)) {
        (Some(_), true, false) => {
            let own = own.limits.listed().filter(is_of_lanes);
            LimitSet::new(set.listed().chain(own).cloned().collect())
        }
        (None, false, true) => {
            LimitSet::new(set.listed().filter(|limit| !is_of_lanes(limit)).cloned().collect())
        }
        _ => Ok(set),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::tests;
    use crate::terms::SetValue;

    fn settings(names: &[&str], lanes: Option<LaneRules>) -> Settings {
        let base = tests::settings("100/s");
        let limit = |name: &&str| Limit::leaky_bucket(*name, "5/s".parse().unwrap(), 1).unwrap();
        let all = base.limits.iter().cloned().chain(names.iter().map(limit)).collect();
        let plans = vec![PlanLimits { name: "free".to_owned(), limits: LimitSet::new(all).unwrap() }];
        Settings { plans, of_jobs: JobSettings { prefetch: None, lanes: lanes.map(Arc::new) }, ..base }
    }

    /// The names of the limits that a plan has besides the downstream's, under the terms of another file.
    fn names(given: &Settings, other: &Settings) -> Vec<String> {
        let settings = effective(given, &other.terms(), Micros(0)).unwrap();
        settings.plans[0].limits.iter().skip(1).map(|limit| limit.name().to_owned()).collect()
    }

    #[test]
    fn limits_of_lanes_hold_where_there_are_lanes_whoever_loaded_the_terms() {
        let with = settings(&["lane.l", "plan.free.l"], Some(LaneRules::default()));
        let without = settings(&["plan.free.l"], None);
        assert_eq!(names(&with, &with), ["lane.l", "plan.free.l"]);
        assert_eq!(names(&without, &with), ["plan.free.l"], "all its jobs would have the pace of one lane");
        assert_eq!(names(&with, &without), ["plan.free.l", "lane.l"]);
        let fewer = settings(&["plan.free.l"], Some(LaneRules::default()));
        assert_eq!(names(&fewer, &with), ["lane.l", "plan.free.l"], "one with lanes follows the newer file");
        let shaper = settings(&["lane.l", "plan.free.l"], None);
        assert_eq!(names(&shaper, &with), ["lane.l", "plan.free.l"], "it has them as limits of one lane");
    }

    /// Otherwise the store would refuse each call for jobs of both plans.
    #[test]
    fn a_plan_that_the_terms_do_not_have_follows_their_limits_of_lanes() {
        let leaky = |name: &str, rate: &str| Limit::leaky_bucket(name, rate.parse().unwrap(), 1).unwrap();
        let file = |plans: &[&str], rate: &str, lanes: Option<LaneRules>| {
            let base = settings(&[], lanes);
            let plan = |plan: &&str| {
                let own = [leaky("lane.l", rate), leaky(&format!("plan.{plan}.l"), "7/s")];
                let all = base.limits.iter().cloned().chain(own).collect();
                PlanLimits { name: (*plan).to_owned(), limits: LimitSet::new(all).unwrap() }
            };
            Settings { plans: plans.iter().map(plan).collect(), ..base.clone() }
        };
        let newer = file(&["free"], "9/s", Some(LaneRules::default())).terms();
        let of_pro = |lanes: Option<LaneRules>| {
            let settings = effective(&file(&["free", "pro"], "5/s", lanes), &newer, Micros(0)).unwrap();
            settings.plans[1].limits.iter().skip(1).cloned().collect::<Vec<_>>()
        };
        assert_eq!(of_pro(Some(LaneRules::default())), [leaky("lane.l", "9/s"), leaky("plan.pro.l", "7/s")]);
        assert_eq!(of_pro(None), [leaky("lane.l", "5/s"), leaky("plan.pro.l", "7/s")], "it has no lanes");
    }

    #[test]
    fn weights_and_pauses_that_operators_set_are_those_of_lanes() {
        let weights = [("acme".to_owned(), 2), ("b".to_owned(), 3)].into();
        let given = settings(&[], Some(LaneRules { weights, ..LaneRules::default() }));
        let mut terms = given.terms();
        let until = |until| SetValue { to: (), until, reason: None, by: None, set_at: Micros(0) };
        let weight = SetValue { to: 7, until: Some(Micros(5)), reason: None, by: None, set_at: Micros(0) };
        terms.set_weight("acme", weight).unwrap();
        terms.pause_value("b", until(Some(Micros(9)))).unwrap();
        let rules = |at| {
            let rules = effective(&given, &terms, Micros(at)).unwrap().of_jobs.lanes.unwrap();
            (rules.weight("acme"), rules.weight("b"), rules.paused.len())
        };
        assert_eq!([rules(4), rules(5), rules(9)], [(7, 3, 1), (2, 3, 1), (2, 3, 0)]);
        let without = settings(&[], None);
        assert_eq!(effective(&without, &terms, Micros(4)).unwrap().of_jobs, without.of_jobs);
    }
}
