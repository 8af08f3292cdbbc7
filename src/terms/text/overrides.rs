//! The JSON forms of what operators set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::malformed;
use crate::rate::Amount;
use crate::terms::values::{SetValue, Values};
use crate::terms::{Override, TermsError};
use crate::time::Micros;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Over {
    /// The rate as people write it.
    rate: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    set_at: i64,
}

/// What is set for values.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ValuesText {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    weights: BTreeMap<String, SetText<u32>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pauses: BTreeMap<String, SetText<()>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetText<T> {
    to: T,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    set_at: i64,
}

impl ValuesText {
    pub(super) fn is_empty(&self) -> bool {
        self.weights.is_empty() && self.pauses.is_empty()
    }
}

pub(super) fn over_text(one: &Override) -> Over {
    Over {
        rate: one.rate.to_string(),
        until: one.until.map(|until| until.0),
        reason: one.reason.clone(),
        by: one.by.clone(),
        set_at: one.set_at.0,
    }
}

pub(super) fn over(one: Over) -> Result<Override, TermsError> {
    Ok(Override {
        rate: one.rate.parse::<Amount>().map_err(malformed)?,
        until: one.until.map(Micros),
        reason: one.reason,
        by: one.by,
        set_at: Micros(one.set_at),
    })
}

pub(super) fn values_text(values: &Values) -> ValuesText {
    ValuesText { weights: texts(&values.weights), pauses: texts(&values.pauses) }
}

pub(super) fn values(text: ValuesText) -> Values {
    Values { weights: sets(text.weights), pauses: sets(text.pauses) }
}

fn texts<T: Clone>(sets: &BTreeMap<String, SetValue<T>>) -> BTreeMap<String, SetText<T>> {
    let text = |set: &SetValue<T>| SetText {
        to: set.to.clone(),
        until: set.until.map(|until| until.0),
        reason: set.reason.clone(),
        by: set.by.clone(),
        set_at: set.set_at.0,
    };
    sets.iter().map(|(value, set)| (value.clone(), text(set))).collect()
}

fn sets<T>(texts: BTreeMap<String, SetText<T>>) -> BTreeMap<String, SetValue<T>> {
    let set = |text: SetText<T>| SetValue {
        to: text.to,
        until: text.until.map(Micros),
        reason: text.reason,
        by: text.by,
        set_at: Micros(text.set_at),
    };
    texts.into_iter().map(|(value, text)| (value, set(text))).collect()
}
