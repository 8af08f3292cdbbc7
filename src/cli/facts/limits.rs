//! The limits of a downstream, and what is left of them.

use std::time::Duration;

use paced::Amount;
use paced::api::state::{Downstream, Limit};

use super::{Fact, at};

/// The limits in force: those that space jobs out, and windows and quotas with what is left of them.
pub(super) fn limits(downstream: &Downstream, now: i64) -> impl Iterator<Item = Fact> {
    downstream.terms.limits.iter().map(move |limit| {
        let left = match (limit.remaining, limit.of) {
            (Some(left), Some(of)) => format!(", {left} of {of} left"),
            _ => String::new(),
        };
        let whole = limit.whole_at.filter(|whole| *whole > now && limit.remaining != limit.of);
        let whole = whole.map(|whole| format!(", whole again at {}", at(whole))).unwrap_or_default();
        let file =
            limit.file_rate.as_ref().map(|rate| format!(" (the file says {rate})")).unwrap_or_default();
        let margin = limit.margin_us.map(|margin| format!(" and a margin of {}", micros(margin)));
        let margin = margin.unwrap_or_default();
        let title = match limit.algorithm.as_str() {
            "quota" => "quota",
            _ if is_window(limit) => "window",
            _ => "limit",
        };
        (title, format!("{} {}{margin}{file}{left}{whole}", limit.name, limit.rate))
    })
}

/// Whether it is a window or a quota, which can be used up, and not one that spaces jobs out.
fn is_window(limit: &Limit) -> bool {
    !matches!(limit.algorithm.as_str(), "leaky-bucket" | "gcra" | "token-bucket")
}

/// What is left of the window or quota that is nearest to its end, such as `812/10000`.
pub(in super::super) fn least_left(downstream: &Downstream) -> Option<String> {
    let windows = downstream.terms.limits.iter().filter(|limit| is_window(limit));
    let counted = windows.filter_map(|limit| limit.remaining.zip(limit.of));
    let part = |(left, of): &(u64, u64)| u128::from(*left) * u128::from(u64::MAX) / u128::from((*of).max(1));
    counted.min_by_key(part).map(|(left, of)| format!("{left}/{of}"))
}

/// The least margin that is suggested, and its step, in µs. Releases are late by far less; how much longer one request takes
/// than another is not measured.
const LEAST_MARGIN: u64 = 50_000;
const MARGIN_STEP: u64 = 10_000;

/// For how long an answer of 429 counts.
const LATELY: i64 = 3_600_000;

/// The margin that may end answers of 429, where there were any lately: twice the lateness, and twice the margin that
/// is in force. A margin of over half a period does not help: these answers have another reason.
pub(super) fn margin(downstream: &Downstream, now: i64) -> Option<Fact> {
    let throttled = downstream.health.failures.iter().find(|failure| failure.kind == "429")?;
    let late = downstream.releases.lateness.filter(|_| now - throttled.at < LATELY)?;
    let present = downstream.terms.limits.iter().filter_map(|limit| limit.margin_us).max().unwrap_or(0);
    let margin = late.p99_us.max(present).saturating_mul(2).max(LEAST_MARGIN).next_multiple_of(MARGIN_STEP);
    let is_short = |limit: &Limit| {
        let period = limit.rate.parse::<Amount>().map(|rate| rate.period().longest());
        period.is_ok_and(|period| Duration::from_micros(margin.saturating_mul(2)) <= period)
    };
    if !downstream.terms.limits.iter().any(is_short) {
        return None;
    }
    let count = throttled.count;
    let text = format!(
        "429 came {count} time(s) although paced kept the limits; if the API counts in any window, jitter of arrivals \
         exceeds its limit: set margin = \"{}\" on that limit",
        micros(margin)
    );
    Some(("margin", text))
}

/// A span as a configuration has it.
fn micros(micros: u64) -> String {
    if micros.is_multiple_of(1000) { format!("{}ms", micros / 1000) } else { format!("{micros}us") }
}

#[cfg(test)]
mod tests {
    use super::super::of;
    use super::*;

