//! The terms of a downstream: which limits are in force, as all replicas agree on them.
//!
//! The limits (the file part) are those in the file of the replica that started or reloaded last, unless its `revision`
//! is lower than that of the terms in force. Operators set rates over them, for a while or until they are unset. The
//! terms are stored as text in the record, under a generation that rises with each change. Only `change` and `replace`
//! read a clock or do I/O.

mod change;
mod difference;
mod origin;
mod replace;
mod text;
mod values;

use std::collections::BTreeMap;

use crate::limit::{Limit, LimitSet};
use crate::rate::Amount;
use crate::time::Micros;

pub use crate::limit::{Problem, rate_text};
pub use change::{ChangeError, Changed, change};
pub use origin::{Origin, Replica};
pub use replace::{Replaced, Replacement, replace};
pub use text::algorithm;
pub use values::{MAX_VALUES, SetValue, Values};

/// The name of the limit that `rate = "..."` in a file makes.
pub const RATE_LIMIT: &str = "leaky-bucket-0";

/// The limits in force at a downstream, and the rates that operators set over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    revision: Option<u64>,
    limits: LimitSet,
    plans: BTreeMap<String, LimitSet>,
    overrides: BTreeMap<String, Override>,
    /// What operators set for values of the part by which lanes share.
    values: Values,
    /// The replica from whose file the limits are.
    loaded: Option<Origin>,
    /// Since when each limit has had its numbers, by its name.
    since: BTreeMap<String, Origin>,
}

/// A rate that an operator set for one limit. The limit keeps its burst, its buckets and its kind of
/// windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The count and the period that replace the file's.
    pub rate: Amount,
    /// The first instant, on the store's clock, at which it no longer applies; `None` if it applies until it is unset.
    pub until: Option<Micros>,
    /// The operator's reason.
    pub reason: Option<String>,
    /// The rate was set from this address by an operator, or by this process that embeds paced.
    pub by: Option<String>,
    /// When it was set, on the store's clock.
    pub set_at: Micros,
}

/// The effect of a start or a reload on the terms in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a start and one at a reload")]
pub enum Load {
    /// The terms in force equal the file's, so nothing is to be done.
    Same,
    /// These terms are to replace those in force: the file's limits, with the overrides there were.
    Replace(Terms),
    /// The terms in force stay, as their revision is higher than the file's, which is worth a warning.
    Stay {
        /// The revision of the terms in force.
        stored: u64,
        /// The revision of the file; `None` is the lowest.
        own: Option<u64>,
    },
}

/// The reason why terms, or a change to them, are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TermsError {
    /// The text is of a version that this program does not read.
    #[error(
        "the terms in the store are of version {found}, and this paced reads version {known}; run the same \
         version of paced everywhere, the newer one, or roll back with `paced terms drop`"
    )]
    Version {
        /// The version of the text.
        found: u64,
        /// The version that is understood.
        known: u64,
    },
    /// A limit of an algorithm that this program does not have.
    #[error(
        "the terms in the store have a limit `{limit}` of the algorithm `{algorithm}`, which this paced does \
         not know; run the same version of paced everywhere, the newer one, or roll back with `paced terms drop`"
    )]
    Algorithm {
        /// The limit's name.
        limit: String,
        /// The algorithm that it names.
        algorithm: String,
    },
    /// The text is not what paced writes.
    #[error(
        "the terms in the store cannot be read ({0}); if something else wrote them, reload the configuration \
         (SIGHUP), which writes them anew"
    )]
    Malformed(String),
    /// There is no limit of this name.
    #[error("no limit is called `{limit}`; there are {}", listed(names))]
    NoSuchLimit {
        /// The name asked for.
        limit: String,
        /// The names there are.
        names: Vec<String>,
    },
    /// There are several limits, and the change names none of them.
    #[error("which limit is meant? Name one of {}", listed(names))]
    WhichLimit {
        /// The names there are.
        names: Vec<String>,
    },
    /// The rate makes no valid limit.
    #[error("a rate of {rate} does not fit the limit `{limit}`: {problem}")]
    Rate {
        /// The limit's name.
        limit: String,
        /// The rate asked for.
        rate: Amount,
        /// The problem, and what would be right.
        problem: Problem,
    },
    /// The largest number of values already has something set.
    #[error(
        "this can be set for at most {} values, and is set for that many already; unset one of them",
        MAX_VALUES
    )]
    TooManyValues,
}

fn listed(names: &[String]) -> String {
    format!("`{}`", names.join("`, `"))
}

impl Terms {
    /// The newest version of the text that this program writes and reads.
    pub const VERSION: u64 = text::VERSION;

