use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::limit::{Calendar, Combine, Edges, calendar};

mod newest;
mod values;

const MINUTE: Duration = Duration::from_secs(60);

fn rate(text: &str) -> crate::Rate {
    text.parse().unwrap()
}

/// A limit of every algorithm, with every kind of windows.
fn every() -> Vec<Limit> {
    let quota = |name: &str, edges| Limit::quota(name, 9_007_199, edges).unwrap();
    let calendar = |unit, offset: i64| Edges::Calendar(Calendar::new(unit, offset).unwrap());
    let limits = vec![
        Limit::leaky_bucket(RATE_LIMIT, rate("1/3s"), 5).unwrap(),
        Limit::gcra("gcra", rate("700001/s"), 7).unwrap(),
        Limit::token_bucket("tokens", rate("7/7d"), 1000).unwrap(),
        Limit::fixed_window("fixed", 1000, MINUTE).unwrap(),
        Limit::first_hit_window("first", 1000, MINUTE).unwrap(),
        Limit::sliding_window("sliding", 1000, MINUTE, 60).unwrap(),
        Limit::sliding_log("log", 1000, Duration::from_micros(60_000_001)).unwrap(),
        quota("aligned", Edges::aligned(86_400 * Duration::from_secs(1), 7_200_000_000).unwrap()),
        quota("rolling", Edges::first_hit(30 * 86_400 * Duration::from_secs(1)).unwrap()),
        quota("day", calendar(calendar::Unit::Day, -570)),
        quota("week", calendar(calendar::Unit::Week, 0)),
        quota("month", calendar(calendar::Unit::Month, 840)),
    ];
    let algorithms = limits.iter().map(|limit| std::mem::discriminant(&limit.algorithm()));
    assert_eq!(algorithms.collect::<std::collections::HashSet<_>>().len(), 7);
    limits
}

fn terms(limits: Vec<Limit>) -> Terms {
    Terms::new(LimitSet::new(limits).unwrap(), BTreeMap::new(), None)
}

/// One limit at 50/s, as `rate = "50/s"` makes it, and a plan with one of its own.
fn usual() -> Terms {
    let own = Limit::leaky_bucket(RATE_LIMIT, rate("50/s"), 3).unwrap();
    let plan = Limit::sliding_window("plan.pro.sliding-window-0", 1000, MINUTE, 10).unwrap();
    let plans = BTreeMap::from([("pro".to_owned(), LimitSet::new(vec![own.clone(), plan]).unwrap())]);
    Terms::new(LimitSet::new(vec![own]).unwrap(), plans, Some(3))
}

fn over(rate: &str, until: Option<i64>) -> Override {
    let (rate, until) = (rate.parse().unwrap(), until.map(Micros));
    let (reason, by) = (Some("the \"API\" moved".to_owned()), Some("10.0.0.7".to_owned()));
    Override { rate, until, reason, by, set_at: Micros(5) }
}

#[test]
fn what_is_written_reads_back() {
    let every = every();
    for limit in &every {
        let one = terms(vec![limit.clone()]);
        assert_eq!(Terms::parse(&one.to_text()).as_ref(), Ok(&one), "{}", one.to_text());
    }
    for combine in [Combine::All, Combine::Any, Combine::OneOf] {
        // The last one is given twice.
        let all = every.iter().chain(every.last()).cloned().collect();
        let set = LimitSet::combined(combine, all).unwrap();
        let mut all = Terms::new(set.clone(), BTreeMap::from([("päid".to_owned(), set)]), Some(u64::MAX));
        all.set_rate(Some("month"), over("1_000/month", None)).unwrap();
        all.set_rate(None, over("1000/7d", Some(Micros::MAX.0))).unwrap();
        let text = all.to_text();
        assert_eq!(Terms::parse(&text).as_ref(), Ok(&all), "{text}");
        assert_eq!(Terms::parse(&text).unwrap().to_text(), text);
    }
}

