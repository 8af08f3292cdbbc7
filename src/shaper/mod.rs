//! Limits inside a program. A [`Shaper`] makes calls wait for their slots; a [`Limiter`] tells at once
//! whether one may go.

mod asking;
mod batch;
mod builder;
mod cost;
mod error;
mod limiter;
mod pause;
mod reservation;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::limit::{Costs, LimitSet};
use crate::store::{Change, LONGEST_PAUSE, Observed, Reserve, Scope, SlotClock, Status, Store, StoreError};
use crate::time::Micros;
use asking::Lane;
use batch::{Lanes, Request, submit};
pub use builder::{BuildError, ShaperBuilder};
use cost::Cost;
pub use error::{CheckError, ReserveError};
pub use limiter::{Limiter, LimiterBuilder};
use pause::Pauses;
use reservation::Grant;
pub use reservation::Reservation;

/// Keeps the pace of one downstream, alone or together with all shapers that share its store.
///
/// Shapers share a pace when they have one store, name, set of limits and `max_wait`. They do not share
/// it with the daemon yet, nor with a [`Limiter`]: their states of the same name are others.
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

/// Where the next slot lies; see [`Shaper::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextSlot {
    /// The instant on the store's clock.
    pub slot: Micros,
    /// How long after the store's now that is.
    pub wait: Duration,
}

/// What all clones share.
#[derive(Debug)]
struct Core {
    name: String,
    /// The limits as they were given.
    limits: LimitSet,
    /// The same limits under the names that the store knows.
    stored: LimitSet,
    store: Arc<dyn Store>,
    clock: SlotClock,
    max_wait: Duration,
    per_key: bool,
    /// The keys for which the store is being asked.
    lanes: Lanes<Lane>,
    /// Held by the one who asks the store for its clock; when that was last tried.
    refreshing: tokio::sync::Mutex<Option<Instant>>,
    /// The store's clock stepped, or the downstream is paused, or no longer.
    jumped: Notify,
    pauses: Pauses,
    /// Ends the watch for pauses.
    gone: Arc<Notify>,
}

impl Shaper {
    /// A shaper of `name` at `rate`, to be refined.
    pub fn builder(name: impl Into<String>, rate: crate::Rate) -> ShaperBuilder {
        ShaperBuilder::new(name.into(), rate)
    }

    /// A shaper of `name` that keeps a set of limits, of any algorithm and however they combine.
    ///
    /// ```
    /// use std::time::Duration;
    /// use paced::{Limit, LimitSet, Shaper};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limits = LimitSet::new(vec![
    ///     Limit::leaky_bucket("pace", "50/s".parse()?, 1)?,
    ///     Limit::sliding_log("per-minute", 1000, Duration::from_secs(60))?,
    /// ])?;
    /// let shaper = Shaper::with_limits("billing", limits).build()?;
    /// let reservation = shaper.reserve_costs("tenant-42", &[1, 5]).await?;
    /// # drop(reservation);
    /// # Ok(()) }
    /// ```
    pub fn with_limits(name: impl Into<String>, limits: LimitSet) -> ShaperBuilder {
        ShaperBuilder::with_limits(name.into(), limits)
    }

