//! Limits of every algorithm, in the form that people write.

use std::fs;
use std::time::Duration;

use paced::config::show;
use paced::dispatch::OnLimit;
use paced::limit::{Calendar, Edges, Limit, calendar};

use super::{LEAST, Scene, load_shipped, shipped};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
pub(super) const NO_RATE: &str = "[downstreams.a]\nhttp.base_url = \"http://localhost/\"\n";

/// The limit that this entry of `limits` defines.
#[track_caller]
fn limit(entry: &str) -> Limit {
    let loaded = Scene::new(&format!("{NO_RATE}limits = [{{ {entry} }}]\n")).right();
    let limits = &loaded.settings.downstreams["a"].limits;
    assert_eq!(limits.len(), 1);
    // The output of `config show` has the same meaning.
    let again = Scene::new(&show(&loaded)).right();
    assert_eq!(&again.settings.downstreams["a"].limits, limits, "{}", show(&loaded));
    limits.get(0).unwrap().clone()
}

/// The mistake of this entry, without its place.
#[track_caller]
pub(super) fn mistake(entry: &str) -> String {
    let lines = Scene::new(&format!("{NO_RATE}limits = [{{ {entry} }}]\n")).wrong();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].strip_prefix("paced.toml:3:").unwrap().split_once(": downstreams.a.").unwrap().1.to_owned()
}

fn quota(count: u64, edges: Edges) -> Limit {
    Limit::quota("quota-0", count, edges).unwrap()
}

fn calendar(unit: calendar::Unit, minutes: i64) -> Edges {
    Edges::Calendar(Calendar::new(unit, minutes).unwrap())
}

#[test]
fn a_quota_may_have_a_time_zone() {
    let zone = calendar::Zone::named("America/Los_Angeles").unwrap();
    let zoned = |unit| quota(1000, Edges::Calendar(Calendar::zoned(unit, zone)));
    let entry = "algorithm = 'quota', rate = '1000/month', time_zone = 'america/los_angeles'";
    assert_eq!(limit(entry), zoned(calendar::Unit::Month));
    assert_eq!(limit(&format!("{entry}, reset = 'calendar'")), zoned(calendar::Unit::Month));
    for (entry, problem) in [
        (format!("{entry}, utc_offset = '+02:00'"), "give one of the two"),
        ("algorithm = 'quota', rate = '5/2d', time_zone = 'UTC'".to_owned(), "days of a time zone are not"),
        (
            "algorithm = 'quota', rate = '5/d', reset = 'rolling', time_zone = 'UTC'".to_owned(),
            "begins with the first unit taken",
        ),
        ("algorithm = 'quota', rate = '5/d', time_zone = 'Berlin'".to_owned(), "is no time zone"),
        ("algorithm = 'gcra', rate = '5/s', time_zone = 'UTC'".to_owned(), "it is a key of quota"),
    ] {
        let mistake = mistake(&entry);
        assert!(mistake.contains(problem), "{entry}: {mistake}");
    }
}

#[test]
fn each_algorithm_has_its_keys_and_defaults() {
    let rate = |text: &str| text.parse().unwrap();
    for (entry, expected) in [
        ("rate = '5/s'", Limit::leaky_bucket("leaky-bucket-0", rate("5/s"), 1)),
        (
            "algorithm = 'leaky-bucket', rate = '5/s', burst = 3",
            Limit::leaky_bucket("leaky-bucket-0", rate("5/s"), 3),
        ),
        ("algorithm = 'gcra', rate = '5/s'", Limit::gcra("gcra-0", rate("5/s"), 1)),
        (
            "rate = '10/s', margin = '50ms'",
            Limit::leaky_bucket("leaky-bucket-0", rate("10/s"), 1)
                .and_then(|limit| limit.with_margin(Duration::from_millis(50))),
        ),
        ("algorithm = 'gcra', rate = '5/s', burst = 20", Limit::gcra("gcra-0", rate("5/s"), 20)),
        (
            "algorithm = 'token-bucket', rate = '100/minute'",
            Limit::token_bucket("token-bucket-0", rate("100/m"), 100),
        ),
        (
            "algorithm = 'token-bucket', rate = '5/s', capacity = 7",
            Limit::token_bucket("token-bucket-0", rate("5/s"), 7),
        ),
        (
            "algorithm = 'fixed-window', rate = '1000/minute'",
            Limit::fixed_window("fixed-window-0", 1000, MINUTE),
        ),
        (
            "algorithm = 'fixed-window', rate = '60 per 2 minutes', anchor = 'first-hit'",
            Limit::first_hit_window("fixed-window-0", 60, 2 * MINUTE),
        ),
        (
            "algorithm = 'sliding-window', rate = '1000/minute'",
            Limit::sliding_window("sliding-window-0", 1000, MINUTE, 10),
        ),
        (
            "algorithm = 'sliding-window', rate = '1000/minute', buckets = 60",
            Limit::sliding_window("sliding-window-0", 1000, MINUTE, 60),
        ),
        (
            "algorithm = 'sliding-log', rate = '100/minute', name = 'per-minute'",
            Limit::sliding_log("per-minute", 100, MINUTE),
        ),
    ] {
        assert_eq!(limit(entry), expected.unwrap(), "{entry}");
    }
}

