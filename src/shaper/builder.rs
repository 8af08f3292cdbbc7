//! How a [`Shaper`] is put together.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Shaper;
use super::core::Core;
use crate::limit::{Limit, LimitError, LimitSet};
use crate::pace::release::clock::{Precision, ReleaseClock, ThreadClock, TokioClock};
use crate::pace::{DEFAULT_HORIZON, LaneId, OnLimit, OnUnavailable, Settings};
use crate::rate::Rate;
use crate::store::{MemoryStore, Store, StoreError, check_downstream};
use crate::terms::RATE_LIMIT;

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
    shared: Shared,
}

/// How it goes with others.
#[derive(Clone, Copy, Debug)]
struct Shared {
    horizon: Duration,
    on_unavailable: OnUnavailable,
    precision: Precision,
}

/// What the pace is made of.
#[derive(Debug)]
#[cfg_attr(not(feature = "config"), expect(dead_code, reason = "only configurations have plans"))]
enum Base {
    Rate(Rate),
    Set(LimitSet),
    /// A configuration's downstream, and the lane of the plan that its calls are of.
    Given(Box<Settings>, LaneId),
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
    /// The horizon is none that can be shared.
    #[error("a horizon of {0:?}; use 1ms to 10s")]
    Horizon(Duration),
}

/// How many may hold a slot at once: what a caller does with its slot has no end that is known here, so that nothing
/// waits for it.
const CONCURRENCY: usize = 1 << 16;

impl ShaperBuilder {
    pub(super) fn new(name: String, rate: Rate) -> Self {
        Self::of(name, Base::Rate(rate))
    }

    pub(super) fn with_limits(name: String, limits: LimitSet) -> Self {
        Self::of(name, Base::Set(limits))
    }

    /// A builder of a configuration's downstream.
    #[cfg(feature = "config")]
    pub(crate) fn of_settings(given: Settings, lane: LaneId, precision: Precision) -> Self {
        let (horizon, on_unavailable) = (given.horizon, given.on_unavailable);
        let name = given.downstream.clone();
        let builder = Self::of(name, Base::Given(Box::new(given), lane));
        Self { shared: Shared { horizon, on_unavailable, precision }, ..builder }
    }

    const fn of(name: String, base: Base) -> Self {
        let max_wait = Duration::from_secs(60);
        let shared = Shared {
            horizon: DEFAULT_HORIZON,
            on_unavailable: OnUnavailable::Hold,
            precision: Precision::Fine,
        };
        Self { name, base, burst: None, max_wait, store: None, per_key: false, further: vec![], shared }
    }

    /// How many calls may go at once after a rest; 1 unless set. Beside a whole set of limits it is an
    /// error.
    pub const fn burst(mut self, burst: u32) -> Self {
        self.burst = Some(burst);
        self
    }

    /// How long a caller may have to wait for its slot; beyond, the queue is full. One minute unless set. The calls to the
    /// store are part of it: less than some ten round trips is too short for [`Shaper::acquire`](super::Shaper::acquire).
    ///
    /// After the store has lost its state nobody gets a slot for the horizon; where slots were reserved further ahead, for as
    /// long as they may lie, at most for a minute. And who only waits
    /// ([`Reservation::wait`](super::Reservation::wait)) may after a forward step
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

    /// How far ahead of now slots are granted to those who wait here ([`Shaper::acquire`]); 100 ms unless set, 1 ms to 10 s. All who
    /// share a pace should have the same.
    pub const fn horizon(mut self, horizon: Duration) -> Self {
        self.shared.horizon = horizon;
        self
    }

    /// What becomes of those who wait here while the store cannot be reached; they wait unless this says otherwise.
    /// Reservations ([`Shaper::reserve`]) fail meanwhile.
    pub const fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.shared.on_unavailable = on_unavailable;
        self
    }

    /// How punctual slots are. [`Precision::Fine`] unless set: one thread for all shapers of the process. Tests in tokio's
    /// paused time need [`Precision::Coarse`].
    pub const fn precision(mut self, precision: Precision) -> Self {
        self.shared.precision = precision;
        self
    }

    /// A further limit beside the rate: a slot keeps all of them. Its state is kept under its name, so
    /// that all with one name, store and limit's name share it; `leaky-bucket-0` is the name of the builder's
    /// own, as of `rate` in a configuration. Beside a whole set of limits it is an error.
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
        let horizon = self.shared.horizon;
        if horizon < Duration::from_millis(1) || horizon > Duration::from_secs(10) {
            return Err(BuildError::Horizon(horizon));
        }
        let is_alone = self.burst.is_none() && self.further.is_empty();
        let (limits, plans, revision, lane) = match self.base {
            Base::Rate(rate) => {
                let mut limits = vec![Limit::leaky_bucket(RATE_LIMIT, rate, self.burst.unwrap_or(1))?];
                limits.extend(self.further);
                (LimitSet::new(limits)?, vec![], None, LaneId::DOWNSTREAM)
            }
            Base::Set(limits) if is_alone => (limits, vec![], None, LaneId::DOWNSTREAM),
            Base::Given(given, lane) if is_alone => (given.limits, given.plans, given.revision, lane),
            Base::Set(_) | Base::Given(..) => return Err(BuildError::BesideSet),
        };
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let Shared { horizon, on_unavailable, precision } = self.shared;
        let given = Settings {
            downstream: self.name,
            limits,
            plans,
            on_limit: OnLimit::Wait,
            on_unavailable,
            horizon,
            concurrency: CONCURRENCY,
            prefetch: None,
            revision,
        };
        let core = Core::new(given, store, clock(precision), (self.max_wait, self.per_key));
        Ok(Shaper { core: Arc::new(core), lane })
    }
}

/// The clock of all shapers of this process: as precise as asked for, or tokio's where the system has no thread left.
fn clock(precision: Precision) -> Arc<dyn ReleaseClock> {
    static FINE: OnceLock<Arc<dyn ReleaseClock>> = OnceLock::new();
    match precision {
        Precision::Coarse => Arc::new(TokioClock),
        Precision::Fine => Arc::clone(FINE.get_or_init(|| match ThreadClock::start() {
            Ok(clock) => Arc::new(clock),
            Err(error) => {
                tracing::warn!(%error, "no thread for the release clock; slots will be about 1 ms late");
                Arc::new(TokioClock)
            }
        })),
    }
}
