//! Limits inside a program. A [`Shaper`] makes calls wait for their slots; a [`Limiter`] decides at once whether a call
//! may go.

mod builder;
mod calls;
mod core;
mod cost;
mod driver;
mod error;
mod far;
mod grant;
mod known;
mod limiter;
mod line;
mod message;
mod pauses;
mod queue;
mod rates;
mod reservation;
mod task;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use self::core::Core;
use crate::home;
use crate::limit::{Costs, LimitSet};
use crate::pace::LaneId;
use crate::store::{Reserve, StoreError};
pub use builder::{BuildError, ShaperBuilder};
use cost::Cost;
pub use error::{CheckError, ReserveError};
pub use limiter::{Limiter, LimiterBuilder, LimiterFallback};
use line::QueuePlace;
use message::Message;
use queue::Request;
pub use rates::SetRateError;
use reservation::PendingGrant;
pub use reservation::Reservation;

/// Keeps the pace of one downstream, alone or together with all that share its store: other shapers, and the daemon.
///
/// Shapers and daemons share a pace if they have the same store and the same name. They then follow what they agree on
/// in the store: the limits of the process that started or was reloaded last, the rates that operators set over them
/// ([`Shaper::set_rate`], `paced rate set`), and pauses. A process whose own limits differ logs a warning, and follows
/// those in force. A [`Limiter`] of the same name has states of its own.
///
/// | method | where the caller waits |
/// |---|---|
/// | [`acquire`](Self::acquire), [`schedule`](Self::schedule) | in the call, in order; a slot is granted shortly before it comes |
/// | [`reserve`](Self::reserve) | in [`Reservation::wait`]; the call returns the slot at once, however far ahead it lies |
///
/// Prefer the former. Then a process that is killed has taken no more slots than lie in the horizon. Changes of rates
/// and pauses apply to all waiting callers at once. And replicas that share the pace each get their share.
///
/// It is cheap to clone; clones are the same shaper.
///
/// By default the whole downstream has one pace, and the keys of its methods only identify the caller. With
/// [`ShaperBuilder::per_key`] the limits apply to each key separately.
///
/// The task that asks the store runs on a runtime of its own, which a thread drives for all shapers and limiters of the
/// process; [`ShaperBuilder::runtime`] takes another one. So callers may be on any runtime, or on none. Threads without
/// one use [`Shaper::acquire_blocking`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper = paced::Shaper::builder("billing", "1000/s".parse()?).build()?;
/// shaper.acquire("tenant-42").await?;
/// // ... call the downstream
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Shaper {
    core: Arc<Core>,
    /// The lane of the plan of its calls.
    lane: LaneId,
}

impl Shaper {
    /// Returns a builder of a shaper of `name` at `rate`.
    pub fn builder(name: impl Into<String>, rate: crate::Rate) -> ShaperBuilder {
        ShaperBuilder::new(name.into(), rate)
    }

    /// Returns a builder of a shaper of `name` that keeps a set of limits, of any algorithm and in any combination.
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

    /// Returns its limits as they were given, in the order of the costs of [`Shaper::reserve_costs`].
    #[must_use]
    pub fn limits(&self) -> &LimitSet {
        self.core.given.limits_of(self.lane)
    }