#[test]
fn quotas_end_with_the_calendar_in_fixed_periods_or_after_the_first_unit() {
    use calendar::Unit;
    for (entry, count, edges) in [
        ("rate = '1_000_000/month'", 1_000_000, calendar(Unit::Month, 0)),
        ("rate = '5/week', utc_offset = '-09:30'", 5, calendar(Unit::Week, -570)),
        ("rate = '5/day', utc_offset = '+14:00'", 5, calendar(Unit::Day, 840)),
        ("rate = '5/24h', reset = 'calendar'", 5, calendar(Unit::Day, 0)),
        ("rate = '5/day', reset = 'fixed'", 5, Edges::aligned(DAY, 0).unwrap()),
        ("rate = '5/6h'", 5, Edges::aligned(DAY / 4, 0).unwrap()),
        // Midnight two hours east of UTC is at 22:00 UTC.
        (
            "rate = '5/day', reset = 'fixed', utc_offset = '+02:00'",
            5,
            Edges::aligned(DAY, 22 * 3_600_000_000).unwrap(),
        ),
        ("rate = '5/6h', utc_offset = '+07:00'", 5, Edges::aligned(DAY / 4, 5 * 3_600_000_000).unwrap()),
        ("rate = '5/week', reset = 'fixed'", 5, Edges::aligned(7 * DAY, 0).unwrap()),
        ("rate = '5/30d', reset = 'rolling'", 5, Edges::first_hit(30 * DAY).unwrap()),
        ("rate = '5/day', reset = 'rolling'", 5, Edges::first_hit(DAY).unwrap()),
    ] {
        assert_eq!(limit(&format!("algorithm = 'quota', {entry}")), quota(count, edges), "{entry}");
    }
}