    /// Its limits, in the order of the costs of [`Shaper::reserve_costs`].
    #[must_use]
    pub fn limits(&self) -> &LimitSet {
        &self.core.limits
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

    /// [`Shaper::reserve`] for work that costs more than 1. A leaky bucket, and so [`Shaper::builder`]'s
    /// rate, charges it behind: this slot does not depend on it, the next one does. All other limits
    /// need the whole cost to fit at the slot.
    ///
    /// Cancel safe, as [`Shaper::reserve`] is.
    ///
    /// # Errors
    /// As [`Shaper::reserve`], and [`ReserveError::CostTooLarge`].
    pub async fn reserve_cost(&self, key: &str, cost: u32) -> Result<Reservation, ReserveError> {
        Ok(self.grant(key, Cost::Each(cost)).await?.keep())
    }

    /// [`Shaper::reserve`] for work that costs each limit its own: one cost per limit, in the order in
    /// which they were given ([`Shaper::limits`]). A limit that it costs 0 is not asked.
    ///
    /// Cancel safe, as [`Shaper::reserve`] is.
    ///
    /// # Errors
    /// As [`Shaper::reserve`], [`ReserveError::CostTooLarge`] and [`ReserveError::CostCount`].
    pub async fn reserve_costs(&self, key: &str, costs: &[u32]) -> Result<Reservation, ReserveError> {
        Ok(self.grant(key, Cost::PerLimit(costs.into())).await?.keep())
    }

    /// When the next slot for `key` would be, at cost 1, if nobody else takes it. Nothing is taken, and it
    /// may lie beyond `max_wait`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not answer.
    pub async fn peek(&self, key: &str) -> Result<NextSlot, StoreError> {
        let core = &self.core;
        let call = Reserve::new(core.scope(core.lane_of(key)), &core.stored, Costs::Each(&[]), core.max_wait);
        let sent = Instant::now();
        let reserved = core.store.reserve(call).await?;
        core.observe(sent, reserved.now, reserved.epoch, reserved.status);
        Ok(NextSlot { slot: reserved.next, wait: reserved.next.since(reserved.now) })
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
            let mut grant = self.grant(key, Cost::Each(1)).await?;
            let due = grant.due().await;
            // Its slot has been reached: there is nothing to give back.
            let _used = grant.keep();
            if due {
                return Ok(work.await);
            }
        }
    }

    /// No slot lies within `span` of now, for every worker on this downstream, the daemon's too: for a downstream that
    /// asks for a pause ([`retry_after`](crate::retry_after)). Of several the latest end counts.
    ///
    /// Slots that lie before it are missed ([`Reservation::is_missed`]); [`Shaper::schedule`] gives them up
    /// and reserves anew. When it is over work goes on at the pace of its limits, without a burst. Others
    /// learn of it at once where the store can tell them (Redis: pub/sub), and with their next call at the
    /// latest.
    ///
    /// Cancel safe: the pause is made, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not do it. Nothing is paused then, but it may be tried again.
    pub async fn penalize(&self, span: Duration) -> Result<(), StoreError> {
        if !span.is_zero() {
            let span = span.clamp(Duration::from_micros(1), LONGEST_PAUSE);
            self.core.update_record(Change::Penalize(span)).await?;
        }
        Ok(())
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
        self.core.store.reset(scope, &self.core.stored).await
    }

    async fn grant(&self, key: &str, cost: Cost) -> Result<Grant, ReserveError> {
        cost.check(&self.core.limits)?;
        if cost.is_nothing() {
            let text = "a cost of 0 takes nothing; use at least 1";
            return Err(StoreError::Invalid(text.to_owned()).into());
        }
        self.core.watch();
        let (answer, granted) = oneshot::channel();
        submit(&self.core, self.core.lane_of(key), |lane| lane.waiting.push(Request { cost, answer }));
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
    async fn refresh(self: &Arc<Self>, deadline: Instant) {
        // Whoever holds it asks for all. Nobody waits for the answer: slots must not wait for a
        // store that hangs.
        let Ok(mut tried) = self.refreshing.try_lock() else { return };
        let Some((age, _)) = self.clock.newest() else { return };
        if age < STALE || tried.is_some_and(|at| at.elapsed() < STALE) {
            return;
        }
        let sent = Instant::now();
        *tried = Some(sent);
        let until = deadline.min(sent + Duration::from_secs(1));
        let _ = tokio::time::timeout_at(until, self.read_record()).await;
    }

    /// Takes in an answer of the store, received now. Reservations made before a step back, or a
    /// loss, keep the deadline that they had.
    fn observe(self: &Arc<Self>, sent: Instant, now: Micros, epoch: Micros, status: Status) {
        let observed = self.clock.observe(sent, now, epoch, Instant::now());
        if observed == Observed::Stepped {
            self.jumped.notify_waiters();
        }
        self.heed(now, epoch, status, observed);
    }

    /// How late a slot may be used.
    fn tolerance(&self) -> Duration {
        self.limits.tolerance()
    }
}

#[cfg(test)]
mod tests;