#[test]
fn the_text_stays_what_it_is() {
    let mut terms = usual();
    terms.set_rate(None, over("20/s", Some(17))).unwrap();
    assert_eq!(
        terms.to_text(),
        r#"{"version":2,"revision":3,"#.to_owned()
            + r#""limits":{"combine":"all","limits":[{"name":"leaky-bucket-0","algorithm":"leaky-bucket","numbers":{"burst":3,"count":50,"period":1000000}}]},"#
            + r#""plans":{"pro":{"combine":"all","limits":[{"name":"leaky-bucket-0","algorithm":"leaky-bucket","numbers":{"burst":3,"count":50,"period":1000000}},"#
            + r#"{"name":"plan.pro.sliding-window-0","algorithm":"sliding-window","numbers":{"buckets":10,"count":1000,"period":60000000}}]}},"#
            + r#""overrides":{"leaky-bucket-0":{"rate":"20/s","until":17,"reason":"the \"API\" moved","by":"10.0.0.7","set_at":5}}}"#,
        "stores hold such texts: another form is another version",
    );
    let older = terms.to_text().replace("\"version\":2", "\"version\":1").replace(r#","by":"10.0.0.7""#, "");
    let mut unsigned = usual();
    unsigned.set_rate(None, Override { by: None, ..over("20/s", Some(17)) }).unwrap();
    assert_eq!((Terms::parse(&older).as_ref(), unsigned.to_text()), (Ok(&unsigned), older));
}

#[test]
fn the_text_says_where_terms_come_from_and_may_say_more_of_it() {
    let replica = |id: &str, host: &str| Replica { id: id.to_owned(), host: host.to_owned() };
    let first = usual().put_in_force(None, Micros(7), &replica("x", "api-7"));
    let mut terms = first.clone();
    terms.set_rate(None, over("20/s", None)).unwrap();
    let terms = terms.put_in_force(Some(&first), Micros(9), &replica("y", ""));
    let text = terms.to_text();
    let origins = r#""loaded":{"at":7,"replica":"x","host":"api-7"},"#.to_owned()
        + r#""since":[{"origin":{"at":7,"replica":"x","host":"api-7"},"limits":["plan.pro.sliding-window-0"]},"#
        + r#"{"origin":{"at":9,"replica":"y"},"limits":["leaky-bucket-0"]}]}"#;
    assert!(text.ends_with(&origins), "{text}");
    assert_eq!(Terms::parse(&text).as_ref(), Ok(&terms));
    let more = text.replace("\"at\":7,", "\"at\":7,\"version\":\"9.0\",");
    assert_eq!(Terms::parse(&more).as_ref(), Ok(&terms), "a later version says more");
    let without = Terms::parse(&usual().to_text()).unwrap();
    assert_eq!((without.loaded(), without.in_force_since(RATE_LIMIT, Micros(9))), (None, None));
    assert_eq!(terms.fingerprint(), without.fingerprint(), "the file is the same");
    let other = Limit::leaky_bucket(RATE_LIMIT, rate("50/s"), 4).unwrap();
    assert_ne!(self::terms(vec![other]).fingerprint(), without.fingerprint());
}

#[test]
fn texts_that_are_no_terms() {
    let text = usual().to_text();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Terms::parse(&text.replace(from, to)).unwrap_err()
    };
    assert_eq!(with("\"version\":1", "\"version\":5"), TermsError::Version { found: 5, known: 4 });
    let leaky = with("\"leaky-bucket\"", "\"sieve\"");
    assert_eq!(leaky, TermsError::Algorithm { limit: RATE_LIMIT.to_owned(), algorithm: "sieve".to_owned() });
    assert!(leaky.to_string().contains("run the same version of paced everywhere"), "{leaky}");
    for error in [
        with("\"version\":1,", ""),
        with("\"burst\":3", "\"burst\":0"),
        with("\"burst\":3,", ""),
        with("\"burst\":3", "\"burst\":3,\"also\":1"),
        with("\"period\":1000000}", "\"period\":1000000.5}"),
        with("\"count\":50,", "\"count\":18446744073709551616,"),
        with("\"combine\":\"all\"", "\"combine\":\"some\""),
        with("\"revision\":3", "\"revision\":3,\"more\":1"),
        with("\"buckets\":10", "\"buckets\":7"),
        Terms::parse("").unwrap_err(),
        Terms::parse(&text[..text.len() - 1]).unwrap_err(),
    ] {
        assert!(matches!(&error, TermsError::Malformed(_)), "{error:?}");
        assert!(error.to_string().contains("reload the configuration"), "{error}");
    }
}