#[test]
fn each_mistake_is_reported_with_the_way_out() {
    for (entry, expected) in [
        ("algorithm = 'gcar', rate = '1/s'", "algorithm: `gcar` is no algorithm; did you mean gcra?"),
        ("rate = '10r/s'", "rate: `10r/s` is no rate; write 10/s"),
        ("algorithm = 'fixed-window', rate = '10r/s'", "rate: `10r/s` is no rate; write 10/s"),
        ("algorithm = 'quota', rate = '5/mo'", "rate: `5/mo` is no rate; write 5/month"),
        (
            "algorithm = 'gcra', rate = '5/week'",
            "rate: `5/week`: weeks and months are for quotas; write days, such as 7/7d",
        ),
        (
            "algorithm = 'sliding-log', rate = '5/month'",
            "rate: `5/month`: weeks and months are for quotas; write days, such as 7/7d",
        ),
        (
            "algorithm = 'quota', rate = '5/2months'",
            "rate: `5/2months`: a quota counts in one week or one month; write it without a number, or days, such as 7/14d",
        ),
        (
            "algorithm = 'fixed-window', rate = '0/s'",
            "rate: a rate of zero releases nothing; use at least 1 in a period of at least 1 \u{b5}s",
        ),
        (
            "algorithm = 'quota', rate = '-5/s'",
            "rate: `-5/s` is no rate; write COUNT/UNIT, such as 50/s or 100 per 5 minutes",
        ),
        ("algorithm = 'fixed-window', rate = '1.5/s'", "rate: `1.5/s` is no rate; write 3/2s"),
        (
            "algorithm = 'gcra', rate = '1/s', burst = 0",
            "burst: out of range; use an integer from 1 to 4294967295",
        ),
        (
            "algorithm = 'gcra', rate = '1/s', burst = 1.5",
            "burst: a float where an integer belongs; write such as 1",
        ),
        (
            "algorithm = 'token-bucket', rate = '1/s', capacity = -1",
            "capacity: out of range; use an integer from 1 to 4294967295",
        ),
        (
            "algorithm = 'sliding-window', rate = '1/s', buckets = 121",
            "buckets: out of range; use an integer from 1 to 120",
        ),
        (
            "algorithm = 'gcra', rate = '1/d', burst = 4294967295",
            "burst: a burst of 4294967295 at 1/d is beyond exact time; use a smaller burst or a shorter period",
        ),
        (
            "algorithm = 'token-bucket', rate = '1/d', capacity = 4294967295",
            "capacity: a burst of 4294967295 at 1/d is beyond exact time; use a smaller burst or a shorter period",
        ),
        (
            "algorithm = 'token-bucket', rate = '10_000_000_000/d'",
            "capacity: missing; the count of the rate is too high for one; write such as capacity = 1000",
        ),
        (
            "algorithm = 'sliding-window', rate = '10/s', buckets = 7",
            "buckets: a period of 1s does not divide into 7 buckets of whole microseconds; use 5 or 8 buckets",
        ),
        (
            "algorithm = 'sliding-window', rate = '1000000/d', buckets = 1",
            "buckets: 1000000 per 86400s in 1 buckets is beyond exact numbers; use 10 buckets, or a smaller count or period",
        ),
        (
            "algorithm = 'sliding-log', rate = '10001/d'",
            "rate: a log of 10001 units; use at most 10000, or a sliding window, which counts",
        ),
        (
            "algorithm = 'fixed-window', rate = '1/s', anchor = 'hit'",
            "anchor: `hit` is no anchor; use epoch or first-hit",
        ),
        (
            "algorithm = 'quota', rate = '1/day', reset = 'never'",
            "reset: `never` is no reset; use calendar, fixed or rolling",
        ),
        (
            "algorithm = 'quota', rate = '1/3d', reset = 'calendar'",
            "reset: a calendar has no such period; use one day, one week or one month, or reset = \"fixed\"",
        ),
        (
            "algorithm = 'quota', rate = '1/month', reset = 'rolling'",
            "reset: months are not equally long; use reset = \"calendar\", or days, such as 1000/30d",
        ),
        (
            "algorithm = 'quota', rate = '1/day', utc_offset = '+14:30'",
            "utc_offset: `+14:30` is out of range; use -14:00 to +14:00",
        ),
        (
            "algorithm = 'quota', rate = '1/day', utc_offset = 2",
            "utc_offset: an integer where a string belongs; write it in quotes, such as \"Z\"",
        ),
        ("algorithm = 'gcra'", "rate: missing; write such as rate = \"1000/minute\""),
        (
            "rate = '1/s', name = 'plan.pro'",
            "name: no name for a limit; use up to 63 of a-z, 0-9, _ and -, begin with a letter or digit, without `__`",
        ),
    ] {
        let message = mistake(entry);
        let message = message.strip_prefix("limits[0].").unwrap_or(&message);
        assert_eq!(message, expected, "{entry}");
    }
}

#[test]
fn a_key_of_another_algorithm_is_unknown_and_the_error_names_its_own() {
    for (entry, expected) in [
        (
            "algorithm = 'token-bucket', rate = '1/s', burst = 5",
            "burst: unknown key; a token-bucket has `capacity` instead",
        ),
        (
            "algorithm = 'gcra', rate = '1/s', capacity = 5",
            "capacity: unknown key; a gcra has `burst` instead",
        ),
        ("rate = '1/s', capacity = 5", "capacity: unknown key; a leaky-bucket has `burst` instead"),
        (
            "algorithm = 'sliding-log', rate = '1/s', burst = 5",
            "burst: unknown key; it is a key of leaky-bucket and gcra; the algorithm here is sliding-log",
        ),
        (
            "algorithm = 'quota', rate = '1/day', anchor = 'epoch'",
            "anchor: unknown key; it is a key of fixed-window; the algorithm here is quota",
        ),
        (
            "algorithm = 'fixed-window', rate = '1/s', utc_offset = 'Z'",
            "utc_offset: unknown key; it is a key of quota; the algorithm here is fixed-window",
        ),
        (
            "algorithm = 'quota', rate = '1/day', reset = 'rolling', utc_offset = 'Z'",
            "utc_offset: unknown key; a rolling quota begins with the first unit taken",
        ),
        (
            "algorithm = 'sliding-window', rate = '1/s', bukets = 5",
            "bukets: unknown key; did you mean `buckets`?",
        ),
        (
            "algorithm = 'sliding-log', rate = '1/s', period = 5",
            "period: unknown key; known here are `algorithm`, `cost`, `default_cost`, `margin`, `max_cost`, `name`, `rate`",
        ),
    ] {
        assert_eq!(mistake(entry), format!("limits[0].{expected}"), "{entry}");
    }
}

