//! A slot that the store granted to a caller that reserves.

use std::sync::Arc;

use super::ReserveError;
use crate::pace::{LaneId, Settings};
use crate::store::{Cancel, Granted, Mapping, Scope, Store, StoreError};

/// The state from which a slot is taken: the lane of its limits, and the key.
pub(super) type Place = (LaneId, String);

/// The answer to a caller that reserves.
pub(super) type ReserveResult = Result<Grant, ReserveError>;

/// A granted slot.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) taken: Taken,
    /// The mapping of the slot to this process's clock when it was granted.
    pub(super) mapped: Mapping,
}

/// A slot that is taken, with all that is needed to give it back.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) place: Place,
    /// The settings under which it was granted.
    pub(super) settings: Arc<Settings>,
    pub(super) granted: Granted,
}

impl Taken {
    /// Gives the slot back if it lies ahead and no later one was taken. Returns whether it did.
    pub(super) async fn cancel(&self, store: &dyn Store) -> Result<bool, StoreError> {
        let Self { place: (lane, key), settings, granted } = self;
        let call = Cancel {
            scope: Scope { downstream: &settings.downstream, key },
            limits: settings.limits_of(*lane),
            lane: None,
            slot: granted.slot,
            charged: &granted.charged,
            before: &granted.before,
            after: &granted.after,
            is_unused: false,
        };
        store.cancel(call).await
    }
}