    #[test]
    fn windows_and_quotas_are_shown_apart_from_the_pace() {
        let limit = |algorithm: &str, left: Option<(u64, u64)>| Limit {
            name: algorithm.to_owned(),
            algorithm: algorithm.to_owned(),
            rate: "7/m".to_owned(),
            remaining: left.map(|(left, _)| left),
            of: left.map(|(_, of)| of),
            whole_at: left.map(|_| 60_000),
            ..Limit::default()
        };
        let mut downstream = Downstream::default();
        downstream.terms.rate_limit = Some(100.0 / 60.0);
        downstream.terms.limits = vec![
            limit("gcra", Some((0, 50))),
            limit("quota", Some((4391, 5000))),
            limit("sliding-window", Some((600, 1000))),
            limit("fixed-window", None),
        ];
        let shown = |downstream: &Downstream, title| {
            let facts = of(downstream, 0).into_iter();
            facts.filter(|fact| fact.0 == title).map(|fact| fact.1).collect::<Vec<_>>().join("|")
        };
        assert_eq!(shown(&downstream, "rate"), "0/s of 1.67/s over the last 10 s");
        assert_eq!(
            shown(&downstream, "limit"),
            "gcra 7/m, 0 of 50 left, whole again at 1970-01-01 00:01:00 UTC"
        );
        assert_eq!(
            shown(&downstream, "quota"),
            "quota 7/m, 4391 of 5000 left, whole again at 1970-01-01 00:01:00 UTC"
        );
        assert!(shown(&downstream, "window").ends_with("|fixed-window 7/m"), "what is left is not known");
        assert_eq!(least_left(&downstream).as_deref(), Some("600/1000"), "a burst is no window");
        downstream.terms.rate_limit = None;
        assert_eq!(shown(&downstream, "rate"), "0/s over the last 10 s; no limit spaces jobs out");
        downstream.terms.limits.truncate(1);
        assert_eq!(least_left(&downstream), None);
    }

    #[test]
    fn a_margin_is_suggested_where_429_came_lately() {
        let mut downstream: Downstream = serde_json::from_str(
            r#"{
            "name": "a", "replicas": [], "overrides": [], "rate": 0, "released": 0, "delivered": 0,
            "waiting": 0, "delayed": 0, "retrying": 0, "held": 0, "sending": 0, "settling": 0,
            "binding": {"reason": "limit", "since": 0, "text": "the limit"}, "lateness": {"p50_us": 70, "p99_us": 900},
            "limits": [{"name": "l", "algorithm": "leaky-bucket", "rate": "10/s"}],
            "failures": [{"at": 1000, "kind": "429", "detail": "slow down", "count": 18}]}"#,
        )
        .unwrap();
        let shown = |downstream: &Downstream, now| {
            of(downstream, now).into_iter().find(|fact| fact.0 == "margin").map(|fact| fact.1)
        };
        let first = shown(&downstream, 2000).unwrap();
        assert!(first.starts_with("429 came 18 time(s)") && first.contains("margin = \"50ms\""), "{first}");
        downstream.terms.limits[0].margin_us = Some(50_000);
        assert!(shown(&downstream, 2000).unwrap().contains("margin = \"100ms\""));
        let limit = of(&downstream, 2000).into_iter().find(|fact| fact.0 == "limit").unwrap();
        assert_eq!(limit.1, "l 10/s and a margin of 50ms");
        downstream.releases.lateness.as_mut().unwrap().p99_us = 61_234;
        assert!(shown(&downstream, 2000).unwrap().contains("margin = \"130ms\""));
        downstream.terms.limits[0].margin_us = Some(250_000);
        assert!(shown(&downstream, 2000).unwrap().contains("margin = \"500ms\""));
        downstream.terms.limits[0].margin_us = Some(251_000);
        assert_eq!(shown(&downstream, 2000), None, "no margin of over half the period");
        downstream.terms.limits[0].rate = "600/m".to_owned();
        assert!(shown(&downstream, 2000).unwrap().contains("margin = \"510ms\""));
        assert_eq!(shown(&downstream, 1000 + LATELY), None, "that was long ago");
        downstream.health.failures[0].kind = "503".to_owned();
        assert_eq!(shown(&downstream, 2000), None);
    }
}
