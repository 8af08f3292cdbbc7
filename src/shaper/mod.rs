//! Pacing inside a program: reserve a slot, wait for it, call.

mod batch;
mod builder;
mod reservation;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::limit::LimitSet;
use crate::store::{Observed, Scope, SlotClock, Store, StoreError};
use crate::time::Micros;
use batch::{Lane, Request};
pub use builder::{BuildError, ShaperBuilder};
use reservation::Grant;
pub use reservation::Reservation;

/// Keeps the pace of one downstream, alone or together with all shapers that share its store.
///
/// Shapers share a pace when they have one store, name, rate and `max_wait`. They do not share it
/// with the daemon yet: its state of a downstream of the same name is another one.
///
/// Cheap to clone; clones are one shaper.
///
/// By default the whole downstream has one pace: the keys of its methods only say who asks. With
/// [`ShaperBuilder::per_key`] each key has the rate for itself.
///
/// Calls are batched: requests that arrive while the store is asked ride in the next call. When
/// nothing is under way a request leaves at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper = paced::Shaper::builder("billing", "1000/s".parse()?).build()?;
/// let reservation = shaper.reserve("tenant-42").await?;
/// reservation.wait().await;
/// if !reservation.is_missed() {
///     // ... call the downstream
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Shaper {
    core: Arc<Core>,
}

/// Why there is no reservation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReserveError {
    /// The slot would lie further ahead than `max_wait`. Nothing was taken.
    #[error("the queue is full; try again in {retry_after:?}")]
    QueueFull {
        /// How long until a slot within `max_wait` can be had, if nobody else takes it.
        retry_after: Duration,
    },
    /// The limits cannot hold so high a cost exactly.
    #[error("a cost of {cost} is more than these limits hold; use at most {highest}")]
    CostTooLarge {
        /// The cost asked for.
        cost: u32,
        /// The highest that is possible.
        highest: u32,
    },
    /// The store did not decide.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The task that asked the store was ended: its runtime shut down, or the store panicked.
    #[error("the call to the store was broken off; reserve again")]
    Stopped,
}

/// What all clones share.
#[derive(Debug)]
struct Core {
    name: String,
    limits: LimitSet,
    store: Arc<dyn Store>,
    clock: SlotClock,
    max_wait: Duration,
    per_key: bool,
    /// The keys for which the store is being asked.
    lanes: Mutex<HashMap<String, Lane>>,
    /// Held by the one who asks the store for its clock; when that was last tried.
    refreshing: tokio::sync::Mutex<Option<Instant>>,
    /// The store's clock stepped.
    jumped: Notify,
}

impl Shaper {
    /// A shaper of `name` at `rate`, to be refined.
    pub fn builder(name: impl Into<String>, rate: crate::Rate) -> ShaperBuilder {
        ShaperBuilder::new(name.into(), rate)
    }

    /// The downstream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Reserves the next slot for `key`, at cost 1. Never waits for the slot itself.
    ///
    /// Cancel safe: a slot that was granted to a dropped future is given back if nobody has taken
    /// a later one by then. Others that ride in the same call are not disturbed.
    ///
    /// # Errors
    /// [`ReserveError::QueueFull`] when the slot is too far ahead; others when the store fails.
    pub async fn reserve(&self, key: &str) -> Result<Reservation, ReserveError> {
        self.reserve_cost(key, 1).await
    }

    /// [`Shaper::reserve`] for work that costs more than 1. The cost is charged behind: this slot
    /// does not depend on it, the next one does.
    ///
    /// Cancel safe, as [`Shaper::reserve`] is.
    ///
    /// # Errors
    /// As [`Shaper::reserve`], and [`ReserveError::CostTooLarge`].
    pub async fn reserve_cost(&self, key: &str, cost: u32) -> Result<Reservation, ReserveError> {
        Ok(self.grant(key, cost).await?.keep())
    }

    /// Reserves, waits, and runs `work`.
    ///
    /// A slot that was missed (see [`Reservation::is_missed`]), as all are that fall into a stall of
    /// this process or into a forward step of the store's clock, is given up and reserved anew: late
    /// work never catches up in a burst.
    ///
    /// Cancel safe until `work` starts: dropped while it waits, it gives the slot back if nobody
    /// has taken a later one. From then on it is as cancel safe as `work`.
    ///
    /// # Errors
    /// As [`Shaper::reserve`], of the first reservation or of one anew; `work` is not run then.
    pub async fn schedule<F: Future>(&self, key: &str, work: F) -> Result<F::Output, ReserveError> {
        loop {
            let mut grant = self.grant(key, 1).await?;
            let due = grant.due().await;
            // Its slot has been reached: there is nothing to give back.
            let _used = grant.keep();
            if due {
                return Ok(work.await);
            }
        }
    }

    /// Forgets what was taken under `key` (without [`ShaperBuilder::per_key`]: by all keys), so
    /// that the next slot is now, whatever was reserved.
    ///
    /// Cancel safe: it is forgotten, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not do it.
    pub async fn reset(&self, key: &str) -> Result<(), StoreError> {
        let scope = self.core.scope(self.core.lane_of(key));
        self.core.store.reset(scope, &self.core.limits).await
    }

    async fn grant(&self, key: &str, cost: u32) -> Result<Grant, ReserveError> {
        let highest = self.core.limits.max_cost();
        if cost > highest {
            return Err(ReserveError::CostTooLarge { cost, highest });
        }
        if cost == 0 {
            let text = "a cost of 0 takes nothing; use at least 1";
            return Err(StoreError::Invalid(text.to_owned()).into());
        }
        let (answer, granted) = oneshot::channel();
        self.core.submit(self.core.lane_of(key), |lane| lane.waiting.push_back(Request { cost, answer }));
        granted.await.unwrap_or(Err(ReserveError::Stopped))
    }
}

/// A mapping of slots is asked for anew once it is this old.
const STALE: Duration = Duration::from_secs(5);

impl Core {
    /// The key under which the store keeps what `key` takes.
    fn lane_of<'a>(&self, key: &'a str) -> &'a str {
        if self.per_key { key } else { "" }
    }

    fn scope<'a>(&'a self, key: &'a str) -> Scope<'a> {
        Scope { downstream: &self.name, key }
    }

    /// Asks the store for its clock, until `deadline` at most, unless that was known or tried
    /// lately. Failing is no harm: what is known goes on to count.
    async fn refresh(&self, deadline: Instant) {
        // Whoever holds it asks for all. Nobody waits for the answer: slots must not wait for a
        // store that hangs.
        let Ok(mut tried) = self.refreshing.try_lock() else { return };
        let Some((age, epoch)) = self.clock.newest() else { return };
        if age < STALE || tried.is_some_and(|at| at.elapsed() < STALE) {
            return;
        }
        let sent = Instant::now();
        *tried = Some(sent);
        let until = deadline.min(sent + Duration::from_secs(1));
        if let Ok(Ok(now)) = tokio::time::timeout_at(until, self.store.ping()).await {
            self.observe(sent, now, epoch);
        }
    }

    /// Takes in an answer of the store, received now. Reservations made before a step back, or a
    /// loss, keep the deadline that they had.
    fn observe(&self, sent: Instant, now: Micros, epoch: Micros) {
        if self.clock.observe(sent, now, epoch, Instant::now()) == Observed::Stepped {
            self.jumped.notify_waiters();
        }
    }

    /// How late a slot may be used: T, within what timers and the network allow for.
    fn tolerance(&self) -> Duration {
        self.limits.rate().interval().clamp(Duration::from_millis(5), Duration::from_millis(50))
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, HashMap<String, Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
