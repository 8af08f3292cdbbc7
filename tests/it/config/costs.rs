//! Limits that have a cost of their own.

use paced::config::show;

use super::limits::{NO_RATE, mistake};
use super::{LEAST, Scene};

#[test]
fn limits_may_have_costs_of_their_own() {
    let limits = "limits = [
        { rate = '500/min', name = 'requests', cost = 1 },
        { rate = '30000/min', name = 'tokens', cost = 'header:tokens', default_cost = 100 },
        { rate = '10/s', name = 'pace' },
    ]";
    let loaded = Scene::new(&format!("{NO_RATE}{limits}\n")).right();
    let again = Scene::new(&show(&loaded)).right();
    let downstream = &loaded.settings.downstreams["a"];
    assert_eq!(again.settings.downstreams["a"].costs, downstream.costs, "{}", show(&loaded));
    let rules = downstream.cost_rules();
    let of: Vec<(&str, u32, Option<u32>)> =
        rules.iter().map(|rule| (&*rule.limit, rule.max_cost.units, rule.default)).collect();
    assert_eq!(of, [("requests", 500, None), ("tokens", 30_000, Some(100))], "each has its own highest cost");
    assert_eq!(downstream.max_cost().units, 600, "that of `pace`");
    for (entry, problem) in [
        ("rate = '5/s', cost = 'tokens'", "is no cost; write an integer, or header:NAME"),
        ("rate = '5/s', cost = 0", "out of range"),
        ("rate = '5/s', default_cost = 5", "has no `cost` beside it"),
        ("rate = '5/s', cost = 1, default_cost = 5", "never absent"),
        ("rate = '5/s', max_cost = 5", "has no `cost` beside it"),
        ("rate = '5/s', cost = 1, max_cost = 0", "out of range"),
        (
            "algorithm = 'gcra', rate = '10/s', cost = 5",
            "cost: 5 for each job, and the highest cost of one job is 1, what the limit `gcra-0` holds: lower it, or \
             let the limit hold more",
        ),
        (
            "rate = '2/min', cost = 5",
            "cost: 5 for each job, and the highest cost of one job is 2, what the limit `leaky-bucket-0` releases in a \
             minute: lower it, or set `max_cost` beside it",
        ),
        ("rate = '2/min', cost = 'header:n', default_cost = 5", "default_cost: 5 for each job"),
        ("rate = '2/min', cost = 5, max_cost = 4", "is 4: lower it, or raise `max_cost` beside it"),
    ] {
        let mistake = mistake(entry);
        assert!(mistake.contains(problem), "{entry}: {mistake}");
    }
}

#[test]
fn a_limit_with_a_cost_has_a_highest_cost_of_its_own() {
    let load = |limits: &str| {
        let loaded = Scene::new(&format!("{NO_RATE}{limits}\n")).right();
        let again = Scene::new(&show(&loaded)).right();
        assert_eq!(again.settings.downstreams["a"].costs, loaded.settings.downstreams["a"].costs);
        loaded.settings.downstreams["a"].clone()
    };
    let tokens =
        "limits = [{ rate = '30000/min', name = 'tokens', cost = 'header:tokens', max_cost = 100000 }]";
    let a = load(tokens);
    assert_eq!(a.cost_rules()[0].max_cost.to_string(), "100000");
    assert_eq!(a.max_cost().to_string(), "4294967295, since no limit counts by it");
    assert_eq!(load(&format!("max_cost = 7\n{tokens}")).max_cost().to_string(), "7");
    let slow = load("limits = [{ rate = '2/min', cost = 5, max_cost = 5 }]");
    assert_eq!(slow.cost_rules()[0].max_cost.units, 5);
}

#[test]
fn a_limit_has_one_cost_however_often_it_is_given() {
    let of = |first: &str, second: &str| {
        let limit = |cost: &str| format!("{{ rate = '50/s', name = 'a'{cost} }}");
        Scene::new(&format!("{NO_RATE}limits = [{}, {}]\n", limit(first), limit(second)))
    };
    for (first, second) in
        [(", cost = 1", ", cost = 'header:tokens'"), ("", ", cost = 1"), (", cost = 1", "")]
    {
        let lines = of(first, second).wrong();
        let problem = "another limit with another `cost` is called `a`; give each its own name";
        assert!(lines.len() == 1 && lines[0].contains(problem), "{lines:?}");
    }
    let a = of(", cost = 2", ", cost = 2").right().settings.downstreams["a"].clone();
    assert_eq!(a.cost_rules().len(), 1);
    let policing = "on_limit = 'reject'\nlimits = [{ rate = '50/s', burst = 4, cost = 5 }]";
    let lines = Scene::new(&format!("{NO_RATE}{policing}\n")).wrong();
    assert!(lines.len() == 1 && lines[0].contains("is 4, what the limit"), "{lines:?}");
    let plan = format!("{LEAST}[plans.pro]\nlimits = [{{ algorithm = 'gcra', rate = '9/s', cost = 2 }}]\n");
    let lines = Scene::new(&plan).wrong();
    assert!(lines.len() == 1 && lines[0].contains("plans.pro.limits[0].cost: 2 for each job"), "{lines:?}");
}