    /// Returns the downstream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.given.downstream
    }

    /// Returns the same shaper for the calls of a plan, which keep its limits too; `None` if there is no such plan.
    /// Plans come from a configuration (`[plans.NAME]`).
    #[must_use]
    pub fn of_plan(&self, name: &str) -> Option<Self> {
        let plan = self.core.given.plans.iter().position(|plan| plan.name == name)?;
        Some(Self { core: Arc::clone(&self.core), lane: LaneId::of_plan(Some(plan)) })
    }

    /// Waits for the next slot, and returns when it has come: the work may start now.
    ///
    /// Waiting callers get their slots in the order in which they called; only a call that costs more than a window has
    /// left lets others go first. A slot is requested shortly before it comes. If it is missed (see
    /// [`Reservation::is_missed`]), because this process was stopped or the downstream was paused, this waits for
    /// another one: late work never catches up in a burst.
    ///
    /// While the store cannot be reached this waits, or follows a fallback; see [`ShaperBuilder::on_unavailable`].
    ///
    /// Cancel safe: if it is dropped while it waits, it takes no slot. A slot that was granted already goes to the next
    /// waiting caller, or back to the store.
    ///
    /// # Errors
    /// [`ReserveError::QueueFull`] when there is no slot within `max_wait`: at once if the queue is so long that this
    /// is certain, and otherwise after `max_wait`; [`ReserveError::Paused`] when the downstream is paused for longer;
    /// [`ReserveError::Store`] when the store refuses to decide, or could not be reached for that time (with
    /// [`ShaperBuilder::per_key`] at once); [`ReserveError::CostTooLarge`] when the limits in force do not hold its
    /// cost any more; [`ReserveError::NoLimits`] and [`ReserveError::Stopped`] as they say.
    pub async fn acquire(&self, key: &str) -> Result<(), ReserveError> {
        self.acquire_cost(key, 1).await
    }

    /// Waits as [`Shaper::acquire`] does, for work that costs more than 1; see [`Shaper::reserve_cost`].
    ///
    /// Cancel safe, as [`Shaper::acquire`] is.
    ///
    /// # Errors
    /// As [`Shaper::acquire`], and [`ReserveError::CostTooLarge`].
    pub async fn acquire_cost(&self, key: &str, cost: u32) -> Result<(), ReserveError> {
        if !self.core.per_key {
            self.check(&Cost::Each(cost))?;
            return QueuePlace::join(&self.core, self.lane, cost)?.acquire().await;
        }
        loop {
            let mut reservation = self.grant(key, Cost::Each(cost)).await?;
            if reservation.due().await {
                reservation.keep();
                return Ok(());
            }
            // The dropped reservation is given back if it still lies ahead.
        }
    }

    /// Waits as [`Shaper::acquire`] does, and blocks this thread meanwhile. Within [`tokio::task::spawn_blocking`] it may
    /// be used too. Within [`tokio::task::unconstrained`] it is not noticed that a runtime polls.
    ///
    /// # Errors
    /// As [`Shaper::acquire`], and [`ReserveError::WouldBlock`] if a runtime polls on this thread, which others need then.
    pub fn acquire_blocking(&self, key: &str) -> Result<(), ReserveError> {
        if home::is_polled() {
            return Err(ReserveError::WouldBlock);
        }
        home::block_on(self.acquire(key))
    }

    /// Waits as [`Shaper::acquire`] does, and then runs `work`.
    ///
    /// Cancel safe until `work` starts, as [`Shaper::acquire`] is. From then on it is as cancel safe as `work`.
    ///
    /// # Errors
    /// As [`Shaper::acquire`]; `work` is not run then.
    pub async fn schedule<F: Future>(&self, key: &str, work: F) -> Result<F::Output, ReserveError> {
        self.acquire(key).await?;
        Ok(work.await)
    }

    /// Reserves the next slot for `key`, at cost 1, however far ahead up to `max_wait`. It never waits for the slot
    /// itself.
    ///
    /// Slots far ahead would starve callers that wait for theirs in order. So while a caller waits, by
    /// [`Shaper::acquire`] here or in another process, or in a daemon, those who reserve in this process take turns
    /// with it: together they have one slot at a time, within the horizon, or as much further ahead as a higher cost
    /// has to reach. Others are refused; the error says when to ask again. A caller that takes slot after slot counts
    /// as waiting for one more second. If a pace is shared, prefer [`Shaper::acquire`].
    ///
    /// Cancel safe: a slot that was granted to a dropped future is given back unless a later one was taken by then.
    /// Others in the same call are not affected.
    ///
    /// # Errors
    /// [`ReserveError::QueueFull`] when the slot is too far ahead; [`ReserveError::NotYet`] when others wait in order and
    /// it is not the turn of those who reserve here; other errors when the store fails.
    pub async fn reserve(&self, key: &str) -> Result<Reservation, ReserveError> {
        self.reserve_cost(key, 1).await
    }

    /// Reserves as [`Shaper::reserve`] does, for work that costs more than 1. A leaky bucket, and so
    /// [`Shaper::builder`]'s rate, charges the cost behind: this slot does not depend on it, the next one does. All
    /// other limits need the whole cost to fit at the slot.
    ///
    /// Cancel safe, as [`Shaper::reserve`] is.
    ///
    /// # Errors
    /// As [`Shaper::reserve`], and [`ReserveError::CostTooLarge`].
    pub async fn reserve_cost(&self, key: &str, cost: u32) -> Result<Reservation, ReserveError> {
        self.grant(key, Cost::Each(cost)).await
    }

    /// Reserves as [`Shaper::reserve`] does, with one cost per limit, in the order in which they were given
    /// ([`Shaper::limits`]). A limit with cost 0 is not consulted.
    ///
    /// Cancel safe, as [`Shaper::reserve`] is.
    ///
    /// # Errors
    /// As [`Shaper::reserve`], [`ReserveError::CostTooLarge`] and [`ReserveError::CostCount`].
    pub async fn reserve_costs(&self, key: &str, costs: &[u32]) -> Result<Reservation, ReserveError> {
        self.grant(key, Cost::PerLimit(costs.into())).await
    }

    /// Returns how long from now the next slot for `key` lies, at cost 1, unless another caller takes it. Nothing is
    /// taken, and it may lie beyond `max_wait`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not answer.
    pub async fn peek(&self, key: &str) -> Result<Duration, StoreError> {
        let (core, lane, key) = (Arc::clone(&self.core), self.lane, self.core.key_of(key).to_owned());
        let sent = Instant::now();
        let reserved = self.core.call(async move {
            let settings = core.settings();
            let limits = settings.limits_of(lane);
            core.store.reserve(Reserve::new(core.scope(&key), limits, Costs::Each(&[]), Duration::ZERO)).await
        });
        let reserved = reserved.await?;
        self.core.forward_answer(sent, reserved.stamp).await;
        Ok(reserved.next.since(reserved.stamp.now))
    }

    /// Forgets what was taken under `key` (without [`ShaperBuilder::per_key`]: by all keys), so
    /// that the next slot is now, also after many reservations.
    ///
    /// Cancel safe: it is forgotten, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not do it.
    pub async fn reset(&self, key: &str) -> Result<(), StoreError> {
        let (core, lane, key) = (Arc::clone(&self.core), self.lane, self.core.key_of(key).to_owned());
        let reset = async move { core.store.reset(core.scope(&key), core.settings().limits_of(lane)).await };
        self.core.call(reset).await?;
        self.core.send_if_running(Message::Reset);
        Ok(())
    }

    /// Checks that the cost can ever be granted.
    fn check(&self, cost: &Cost) -> Result<(), ReserveError> {
        cost.check(self.limits())?;
        if cost.is_nothing() {
            let text = "a cost of 0 takes nothing; use at least 1";
            return Err(StoreError::Invalid(text.to_owned()).into());
        }
        Ok(())
    }

    async fn grant(&self, key: &str, cost: Cost) -> Result<Reservation, ReserveError> {
        self.check(&cost)?;
        let key = self.core.key_of(key);
        for _ in 0..self::core::TRIES {
            let (sender, answer) = oneshot::channel();
            let mut pending = PendingGrant { core: &self.core, answer };
            let request = Request { cost: cost.clone(), answer: sender };
            if !self.core.send(Message::Reserve { lane: self.lane, key: key.to_owned(), request }) {
                break;
            }
            // The store answers, or its time-outs end the call. A runtime that was given may stand still.
            let most = self.core.max_wait.max(self::core::LONGEST_CALL);
            match self.core.home().timed(async { timeout(most, &mut pending.answer).await }).await {
                Ok(Ok(granted)) => return granted.map(|grant| Reservation::new(&self.core, grant)),
                Ok(Err(_)) => {}
                Err(_) => break,
            }
        }
        Err(ReserveError::Stopped)
    }
}

#[cfg(test)]
mod tests;
