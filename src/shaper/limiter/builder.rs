//! The builder of a [`Limiter`].

use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;

use super::super::BuildError;
use super::super::task::Task;
use super::fallback::{Breaker, LimiterFallback};
use super::{Core, Limiter, Policy};
use crate::home::Home;
use crate::limit::{Limit, LimitSet};
use crate::store::{MemoryStore, Store, check_downstream};

/// A builder of a [`Limiter`], with its limits and its store.
#[derive(Debug)]
#[must_use = "a limiter is there after `build`"]
pub struct LimiterBuilder {
    name: String,
    limits: Vec<Limit>,
    set: Option<LimitSet>,
    store: Option<Arc<dyn Store>>,
    shared: bool,
    on_unavailable: LimiterFallback,
    home: Home,
}

/// The prefix of the name of a limiter's record: pauses and resets of a daemon's downstream of the same name are not its
/// own.
const RECORD: &str = "limiter:";

/// The prefixes of the names under which the states of a limiter's limits are kept; shapers and the daemon do not use
/// such names. Neither prefix begins with the other, so no name of a limit can make the two equal.
const EACH: &str = "limiter-";
const SHARED: &str = "shared-limiter-";

impl LimiterBuilder {
    pub(super) const fn new(name: String) -> Self {
        Self {
            name,
            limits: vec![],
            set: None,
            store: None,
            shared: false,
            on_unavailable: LimiterFallback::Fail,
            home: Home::of_process(),
        }
    }

    /// Adds a limit; all limits must allow a request. Its state is kept under its name, so that its numbers may change
    /// and the state stays.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Sets a whole set of limits, which says how they combine: all, any, or one of them. The last set that is given
    /// applies; a further [`limit`](Self::limit) beside it is an error.
    pub fn limits(mut self, limits: LimitSet) -> Self {
        self.set = Some(limits);
        self
    }

    /// Sets the store of the state, which is in this process alone unless set. An `Arc` of a store is a store.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Keeps one state for all keys together, instead of one for each; keys then only identify the caller.
    pub const fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Sets how checks are answered while the store cannot be reached; they fail unless set.
    pub const fn on_unavailable(mut self, fallback: LimiterFallback) -> Self {
        self.on_unavailable = fallback;
        self
    }

    /// Sets the runtime of the task that asks the store. It has to run, with timers, as long as the limiter is used: while it
    /// stands still, calls wait for up to two and a half minutes. Unless set, the process has one of its own for all shapers
    /// and limiters and for their connections to Redis, which one thread drives. So a flood of calls on one of them, or a
    /// log that blocks, delays the others: then give that one a runtime.
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.home = Home::at(runtime);
        self
    }

    /// Builds the limiter. It does not call the store yet.
    ///
    /// # Errors
    /// [`BuildError`] when the limits or the name are invalid.
    pub fn build(self) -> Result<Limiter, BuildError> {
        check_downstream(&self.name).map_err(BuildError::Name)?;
        let limits = match self.set {
            None => LimitSet::new(self.limits)?,
            Some(set) if self.limits.is_empty() => set,
            Some(_) => return Err(BuildError::BesideSet),
        };
        let limits = limits.policing();
        let policy = Policy {
            downstream: format!("{RECORD}{}", self.name),
            name: self.name,
            stored: limits.clone().prefixed(if self.shared { SHARED } else { EACH }),
            limits,
            store: self.store.unwrap_or_else(|| Arc::new(MemoryStore::new())),
            shared: self.shared,
            on_unavailable: self.on_unavailable,
            breaker: Breaker::default(),
            local: Mutex::default(),
        };
        let core = Core { policy: Arc::new(policy), task: Task::new(self.home) };
        Ok(Limiter { core: Arc::new(core) })
    }
}
