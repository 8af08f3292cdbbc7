//! Plans, policing, and what a job may cost.

use paced::config::show;
use paced::dispatch::OnLimit;
use paced::job::CostBound;
use paced::limit::{Algorithm, Limit};

use super::limits::NO_RATE;
use super::{LEAST, Scene};

#[test]
fn plans_add_limits_with_states_of_their_own() {
    let text = "[plans.free]\nlimits = [{ rate = '1/s' }, { algorithm = 'quota', rate = '100/day' }]\n\
                [plans.pro]\nlimits = [{ algorithm = 'gcra', rate = '9/s', burst = 9, name = 'burst' }]\n";
    let loaded = Scene::new(&format!("{text}{LEAST}lanes.default_plan = 'pro'\n")).right();
    let a = &loaded.settings.downstreams["a"];
    let names = |place: usize| a.plans[place].limits.iter().map(Limit::name).collect::<Vec<_>>();
    assert_eq!(a.plans.iter().map(|plan| plan.name.as_str()).collect::<Vec<_>>(), ["free", "pro"]);
    assert_eq!(names(0), ["leaky-bucket-0", "plan.free.leaky-bucket-0", "plan.free.quota-1"]);
    assert_eq!(names(1), ["leaky-bucket-0", "plan.pro.burst"]);
    assert_eq!((a.limits.len(), a.default_plan()), (1, Some(1)));
    let costs: Vec<_> =
        a.plan_rules().into_iter().map(|plan| (plan.max_cost.units, plan.max_cost.bound)).collect();
    assert_eq!(
        costs,
        [
            (60, CostBound::Minute("leaky-bucket-0".to_owned())),
            (9, CostBound::Held("plan.pro.burst".to_owned()))
        ]
    );
    let again = Scene::new(&show(&loaded)).right();
    assert_eq!(format!("{:?}", again.settings), format!("{:?}", loaded.settings));
}

#[test]
fn mistakes_in_plans_are_reported_once_and_at_their_places() {
    let two = LEAST.replace("downstreams.a", "downstreams.b");
    let problems = |plan: &str, more: &str| Scene::new(&format!("{plan}\n{LEAST}{more}\n{two}")).wrong();
    assert_eq!(
        problems("plans.pro.limits = [{ rate = 5 }]", ""),
        [
            "paced.toml:1:30: plans.pro.limits[0].rate: an integer where a rate belongs; write its unit too, such as \"5/s\""
        ]
    );
    assert_eq!(
        problems("plans.pro.limits = []", ""),
        [
            "paced.toml:1:20: plans.pro.limits: empty; give a plan its limits, such as limits = [{ rate = \"5/s\" }]"
        ]
    );
    assert_eq!(
        problems("[plans.pro]", ""),
        [
            "paced.toml:1:1: plans.pro.limits: missing; give a plan its limits, such as limits = [{ rate = \"5/s\" }]"
        ]
    );
    assert_eq!(
        problems("[plans.pro]\nrate = '5/s'\nlimits = [{ rate = '1/s' }]", ""),
        ["paced.toml:2:1: plans.pro.rate: unknown key; known here are `limits`"]
    );
    assert_eq!(
        problems("plans.Pro.limits = [{ rate = '1/s' }]", ""),
        [
            "paced.toml:1:7: plans.Pro: no name for a plan; use up to 63 of a-z, 0-9, _ and -, begin with a letter or digit, without `__`"
        ]
    );
    let plan = "plans.free.limits = [{ rate = '1/s' }]";
    for (default, problem) in
        [("fre", "no such plan; did you mean `free`?"), ("gold", "no such plan; there are `free`")]
    {
        assert_eq!(
            problems(plan, &format!("lanes.default_plan = '{default}'")),
            [format!("paced.toml:5:22: downstreams.a.lanes.default_plan: {problem}")]
        );
    }
    assert_eq!(
        problems("", "lanes.default_plan = 'free'"),
        ["paced.toml:5:22: downstreams.a.lanes.default_plan: no such plan; add one, such as [plans.free]"]
    );
    let many = vec!["{ rate = '2/s' }"; 16].join(", ");
    let lines = problems(&format!("plans.free.limits = [{many}]"), "");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].ends_with(
            "plans.free.limits[15]: 17 limits together with those of downstream `a`; use at most 16"
        ),
        "{lines:?}"
    );
}

