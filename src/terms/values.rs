//! What operators set for one value of the part by which lanes share, such as a tenant: its weight, and pauses.

use std::collections::BTreeMap;

use super::{Terms, TermsError};
use crate::time::Micros;

/// The most values for which something is set: all of it is part of the terms, which each replica reads after a change.
pub const MAX_VALUES: usize = 1000;

/// Something that an operator set for one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetValue<T> {
    /// What was set.
    pub to: T,
    /// The first instant, on the store's clock, at which it no longer applies; `None` if it applies until it is unset.
    pub until: Option<Micros>,
    /// The operator's reason.
    pub reason: Option<String>,
    /// The name or address of the operator.
    pub by: Option<String>,
    /// When it was set, on the store's clock.
    pub set_at: Micros,
}

impl<T> SetValue<T> {
    fn counts(&self, now: Micros) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// What operators set for values, also what has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    pub(super) weights: BTreeMap<String, SetValue<u32>>,
    pub(super) pauses: BTreeMap<String, SetValue<()>>,
}

impl Values {
    /// The weights that were set, by the value.
    pub const fn weights(&self) -> &BTreeMap<String, SetValue<u32>> {
        &self.weights
    }

    /// The pauses, by the value.
    pub const fn pauses(&self) -> &BTreeMap<String, SetValue<()>> {
        &self.pauses
    }

    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty() && self.pauses.is_empty()
    }

    /// The weights that apply at `now`.
    pub fn weights_at(&self, now: Micros) -> impl Iterator<Item = (&str, u32)> {
        let set = self.weights.iter().filter(move |(_, set)| set.counts(now));
        set.map(|(value, set)| (value.as_str(), set.to))
    }

    /// The values that are paused at `now`.
    pub fn paused_at(&self, now: Micros) -> impl Iterator<Item = &str> {
        self.pauses.iter().filter(move |(_, set)| set.counts(now)).map(|(value, _)| value.as_str())
    }

    /// The next end of something that applies at `now`.
    pub(super) fn next_end(&self, now: Micros) -> Option<Micros> {
        let ends =
            self.weights.values().map(|set| set.until).chain(self.pauses.values().map(|set| set.until));
        ends.flatten().filter(|end| now < *end).min()
    }

    /// The same without what has ended at `now`.
    pub(super) fn lasting(&self, now: Micros) -> Self {
        fn lasting<T: Clone>(
            all: &BTreeMap<String, SetValue<T>>,
            now: Micros,
        ) -> BTreeMap<String, SetValue<T>> {
            let lasting = all.iter().filter(|(_, set)| set.counts(now));
            lasting.map(|(value, set)| (value.clone(), set.clone())).collect()
        }
        Self { weights: lasting(&self.weights, now), pauses: lasting(&self.pauses, now) }
    }
}

impl Terms {
    /// What operators set for values of the part by which lanes share.
    pub const fn values(&self) -> &Values {
        &self.values
    }

    /// Sets the weight of a value, in place of the file's and of one that was set before.
    ///
    /// # Errors
    /// [`TermsError::TooManyValues`]; nothing is changed then.
    pub fn set_weight(&mut self, value: &str, set: SetValue<u32>) -> Result<(), TermsError> {
        insert(&mut self.values.weights, value, set)
    }

    /// Removes the weight that was set for a value, and returns it.
    pub fn unset_weight(&mut self, value: &str) -> Option<SetValue<u32>> {
        self.values.weights.remove(value)
    }

    /// Pauses a value, in place of a pause before.
    ///
    /// # Errors
    /// [`TermsError::TooManyValues`]; nothing is changed then.
    pub fn pause_value(&mut self, value: &str, set: SetValue<()>) -> Result<(), TermsError> {
        insert(&mut self.values.pauses, value, set)
    }

    /// Ends the pause of a value, and returns it.
    pub fn resume_value(&mut self, value: &str) -> Option<SetValue<()>> {
        self.values.pauses.remove(value)
    }
}

fn insert<T>(
    all: &mut BTreeMap<String, SetValue<T>>,
    value: &str,
    set: SetValue<T>,
) -> Result<(), TermsError> {
    if all.len() >= MAX_VALUES && !all.contains_key(value) {
        return Err(TermsError::TooManyValues);
    }
    all.insert(value.to_owned(), set);
    Ok(())
}
