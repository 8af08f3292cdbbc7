//! Invalid numbers give typed errors at construction that name valid ones; never a panic, never a silent clamp.

use super::*;
use crate::rate::RateError;

/// The error, whose text must name a way out.
fn error_with(limit: Result<Limit, LimitError>, way_out: &str) -> LimitError {
    let error = limit.expect_err(way_out);
    let text = error.to_string();
    assert!(text.contains(way_out), "`{text}` does not say `{way_out}`");
    error
}

#[test]
fn bursts() {
    let rate: Rate = "1/s".parse().unwrap();
    for new in [Limit::leaky_bucket, Limit::gcra, Limit::token_bucket] {
        assert_eq!(error_with(new("l", rate, 0), "use at least 1"), LimitError::NoBurst);
        let slow = "1/366d".parse().unwrap();
        assert!(new("l", slow, 1).is_ok(), "one in the longest period");
        let error = error_with(new("l", slow, 300), "use a smaller burst or a shorter period");
        assert!(matches!(error, LimitError::BeyondExact { burst: 300, .. }));
        let day = "1/d".parse().unwrap();
        error_with(new("l", day, 1_000_000), "use a smaller burst or a shorter period");
    }
}

#[test]
fn counts_and_periods() {
    let second = Duration::from_secs(1);
    type New = fn(u64, Duration) -> Result<Limit, LimitError>;
    let news: [(&str, New); 5] = [
        ("fixed", |count, period| Limit::fixed_window("l", count, period)),
        ("first hit", |count, period| Limit::first_hit_window("l", count, period)),
        ("sliding", |count, period| Limit::sliding_window("l", count, period, 1)),
        ("log", |count, period| Limit::sliding_log("l", count, period)),
        ("quota", |count, period| Limit::quota("l", count, Edges::aligned(period, 0)?)),
    ];
    for (name, new) in news {
        let zero = LimitError::Rate(RateError::Zero);
        assert_eq!(error_with(new(0, second), "use at least 1 in a period"), zero, "{name}");
        assert_eq!(error_with(new(1, Duration::ZERO), "use at least 1 in a period"), zero, "{name}");
        for (count, period, way_out) in [
            (1_000_001, second, "1000000/s, the highest rate"),
            (u64::MAX, second, "1000000/s, the highest rate"),
            (1, Duration::from_secs(u64::MAX), "366 days, the longest"),
            (1, Duration::from_secs(367 * 86_400), "366 days, the longest"),
            (1, Duration::from_nanos(1500), "use whole microseconds"),
            (1, Duration::from_nanos(1), "use whole microseconds"),
        ] {
            assert!(matches!(error_with(new(count, period), way_out), LimitError::Rate(_)), "{name}");
        }
    }
}

#[test]
fn buckets() {
    let new = |count, period, buckets| Limit::sliding_window("l", count, period, buckets);
    let second = Duration::from_secs(1);
    for buckets in [0, 121, u32::MAX] {
        assert_eq!(error_with(new(10, second, buckets), "use 1 to 120"), LimitError::Buckets { buckets });
    }
    error_with(new(10, second, 7), "use 5 or 8 buckets");
    error_with(new(1, Duration::from_micros(7), 8), "; use 7 buckets");
    // 10^5 in 100 days, 8.64 * 10^12 µs: 96 buckets are enough, and 90, the next that divide it, are not.
    let days = Duration::from_secs(100 * 86_400);
    let error = error_with(new(100_000, days, 10), "use 96 buckets, or a smaller count or period");
    let LimitError::CoarseBuckets { enough: Some(enough), .. } = error else { panic!("{error}") };
    assert!(new(100_000, days, enough).is_ok() && new(100_000, days, enough - 6).is_err());
    error_with(new(100_000_000, days, 10), "; use a smaller count or period");
}

