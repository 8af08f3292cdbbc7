use std::time::Duration;

use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};

use super::*;
use crate::limit::{Calendar, Edges, calendar};

fn gcra(name: &str, rate: &str, burst: u32) -> Limit {
    Limit::gcra(name, rate.parse().unwrap(), burst).unwrap()
}

fn set(limits: Vec<Limit>) -> LimitSet {
    LimitSet::new(limits).unwrap()
}

/// Makes decisions at one instant, one after the other, and returns the last.
fn decide(limits: &LimitSet, now: i64, costs: &[u32]) -> Decision {
    let mut states = limits.fresh();
    let mut verdicts = limits.police(&mut states, Micros(now), crate::Costs::Each(costs));
    limits.decision(Micros(now), verdicts.pop().unwrap())
}

fn policy(limit: Limit) -> String {
    Headers::new(&set(vec![limit])).unwrap().policy().1
}

#[test]
fn a_policy_is_what_comes_back_in_whole_seconds() {
    let windows = |count, micros| Limit::fixed_window("w", count, Duration::from_micros(micros)).unwrap();
    let months = Edges::Calendar(Calendar::new(calendar::Unit::Month, 0).unwrap());
    let days = Edges::Calendar(Calendar::new(calendar::Unit::Day, -300).unwrap());
    for (limit, expected) in [
        (gcra("g", "10/s", 20), r#""g";q=20;w=2"#),
        (gcra("g", "10/s", 10), r#""g";q=10;w=1"#),
        // The burst returns in 1.1 s, which is rounded up.
        (gcra("g", "10/s", 11), r#""g";q=11;w=2"#),
        // The bursts return in 0.9 s and 0.1 s, so that the quantity of one second is stated.
        (gcra("g", "10/s", 9), r#""g";q=10;w=1"#),
        (gcra("g", "10/s", 1), r#""g";q=10;w=1"#),
        (gcra("g", "7/2s", 1), r#""g";q=3;w=1"#),
        (gcra("g", "1/3s", 1), r#""g";q=1;w=3"#),
        (gcra("g", "3/s", 3), r#""g";q=3;w=1"#),
        (gcra("g", "3/s", 4), r#""g";q=4;w=2"#),
        (gcra("g", "7/7d", 1), r#""g";q=1;w=86400"#),
        (windows(100, 60_000_000), r#""w";q=100;w=60"#),
        (windows(100, 60_000_001), r#""w";q=100;w=61"#),
        (windows(5, 100_000), r#""w";q=50;w=1"#),
        (windows(1, 999_999), r#""w";q=1;w=1"#),
        (Limit::sliding_log("log", 5, Duration::from_secs(10)).unwrap(), r#""log";q=5;w=10"#),
        (Limit::sliding_window("s", 100, Duration::from_secs(60), 6).unwrap(), r#""s";q=100;w=60"#),
        (Limit::quota("day", 1000, days).unwrap(), r#""day";q=1000;w=86400"#),
        // The window is the longest month.
        (Limit::quota("month", 1, months).unwrap(), r#""month";q=1;w=2678400"#),
        (Limit::leaky_bucket("l", "10/s".parse().unwrap(), 20).unwrap().policing(), r#""l";q=20;w=2"#),
    ] {
        assert_eq!(policy(limit.clone()), expected, "{limit:?}");
    }
}

#[test]
fn the_binding_limit_comes_first_and_all_are_listed() {
    let limits = set(vec![
        Limit::fixed_window("per-day", 1000, Duration::from_secs(86_400)).unwrap(),
        gcra("per-second", "10/s", 20),
    ]);
    let headers = Headers::new(&limits).unwrap();
    assert_eq!(
        headers.policy(),
        ("ratelimit-policy", r#""per-day";q=1000;w=86400, "per-second";q=20;w=2"#.into())
    );

    // This is 12:00:00.5 on the second day.
    let noon = (86_400 + 43_200) * 1_000_000 + 500_000;
    let allowed = decide(&limits, noon, &[5]);
    let expected: Vec<Field> = vec![
        headers.policy(),
        ("ratelimit", r#""per-second";r=15;t=1, "per-day";r=995;t=43200"#.into()),
        ("x-ratelimit-limit", "20".into()),
        ("x-ratelimit-remaining", "15".into()),
        ("x-ratelimit-reset", "1".into()),
    ];
    assert_eq!(headers.all(&allowed, Reset::InSeconds), expected);

    let denied = decide(&limits, noon, &[20, 20]);
    let expected: Vec<Field> = vec![
        headers.policy(),
        ("ratelimit", r#""per-second";r=0;t=2, "per-day";r=980;t=43200"#.into()),
        ("x-ratelimit-limit", "20".into()),
        ("x-ratelimit-remaining", "0".into()),
        // The limit is full again 2 s later, at 12:00:02.5.
        ("x-ratelimit-reset", "129603".into()),
        ("retry-after", "2".into()),
    ];
    assert_eq!(headers.all(&denied, Reset::AtEpoch), expected);
}

#[test]
fn seconds_are_rounded_up_and_a_denial_waits_for_one_at_least() {
    let limits = set(vec![gcra("g", "1000/s", 1)]);
    let mut decision = decide(&limits, 1_000_000_000, &[1, 1]);
    for (micros, retry_after) in
        [(0, "1"), (1, "1"), (999_999, "1"), (1_000_000, "1"), (1_000_001, "2"), (60_000_000, "60")]
    {
        decision.retry_after = Duration::from_micros(micros);
        assert_eq!(Headers::retry_after(&decision), Some(("retry-after", retry_after.into())), "{micros}");
        // Both fields have the same value.
        let field = Headers::new(&limits).unwrap().rate_limit(&decision).1;
        assert_eq!(field, format!(r#""g";r=0;t={retry_after}"#));
    }
    for (micros, seconds, epoch) in
        [(0, "0", "1000"), (1, "1", "1001"), (1_000_000, "1", "1001"), (1_000_001, "2", "1002")]
    {
        decision.reset_after = Duration::from_micros(micros);
        let reset = |reset| Headers::x_rate_limit(&decision, reset)[2].1.clone();
        assert_eq!((reset(Reset::InSeconds).as_str(), reset(Reset::AtEpoch).as_str()), (seconds, epoch));
    }
    decision.allowed = true;
    assert_eq!(Headers::retry_after(&decision), None);
}

#[test]
fn a_name_is_escaped_or_refused() {
    assert_eq!(policy(gcra(r#"a "b" \c;q=1"#, "1/s", 1)), r#""a \"b\" \\c;q=1";q=1;w=1"#);
    for name in ["zürich", "a\r\nset-cookie: x", "tab\t", "\u{7f}"] {
        let error = Headers::new(&set(vec![gcra(name, "1/s", 1)])).unwrap_err();
        assert_eq!(error, HeaderError::Name(name.into()));
        assert!(!error.to_string().contains(['\r', '\n', '\t', '\u{7f}']), "{error}");
    }
}

/// Parses the items of a list: a name and two integers each.
fn items(field: &str) -> Vec<(String, i64, i64)> {
    let list: List = Parser::new(field).parse().unwrap();
    let item = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{field}") };
        let BareItem::String(name) = item.bare_item else { panic!("{field}") };
        let numbers: Vec<i64> =
            item.params.values().map(|value| value.as_integer().unwrap().into()).collect();
        let [first, second] = numbers[..] else { panic!("{field}") };
        (name.as_str().to_owned(), first, second)
    };
    list.into_iter().map(item).collect()
}

proptest! {
    /// Both lists parse as structured fields, contain each limit once, and never promise too much.
    #[test]
    fn the_fields_hold(
        names in prop::collection::hash_set("[ -~]{0,12}", 1..5),
        (count, period, burst) in (1_u64..1_000_000, 1_u64..100_000_000, 1_u32..1000),
        costs in prop::collection::vec(1_u32..3, 1..20),
        now in 0_i64..2_000_000_000_000_000,
    ) {
        prop_assume!(count <= period);
        let period = Duration::from_micros(period);
        let rate = crate::Rate::new(count, period).unwrap();
        let limits: Vec<Limit> = names
            .iter()
            .enumerate()
            .map(|(index, name)| match index % 2 {
                0 => Limit::gcra(name.clone(), rate, burst).unwrap(),
                _ => Limit::fixed_window(name.clone(), count, period).unwrap(),
            })
            .collect();
        let limits = set(limits);
        let headers = Headers::new(&limits).unwrap();
        let decision = decide(&limits, now, &costs);
        let policies = items(&headers.policy().1);
        let fields = items(&headers.rate_limit(&decision).1);
        prop_assert_eq!(policies.len(), limits.len());
        prop_assert_eq!(&fields[0].0, limits.get(decision.binding).unwrap().name());
        for (limit, (name, quota, window)) in limits.iter().zip(policies) {
            prop_assert_eq!(limit.name(), &name);
            // The quantity per second is at most the rate, and as much as fits at once or returns in a second.
            let rate = limit.rate();
            let most = i128::from(window) * 1_000_000 * i128::from(rate.count());
            prop_assert!(window >= 1 && i128::from(quota) * i128::from(rate.period_micros()) <= most);
            let place = limits.iter().position(|other| other.name() == name).unwrap();
            let matching: Vec<_> = fields.iter().filter(|(other, ..)| *other == name).collect();
            let [(_, remaining, window)] = matching[..] else { panic!("{fields:?}") };
            prop_assert_eq!(*remaining, i64::try_from(decision.standings[place].remaining).unwrap());
            prop_assert!(*remaining <= quota, "{} of {}", remaining, quota);
            if let Some((_, retry_after)) = Headers::retry_after(&decision).filter(|_| place == decision.binding) {
                prop_assert_eq!(retry_after, window.to_string());
                prop_assert!(Duration::from_secs(u64::try_from(*window).unwrap()) >= decision.retry_after);
            }
        }
    }
}
