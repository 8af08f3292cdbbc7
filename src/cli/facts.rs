//! What is known of a downstream, as lines of a title and a text, for `paced status NAME` and `paced top`.

use std::time::Duration;

use paced::Amount;
use paced::api::state::{Downstream, Failing, Limit, State};

use super::{out, parts};

/// As much of an answer as is shown: lines, and the characters of each.
const RESPONSE_LINES: usize = 6;
const RESPONSE_WIDTH: usize = 200;

/// A title and what it is of.
pub(super) type Fact = (&'static str, String);

/// All that is known of a downstream, the most important first.
pub(super) fn of(downstream: &Downstream, now: i64) -> Vec<Fact> {
    let mut facts = now_binding(downstream, now);
    facts.extend(limits(downstream, now));
    facts.extend(margin(downstream, now));
    facts.extend(overrides(downstream));
    facts.extend(jobs(downstream));
    facts.extend(instants(downstream));
    facts.extend(failures(downstream, now));
    facts.extend(replicas(downstream));
    // Names and reasons are foreign text, also where nobody thinks of it.
    facts.into_iter().map(|(title, text)| (title, out::printable(&text))).collect()
}

/// Jobs a second, or an hour where that is easier to read.
pub(super) fn pace(per_second: f64) -> String {
    match per_second {
        0.0 => "0/s".to_owned(),
        rate if rate < 0.01 => format!("{:.1}/h", rate * 3600.0),
        rate if rate < 10.0 => format!("{rate:.2}/s"),
        rate => format!("{rate:.1}/s"),
    }
}

/// Since when the API fails, and how, in short.
pub(super) fn failing(failing: &Failing, now: i64) -> String {
    format!("failing {}: {}", ago(failing.since, now), failing.kinds())
}

/// Whether the broker is connected, what of it is lost, and which queues do not confirm.
pub(super) fn broker(state: &State) -> String {
    let queues = out::printable(&state.amqp.unconfirmed.join(", "));
    match state.amqp.lost.as_slice() {
        [] if state.amqp.connected && queues.is_empty() => "RabbitMQ ok".to_owned(),
        [] if state.amqp.connected => format!("RabbitMQ ok, but not for what is published to {queues}"),
        lost => format!("RabbitMQ AWAY ({})", lost.join(", ")),
    }
}

fn at(millis: i64) -> String {
    format!("{} UTC", out::instant(millis))
}

fn ago(millis: i64, now: i64) -> String {
    format!("for {}", parts::for_people(now - millis))
}

/// ` until ...`, or nothing.
fn until(millis: Option<i64>) -> String {
    millis.map(|millis| format!(" until {}", at(millis))).unwrap_or_default()
}

/// `: ` and a reason, or nothing.
fn because(reason: Option<&String>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

fn now_binding(downstream: &Downstream, now: i64) -> Vec<Fact> {
    let binding = &downstream.binding;
    let mut facts = vec![("binds", format!("{}, {}", binding.text, ago(binding.since, now)))];
    if let Some(pause) = &downstream.terms.pause {
        let since = pause.at.map(|at| format!(", {}", ago(at, now))).unwrap_or_default();
        let by = pause.by.as_deref().unwrap_or("an operator");
        let end = match pause.until {
            Some(_) => until(pause.until),
            None => " until somebody resumes".to_owned(),
        };
        facts.push(("pause", format!("by {by}{end}{since}{}", because(pause.reason.as_ref()))));
    }
    if let Some(penalty) = downstream.terms.penalty {
        facts.push(("pause", format!("the API asked for one{}", until(Some(penalty.until)))));
    }
    let limit = downstream.terms.rate_limit.map(|limit| format!(" of {}", pace(limit))).unwrap_or_default();
    facts.push(("rate", format!("{}{limit} over the last 10 s", pace(downstream.releases.rate))));
    facts
}

fn limits(downstream: &Downstream, now: i64) -> impl Iterator<Item = Fact> {
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
        ("limit", format!("{} {}{margin}{file}{left}{whole}", limit.name, limit.rate))
    })
}

/// The least margin that is suggested, and its step, in µs. Releases are late by far less; how much longer one request takes
/// than another is not measured.
const LEAST_MARGIN: u64 = 50_000;
const MARGIN_STEP: u64 = 10_000;

/// For how long an answer of 429 counts.
const LATELY: i64 = 3_600_000;

/// The margin that may end answers of 429, where there were any lately: twice the lateness, and twice the margin that is in
/// force. A margin of over half a period is none that helps: these answers have another reason.
fn margin(downstream: &Downstream, now: i64) -> Option<Fact> {
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
        "429 came {count} time(s) at the pace of the limits; if the API counts in any window, arrivals that jitter break \
         its count: margin = \"{}\" on that limit gives them room",
        micros(margin)
    );
    Some(("margin", text))
}