    /// The terms of a file: the limits of a downstream, for each plan by name the limits of its jobs (the downstream's
    /// and then the plan's own), and a revision if the file has one.
    pub const fn new(limits: LimitSet, plans: BTreeMap<String, LimitSet>, revision: Option<u64>) -> Self {
        Self {
            revision,
            limits,
            plans,
            overrides: BTreeMap::new(),
            values: Values { weights: BTreeMap::new(), pauses: BTreeMap::new() },
            loaded: None,
            since: BTreeMap::new(),
        }
    }

    /// The file's revision.
    pub const fn revision(&self) -> Option<u64> {
        self.revision
    }

    /// The downstream's limits in the file.
    pub const fn limits(&self) -> &LimitSet {
        &self.limits
    }

    /// The limits of each plan's jobs in the file, by the plan's name.
    pub const fn plans(&self) -> &BTreeMap<String, LimitSet> {
        &self.plans
    }

    /// The rates that operators set, by the limit's name; also those that have ended.
    pub const fn overrides(&self) -> &BTreeMap<String, Override> {
        &self.overrides
    }

    /// The terms as text: JSON with a version in it, every number exact. Equal terms have equal texts.
    pub fn to_text(&self) -> String {
        text::write(self)
    }

    /// The terms that [`Terms::to_text`] wrote.
    ///
    /// # Errors
    /// [`TermsError::Version`] or [`TermsError::Algorithm`] for a text of a newer program,
    /// [`TermsError::Malformed`] for one that no program wrote.
    pub fn parse(text: &str) -> Result<Self, TermsError> {
        text::read(text)
    }

    /// The version of a text of terms, also one that is newer than [`Terms::VERSION`]; `None` if it has none.
    pub fn version_of(text: &str) -> Option<u64> {
        text::version(text)
    }

