//! Changes to the terms in force, by compare and swap.

use super::{Replica, Terms, TermsError};
use crate::store::{Change, RecordState, Store, StoreError};
use crate::time::Micros;

/// The number of attempts: others may change the terms in between.
const TRIES: u32 = 20;

/// Terms that were changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Changed<T> {
    /// The terms before the change.
    pub before: Terms,
    /// The terms after the change.
    pub after: Terms,
    /// The record after the change.
    pub record: RecordState,
    /// The result of the closure.
    pub output: T,
}

/// The reason why terms were not changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The terms in the store cannot be parsed, or this change to them is invalid.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Others changed the terms in between at every attempt.
    #[error("others change the terms of this downstream all the time; try again")]
    Contended,
}

impl ChangeError {
    /// Whether the same change may succeed later.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Terms(_) => false,
            Self::Store(error) => error.is_retryable(),
            Self::Contended => true,
        }
    }
}

/// Changes the terms of a downstream, or `own` if the store has none yet. `change` may be called several times, each
/// time with the present terms and the store's clock. Overrides that have ended are removed as well.
///
/// Cancel safe: the terms are changed, or not.
///
/// # Errors
/// [`ChangeError`] when they were not changed; after [`ChangeError::Store`] they may have been.
pub async fn change<T>(
    store: &dyn Store,
    downstream: &str,
    own: &Terms,
    mut change: impl FnMut(&mut Terms, Micros) -> Result<T, TermsError>,
) -> Result<Changed<T>, ChangeError> {
    let mut record = store.read_record(downstream).await?;
    for _ in 0..TRIES {
        let before = match &record.terms {
            Some(text) => Terms::parse(text)?,
            None => own.clone(),
        };
        let mut after = before.expired(record.now).unwrap_or_else(|| before.clone());
        let output = change(&mut after, record.now)?;
        if after == before {
            return Ok(Changed { before, after, record, output });
        }
        let in_force = record.terms.as_ref().map(|_| &before);
        let after = after.put_in_force(in_force, record.now, Replica::of_this_process());
        let (of, text) = (record.status.generation, after.to_text());
        record = store.update_record(downstream, Change::Terms { of, text: &text }).await?;
        if record.status.generation == of + 1 && record.terms.as_ref() == Some(&text) {
            return Ok(Changed { before, after, record, output });
        }
    }
    Err(ChangeError::Contended)
}