#[test]
fn what_is_not_allowed_may_be_rejected() {
    let load = |more: &str| Scene::new(&format!("{LEAST}{more}\n")).right().settings.downstreams["a"].clone();
    let (wait, reject) = (load(""), load("on_limit = 'reject'"));
    assert_eq!((wait.on_limit, reject.on_limit), (OnLimit::Wait, OnLimit::Reject));
    // At 1/s, a limit that delays jobs holds them for at most a minute; one that polices holds none.
    assert_eq!((wait.effective_prefetch(), reject.effective_prefetch()), (60, 1000));
    // A leaky bucket charges behind; as a policer it is a meter of its burst.
    assert_eq!((wait.max_cost().units, reject.max_cost().units), (60, 1));
    assert!(matches!(reject.limits.get(0).unwrap().algorithm(), Algorithm::Gcra(_)));
    assert_eq!(
        Scene::new(&format!("{LEAST}on_limit = 'drop'\n")).wrong(),
        ["paced.toml:4:12: downstreams.a.on_limit: `drop` is nothing to do; use wait or reject"]
    );
}

#[test]
fn prefetch_and_costs_are_what_each_algorithm_holds() {
    let load = |limits: &str| {
        let text = format!("{NO_RATE}limits = [{limits}]\n");
        Scene::new(&text).right().settings.downstreams["a"].clone()
    };
    for (limits, prefetch, cost, name) in [
        ("{ algorithm = 'quota', rate = '1000000/month' }", 1000, 1_000_000, "quota-0"),
        ("{ algorithm = 'quota', rate = '10/day' }", 10, 10, "quota-0"),
        ("{ algorithm = 'fixed-window', rate = '50/hour' }", 50, 50, "fixed-window-0"),
        ("{ algorithm = 'gcra', rate = '1/h', burst = 5 }", 5, 5, "gcra-0"),
        ("{ algorithm = 'token-bucket', rate = '1/s', capacity = 5 }", 64, 5, "token-bucket-0"),
        ("{ algorithm = 'sliding-log', rate = '100/minute' }, { rate = '3/s' }", 180, 100, "sliding-log-0"),
        ("{ rate = '1/h' }", 1, 1, "leaky-bucket-0"),
        ("{ rate = '1/s' }, { algorithm = 'gcra', rate = '9/s', burst = 9 }", 60, 9, "gcra-1"),
    ] {
        let a = load(limits);
        assert_eq!(a.effective_prefetch(), prefetch, "{limits}");
        let most = a.max_cost();
        let (CostBound::Minute(limit) | CostBound::Held(limit)) = most.bound else { panic!("{most:?}") };
        assert_eq!((most.units, limit.as_str()), (cost, name), "{limits}");
    }
}

#[test]
fn what_a_job_may_cost_can_be_given() {
    let load = |more: &str| Scene::new(&format!("{LEAST}{more}\n")).right().settings.downstreams["a"].clone();
    let given = load("max_cost = 500").max_cost();
    assert_eq!((given.units, given.bound, given.given), (500, CostBound::Given, Some(500)));
    assert_eq!(load("max_cost = 500\non_limit = 'reject'").max_cost().units, 1, "no more than it holds");
    for (value, problem) in
        [("0", "out of range; use an integer from 1 to 4294967295"), ("'x'", "an integer")]
    {
        let lines = Scene::new(&format!("{LEAST}max_cost = {value}\n")).wrong();
        assert!(lines.len() == 1 && lines[0].contains(problem), "{lines:?}");
    }
}
