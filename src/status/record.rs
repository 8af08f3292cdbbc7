//! The pauses and overrides of a downstream, and what is set for values of its lanes, as its record has them.

use paced::api::values::SetValue;
use paced::api::{Override, Pause, Penalty};
use paced::store::RecordState;
use paced::terms::{self, Terms};
use paced::time::Micros;
use serde::Serialize;
use serde_json::Value;

/// The most values of lanes of which the state has what is set: it is sent each second.
const MAX_VALUES: usize = 100;

/// The note that the store keeps with the pause of an operator. It may be of another version of paced.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Note {
    pub(crate) by: Option<String>,
    pub(crate) reason: Option<String>,
}

/// The pause of an operator, if there is one. Its version is about the instant at which it began.
pub(crate) fn pause(record: &RecordState) -> Option<Pause> {
    let status = &record.status;
    (status.pause.until > record.now).then(|| {
        let note = record.note.as_deref().and_then(|note| serde_json::from_str::<Value>(note).ok());
        let part = |name: &str| Some(note.as_ref()?.get(name)?.as_str()?.to_owned());
        let (by, reason) = (part("by"), part("reason"));
        let until = (!status.is_stopped()).then_some(status.pause.until.0 / 1000);
        Pause { until, reason, by, at: i64::try_from(status.pause.version).ok().map(|at| at / 1000) }
    })
}

/// The pause that the API asked for, if there is one.
pub(crate) fn penalty(record: &RecordState) -> Option<Penalty> {
    let until = record.status.penalty;
    (until > record.now).then_some(Penalty { until: until.0 / 1000 })
}

/// The overrides that have not ended by `now`.
pub(crate) fn overrides(terms: &Terms, now: Micros) -> impl Iterator<Item = Override> {
    let lasting = terms.overrides().iter().filter(move |(_, set)| set.until.is_none_or(|until| now < until));
    lasting.map(|(limit, set)| Override {
        limit: limit.clone(),
        rate: set.rate.to_string(),
        until: set.until.map(|until| until.0 / 1000),
        reason: set.reason.clone(),
        by: set.by.clone(),
        set_at: set.set_at.0 / 1000,
    })
}

/// What is set for values of the part by which lanes share, and has not ended by `now`: the weights, and then the pauses.
pub(crate) fn values(terms: &Terms, now: Micros) -> Vec<SetValue> {
    let values = terms.values();
    let weights = values.weights().iter().map(|(value, set)| shown(value, Some(set.to), set));
    let pauses = values.pauses().iter().map(|(value, set)| shown(value, None, set));
    weights.chain(pauses).filter(|set| set.until.is_none_or(|until| now.0 / 1000 < until)).collect()
}

/// The first of these, pauses before weights.
pub(crate) fn first_values(terms: &Terms, now: Micros) -> Vec<SetValue> {
    let mut values = values(terms, now);
    values.sort_by_key(|set| set.weight.is_some());
    values.truncate(MAX_VALUES);
    values
}

fn shown<T>(value: &str, weight: Option<u32>, set: &terms::SetValue<T>) -> SetValue {
    SetValue {
        value: value.to_owned(),
        weight,
        until: set.until.map(|until| until.0 / 1000),
        reason: set.reason.clone(),
        by: set.by.clone(),
        set_at: set.set_at.0 / 1000,
    }
}
