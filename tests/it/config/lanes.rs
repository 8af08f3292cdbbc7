//! Lanes: what makes them, whose limits are whose, and by what they share.

use paced::config::show;
use paced::job::{LanePart, PlanRules};
use paced::limit::Limit;

use super::{LEAST, Scene};

#[test]
fn lanes_have_parts_limits_and_weights() {
    let text = "[plans.free]\nlimits = [{ rate = '1/s' }]\n";
    let keys = "lanes.by = { tenant = 'routing-key:2', endpoint = 'header:paced-lane', plan = 'plan' }\n\
                lanes.fair_by = 'tenant'\n\
                lanes.limits = [{ rate = '5/s' }, { rate = '100/min', per = ['tenant'], name = 'tenants' }]\n\
                lanes.weights = { acme = 5, '*' = 2 }\n\
                lanes.pause_per = ['tenant', 'plan']\n\
                lanes.max_lanes = 5000\n";
    let loaded = Scene::new(&format!("{text}{LEAST}{keys}")).right();
    let a = &loaded.settings.downstreams["a"];
    let rules = a.lanes.rules.as_ref().unwrap();
    assert_eq!(rules.parts, ["endpoint", "plan", "tenant"]);
    assert_eq!(a.lanes.parts, [LanePart::Lane, LanePart::Plan, LanePart::Word(1)]);
    assert_eq!((rules.fair_by, rules.weights["acme"], rules.weights["*"]), (2, 5, 2));
    assert_eq!((rules.max_lanes, &rules.pause_per[..]), (5000, &[2, 1][..]));
    assert_eq!(rules.per.iter().collect::<Vec<_>>(), [(&"lane.tenants".to_owned(), &vec![2])]);
    let names = |place: usize| a.plans[place].limits.iter().map(Limit::name).collect::<Vec<_>>();
    let lanes = ["leaky-bucket-0", "lane.leaky-bucket-0", "lane.tenants"];
    assert_eq!(names(0), [&lanes[..], &["plan.free.leaky-bucket-0"]].concat());
    assert_eq!((names(1), a.plans[1].name.as_str()), (lanes.to_vec(), PlanRules::LANES));
    assert_eq!(a.default_plan(), Some(1));
    let again = Scene::new(&show(&loaded)).right();
    assert_eq!(format!("{:?}", again.settings), format!("{:?}", loaded.settings));
}

#[test]
fn mistakes_in_lanes() {
    let problems = |keys: &str| Scene::new(&format!("{LEAST}{keys}\n")).wrong();
    let by = "lanes.by = { tenant = 'header:paced-lane', plan = 'plan' }";
    for (keys, problem) in [
        (
            "lanes.by = { tenant = 'header:x-tenant' }",
            "no part of a key; use header:paced-lane, routing-key:N from 2 to 99, or plan",
        ),
        ("lanes.by = { tenant = 'routing-key:1' }", "the first word is the downstream's name"),
        (
            "lanes.by = { Tenant = 'plan' }",
            "no name for a part; use up to 63 of a-z, 0-9 and _, begin with a letter",
        ),
        ("lanes.by = {}", "names no part"),
        (by, "has several parts; set fair_by to `plan` or `tenant`"),
        (&format!("{by}\nlanes.fair_by = 'tenat'"), "no part of `by`; did you mean `tenant`?"),
        (
            &format!("{by}\nlanes.fair_by = 'plan'\nlanes.limits = [{{ rate = '1/s', per = ['x'] }}]"),
            "no part of `by`; there are `plan`, `tenant`",
        ),
        (
            &format!("{by}\nlanes.fair_by = 'plan'\nlanes.limits = [{{ rate = '1/s', per = [] }}]"),
            "empty; name a part of `by`",
        ),
        ("lanes.limits = [{ rate = '1/s' }]", "there are no lanes without `by`; add it"),
        (
            &format!("{by}\nlanes.fair_by = 'plan'\nlanes.pause_per = ['x']"),
            "no part of `by`; there are `plan`, `tenant`",
        ),
        ("lanes.pause_per = ['tenant']", "there are no lanes without `by`; add it"),
        ("lanes.fair_by = 'tenant'", "there are no lanes without `by`; add it"),
        ("lanes.weights = { acme = 2 }", "there are no lanes without `by`; add it"),
        (
            "lanes.by = { tenant = 'plan' }\nlanes.weights = { acme = 0 }",
            "out of range; use an integer from 1 to 1000000",
        ),
        (
            "on_limit = 'reject'\nlanes.by = { tenant = 'plan' }",
            "lanes are not made where on_limit is \"reject\"; remove one of the two",
        ),
    ] {
        let lines = problems(keys);
        assert!(lines.len() == 1 && lines[0].contains(problem), "{keys}: {lines:?}");
    }
    let four = ["a", "b", "c", "d"].map(|name| format!("{name} = 'plan'")).join(", ");
    let lines = problems(&format!("lanes.by = {{ {four} }}\nlanes.fair_by = 'a'"));
    assert!(lines[0].ends_with("lanes.by: has 4 parts; use at most 3"), "{lines:?}");
}

