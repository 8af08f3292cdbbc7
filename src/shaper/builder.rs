//! How a [`Shaper`] is put together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::batch::Lanes;
use super::pause::Pauses;
use super::{Core, Shaper};
use crate::limit::{Limit, LimitError, LimitSet};
use crate::rate::Rate;
use crate::store::{MemoryStore, SlotClock, Store, StoreError, check_downstream};

/// Numbers and a store for a [`Shaper`].
#[derive(Debug)]
#[must_use = "a shaper is there after `build`"]
pub struct ShaperBuilder {
    name: String,
    base: Base,
    burst: Option<u32>,
    max_wait: Duration,
    store: Option<Arc<dyn Store>>,
    per_key: bool,
    further: Vec<Limit>,
}

/// What the pace is made of.
#[derive(Debug)]
enum Base {
    Rate(Rate),
    Set(LimitSet),
}

/// Why there is no shaper, or no limiter.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The limits are none that can be kept.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The name is none that a store can use.
    #[error(transparent)]
    Name(StoreError),
    /// A burst or a limit beside a whole set: how they combine is the set's to say.
    #[error("a burst or a limit beside a set of limits; put it into the set")]
    BesideSet,
}

/// The name of the limit that [`Shaper::builder`] makes of its rate.
const RATE: &str = "rate";
/// What the states of a shaper's limits are kept under, before the limit's name. Not the daemon's
/// names: far reservations here would starve it.
const PREFIX: &str = "shaper-";

impl ShaperBuilder {
    pub(super) fn new(name: String, rate: Rate) -> Self {
        Self::of(name, Base::Rate(rate))
    }

    pub(super) fn with_limits(name: String, limits: LimitSet) -> Self {
        Self::of(name, Base::Set(limits))
    }

    const fn of(name: String, base: Base) -> Self {
        let max_wait = Duration::from_secs(60);
        Self { name, base, burst: None, max_wait, store: None, per_key: false, further: vec![] }
    }

    /// How many calls may go at once after a rest; 1 unless set. Beside a whole set of limits it is an
    /// error.
    pub const fn burst(mut self, burst: u32) -> Self {
        self.burst = Some(burst);
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

    /// Gives each key the limits for itself, instead of one pace for the whole downstream.
    pub const fn per_key(mut self) -> Self {
        self.per_key = true;
        self
    }

    /// A further limit beside the rate: a slot keeps all of them. Its state is kept under its name, so
    /// that shapers with one name, store and limit's name share it; `rate` is the name of the builder's
    /// own. Beside a whole set of limits it is an error.
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
        let limits = match self.base {
            Base::Rate(rate) => {
                let mut limits = vec![Limit::leaky_bucket(RATE, rate, self.burst.unwrap_or(1))?];
                limits.extend(self.further);
                LimitSet::new(limits)?
            }
            Base::Set(limits) if self.burst.is_none() && self.further.is_empty() => limits,
            Base::Set(_) => return Err(BuildError::BesideSet),
        };
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        store.set_horizon(&self.name, self.max_wait);
        let core = Core {
            name: self.name,
            stored: limits.clone().prefixed(PREFIX),
            limits,
            store,
            clock: SlotClock::new(),
            max_wait: self.max_wait,
            per_key: self.per_key,
            lanes: Lanes::default(),
            refreshing: tokio::sync::Mutex::default(),
            jumped: Notify::new(),
            pauses: Pauses::default(),
            gone: Arc::default(),
        };
        Ok(Shaper { core: Arc::new(core) })
    }
}