    /// A hash of the limits of the file, without its revision and the rates set over them: FNV-1a, which never changes.
    pub fn fingerprint(&self) -> u64 {
        let text = Self::new(self.limits.clone(), self.plans.clone(), None).to_text();
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Whether both have the same limits in their files, with any revisions and overrides.
    pub fn has_limits_of(&self, other: &Self) -> bool {
        self.limits == other.limits && self.plans == other.plans
    }

    /// The effect on the terms in force when a replica starts with `own`, or reloads it: the last load wins, unless its
    /// revision is lower.
    pub fn load(stored: Option<&Self>, own: &Self) -> Load {
        let Some(in_force) = stored else { return Load::Replace(own.clone()) };
        // `None` is less than any number.
        let lower = own.revision < in_force.revision;
        if in_force.has_limits_of(own) && (lower || own.revision == in_force.revision) {
            return Load::Same;
        }
        match in_force.revision.filter(|_| lower) {
            Some(stored) => Load::Stay { stored, own: own.revision },
            None => Load::Replace(own.clone().with_set_of(in_force)),
        }
    }

    /// The same with what operators set in other terms.
    fn with_set_of(self, other: &Self) -> Self {
        Self { overrides: other.overrides.clone(), values: other.values.clone(), ..self }
    }

    /// The limits in force at `now`: the downstream's, and for each plan those of its jobs.
    ///
    /// An override counts while `now < until`. One that fits no limit of the file any more changes nothing;
    /// see [`Terms::idle`].
    pub fn effective(&self, now: Micros) -> (LimitSet, BTreeMap<String, LimitSet>) {
        let plans = self.plans.iter().map(|(name, set)| (name.clone(), self.applied(set, now)));
        (self.applied(&self.limits, now), plans.collect())
    }

    /// The overrides that apply at `now`, but fit no limit since the file changed.
    pub fn idle(&self, now: Micros) -> Vec<&str> {
        let fits = |name: &str, one: &Override| self.checked(name, one.rate).is_ok();
        self.in_force(now).filter(|(name, one)| !fits(name, one)).map(|(name, _)| name).collect()
    }

    /// The next end of an override, or of something that is set for a value, that applies at `now`.
    pub fn next_end(&self, now: Micros) -> Option<Micros> {
        let ends = self.in_force(now).filter_map(|(_, one)| one.until);
        ends.chain(self.values.next_end(now)).min()
    }

    /// The terms without what operators set and what has ended at `now`; `None` if there is nothing of that.
    pub fn expired(&self, now: Micros) -> Option<Self> {
        let live = self.in_force(now).map(|(name, one)| (name.to_owned(), one.clone()));
        let (overrides, values) = (live.collect::<BTreeMap<_, _>>(), self.values.lasting(now));
        let is_same = overrides.len() == self.overrides.len() && values == self.values;
        (!is_same).then(|| Self { overrides, values, ..self.clone() })
    }

    /// The limit that a change is about: the one of this name, which may be a plan's. Without a name the
    /// one that `rate = "..."` makes, or else the downstream's only one.
    ///
    /// # Errors
    /// [`TermsError::NoSuchLimit`] and [`TermsError::WhichLimit`], with the existing names.
    pub fn limit(&self, name: Option<&str>) -> Result<&Limit, TermsError> {
        let names = |limits: Vec<&Limit>| limits.iter().map(|limit| limit.name().to_owned()).collect();
        let called = |name: &str| self.all().into_iter().find(|limit| limit.name() == name);
        match name {
            Some(name) => called(name)
                .ok_or_else(|| TermsError::NoSuchLimit { limit: name.to_owned(), names: names(self.all()) }),
            None => match (called(RATE_LIMIT), self.limits.get(0).filter(|_| self.limits.len() == 1)) {
                (Some(limit), _) | (None, Some(limit)) => Ok(limit),
                (None, None) => Err(TermsError::WhichLimit { names: names(self.all()) }),
            },
        }
    }

    /// The limit of this name as it applies at `now`, or without a name all of them: the downstream's, and then those
    /// that plans add.
    ///
    /// # Errors
    /// [`TermsError::NoSuchLimit`], with the existing names.
    pub fn counted(&self, name: Option<&str>, now: Micros) -> Result<Vec<Limit>, TermsError> {
        let (limits, plans) = self.effective(now);
        let mut counted: Vec<Limit> = Vec::new();
        for limit in std::iter::once(&limits).chain(plans.values()).flat_map(LimitSet::iter) {
            let is_meant = name.is_none_or(|name| name == limit.name());
            if is_meant && counted.iter().all(|other| other.name() != limit.name()) {
                counted.push(limit.clone());
            }
        }
        if counted.is_empty() {
            // The error lists the existing names.
            self.limit(name)?;
        }
        Ok(counted)
    }

    /// Sets a rate over a limit, in place of one that was set before, and returns the limit's name; see
    /// [`Terms::limit`] for which limit it is.
    ///
    /// # Errors
    /// As [`Terms::limit`], and [`TermsError::Rate`] when the rate makes no limit; nothing is changed then.
    pub fn set_rate(&mut self, limit: Option<&str>, set: Override) -> Result<String, TermsError> {
        let name = self.limit(limit)?.name().to_owned();
        self.checked(&name, set.rate)?;
        self.overrides.insert(name.clone(), set);
        Ok(name)
    }

    /// Removes the rate that was set over a limit, and returns the limit's name and the rate, if one was set. A name
    /// may be of a limit that the file no longer has.
    ///
    /// # Errors
    /// As [`Terms::limit`], where nothing is set for a limit of this name either.
    pub fn unset_rate(&mut self, limit: Option<&str>) -> Result<(String, Option<Override>), TermsError> {
        let name = match limit.filter(|name| self.overrides.contains_key(*name)) {
            Some(name) => name.to_owned(),
            None => self.limit(limit)?.name().to_owned(),
        };
        let was = self.overrides.remove(&name);
        Ok((name, was))
    }

    /// The downstream's limits, and then those that plans add.
    fn all(&self) -> Vec<&Limit> {
        let mut all: Vec<&Limit> = self.limits.iter().collect();
        for limit in self.plans.values().flat_map(LimitSet::iter) {
            if all.iter().all(|other| other.name() != limit.name()) {
                all.push(limit);
            }
        }
        all
    }

    fn in_force(&self, now: Micros) -> impl Iterator<Item = (&str, &Override)> {
        let counts = move |one: &Override| one.until.is_none_or(|until| now < until);
        self.overrides.iter().filter(move |(_, one)| counts(one)).map(|(name, one)| (name.as_str(), one))
    }

    /// Checks every set with this rate for the limit of this name.
    fn checked(&self, name: &str, rate: Amount) -> Result<(), TermsError> {
        let limit = self.limit(Some(name))?;
        let wrong = |problem| TermsError::Rate { limit: name.to_owned(), rate, problem };
        let limit = limit.at_rate(rate).map_err(wrong)?;
        let sets = std::iter::once(&self.limits).chain(self.plans.values());
        // Plans share the state of this limit, so they contain it with the same numbers.
        for set in sets.filter(|set| set.iter().any(|other| other.name() == name)) {
            let set = set.with(std::slice::from_ref(&limit));
            if set.is_none_or(|set| set.max_cost() == 0) {
                return Err(wrong(Problem::NoUnit));
            }
        }
        Ok(())
    }

    fn applied(&self, set: &LimitSet, now: Micros) -> LimitSet {
        let fits = |(name, one): (&str, &Override)| {
            self.checked(name, one.rate).ok()?;
            self.limit(Some(name)).ok()?.at_rate(one.rate).ok()
        };
        let limits: Vec<Limit> = self.in_force(now).filter_map(fits).collect();
        set.with(&limits).unwrap_or_else(|| set.clone())
    }
}

#[cfg(test)]
mod tests;