#[test]
fn names_tell_states_apart() {
    let scene = |limits: &str| Scene::new(&format!("{LEAST}limits = [{limits}]\n"));
    let names = |limits: &str| {
        let settings = scene(limits).right().settings;
        settings.downstreams["a"].limits.iter().map(|limit| limit.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        names("{ algorithm = 'gcra', rate = '1/s' }, { rate = '2/s' }, { rate = '3/s', name = 'x' }"),
        ["leaky-bucket-0", "gcra-1", "leaky-bucket-2", "x"]
    );
    // The same limit given twice counts twice.
    assert_eq!(names("{ rate = '2/s', name = 'x' }, { rate = '2/s', name = 'x' }"), ["leaky-bucket-0", "x"]);
    for (limits, place) in [
        (
            "{ rate = '2/s', name = 'x' }, { rate = '3/s', name = 'x' }",
            "4:64: downstreams.a.limits[1].name: another limit with other numbers is called `x`",
        ),
        (
            "{ rate = '2/s', name = 'leaky-bucket-0' }",
            "4:34: downstreams.a.limits[0].name: another limit with other numbers is called `leaky-bucket-0`",
        ),
        (
            "{ rate = '2/s', name = 'gcra-2' }, { algorithm = 'gcra', rate = '3/s' }",
            "4:46: downstreams.a.limits[1]: another limit with other numbers is called `gcra-2`",
        ),
    ] {
        assert_eq!(scene(limits).wrong(), [format!("paced.toml:{place}; give each its own name")]);
    }
    let many = vec!["{ rate = '2/s' }"; 16].join(", ");
    let lines = scene(&many).wrong();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].ends_with("downstreams.a.limits[15]: 17 limits; use at most 16"), "{lines:?}");
    let twice = "{ algorithm = 'gcra', rate = '2/s', name = 'x' }";
    let lines = scene(&format!("{twice}, {twice}")).wrong();
    assert!(
        lines[0].ends_with("limits[1].name: the same limit more often than it holds units; give it once"),
        "{lines:?}"
    );
}

#[test]
fn what_the_default_file_comments_out_is_right_too() {
    let text = fs::read_to_string(shipped("paced.toml")).unwrap();
    let mut bare = String::new();
    for line in text.lines() {
        let stripped = line.strip_prefix("# ").filter(|line| {
            [
                "limits = [",
                "answers = [",
                "    { algorithm",
                "    { status",
                "]",
                "[plans.",
                "default_plan = ",
            ]
            .iter()
            .any(|start| line.starts_with(start))
                // No limit has a cost of its own where there are lanes.
                && !line.contains("per = [")
        });
        bare.push_str(stripped.unwrap_or(line));
        bare.push('\n');
    }
    let settings = Scene::new(&bare).right().settings;
    let billing = &settings.downstreams["billing"];
    assert_eq!((billing.limits.len(), billing.plans.len()), (9, 1));
    assert_eq!(billing.lanes.default_plan.as_deref(), Some("free"));
    let lanes = text.split("[downstreams.billing.lanes]\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let starts = ["by = ", "fair_by = ", "limits = [", "weights = "];
    let lanes = lanes.lines().filter_map(|line| line.strip_prefix("# "));
    let lanes: Vec<&str> = lanes.filter(|line| starts.iter().any(|start| line.starts_with(start))).collect();
    let a = Scene::new(&format!("{LEAST}[downstreams.a.lanes]\n{}\n", lanes.join("\n"))).right().settings;
    let rules = a.downstreams["a"].lanes.rules.clone().unwrap();
    assert_eq!((lanes.len(), rules.per.len(), rules.weights["acme"]), (4, 1, 5));
}

#[test]
fn the_examples_mean_what_they_say() {
    let plans = load_shipped("examples/plans.toml", &[]).settings;
    let billing = &plans.downstreams["billing"];
    assert_eq!((billing.plan_rules().len(), billing.default_plan()), (3, Some(0)), "those of lanes too");
    assert_eq!(billing.lanes.parts, [paced::job::LanePart::Lane]);
    let quotas = load_shipped("examples/quotas.toml", &[]).settings;
    let names: Vec<&str> = quotas.downstreams["geocoder"].limits.iter().map(Limit::name).collect();
    assert_eq!(names, ["leaky-bucket-0", "sliding-log-1", "quota-2"]);
    assert_eq!(quotas.downstreams["search"].effective_prefetch(), 1000);
    let alerts = &load_shipped("examples/reject.toml", &[]).settings.downstreams["alerts"];
    assert_eq!((alerts.on_limit, alerts.max_cost().units), (OnLimit::Reject, 20));
}