#[test]
fn the_last_load_wins_unless_its_revision_is_lower() {
    let at = |rate_text: &str, revision| {
        let limit = Limit::leaky_bucket(RATE_LIMIT, rate(rate_text), 1).unwrap();
        Terms::new(LimitSet::new(vec![limit]).unwrap(), BTreeMap::new(), revision)
    };
    assert_eq!(Terms::load(None, &at("5/s", None)), Load::Replace(at("5/s", None)));
    let stay = |stored, own| Load::Stay { stored, own };
    for (stored, own, expected) in [
        ((5, None), (5, None), Load::Same),
        ((5, None), (7, None), Load::Replace(at("7/s", None))),
        ((5, None), (7, Some(0)), Load::Replace(at("7/s", Some(0)))),
        ((5, Some(3)), (7, Some(3)), Load::Replace(at("7/s", Some(3)))),
        ((5, Some(3)), (7, Some(4)), Load::Replace(at("7/s", Some(4)))),
        ((5, Some(3)), (7, Some(2)), stay(3, Some(2))),
        ((5, Some(0)), (7, None), stay(0, None)),
        // A higher revision takes effect, though the limits stay the same; a lower one changes nothing.
        ((5, Some(3)), (5, Some(4)), Load::Replace(at("5/s", Some(4)))),
        ((5, Some(3)), (5, Some(2)), Load::Same),
        ((5, Some(3)), (5, None), Load::Same),
    ] {
        let of = |(rate, revision)| at(&format!("{rate}/s"), revision);
        assert_eq!(Terms::load(Some(&of(stored)), &of(own)), expected, "{stored:?} {own:?}");
    }
    let mut stored = at("5/s", None);
    stored.set_rate(None, over("20/s", None)).unwrap();
    let Load::Replace(new) = Terms::load(Some(&stored), &at("7/s", None)) else { panic!("replaced") };
    assert_eq!((new.overrides(), new.limits()), (stored.overrides(), at("7/s", None).limits()));
    assert_eq!(Terms::load(Some(&stored), &at("5/s", None)), Load::Same, "overrides are no part of a file");
}

#[test]
fn a_rate_counts_in_every_set_until_its_end() {
    let mut terms = usual();
    let file = terms.effective(Micros(0));
    assert_eq!(file, (terms.limits().clone(), terms.plans().clone()));
    assert_eq!(terms.set_rate(None, over("20/s", Some(1000))), Ok(RATE_LIMIT.to_owned()));
    let own = Limit::leaky_bucket(RATE_LIMIT, rate("20/s"), 3).unwrap();
    let (limits, plans) = terms.effective(Micros(999));
    assert_eq!(limits.iter().collect::<Vec<_>>(), [&own], "the burst stays");
    assert_eq!(plans["pro"].get(0), Some(&own));
    assert_eq!(plans["pro"].get(1), terms.plans()["pro"].get(1));
    assert_eq!((terms.next_end(Micros(999)), terms.next_end(Micros(1000))), (Some(Micros(1000)), None));
    assert_eq!(terms.effective(Micros(1000)), file);
    assert_eq!(terms.expired(Micros(999)), None);
    assert_eq!(terms.expired(Micros(1000)), Some(usual()));

    assert_eq!(terms.unset_rate(None), Ok((RATE_LIMIT.to_owned(), Some(over("20/s", Some(1000))))));
    assert_eq!(terms, usual());
    assert_eq!(terms.unset_rate(None), Ok((RATE_LIMIT.to_owned(), None)));
}

