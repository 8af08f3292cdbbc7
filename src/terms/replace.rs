//! Puts the limits of a file in force, also if those in force are newer: an operator rolls a change back.

use super::{ChangeError, Replica, Terms, TermsError};
use crate::store::{Change, RecordState, Store};

/// The number of attempts: others may change the terms in between.
const TRIES: u32 = 20;

/// What is replaced by the limits of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The limits in force, also if their revision is higher. What operators set stays.
    Limits,
    /// All of the terms, also if they are of a newer version of paced and cannot be read here. What operators set is gone.
    All,
}

/// Terms that were replaced.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Replaced {
    /// The terms before; `None` if the store had none, and the reason if they cannot be read here.
    pub before: Result<Option<Terms>, TermsError>,
    /// The terms that are in force now.
    pub after: Terms,
    /// The record after the change.
    pub record: RecordState,
}

/// Replaces the terms of a downstream by those of a file, `own`.
///
/// Replicas with another file use these limits until one of them starts or reloads; then the last load wins again, unless its
/// revision is lower.
///
/// Cancel safe: the terms are replaced, or not.
///
/// # Errors
/// [`ChangeError`] when they were not replaced; after [`ChangeError::Store`] they may have been.
pub async fn replace(
    store: &dyn Store,
    downstream: &str,
    own: &Terms,
    what: Replacement,
) -> Result<Replaced, ChangeError> {
    let mut record = store.read_record(downstream).await?;
    for _ in 0..TRIES {
        let before = record.terms.as_deref().map(Terms::parse).transpose();
        let kept = match (&before, what) {
            (Ok(before), _) => before.as_ref(),
            (Err(_), Replacement::All) => None,
            (Err(error), Replacement::Limits) => return Err(error.clone().into()),
        };
        let after = match kept.filter(|_| what == Replacement::Limits) {
            Some(kept) => own.clone().with_set_of(kept),
            None => own.clone(),
        };
        let after = after.put_in_force(kept, record.now, Replica::of_this_process());
        let (of, text) = (record.status.generation, after.to_text());
        record = store.update_record(downstream, Change::Terms { of, text: &text }).await?;
        if record.status.generation == of + 1 && record.terms.as_ref() == Some(&text) {
            return Ok(Replaced { before, after, record });
        }
    }
    Err(ChangeError::Contended)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::limit::{Limit, LimitSet};
    use crate::store::MemoryStore;
    use crate::terms::{Load, Override};
    use crate::time::Micros;

    fn file(rate: &str, revision: Option<u64>) -> Terms {
        let limit = Limit::leaky_bucket("leaky-bucket-0", rate.parse().unwrap(), 5).unwrap();
        Terms::new(LimitSet::new(vec![limit]).unwrap(), BTreeMap::new(), revision)
    }

    /// A store with the terms of a newer file, and a rate that was set over them.
    async fn store(text: &str) -> MemoryStore {
        let store = MemoryStore::new();
        store.update_record("billing", Change::Terms { of: 0, text }).await.unwrap();
        store
    }

    fn newer_file() -> Terms {
        let mut terms = file("50/s", Some(9));
        let (rate, set_at) = ("20/s".parse().unwrap(), Micros(5));
        terms.set_rate(None, Override { rate, until: None, reason: None, by: None, set_at }).unwrap();
        terms
    }

    #[tokio::test]
    async fn a_lower_revision_is_put_in_force_with_the_rates_that_were_set() {
        let (own, in_force) = (file("30/s", Some(2)), newer_file());
        assert!(matches!(Terms::load(Some(&in_force), &own), Load::Stay { .. }), "a reload does not do that");
        let store = store(&in_force.to_text()).await;
        let replaced = replace(&store, "billing", &own, Replacement::Limits).await.unwrap();
        assert_eq!((replaced.record.status.generation, replaced.before), (2, Ok(Some(in_force.clone()))));
        assert!(replaced.after.has_limits_of(&own) && replaced.after.revision() == Some(2));
        assert_eq!(replaced.after.overrides(), in_force.overrides());
        let loaded_by = replaced.after.loaded().map(|origin| &origin.replica);
        assert_eq!(loaded_by, Some(Replica::of_this_process()));
        let dropped = replace(&store, "billing", &own, Replacement::All).await.unwrap();
        assert!(dropped.after.overrides().is_empty() && dropped.after.has_limits_of(&own));
    }

    #[tokio::test]
    async fn terms_of_a_newer_version_are_only_dropped() {
        let text = newer_file().to_text().replacen("\"version\":1", "\"version\":9", 1);
        let (own, store) = (file("30/s", None), store(&text).await);
        let refused = replace(&store, "billing", &own, Replacement::Limits).await.unwrap_err();
        assert!(matches!(refused, ChangeError::Terms(TermsError::Version { found: 9, .. })), "{refused}");
        assert_eq!(store.read_record("billing").await.unwrap().terms, Some(text), "it is as it was");
        let replaced = replace(&store, "billing", &own, Replacement::All).await.unwrap();
        assert!(matches!(replaced.before, Err(TermsError::Version { found: 9, .. })));
        let stored = store.read_record("billing").await.unwrap().terms.unwrap();
        assert!(Terms::parse(&stored).unwrap().has_limits_of(&own));
    }

    #[tokio::test]
    async fn a_store_without_terms_gets_some() {
        let (own, store) = (file("30/s", None), MemoryStore::new());
        let replaced = replace(&store, "billing", &own, Replacement::All).await.unwrap();
        assert_eq!((replaced.before, replaced.record.status.generation), (Ok(None), 1));
    }
}
