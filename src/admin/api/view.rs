//! The JSON form of a downstream.

use std::time::Duration;

use paced::limit::{Limit, LimitSet};
use paced::store::RecordState;
use paced::terms::{Terms, algorithm, rate_text};
use paced::time::Micros;
use serde_json::{Value, json};

/// The year 2001: versions below it are no instants.
const EARLIEST: Micros = Micros(1_000_000_000_000_000);

/// How far versions may be ahead of the clock: each pause and resume has a later one, also within a microsecond.
const VERSIONS_AHEAD: Duration = Duration::from_secs(1);

/// An instant as epoch milliseconds, as in the headers of dead letters.
fn millis(at: Micros) -> i64 {
    at.0 / 1000
}

/// A downstream as JSON. Instants are epoch milliseconds on the store's clock.
pub(super) fn downstream(name: &str, record: &RecordState, terms: &Terms) -> Value {
    let now = record.now;
    let mut body = rates(name, record, terms);
    body["revision"] = json!(terms.revision());
    let status = &record.status;
    let pause = (status.pause.until > now).then(|| pause(record));
    let penalty = (status.penalty > now).then(|| json!({ "until": millis(status.penalty) }));
    body["paused"] = json!(pause.is_some() || penalty.is_some());
    body["pause"] = json!(pause);
    body["penalty"] = json!(penalty);
    body
}

/// An operator's pause as JSON. One that lasts until somebody resumes has no end.
fn pause(record: &RecordState) -> Value {
    let (status, note) = (&record.status, record.note.as_deref());
    let note: Value = note.and_then(|note| serde_json::from_str(note).ok()).unwrap_or_default();
    let of_note = |name: &str| note.get(name).and_then(Value::as_str);
    json!({
        "until": (!status.is_stopped()).then(|| millis(status.pause.until)),
        "by": of_note("by"),
        "reason": of_note("reason"),
        "at": paused_at(record).map(millis),
    })
}

/// When the pause began: its version is about that instant, unless the clock has stepped back since then.
fn paused_at(record: &RecordState) -> Option<Micros> {
    let at = Micros(i64::try_from(record.status.pause.version).ok()?);
    (EARLIEST..=record.now.plus(VERSIONS_AHEAD)).contains(&at).then_some(at)
}

/// A downstream's limits as JSON, with the rates set over them.
pub(super) fn rates(name: &str, record: &RecordState, terms: &Terms) -> Value {
    let now = record.now;
    let (limits, plans) = terms.effective(now);
    let of = |in_force: &LimitSet, file: &LimitSet, skip: usize| -> Vec<Value> {
        let pairs = in_force.iter().zip(file.iter()).skip(skip);
        pairs.map(|(in_force, file)| limit(in_force, file, terms)).collect()
    };
    let own: serde_json::Map<String, Value> = plans
        .iter()
        .filter_map(|(plan, in_force)| {
            // The downstream's limits come first in each plan's set.
            let file = terms.plans().get(plan)?;
            Some((plan.clone(), Value::from(of(in_force, file, limits.len()))))
        })
        .collect();
    let idle = terms.idle(now);
    let overrides = terms.overrides().iter().filter(|(_, set)| set.until.is_none_or(|until| now < until));
    let overrides: Vec<Value> = overrides
        .map(|(limit, set)| {
            json!({
                "limit": limit,
                "rate": set.rate.to_string(),
                "until": set.until.map(millis),
                "reason": set.reason,
                "set_at": millis(set.set_at),
                "idle": idle.contains(&limit.as_str()),
            })
        })
        .collect();
    json!({
        "name": name,
        "now": millis(now),
        "generation": record.status.generation,
        "limits": of(&limits, terms.limits(), 0),
        "plans": own,
        "overrides": overrides,
    })
}

fn limit(in_force: &Limit, file: &Limit, terms: &Terms) -> Value {
    let mut body = json!({
        "name": in_force.name(),
        "algorithm": algorithm(in_force),
        "rate": rate_text(in_force),
        "burst": in_force.burst(),
    });
    if terms.overrides().contains_key(in_force.name()) && in_force != file {
        body["file_rate"] = json!(rate_text(file));
    }
    body
}
