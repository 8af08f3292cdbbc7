//! The builder of a [`Shaper`].

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;

use super::Shaper;
use super::core::Core;
use crate::home::Home;
use crate::limit::{Limit, LimitError, LimitSet};
use crate::pace::release::clock::{Precision, ReleaseClock, ThreadClock, TokioClock};
use crate::pace::{DEFAULT_HORIZON, JobSettings, LaneId, OnLimit, OnUnavailable, Settings};
use crate::rate::Rate;
use crate::store::{FileStore, MemoryStore, Store, StoreError, check_downstream};
use crate::terms::RATE_LIMIT;

/// A builder of a [`Shaper`], with its limits and its store.
#[derive(Debug)]
#[must_use = "a shaper is there after `build`"]
pub struct ShaperBuilder {
    name: String,
    base: Base,
    burst: Option<u32>,
    max_wait: Duration,
    store: Keeper,
    per_key: bool,
    further: Vec<Limit>,
    shared: Shared,
    home: Home,
}

/// The settings for sharing the pace and for waiting.
#[derive(Clone, Copy, Debug)]
struct Shared {
    horizon: Duration,
    on_unavailable: OnUnavailable,
    precision: Precision,
}

/// The source of the limits.
#[derive(Debug)]
#[cfg_attr(not(feature = "config"), expect(dead_code, reason = "only configurations have plans"))]
enum Base {
    Rate(Rate),
    Set(LimitSet),
    /// A configuration's downstream, and the lane of the plan of its calls.
    Given(Box<Settings>, LaneId),
}

/// The place of the state.
#[derive(Debug)]
enum Keeper {
    /// In this process alone.
    Memory,
    Given(Arc<dyn Store>),
    /// In a file, which is opened when the shaper is built.
    #[cfg_attr(not(feature = "config"), expect(dead_code, reason = "only configurations name files"))]
    File(PathBuf),
}

impl Keeper {
    fn open(self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Self::Memory => Arc::new(MemoryStore::new()),
            Self::Given(store) => store,
            Self::File(path) => Arc::new(FileStore::open(path)?),
        })
    }
}

/// The reason why a shaper or a limiter was not built.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The limits are invalid.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The name is invalid for a store.
    #[error(transparent)]
    Name(StoreError),
    /// The file of the store cannot be used.
    #[error(transparent)]
    Store(StoreError),
    /// A burst or a limit was given beside a whole set, which alone says how limits combine.
    #[error("a burst or a limit beside a set of limits; put it into the set")]
    BesideSet,
    /// The horizon is out of range.
    #[error("a horizon of {0:?}; use 1ms to 10s")]
    Horizon(Duration),
}

/// The most waiters that hold a slot at once. The shaper does not know when a caller's work ends, so that concurrency
/// does not bind.
const CONCURRENCY: usize = 1 << 16;

impl ShaperBuilder {
    pub(super) fn new(name: String, rate: Rate) -> Self {
        Self::of(name, Base::Rate(rate))
    }

    pub(super) fn with_limits(name: String, limits: LimitSet) -> Self {
        Self::of(name, Base::Set(limits))
    }

    /// Creates a builder for a configuration's downstream.
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
        Self {
            name,
            base,
            burst: None,
            max_wait,
            store: Keeper::Memory,
            per_key: false,
            further: vec![],
            shared,
            home: Home::of_process(),
        }
    }

    /// Sets how many calls may start at once after an idle period; 1 unless set. It is an error beside a whole set of
    /// limits.
    pub const fn burst(mut self, burst: u32) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Sets how long a caller may have to wait for its slot; beyond it the queue is full. It is one minute unless set.
    /// The calls to the store are part of it: less than some ten round trips is too short for
    /// [`Shaper::acquire`](super::Shaper::acquire).
    ///
    /// After the store has lost its state, no slots are granted for the horizon. If slots were reserved further ahead,
    /// this lasts for as long as they may lie ahead, at most for a minute. After a forward step of the store's clock, a
    /// caller that only waits ([`Reservation::wait`](super::Reservation::wait)) may run beside new reservations for as
    /// long.
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Sets the store of the state, which is in this process alone unless set. An `Arc` of a store is a store.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Keeper::Given(Arc::new(store));
        self
    }

    /// Sets a file as the store, which is opened when the shaper is built.
    #[cfg(feature = "config")]
    pub(crate) fn store_in(mut self, file: PathBuf) -> Self {
        self.store = Keeper::File(file);
        self
    }

    /// Applies the limits to each key separately, instead of one pace for the whole downstream.
    pub const fn per_key(mut self) -> Self {
        self.per_key = true;
        self
    }

    /// Sets how far ahead of now slots are granted to callers that wait ([`Shaper::acquire`]): 1 ms to 10 s, and 100 ms
    /// unless set. All processes that share a pace should have the same horizon.
    pub const fn horizon(mut self, horizon: Duration) -> Self {
        self.shared.horizon = horizon;
        self
    }

    /// Sets the handling of waiting callers while the store cannot be reached; they keep waiting unless set.
    /// Reservations ([`Shaper::reserve`]) fail meanwhile.
    pub const fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.shared.on_unavailable = on_unavailable;
        self
    }

    /// Sets the punctuality of slots. It is [`Precision::Fine`] unless set: one thread for all shapers of the process.
    /// Tests in tokio's paused time need [`Precision::Coarse`], and their own [`runtime`](Self::runtime).
    pub const fn precision(mut self, precision: Precision) -> Self {
        self.shared.precision = precision;
        self
    }

    /// Sets the runtime of the task that asks the store. It has to run, with timers, as long as the shaper is used: while it
    /// stands still, calls wait for up to two and a half minutes. Unless set, the process has one of its own for all shapers
    /// and limiters and for their connections to Redis, which one thread drives. So a flood of calls on one of them, or a
    /// log that blocks, delays the others: then give that one a runtime. A store in Redis has a setting of its own
    /// (`RedisOptions::with_runtime`).
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.home = Home::at(runtime);
        self
    }

    /// Adds a further limit beside the rate: a slot keeps all of them. Its state is kept under its name, so that
    /// shapers with the same name, store and limit's name share it. `leaky-bucket-0` is the name of the builder's own
    /// limit, as of `rate` in a configuration. A further limit is an error beside a whole set of limits.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.further.push(limit);
        self
    }

    /// Builds the shaper. It does not call the store yet. The file of a configuration is opened, if no other store was set:
    /// that blocks while it is read.
    ///
    /// # Errors
    /// [`BuildError`] when the limits, the name or the horizon are invalid, or the file of a configuration cannot be used.
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
        let store = self.store.open().map_err(BuildError::Store)?;
        let Shared { horizon, on_unavailable, precision } = self.shared;
        let given = Settings {
            downstream: self.name,
            limits,
            plans,
            on_limit: OnLimit::Wait,
            on_unavailable,
            horizon,
            concurrency: CONCURRENCY,
            of_jobs: JobSettings::default(),
            revision,
        };
        let core = Core::new(given, store, clock(precision), (self.max_wait, self.per_key), self.home);
        Ok(Shaper { core: Arc::new(core), lane })
    }
}

/// Returns the clock of all shapers of this process with this precision, or tokio's timer if the system has no thread
/// left.
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
