//! The JSON form of a downstream.

use std::collections::BTreeSet;
use std::time::Duration;

use paced::limit::{Limit, LimitSet};
use paced::store::RecordState;
use paced::terms::{Origin, Replica, Terms, algorithm, rate_text};
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

/// A downstream as JSON. Instants are epoch milliseconds on the store's clock; `own` are the terms of this replica's file.
pub(super) fn downstream(name: &str, record: &RecordState, terms: &Terms, own: &Terms) -> Value {
    let now = record.now;
    let mut body = rates(name, record, terms, own);
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

/// A downstream's limits as JSON, with the rates set over them, and where they come from.
pub(super) fn rates(name: &str, record: &RecordState, terms: &Terms, own: &Terms) -> Value {
    let now = record.now;
    let (limits, plans) = terms.effective(now);
    let of = |in_force: &LimitSet, file: &LimitSet, skip: usize| -> Vec<Value> {
        let pairs = in_force.iter().zip(file.iter()).skip(skip);
        pairs.map(|(in_force, file)| limit(in_force, file, (terms, now))).collect()
    };
    let plan_limits: serde_json::Map<String, Value> = plans
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
                "by": set.by,
                "set_at": millis(set.set_at),
                "idle": idle.contains(&limit.as_str()),
            })
        })
        .collect();
    json!({
        "name": name,
        "now": millis(now),
        "replica": Replica::of_this_process().id,
        "generation": record.status.generation,
        "file": terms.loaded().map(file),
        "limits": of(&limits, terms.limits(), 0),
        "plans": plan_limits,
        "overrides": overrides,
        "own_limits": (!own.has_limits_of(terms)).then(|| file_limits(own)),
    })
}

/// Whose file is in force, and since when.
fn file(Origin { at, replica: Replica { id, host } }: &Origin) -> Value {
    json!({ "replica": id, "host": host, "since": millis(*at) })
}

/// The limits of a file, which need not be in force: the downstream's, and then those that plans add.
fn file_limits(own: &Terms) -> Vec<Value> {
    let mut names = BTreeSet::new();
    let all = std::iter::once(own.limits()).chain(own.plans().values()).flat_map(LimitSet::iter);
    let first = all.filter(|limit| names.insert(limit.name()));
    first.map(numbers).collect()
}

/// A limit with its numbers.
fn numbers(limit: &Limit) -> Value {
    json!({
        "name": limit.name(),
        "algorithm": algorithm(limit),
        "rate": rate_text(limit),
        "burst": limit.burst(),
    })
}

fn limit(in_force: &Limit, file: &Limit, (terms, now): (&Terms, Micros)) -> Value {
    let mut body = numbers(in_force);
    if let Some(Origin { at, replica: Replica { id, host } }) = terms.in_force_since(in_force.name(), now) {
        body["since"] = json!(millis(at));
        body["from"] = json!({ "replica": id, "host": host });
    }
    if terms.overrides().contains_key(in_force.name()) && in_force != file {
        body["file_rate"] = json!(rate_text(file));
    }
    body
}