/// Mistakes of limits that the store would refuse beside those of lanes.
#[test]
fn limits_that_cannot_hold_beside_those_of_lanes() {
    let problems = |plan: &str, keys: &str| {
        let two = "[downstreams.b]\nrate = '1/s'\nhttp.base_url = 'http://localhost/'\n";
        let by = "lanes.by = { tenant = 'header:paced-lane' }";
        Scene::new(&format!("{plan}\n{LEAST}{by}\n{keys}\n{two}")).wrong()
    };
    let [twice, cost] = [
        "the same limit twice in downstream `a`, where lanes.by is set; give it once",
        "a limit of downstream `a`, where lanes.by is set: there a job costs every limit the same; remove `cost`, or lanes.by",
    ];
    let same = "{ rate = '9/s', name = 'x' }, { rate = '9/s', name = 'x' }";
    let costly = "{ rate = '9/s', cost = 'header:tokens' }";
    for (plan, keys, at, problem) in [
        ("", format!("limits = [{same}]"), "downstreams.a.limits[1].name", twice),
        ("", format!("lanes.limits = [{same}]"), "downstreams.a.lanes.limits[1].name", twice),
        (&*format!("plans.free.limits = [{same}]"), String::new(), "plans.free.limits[1].name", twice),
        ("", format!("limits = [{costly}]"), "downstreams.a.limits[0].cost", cost),
        ("", format!("lanes.limits = [{costly}]"), "downstreams.a.lanes.limits[0].cost", cost),
        (&*format!("plans.free.limits = [{costly}]"), String::new(), "plans.free.limits[0].cost", cost),
    ] {
        let lines = problems(plan, &keys);
        assert!(lines.len() == 1 && lines[0].ends_with(&format!(": {at}: {problem}")), "{keys}: {lines:?}");
    }
}

#[test]
fn a_plan_that_all_customers_share_is_warned_of() {
    let warned_of = |plan: &str, keys: &str| {
        let plans = format!("[plans.free]\nlimits = [{plan}]\n[plans.pro]\nlimits = [{{ rate = '1/m' }}]\n");
        let warnings = Scene::new(&format!("{plans}{LEAST}{keys}\n")).right().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let warned = |keys: &str| warned_of("{ rate = '1/s' }", keys);
    let warning = |of: &str| {
        format!(
            "plans.free.limits[0]: warning: all jobs of a plan share its limits in {of}; set lanes.by there, and each \
             tenant has them for itself"
        )
    };
    let lines = warned("");
    assert!(lines.len() == 1, "once, however many plans there are: {lines:?}");
    assert!(lines[0].ends_with(&warning("downstream `a`")), "{lines:?}");
    let by = "lanes.by = { tenant = 'routing-key:2' }";
    assert_eq!(warned(by), [""; 0]);
    let more = ["b", "c"].map(|name| LEAST.replace(".a]", &format!(".{name}]"))).concat();
    let lines = warned(&format!("{by}\n{more}"));
    assert!(lines.len() == 1, "once, however many downstreams there are: {lines:?}");
    assert!(lines[0].ends_with(&warning("downstreams `b`, `c`")), "{lines:?}");
    // Where lanes are not made, or would be a mistake.
    assert_eq!(warned("on_limit = 'reject'"), [""; 0]);
    let costs = "{ algorithm = 'sliding-log', rate = '9/h', cost = 'header:tokens' }";
    assert_eq!(warned(&format!("limits = [{costs}]")), [""; 0]);
    assert_eq!(warned_of(costs, ""), [""; 0]);
}
