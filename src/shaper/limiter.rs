//! Policing: may this go now? The same limits, sets and stores as a shaper's.

mod builder;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::CheckError;
use super::calls::Calls;
use super::cost::{BatchCosts, Cost};
use super::queue::{Queue, Request, batch_costs};
use super::task::Task;
use crate::limit::{Decision, LimitSet};
use crate::store::{Check, Checked, Scope, Store, StoreError};
pub use builder::LimiterBuilder;

/// Tells at once whether something may go, alone or together with all limiters that share its store.
///
/// Where a [`Shaper`](super::Shaper) makes its callers wait for their slots, a limiter answers them:
/// allowed, and charged; or denied, until when, and nothing is taken. All limits are policed as
/// [`Limit::policing`](crate::Limit::policing) says.
///
/// By default each key has the limits for itself, where a shaper keeps one pace for all keys: what is
/// policed is each caller's share, and what is shaped is the load on one downstream. With
/// [`LimiterBuilder::shared`] the limits are those of all keys together.
///
/// Limiters share state when they have one store, name, set of limits and scope (each key's own, or
/// shared). Nobody else's state is touched: a shaper, or the daemon, of the same name and with limits of the
/// same names has another one.
///
/// A Redis that restarted, or lost its data, may have forgotten what was taken. Limits of the GCRA family
/// then start empty, also those of keys never seen: nobody gets a burst twice, and each unit comes back at
/// the rate. Windows, logs and quotas start anew.
///
/// Calls are batched per key: checks that arrive while the store is asked about their key are made with the
/// next call, and each gets the decision that it would have got alone. Different keys go side by side.
/// When nothing is under way a check leaves at once.
///
/// Cheap to clone; clones are one limiter.
///
/// ```
/// use std::time::Duration;
/// use paced::{Limit, Limiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::builder("api")
///     .limit(Limit::gcra("per-minute", "10/m".parse()?, 2)?)
///     .limit(Limit::fixed_window("per-hour", 1000, Duration::from_secs(3600))?)
///     .build()?;
/// assert!(limiter.check("tenant-42").await?.allowed);
/// assert!(limiter.check("tenant-42").await?.allowed);
/// let denied = limiter.check("tenant-42").await?;
/// assert!(!denied.allowed && denied.retry_after <= Duration::from_secs(6));
/// assert_eq!(limiter.limits().get(denied.binding).map(Limit::name), Some("per-minute"));
/// assert!(limiter.check("tenant-43").await?.allowed, "each key has its own");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    core: Arc<Core>,
}

/// What one who checks is told.
type Answer = Result<Decision, CheckError>;

/// What all clones share.
#[derive(Debug)]
struct Core {
    policy: Arc<Policy>,
    /// Asks the store where that cannot be done at once.
    task: Task<Ask>,
}

/// What is decided by.
#[derive(Debug)]
struct Policy {
    name: String,
    /// The limits as they were given, policing.
    limits: LimitSet,
    /// The same limits under the names that the store knows.
    stored: LimitSet,
    store: Arc<dyn Store>,
    shared: bool,
}

/// A check under a key of the store.
type Ask = (String, Request<Answer>);

impl Limiter {
    /// A limiter of `name`, which needs limits still.
    pub fn builder(name: impl Into<String>) -> LimiterBuilder {
        LimiterBuilder::new(name.into())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.policy.name
    }

    /// Its limits as they are policed, in the order of [`Limiter::check_costs`] and of
    /// [`Decision::standings`].
    #[must_use]
    pub fn limits(&self) -> &LimitSet {
        &self.core.policy.limits
    }

    /// Whether `key` may go now, at cost 1. If so, it is charged.
    ///
    /// A check whose future is dropped before its call left takes nothing. Dropped later it may have been
    /// charged: nobody knows then what was decided, and nothing is given back. Others in the
    /// same call are not disturbed.
    ///
    /// # Errors
    /// [`CheckError`] when there is no decision; a denial is one.
    pub async fn check(&self, key: &str) -> Result<Decision, CheckError> {
        self.submit(key, Cost::Each(1)).answer().await
    }

    /// [`Limiter::check_cost`] without awaiting: for callers that must not. `None` where the store cannot decide in this
    /// process, and nothing was decided.
    ///
    /// # Errors
    /// As [`Limiter::check_cost`].
    pub fn try_check(&self, key: &str, cost: u32) -> Option<Result<Decision, CheckError>> {
        let cost = Cost::Each(cost);
        if let Err(invalid) = cost.check(&self.core.policy.limits) {
            return Some(Err(invalid.into()));
        }
        self.core.policy.decide_at_once(key, &cost)
    }

    /// [`Limiter::check`] for what costs more than 1: all of it fits now, or nothing is taken.
    ///
    /// Cancel safety as of [`Limiter::check`].
    ///
    /// # Errors
    /// As [`Limiter::check`], and [`CheckError::CostTooLarge`].
    pub async fn check_cost(&self, key: &str, cost: u32) -> Result<Decision, CheckError> {
        self.submit(key, Cost::Each(cost)).answer().await
    }

    /// [`Limiter::check`] for what costs each limit its own: one cost per limit, in the order in which they
    /// were given. A limit that it costs 0 is not asked.
    ///
    /// Cancel safety as of [`Limiter::check`].
    ///
    /// # Errors
    /// As [`Limiter::check`], [`CheckError::CostTooLarge`] and [`CheckError::CostCount`].
    pub async fn check_costs(&self, key: &str, costs: &[u32]) -> Result<Decision, CheckError> {
        self.submit(key, Cost::PerLimit(costs.into())).answer().await
    }

