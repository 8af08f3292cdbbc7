//! Changes to the terms in force, by compare and swap.

use super::{Terms, TermsError};
use crate::store::{Change, RecordState, Store, StoreError};
use crate::time::Micros;

/// So often another one may be quicker to change the terms.
const TRIES: u32 = 20;

/// Terms that were changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Changed<T> {
    /// The terms before.
    pub before: Terms,
    /// The terms after it.
    pub after: Terms,
    /// The record after it.
    pub record: RecordState,
    /// What the change told.
    pub told: T,
}

/// Why terms were not changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The terms in the store cannot be read, or not be changed so.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Others were quicker, again and again.
    #[error("others change the terms of this downstream all the time; try again")]
    Contended,
}

impl ChangeError {
    /// Whether the same change may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Terms(_) => false,
            Self::Store(error) => error.is_retryable(),
            Self::Contended => true,
        }
    }
}

/// Changes the terms of a downstream; where the store has none yet, `own`. `change` may be called several times, each
/// time with the terms as they are then and the store's clock. Rates that are over are left out with it.
///
/// Cancel safe: they are changed, or not.
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
        let told = change(&mut after, record.now)?;
        if after == before {
            return Ok(Changed { before, after, record, told });
        }
        let (of, text) = (record.status.generation, after.to_text());
        record = store.update_record(downstream, Change::Terms { of, text: &text }).await?;
        if record.status.generation == of + 1 && record.terms.as_ref() == Some(&text) {
            return Ok(Changed { before, after, record, told });
        }
    }
    Err(ChangeError::Contended)
}