#[test]
fn every_limit_takes_a_rate_and_keeps_all_else() {
    let every = every();
    let rerated = |name: &str, rate: &str| {
        let mut terms = terms(every.clone());
        terms.set_rate(Some(name), over(rate, None)).map(|_| {
            let limits = terms.effective(Micros(0)).0;
            limits.iter().find(|limit| limit.name() == name).unwrap().clone()
        })
    };
    let day = 86_400 * Duration::from_secs(1);
    let edges = |unit, offset: i64| Edges::Calendar(Calendar::new(unit, offset).unwrap());
    for (rate_text, expected) in [
        ("20/s", Limit::leaky_bucket(RATE_LIMIT, rate("20/s"), 5)),
        ("20/s", Limit::gcra("gcra", rate("20/s"), 7)),
        ("20/s", Limit::token_bucket("tokens", rate("20/s"), 1000)),
        ("20/s", Limit::fixed_window("fixed", 20, Duration::from_secs(1))),
        ("20/2s", Limit::first_hit_window("first", 20, Duration::from_secs(2))),
        ("20/m", Limit::sliding_window("sliding", 20, MINUTE, 60)),
        ("20/s", Limit::sliding_log("log", 20, Duration::from_secs(1))),
        ("20/h", Limit::quota("aligned", 20, Edges::aligned(60 * MINUTE, 0).unwrap())),
        ("20/week", Limit::quota("aligned", 20, Edges::aligned(7 * day, 7_200_000_000).unwrap())),
        ("20/h", Limit::quota("rolling", 20, Edges::first_hit(60 * MINUTE).unwrap())),
        ("20/month", Limit::quota("day", 20, edges(calendar::Unit::Month, -570))),
        ("20/24h", Limit::quota("week", 20, edges(calendar::Unit::Day, 0))),
        ("20/week", Limit::quota("month", 20, edges(calendar::Unit::Week, 840))),
    ] {
        let expected = expected.unwrap();
        assert_eq!(rerated(expected.name(), rate_text).as_ref(), Ok(&expected), "{rate_text}");
    }
    for (name, rate, problem) in [
        (RATE_LIMIT, "7/week", "write days"),
        ("log", "7/month", "write days"),
        ("sliding", "2/7us", "buckets"),
        ("log", "20000/m", "use at most 10000"),
        ("day", "20/h", "use one day, one week or one month"),
        ("rolling", "20/month", "use days"),
        ("tokens", "1/366d", "shorter period"),
    ] {
        let error = rerated(name, rate).unwrap_err();
        assert!(matches!(&error, TermsError::Rate { limit, .. } if limit == name), "{error:?}");
        assert!(error.to_string().contains(problem), "{name} {rate}: {error}");
    }
}

#[test]
fn rates_are_shown_as_people_write_them() {
    let shown: Vec<String> = every().iter().map(rate_text).collect();
    assert_eq!(
        shown,
        [
            "1/3s",
            "700001/s",
            "7/7d",
            "1000/m",
            "1000/m",
            "1000/m",
            "1000/60000001us",
            "9007199/d",
            "9007199/30d",
            "9007199/d",
            "9007199/week",
            "9007199/month"
        ]
    );
    // In whole seconds it would not make an amount.
    let odd = Limit::gcra("odd", crate::Rate::new(6, Duration::from_micros(287_421_197)).unwrap(), 1);
    assert_eq!(rate_text(&odd.unwrap()), "6/287421197us");
}

#[test]
fn which_limit_is_meant() {
    let fixed = || Limit::fixed_window("fixed", 1000, MINUTE).unwrap();
    let log = || Limit::sliding_log("log", 1000, MINUTE).unwrap();
    let mut several = terms(vec![fixed(), log()]);
    let error = several.set_rate(None, over("20/s", None)).unwrap_err();
    assert_eq!(error.to_string(), "which limit is meant? Name one of `fixed`, `log`");
    assert_eq!(several.unset_rate(None), Err(error));
    let error = several.set_rate(Some("lgo"), over("20/s", None)).unwrap_err();
    assert_eq!(error.to_string(), "no limit is called `lgo`; there are `fixed`, `log`");
    assert_eq!(several, terms(vec![fixed(), log()]), "nothing was set");
    assert_eq!(several.set_rate(Some("log"), over("20/s", None)), Ok("log".to_owned()));
    assert_eq!(terms(vec![fixed()]).set_rate(None, over("20/s", None)), Ok("fixed".to_owned()));

    let mut usual = usual();
    let plan = "plan.pro.sliding-window-0";
    assert_eq!(usual.set_rate(Some(plan), over("20/s", None)), Ok(plan.to_owned()));
    let (limits, plans) = usual.effective(Micros(0));
    assert_eq!(&limits, usual.limits());
    assert_eq!(plans["pro"].get(1).unwrap().burst(), 20);

    // A limit given twice takes two units for each job.
    let mut twice = terms(vec![fixed(), fixed()]);
    let error = twice.set_rate(None, over("1/s", None)).unwrap_err();
    assert!(error.to_string().contains("use a higher count"), "{error}");
    assert_eq!(twice.set_rate(None, over("2/s", None)), Ok("fixed".to_owned()));
}