    /// Several checks at once, keys with costs: one answer for each, in their order. Those of one key are
    /// decided in their order, each by itself: a denial hinders no other, and nothing is undone.
    ///
    /// Cancel safety as of [`Limiter::check`], for each.
    pub async fn check_many<K: AsRef<str>>(&self, checks: &[(K, u32)]) -> Vec<Result<Decision, CheckError>> {
        // All are under way before the first is waited for.
        let pending: Vec<Pending> =
            checks.iter().map(|(key, cost)| self.submit(key.as_ref(), Cost::Each(*cost))).collect();
        let mut answers = Vec::with_capacity(pending.len());
        for pending in pending {
            answers.push(pending.answer().await);
        }
        answers
    }

    /// How the limits of `key` stand: a check at cost 0, which takes nothing and changes nothing.
    ///
    /// It is allowed unless what was taken reaches beyond now; ask [`Decision::remaining`] and
    /// [`Decision::standings`] what would fit.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As [`Limiter::check`].
    pub async fn peek(&self, key: &str) -> Result<Decision, CheckError> {
        self.submit(key, Cost::Each(0)).answer().await
    }

    /// Forgets what was taken under `key` (with [`LimiterBuilder::shared`]: under all keys). Checks that
    /// are under way come before or after it.
    ///
    /// Cancel safe: it is forgotten, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not do it.
    pub async fn reset(&self, key: &str) -> Result<(), StoreError> {
        let policy = &self.core.policy;
        policy.store.reset(policy.scope(policy.key_of(key)), &policy.stored).await
    }

    fn submit(&self, key: &str, cost: Cost) -> Pending {
        if let Err(invalid) = cost.check(&self.core.policy.limits) {
            return Pending::Refused(invalid.into());
        }
        if let Some(answer) = self.core.policy.decide_at_once(key, &cost) {
            return Pending::Decided(answer);
        }
        let (answer, decided) = oneshot::channel();
        let policy = &self.core.policy;
        let ask = (policy.key_of(key).to_owned(), Request { cost, answer });
        // Without a runtime nobody asks, which the end of the channel tells.
        self.core.task.send(ask, |inbox| run(Arc::clone(policy), inbox));
        Pending::Asked(decided)
    }
}

/// A check that was submitted.
enum Pending {
    Refused(CheckError),
    Decided(Answer),
    Asked(oneshot::Receiver<Answer>),
}

impl Pending {
    async fn answer(self) -> Answer {
        match self {
            Self::Refused(error) => Err(error),
            Self::Decided(answer) => answer,
            Self::Asked(decided) => decided.await.unwrap_or(Err(CheckError::Stopped)),
        }
    }
}

impl Policy {
    /// The key under which the store keeps what `key` takes.
    fn key_of<'a>(&self, key: &'a str) -> &'a str {
        if self.shared { "" } else { key }
    }

    fn scope<'a>(&'a self, key: &'a str) -> Scope<'a> {
        Scope { downstream: &self.name, key }
    }

    /// The decision, where the store needs not be awaited: neither a call nor a task is made for it.
    fn decide_at_once(&self, key: &str, cost: &Cost) -> Option<Answer> {
        let batch = BatchCosts::of(&self.stored, std::iter::once(cost));
        let (scope, costs) = (self.scope(self.key_of(key)), batch.costs());
        let call = Check { scope, limits: &self.stored, costs, generation: 0 };
        Some(match self.store.try_check(call)? {
            Ok(Checked { now, mut verdicts, .. }) => Ok(self.limits.decision(now, verdicts.pop()?)),
            Err(error) => Err(error.into()),
        })
    }

    /// Has the store decide on these checks of one key.
    async fn decide(self: Arc<Self>, key: String, requests: Vec<Request<Answer>>) {
        let batch = batch_costs(&self.stored, &requests);
        let (scope, costs) = (self.scope(&key), batch.costs());
        let call = Check { scope, limits: &self.stored, costs, generation: 0 };
        match self.store.check(call).await {
            Ok(Checked { now, verdicts, .. }) => {
                // A caller that is gone needs no answer.
                for (Request { answer, .. }, verdict) in requests.into_iter().zip(verdicts) {
                    let _ = answer.send(Ok(self.limits.decision(now, verdict)));
                }
            }
            Err(error) => {
                for Request { answer, .. } in requests {
                    let _ = answer.send(Err(error.clone().into()));
                }
            }
        }
    }
}

/// The most checks that are taken in at once before the store is asked.
const MAX_CHECKS_PER_TURN: usize = 1024;

/// The task of a limiter: asks the store for each key until nobody is left who could check.
async fn run(policy: Arc<Policy>, mut inbox: mpsc::UnboundedReceiver<Ask>) {
    let mut calls = Calls::<String, Queue<Answer>, ()>::new();
    let mut is_open = true;
    loop {
        calls.start(|key, queue| {
            let requests = queue.take_batch();
            (!requests.is_empty()).then(|| Arc::clone(&policy).decide(key.clone(), requests))
        });
        if !is_open && calls.is_empty() {
            return;
        }
        tokio::select! {
            ask = inbox.recv(), if is_open => match ask {
                Some(ask) => {
                    let more = std::iter::from_fn(|| inbox.try_recv().ok()).take(MAX_CHECKS_PER_TURN);
                    std::iter::once(ask).chain(more).for_each(|(key, request)| calls.line(key).push(request));
                }
                None => is_open = false,
            },
            _ = calls.next(), if !calls.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests;
