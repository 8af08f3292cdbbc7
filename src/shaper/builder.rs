//! How a [`Shaper`] is put together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::{Core, Shaper};
use crate::limit::{Limit, LimitError, LimitSet};
use crate::rate::Rate;
use crate::store::{MemoryStore, SlotClock, Store, StoreError, check_downstream};

/// Numbers and a store for a [`Shaper`].
#[derive(Debug)]
#[must_use = "a shaper is there after `build`"]
pub struct ShaperBuilder {
    name: String,
    rate: Rate,
    burst: u32,
    max_wait: Duration,
    store: Option<Arc<dyn Store>>,
    per_key: bool,
    further: Vec<Limit>,
}

/// Why there is no shaper.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BuildError {
    /// The limits are none that can be kept.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The name is none that a store can use.
    #[error(transparent)]
    Name(StoreError),
}

impl ShaperBuilder {
    pub(super) fn new(name: String, rate: Rate) -> Self {
        let max_wait = Duration::from_secs(60);
        Self { name, rate, burst: 1, max_wait, store: None, per_key: false, further: vec![] }
    }

    /// How many calls may go at once after a rest; 1 unless set.
    pub const fn burst(mut self, burst: u32) -> Self {
        self.burst = burst;
        self
    }

    /// How far ahead a slot may lie on the store's clock; beyond, the queue is full. One minute
    /// unless set.
    ///
    /// After the store has lost its state nobody gets a slot for as long, at most for a minute;
    /// and who only waits ([`Reservation::wait`](super::Reservation::wait)) may after a forward step
    /// of the store's clock run beside new reservations for as long.
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Where the state lives; in this process alone unless set. An `Arc` of a store is a store.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Gives each key the rate for itself, instead of one pace for the whole downstream.
    pub const fn per_key(mut self) -> Self {
        self.per_key = true;
        self
    }

    /// A further limit: a slot keeps all of them. Its name is the key of its state.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.further.push(limit);
        self
    }

    /// The shaper. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// [`BuildError`] when the limits or the name cannot be.
    pub fn build(self) -> Result<Shaper, BuildError> {
        check_downstream(&self.name).map_err(BuildError::Name)?;
        // Not the daemon's name for its first limit: far reservations here would starve it.
        let mut limits = vec![Limit::leaky_bucket("shaper-0", self.rate, self.burst)?];
        limits.extend(self.further);
        let core = Core {
            name: self.name,
            limits: LimitSet::new(limits)?,
            store: self.store.unwrap_or_else(|| Arc::new(MemoryStore::new())),
            clock: SlotClock::new(),
            max_wait: self.max_wait,
            per_key: self.per_key,
            lanes: Mutex::new(HashMap::new()),
            refreshing: tokio::sync::Mutex::default(),
            jumped: Notify::new(),
        };
        Ok(Shaper { core: Arc::new(core) })
    }
}