#[test]
fn logs_and_offsets() {
    let second = Duration::from_secs(1);
    let error = error_with(Limit::sliding_log("l", 10_001, second), "use at most 10000, or a sliding window");
    assert_eq!(error, LimitError::LogTooLong { count: 10_001 });
    assert!(Limit::sliding_log("l", 10_000, second).is_ok());
    for offset in [-1, SECOND, i64::MIN, i64::MAX] {
        let error = error_with(
            Edges::aligned(second, offset).and_then(|edges| Limit::quota("l", 1, edges)),
            "use 0 up to, not including, the period",
        );
        assert_eq!(error, LimitError::Offset { offset, period: second });
        // Anybody may build this variant directly.
        let edges = Edges::Aligned { period: SECOND, offset };
        assert_eq!(Limit::quota("l", 1, edges), Err(error));
    }
    for minutes in [-841, 841, i64::MIN, i64::MAX] {
        let calendar = Calendar::new(Unit::Day, minutes).map_err(LimitError::from);
        let error = error_with(
            calendar.and_then(|calendar| Limit::quota("l", 1, Edges::Calendar(calendar))),
            "use -840 to 840",
        );
        assert!(matches!(error, LimitError::Calendar(_)));
    }
    for minutes in [-840, 840] {
        assert!(Calendar::new(Unit::Month, minutes).is_ok());
    }
}

#[test]
fn sets() {
    let limit = |name: &str, count| Limit::fixed_window(name, count, Duration::from_secs(1)).unwrap();
    for combine in [Combine::All, Combine::Any, Combine::OneOf] {
        let new = |limits| LimitSet::combined(combine, limits);
        assert_eq!(new(vec![]), Err(LimitError::Empty));
        let same = new(vec![limit("a", 1), limit("a", 2)]);
        assert_eq!(same, Err(LimitError::SameName("a".to_owned())));
        let many = (0..=MAX_LIMITS).map(|place| limit(&place.to_string(), 1)).collect();
        assert_eq!(new(many), Err(LimitError::TooMany(MAX_LIMITS + 1)));
        assert_eq!(new(vec![limit("a", 1), limit("a", 1)]).unwrap().len(), 1, "folded");
    }
}

/// A cost that never fits is reported at once, instead of as a wait of years.
#[test]
fn costs_that_never_fit() {
    for limit in five_of_each() {
        assert_eq!(limit.max_cost(), 5, "{limit:?}");
        assert_eq!(limit.earliest(&limit.fresh(), Micros(TODAY), 5), Micros(TODAY));
        assert_eq!(limit.earliest(&limit.fresh(), Micros(TODAY), 6), Micros::MAX, "{limit:?}");
        let set = LimitSet::new(vec![limit]).unwrap();
        assert_eq!(set.unfit(Costs::Each(&[5, 0, 6])), Some((2, vec![5])));
        assert_eq!(set.unfit(Costs::Each(&[5, 0, 1])), None);
    }
    // The leaky bucket charges behind, so any exact cost is released at once after a rest.
    let shaper = Limit::leaky_bucket("l", "5/s".parse().unwrap(), 5).unwrap();
    assert_eq!(shaper.earliest(&shaper.fresh(), Micros(TODAY), 1000), Micros(TODAY));
}

/// A cost that a limit could count if the numbers were exact must not be skipped, as scripts would not skip it.
#[test]
fn costs_that_an_alternative_cannot_count() {
    let rate: Rate = "1/d".parse().unwrap();
    let slow = Limit::gcra("slow", rate, 80_000).unwrap();
    let most = slow.max_cost();
    assert!(most < 80_000);
    let quick = Limit::gcra("quick", "1000/s".parse().unwrap(), 100_000).unwrap();
    for combine in [Combine::Any, Combine::OneOf] {
        let set = LimitSet::combined(combine, vec![slow.clone(), quick.clone()]).unwrap();
        let unfit = Some((1, vec![most, 100_000]));
        assert_eq!(set.unfit(Costs::Each(&[most, most + 1])), unfit);
        assert_eq!(set.unfit(Costs::Each(&[most, 80_000])), unfit);
        assert_eq!(set.unfit(Costs::Each(&[most, 80_001])), None, "never the slow one");
    }
}

#[test]
fn costs_that_are_beyond_all_numbers() {
    let hour: Rate = "1/h".parse().unwrap();
    let odd = Rate::new(10_000_000_019, Duration::from_micros(20_000_000_000)).unwrap();
    for rate in [hour, odd] {
        for limit in [Limit::leaky_bucket("l", rate, 1), Limit::gcra("l", rate, 1)].map(Result::unwrap) {
            assert_eq!(limit.earliest(&limit.fresh(), Micros(TODAY), u32::MAX), Micros::MAX);
            let latest = limit.latest(u32::MAX);
            assert!(
                Micros(TODAY) < latest && latest <= limit.latest(limit.max_cost()),
                "{limit:?}: {latest}"
            );
        }
    }
}