#[test]
fn a_rate_that_fits_no_limit_any_more_does_nothing() {
    let mut old = terms(vec![Limit::gcra("calls", rate("5/s"), 2).unwrap()]);
    old.set_rate(None, over("20/70us", Some(100))).unwrap();
    let new = terms(vec![Limit::sliding_window("calls", 5, MINUTE, 60).unwrap()]);
    let Load::Replace(mut new) = Terms::load(Some(&old), &new) else { panic!("replaced") };
    assert_eq!(new.idle(Micros(0)), ["calls"]);
    assert_eq!(new.effective(Micros(0)).0, *new.limits());
    assert!(new.idle(Micros(100)).is_empty());
    assert!(new.unset_rate(None).unwrap().1.is_some());

    let gone = terms(vec![Limit::gcra("others", rate("5/s"), 2).unwrap()]);
    let Load::Replace(mut gone) = Terms::load(Some(&old), &gone) else { panic!("replaced") };
    assert_eq!(gone.idle(Micros(0)), ["calls"]);
    assert!(gone.unset_rate(Some("calls")).unwrap().1.is_some(), "it can be taken back by its name");
    assert!(gone.overrides().is_empty());
}

fn numbers() -> impl Strategy<Value = (u8, u64, u64, u32, i16)> {
    (0..12_u8, 1..10_000_u64, 1..366 * 86_400_000_000_u64, 1..1000_u32, -840..=840_i16)
}

/// A limit of these numbers, where there is one.
fn limit((algorithm, count, period, extra, offset): (u8, u64, u64, u32, i16)) -> Option<Limit> {
    let length = Duration::from_micros(period);
    let rate = || crate::Rate::new(count, length).ok();
    let calendar = |unit| Some(Edges::Calendar(Calendar::new(unit, offset).ok()?));
    match algorithm {
        0 => Limit::leaky_bucket("x", rate()?, extra).ok(),
        1 => Limit::gcra("x", rate()?, extra).ok(),
        2 => Limit::token_bucket("x", rate()?, extra).ok(),
        3 => Limit::fixed_window("x", count, length).ok(),
        4 => Limit::first_hit_window("x", count, length).ok(),
        5 => Limit::sliding_window(
            "x",
            count,
            Duration::from_micros(period / u64::from(extra) * u64::from(extra)),
            extra,
        )
        .ok(),
        6 => Limit::sliding_log("x", count, length).ok(),
        7 => Limit::quota("x", count, Edges::aligned(length, i64::from(extra)).ok()?).ok(),
        8 => Limit::quota("x", count, Edges::first_hit(length).ok()?).ok(),
        9 => Limit::quota("x", count, calendar(calendar::Unit::Day)?).ok(),
        10 => Limit::quota("x", count, calendar(calendar::Unit::Week)?).ok(),
        _ => Limit::quota("x", count, calendar(calendar::Unit::Month)?).ok(),
    }
}

proptest! {
    #[test]
    fn terms_of_all_numbers_read_back(numbers in numbers(), revision: Option<u64>, over in numbers()) {
        let Some(limit) = limit(numbers) else { return Ok(()) };
        let set = LimitSet::new(vec![limit]).unwrap();
        let mut terms = Terms::new(set.clone(), BTreeMap::from([("p".to_owned(), set)]), revision);
        let (_, count, period, ..) = over;
        if let Ok(rate) = Amount::new(count, Duration::from_micros(period)) {
            let set = Override { rate, until: None, reason: None, by: None, set_at: Micros(0) };
            if terms.set_rate(None, set).is_ok() {
                let (limits, plans) = terms.effective(Micros(0));
                prop_assert_eq!(&limits, &plans["p"]);
                prop_assert_eq!(limits.rate(), rate.rate().unwrap());
                prop_assert!(terms.idle(Micros(0)).is_empty());
            }
        }
        let text = terms.to_text();
        prop_assert_eq!(Terms::parse(&text), Ok(terms.clone()));

        // The text of a rate parses to the same rate.
        let rate = rate_text(terms.limit(None).unwrap()).parse().unwrap();
        let same = Override { rate, until: None, reason: None, by: None, set_at: Micros(0) };
        terms.set_rate(None, same).unwrap();
        prop_assert_eq!(&terms.effective(Micros(0)).0, terms.limits());
    }
}