/// A span as a configuration has it.
fn micros(micros: u64) -> String {
    if micros.is_multiple_of(1000) { format!("{}ms", micros / 1000) } else { format!("{micros}us") }
}

fn overrides(downstream: &Downstream) -> impl Iterator<Item = Fact> {
    downstream.terms.overrides.iter().map(|set| {
        let by = set.by.as_deref().unwrap_or("an operator");
        let (limit, rate, since) = (&set.limit, &set.rate, at(set.set_at));
        let (end, reason) = (until(set.until), because(set.reason.as_ref()));
        ("override", format!("{limit} {rate} by {by} since {since}{end}{reason}"))
    })
}

fn jobs(downstream: &Downstream) -> [Fact; 2] {
    let counts = &downstream.counts;
    let here = format!(
        "{} waiting, {} delayed, {} retrying, {} with a slot, {} being sent, {} being settled",
        counts.waiting, counts.delayed, counts.retrying, counts.held, counts.sending, counts.settling
    );
    let known = |count: Option<i64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
    let broker = format!(
        "{} queued, {} parked, {} dead letter(s)",
        known(downstream.queues.queued.map(i64::from)),
        known(downstream.queues.parked),
        known(downstream.queues.dead.map(i64::from))
    );
    [("jobs", here), ("broker", broker)]
}

fn instants(downstream: &Downstream) -> Vec<Fact> {
    let instants = [
        ("oldest", downstream.releases.oldest),
        ("next slot", downstream.releases.next_slot),
        ("through", downstream.releases.through_at),
    ];
    let mut facts: Vec<Fact> =
        instants.into_iter().filter_map(|(title, instant)| Some((title, at(instant?)))).collect();
    if let Some(late) = downstream.releases.lateness {
        let text = format!("p50 {} µs, p99 {} µs over the last minute", late.p50_us, late.p99_us);
        facts.push(("lateness", text));
    }
    facts
}

fn failures(downstream: &Downstream, now: i64) -> Vec<Fact> {
    let failing = downstream.health.failing.iter().map(|failing| {
        ("fails", format!("{}: {}: {}", ago(failing.since, now), failing.kinds(), failing.detail))
    });
    let mut facts: Vec<Fact> = failing.collect();
    let mut has_response = false;
    for failure in &downstream.health.failures {
        let (kind, count, detail) = (&failure.kind, failure.count, &failure.detail);
        facts.push(("failure", format!("{}: {kind} ×{count}: {detail}", at(failure.at))));
        if let Some(response) = failure.response.as_ref().filter(|_| !has_response) {
            has_response = true;
            facts.extend(beginning(response));
        }
    }
    facts
}

/// The first lines of an answer of the API.
fn beginning(response: &str) -> impl Iterator<Item = Fact> {
    let lines = response.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let titles = std::iter::once("response").chain(std::iter::repeat(""));
    titles.zip(lines).take(RESPONSE_LINES).map(|(title, line)| {
        let mut rest = line.char_indices();
        let shown =
            rest.nth(RESPONSE_WIDTH).map_or_else(|| line.to_owned(), |(end, _)| format!("{}…", &line[..end]));
        (title, shown)
    })
}

