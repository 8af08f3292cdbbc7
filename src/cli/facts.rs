//! What is known of a downstream, as lines of a title and a text, for `paced status NAME` and `paced top`.

use paced::api::state::{Downstream, Failing, State};

use super::{out, parts};

mod limits;
mod parked;

pub(super) use limits::least_left;

/// As much of an answer as is shown: lines, and the characters of each.
const RESPONSE_LINES: usize = 6;
const RESPONSE_WIDTH: usize = 200;

/// A title and its text.
pub(super) type Fact = (&'static str, String);

/// All that is known of a downstream, the most important first.
pub(super) fn of(downstream: &Downstream, now: i64) -> Vec<Fact> {
    let mut facts = now_binding(downstream, now);
    facts.extend(limits::limits(downstream, now));
    facts.extend(limits::margin(downstream, now));
    facts.extend(overrides(downstream));
    facts.extend(values(downstream));
    facts.extend(jobs(downstream));
    facts.extend(parked::parked(downstream));
    facts.extend(lanes(downstream, now));
    facts.extend(instants(downstream));
    facts.extend(failures(downstream, now));
    facts.extend(replicas(downstream));
    // Names and reasons are foreign text, so every text is escaped.
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

/// How many replicas there are, and how many are silent, or unknown since the store does not answer.
pub(super) fn fleet(state: &State) -> String {
    let replicas = state.fleet.replicas.len();
    match state.fleet.silent.len() {
        0 => format!("{replicas} replica(s)"),
        others if !state.store.connected => format!("{replicas} replica(s) and {others} unknown"),
        silent => format!("{replicas} replica(s) and {silent} SILENT"),
    }
}

/// Whether the broker is connected, what of it is lost, and which queues do not confirm.
pub(super) fn broker(state: &State) -> String {
    let queues = out::printable(&state.amqp.unconfirmed.join(", "));
    match state.amqp.lost.as_slice() {
        [] if state.amqp.connected && queues.is_empty() => "RabbitMQ ok".to_owned(),
        [] if state.amqp.connected => format!("RabbitMQ ok, but it does not confirm messages to {queues}"),
        // A daemon of an earlier version has no error, only what is lost.
        lost => {
            let trouble = state.amqp.error.clone().unwrap_or_else(|| lost.join(", "));
            format!("RabbitMQ AWAY ({})", out::printable(&trouble))
        }
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
    let pace = pace(downstream.releases.rate);
    let unspaced = match downstream.terms.rate_limit {
        None if !downstream.terms.limits.is_empty() => "; no limit spaces jobs out",
        _ => "",
    };
    facts.push(("rate", format!("{pace}{limit} over the last 10 s{unspaced}")));
    facts
}

fn overrides(downstream: &Downstream) -> impl Iterator<Item = Fact> {
    downstream.terms.overrides.iter().map(|set| {
        let by = set.by.as_deref().unwrap_or("an operator");
        let (limit, rate, since) = (&set.limit, &set.rate, at(set.set_at));
        let (end, reason) = (until(set.until), because(set.reason.as_ref()));
        ("override", format!("{limit} {rate} by {by} since {since}{end}{reason}"))
    })
}

/// What operators set for values of the part by which lanes share.
fn values(downstream: &Downstream) -> impl Iterator<Item = Fact> {
    downstream.terms.values.iter().map(|set| {
        let what = set.weight.map_or_else(|| "paused".to_owned(), |weight| format!("weight {weight}"));
        let by = set.by.as_deref().unwrap_or("an operator");
        let (end, reason) = (until(set.until), because(set.reason.as_ref()));
        ("tenant", format!("{}: {what} by {by} since {}{end}{reason}", set.value, at(set.set_at)))
    })
}

fn jobs(downstream: &Downstream) -> [Fact; 2] {
    let counts = &downstream.counts;
    let here = format!(
        "{} waiting, {} delayed, {} retrying, {} with a slot, {} being sent, {} being settled",
        counts.waiting, counts.delayed, counts.retrying, counts.held, counts.sending, counts.settling
    );
    let known = |count: Option<i64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
    let within = downstream.queues.parked_for_limits_within.iter();
    let within: Vec<String> = within.map(|one| format!("{} within {} s", one.jobs, one.seconds)).collect();
    let limited = match within.is_empty() {
        true => String::new(),
        false => format!("; parked for a limit or a pause, and back: {}", within.join(", ")),
    };
    let broker = format!(
        "{} queued, {} parked, {} dead letter(s){limited}",
        known(downstream.queues.queued.map(i64::from)),
        known(downstream.queues.parked),
        known(downstream.queues.dead.map(i64::from))
    );
    [("jobs", here), ("broker", broker)]
}

/// The busiest lanes.
fn lanes(downstream: &Downstream, now: i64) -> impl Iterator<Item = Fact> {
    downstream.parts.lanes.iter().map(move |lane| {
        let oldest = lane.oldest.map(|at| format!(", the oldest {}", ago(at, now))).unwrap_or_default();
        let end = until(lane.until);
        let wait = match (lane.reason.as_str(), &lane.limit) {
            ("turn", _) => String::new(),
            ("limit", Some(limit)) => format!(", at the limit {limit}{end}"),
            ("throttled", _) => format!(", throttled by the API{end}"),
            (reason, _) => format!(", {reason}{end}"),
        };
        ("lane", format!("{}: {} waiting{oldest}{wait}", lane.name, lane.waiting))
    })
}

fn instants(downstream: &Downstream) -> Vec<Fact> {
    let instants = [
        ("oldest", downstream.releases.oldest),
        ("next slot", downstream.releases.next_slot),
        ("empty at", downstream.releases.through_at),
    ];
    let mut facts: Vec<Fact> =
        instants.into_iter().filter_map(|(title, instant)| Some((title, at(instant?)))).collect();
    if let Some(late) = downstream.releases.lateness {
        let text = format!("p50 {} µs, p99 {} µs over the last minute", late.p50_us, late.p99_us);
        facts.push(("lateness", text));
    }
    if let Some(took) = downstream.releases.latency {
        let [p50, p99] = [took.p50_us, took.p99_us].map(|us| format!("{:.1}", us as f64 / 1000.0));
        facts.push(("latency", format!("p50 {p50} ms, p99 {p99} ms over the last minute")));
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
    let shares = downstream.parts.replicas.iter().map(|share| {
        let (id, waiting, held, rate) = (&share.id, share.waiting, share.held, pace(share.rate));
        ("replica", format!("{id}: {rate}, {waiting} waiting, {held} with a slot, {}", share.reason))
    });
    let mut facts: Vec<Fact> = shares.collect();
    if !downstream.parts.strays.is_empty() {
        let strays = downstream.parts.strays.join(", ");
        facts.push(("stray", format!("replica {strays} loaded a different configuration file")));
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
    fn the_busiest_lanes_are_shown_with_what_they_wait_for() {
        let json = r#"{
            "name": "a", "limits": [], "failures": [], "replicas": [], "overrides": [], "rate": 0, "released": 0,
            "delivered": 0, "waiting": 0, "delayed": 0, "retrying": 0, "held": 0, "sending": 0, "settling": 0,
            "binding": {"reason": "limit", "since": 0, "text": "the limit l"},
            "lanes": [
                {"name": "t=a\u001b[2J", "waiting": 500, "oldest": 60000, "reason": "turn"},
                {"name": "t=b", "waiting": 20, "oldest": 0, "reason": "limit", "limit": "lane.l", "until": 180000},
                {"name": "t=", "waiting": 3, "reason": "throttled"},
                {"name": "t=c", "waiting": 2, "reason": "later", "until": 180000}
            ]
        }"#;
        let facts = of(&serde_json::from_str(json).unwrap(), 120_000);
        let lanes: Vec<&str> =
            facts.iter().filter(|fact| fact.0 == "lane").map(|fact| fact.1.as_str()).collect();
        assert_eq!(
            lanes,
            [
                "t=a\\u{1b}[2J: 500 waiting, the oldest for 1 min 0 s",
                "t=b: 20 waiting, the oldest for 2 min 0 s, at the limit lane.l until 1970-01-01 00:03:00 UTC",
                "t=: 3 waiting, throttled by the API",
                "t=c: 2 waiting, later until 1970-01-01 00:03:00 UTC",
            ]
        );
    }

    #[test]
    fn pauses_and_overrides_are_shown_with_who_and_why() {
        let json = r#"{
            "name": "a", "limits": [], "failures": [], "replicas": [], "rate": 0, "released": 0, "delivered": 0,
            "waiting": 0, "delayed": 0, "retrying": 0, "held": 0, "sending": 0, "settling": 0,
            "binding": {"reason": "paused", "since": 0, "text": "paused"},
            "pause": {"by": "ops", "reason": "main\u001b[2Jtenance", "at": 60000},
            "overrides": [{"limit": "pace", "rate": "20/s", "until": 120000, "by": "ops", "set_at": 0}],
            "values": [
                {"value": "acme", "by": "ops", "reason": "they asked", "set_at": 0},
                {"value": "b", "weight": 5, "until": 120000, "set_at": 0}
            ]
        }"#;
        let facts = of(&serde_json::from_str(json).unwrap(), 120_000);
        let fact = |title: &str| facts.iter().find(|fact| fact.0 == title).unwrap().1.clone();
        assert_eq!(fact("pause"), "by ops until somebody resumes, for 1 min 0 s: main\\u{1b}[2Jtenance");
        assert_eq!(
            fact("override"),
            "pace 20/s by ops since 1970-01-01 00:00:00 UTC until 1970-01-01 00:02:00 UTC"
        );
        let tenants: Vec<&str> =
            facts.iter().filter(|fact| fact.0 == "tenant").map(|fact| fact.1.as_str()).collect();
        assert_eq!(
            tenants,
            [
                "acme: paused by ops since 1970-01-01 00:00:00 UTC: they asked",
                "b: weight 5 by an operator since 1970-01-01 00:00:00 UTC until 1970-01-01 00:02:00 UTC",
            ]
        );
    }
}