fn replicas(downstream: &Downstream) -> Vec<Fact> {
    let shares = downstream.replicas.iter().map(|share| {
        let (id, waiting, held, rate) = (&share.id, share.waiting, share.held, pace(share.rate));
        ("replica", format!("{id}: {rate}, {waiting} waiting, {held} with a slot, {}", share.reason))
    });
    let mut facts: Vec<Fact> = shares.collect();
    if !downstream.strays.is_empty() {
        let strays = downstream.strays.join(", ");
        facts.push(("stray", format!("the file of {strays} has other limits than those in force")));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_easy_to_read() {
        for (rate, expected) in
            [(0.0, "0/s"), (49.96, "50.0/s"), (2.5, "2.50/s"), (1.0 / 3600.0, "1.0/h"), (0.016, "0.02/s")]
        {
            assert_eq!(pace(rate), expected);
        }
    }

    #[test]
    fn failures_are_counted_and_the_latest_answer_is_shown() {
        let failing = r#"{
            "name": "a", "limits": [], "replicas": [], "overrides": [], "rate": 0, "released": 0, "delivered": 0,
            "waiting": 0, "delayed": 0, "retrying": 0, "held": 0, "sending": 0, "settling": 0,
            "binding": {"reason": "limit", "since": 0, "text": "the limit l"},
            "failing": {"since": 0, "kind": "429", "detail": "too many", "attempts": 414,
                "kinds": [{"kind": "429", "count": 411}, {"kind": "timeout api:443", "count": 3}]},
            "failures": [
                {"at": 9000, "kind": "timeout api:443", "detail": "no answer within 30s", "count": 3},
                {"at": 8000, "kind": "429", "detail": "too many", "count": 411, "response": "{\n  \"a\u001b[2J\": 1\n}\n"},
                {"at": 7000, "kind": "500", "detail": "oh", "count": 1, "response": "older"}
            ]
        }"#;
        let mut downstream: Downstream = serde_json::from_str(failing).unwrap();
        let shown = |downstream: &Downstream| {
            failures(downstream, 120_000)
                .into_iter()
                .map(|(title, text)| format!("{title}|{text}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            shown(&downstream),
            [
                "fails|for 2 min 0 s: 429 ×411, timeout api:443 ×3: too many",
                "failure|1970-01-01 00:00:09 UTC: timeout api:443 ×3: no answer within 30s",
                "failure|1970-01-01 00:00:08 UTC: 429 ×411: too many",
                "response|{",
                "|  \"a\u{1b}[2J\": 1",
                "|}",
                "failure|1970-01-01 00:00:07 UTC: 500 ×1: oh",
            ]
        );
        assert!(of(&downstream, 0).iter().all(|(_, text)| !text.contains('\u{1b}')));
        let failing = downstream.health.failing.as_mut().unwrap();
        failing.kinds.clear();
        assert_eq!(failing.kinds(), "429 ×414", "of an earlier version");
        downstream.health.failures[1].response = Some("é".repeat(300) + &"\nx".repeat(20));
        let lines = shown(&downstream);
        assert_eq!(lines.iter().filter(|line| line.starts_with('|')).count(), RESPONSE_LINES - 1);
        assert_eq!(lines[3], format!("response|{}…", "é".repeat(RESPONSE_WIDTH)));
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
        let told = |downstream: &Downstream, now| {
            of(downstream, now).into_iter().find(|fact| fact.0 == "margin").map(|fact| fact.1)
        };
        let first = told(&downstream, 2000).unwrap();
        assert!(first.starts_with("429 came 18 time(s)") && first.contains("margin = \"50ms\""), "{first}");
        downstream.terms.limits[0].margin_us = Some(50_000);
        assert!(told(&downstream, 2000).unwrap().contains("margin = \"100ms\""));
        let limit = of(&downstream, 2000).into_iter().find(|fact| fact.0 == "limit").unwrap();
        assert_eq!(limit.1, "l 10/s and a margin of 50ms");
        downstream.releases.lateness.as_mut().unwrap().p99_us = 61_234;
        assert!(told(&downstream, 2000).unwrap().contains("margin = \"130ms\""));
        downstream.terms.limits[0].margin_us = Some(250_000);
        assert!(told(&downstream, 2000).unwrap().contains("margin = \"500ms\""));
        downstream.terms.limits[0].margin_us = Some(251_000);
        assert_eq!(told(&downstream, 2000), None, "no margin of over half the period");
        downstream.terms.limits[0].rate = "600/m".to_owned();
        assert!(told(&downstream, 2000).unwrap().contains("margin = \"510ms\""));
        assert_eq!(told(&downstream, 1000 + LATELY), None, "that was long ago");
        downstream.health.failures[0].kind = "503".to_owned();
        assert_eq!(told(&downstream, 2000), None);
    }

    #[test]
    fn pauses_and_overrides_are_told_with_who_and_why() {
        let told = r#"{
            "name": "a", "limits": [], "failures": [], "replicas": [], "rate": 0, "released": 0, "delivered": 0,
            "waiting": 0, "delayed": 0, "retrying": 0, "held": 0, "sending": 0, "settling": 0,
            "binding": {"reason": "paused", "since": 0, "text": "paused"},
            "pause": {"by": "ops", "reason": "main\u001b[2Jtenance", "at": 60000},
            "overrides": [{"limit": "pace", "rate": "20/s", "until": 120000, "by": "ops", "set_at": 0}]
        }"#;
        let facts = of(&serde_json::from_str(told).unwrap(), 120_000);
        let told = |title: &str| facts.iter().find(|fact| fact.0 == title).unwrap().1.clone();
        assert_eq!(told("pause"), "by ops until somebody resumes, for 1 min 0 s: main\\u{1b}[2Jtenance");
        assert_eq!(
            told("override"),
            "pace 20/s by ops since 1970-01-01 00:00:00 UTC until 1970-01-01 00:02:00 UTC"
        );
    }
}
