//! Policing: decides whether a request may go now, with the same limits, sets and stores as a shaper.

mod builder;
mod fallback;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::CheckError;
use super::calls::Calls;
use super::core::LONGEST_CALL;
use super::cost::{BatchCosts, Cost};
use super::queue::{Queue, Request, batch_costs};
use super::task::Task;
use crate::limit::{Decision, LimitSet};
use crate::lock::lock;
use crate::store::{Check, Checked, MemoryStore, Scope, Store, StoreError};
pub use builder::LimiterBuilder;
pub use fallback::LimiterFallback;
use fallback::{Breaker, Reachable};

/// Decides at once whether a request may go, alone or together with all limiters that share its store.
///
/// While a [`Shaper`](super::Shaper) makes its callers wait for their slots, a limiter answers them: the request is
/// allowed and charged, or denied until an instant and nothing is taken. All limits are policed as
/// [`Limit::policing`](crate::Limit::policing) says.
///
/// By default the limits apply to each key separately, while a shaper keeps one pace for all keys: a limiter polices
/// each caller's share, and a shaper shapes the load on one downstream. With [`LimiterBuilder::shared`] the limits are
/// those of all keys together.
///
/// Limiters share state if they have the same store, name, set of limits and scope (each key's own, or shared). Their
/// state is separate from all others: a shaper, or the daemon, of the same name and with limits of the same names has
/// its own, and so are pauses and resets.
///
/// A Redis that restarted, or lost its data, may have lost what was taken. Limits of the GCRA family then start empty,
/// even for keys never seen: no caller gets a burst twice, and each unit returns at the rate. Windows, logs and quotas
/// start anew.
///
/// Calls are batched per key: checks that arrive while a call for their key is in flight are made with the next call,
/// and each gets the decision that it would have got alone. Calls for different keys run concurrently. If no call is in
/// flight, a check is made at once.
///
/// Once a call has found that the store cannot be reached, checks are answered at once by
/// [`LimiterBuilder::on_unavailable`], until it can; it is tried again after 0.1 s at first and after 5 s at most. So only
/// checks that were made before that wait for the time-outs of the store.
///
/// Callers may be on any runtime, or on none; see [`Shaper`](super::Shaper).
///
/// It is cheap to clone; clones are the same limiter.
///
/// ```
/// use std::time::Duration;
/// use paced::{Limit, Limiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::builder("api")
///     .limit(Limit::gcra("steady", "10/h".parse()?, 2)?)
///     .limit(Limit::fixed_window("per-hour", 1000, Duration::from_secs(3600))?)
///     .build()?;
/// assert!(limiter.check("tenant-42").await?.allowed);
/// assert!(limiter.check("tenant-42").await?.allowed);
/// let denied = limiter.check("tenant-42").await?;
/// assert!(!denied.allowed && denied.retry_after <= Duration::from_secs(360));
/// assert_eq!(limiter.limits().get(denied.binding).map(Limit::name), Some("steady"));
/// assert!(limiter.check("tenant-43").await?.allowed, "each key has its own");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    core: Arc<Core>,
}

/// The answer to a check.
type Answer = Result<Decision, CheckError>;

/// The state that all clones share.
#[derive(Debug)]
struct Core {
    policy: Arc<Policy>,
    /// The task that calls the store if that has to be awaited.
    task: Task<Ask>,
}

/// The limits, and the store that decides.
#[derive(Debug)]
struct Policy {
    name: String,
    /// The name of the record, which no downstream in a configuration can have.
    downstream: String,
    /// The limits as they were given, policing.
    limits: LimitSet,
    /// The same limits under the names that the store uses.
    stored: LimitSet,
    store: Arc<dyn Store>,
    shared: bool,
    on_unavailable: LimiterFallback,
    breaker: Breaker,
    /// The states of this process alone, for [`LimiterFallback::Local`].
    local: Mutex<Arc<MemoryStore>>,
}

/// A check under a key of the store.
type Ask = (String, Request<Answer>);

impl Limiter {
    /// Returns a builder of a limiter of `name`, which still needs limits.
    pub fn builder(name: impl Into<String>) -> LimiterBuilder {
        LimiterBuilder::new(name.into())
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.policy.name
    }

    /// Returns its limits as they are policed, in the order of [`Limiter::check_costs`] and of [`Decision::standings`].
    #[must_use]
    pub fn limits(&self) -> &LimitSet {
        &self.core.policy.limits
    }

    /// Decides whether `key` may go now, at cost 1. If so, it is charged.
    ///
    /// A check whose future is dropped before its call is sent takes nothing. If it is dropped later it may have been
    /// charged: the decision is then unknown, and nothing is given back. Others in the same call are not affected.
    ///
    /// # Errors
    /// [`CheckError`] when there is no decision; a denial is a decision.
    pub async fn check(&self, key: &str) -> Result<Decision, CheckError> {
        self.submit(key, Cost::Each(1)).answer().await
    }

    /// Makes the check of [`Limiter::check_cost`] without awaiting, for callers that must not. Returns `None` if the
    /// store cannot decide within this process; nothing was decided then.
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

    /// Makes the check of [`Limiter::check`] at a cost of more than 1: all of it fits now, or nothing is taken.
    ///
    /// Cancel safety as of [`Limiter::check`].
    ///
    /// # Errors
    /// As [`Limiter::check`], and [`CheckError::CostTooLarge`].
    pub async fn check_cost(&self, key: &str, cost: u32) -> Result<Decision, CheckError> {
        self.submit(key, Cost::Each(cost)).answer().await
    }

    /// Makes the check of [`Limiter::check`] with one cost per limit, in the order in which they were given. A limit
    /// with cost 0 is not consulted.
    ///
    /// Cancel safety as of [`Limiter::check`].
    ///
    /// # Errors
    /// As [`Limiter::check`], [`CheckError::CostTooLarge`] and [`CheckError::CostCount`].
    pub async fn check_costs(&self, key: &str, costs: &[u32]) -> Result<Decision, CheckError> {
        self.submit(key, Cost::PerLimit(costs.into())).answer().await
    }

    /// Makes several checks at once, of keys with costs. Returns one answer for each, in their order. Those of one key
    /// are decided in their order, each by itself: a denial does not affect others, and nothing is undone.
    ///
    /// Cancel safety as of [`Limiter::check`], for each.
    pub async fn check_many<K: AsRef<str>>(&self, checks: &[(K, u32)]) -> Vec<Result<Decision, CheckError>> {
        // All checks are submitted before the first is awaited.
        let pending: Vec<Pending> =
            checks.iter().map(|(key, cost)| self.submit(key.as_ref(), Cost::Each(*cost))).collect();
        let mut answers = Vec::with_capacity(pending.len());
        for pending in pending {
            answers.push(pending.answer().await);
        }
        answers
    }

    /// Returns how the limits of `key` stand: a check at cost 0, which takes nothing and changes nothing.
    ///
    /// It is allowed unless the units taken reach beyond now; [`Decision::remaining`] and [`Decision::standings`] say
    /// what would fit.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As [`Limiter::check`].
    pub async fn peek(&self, key: &str) -> Result<Decision, CheckError> {
        self.submit(key, Cost::Each(0)).answer().await
    }

    /// Forgets what was taken under `key` (with [`LimiterBuilder::shared`]: under all keys). Checks in flight come
    /// before or after it.
    ///
    /// Cancel safe: it is forgotten, or not.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not do it.
    pub async fn reset(&self, key: &str) -> Result<(), StoreError> {
        let (policy, key) = (Arc::clone(&self.core.policy), self.core.policy.key_of(key).to_owned());
        let reset = async move { policy.store.reset(policy.scope(&key), &policy.stored).await };
        self.core.task.home().run(reset).await?
    }

    fn submit(&self, key: &str, cost: Cost) -> Pending {
        if let Err(invalid) = cost.check(&self.core.policy.limits) {
            return Pending::Refused(invalid.into());
        }
        if let Some(answer) = self.core.policy.decide_at_once(key, &cost) {
            return Pending::Decided(answer);
        }
        let policy = &self.core.policy;
        if let Reachable::No { error, is_due } = policy.breaker.reachable() {
            if is_due {
                self.core.task.home().spawn(Arc::clone(policy).try_again());
            }
            return Pending::Decided(policy.decide_without_store(policy.key_of(key), &cost, &error));
        }
        let (answer, decided) = oneshot::channel();
        let ask = (policy.key_of(key).to_owned(), Request { cost, answer });
        // If the task cannot run the channel is closed, which the caller sees as `CheckError::Stopped`.
        self.core.task.send(ask, |inbox| run(Arc::clone(policy), inbox));
        Pending::Asked(decided, Arc::clone(&self.core))
    }
}

/// A check that was submitted.
enum Pending {
    Refused(CheckError),
    Decided(Answer),
    Asked(oneshot::Receiver<Answer>, Arc<Core>),
}

impl Pending {
    async fn answer(self) -> Answer {
        match self {
            Self::Refused(error) => Err(error),
            Self::Decided(answer) => answer,
            Self::Asked(decided, core) => {
                let home = core.task.home();
                tokio::select! {
                    biased;
                    answer = decided => answer.unwrap_or(Err(CheckError::Stopped)),
                    () = home.timed(async { sleep(LONGEST_CALL).await }) => Err(CheckError::Stopped),
                }
            }
        }
    }
}

impl Policy {
    /// Returns the key under which the store keeps the state of `key`.
    fn key_of<'a>(&self, key: &'a str) -> &'a str {
        if self.shared { "" } else { key }
    }

    fn scope<'a>(&'a self, key: &'a str) -> Scope<'a> {
        Scope { downstream: &self.downstream, key }
    }

    /// Returns the decision if the store does not have to be awaited; this needs neither a call nor a task.
    fn decide_at_once(&self, key: &str, cost: &Cost) -> Option<Answer> {
        self.decide_in(&*self.store, self.key_of(key), cost)
    }

    /// Returns the decision while the store cannot be reached.
    fn decide_without_store(&self, key: &str, cost: &Cost, error: &StoreError) -> Answer {
        let decided = match self.on_unavailable {
            LimiterFallback::Fail => None,
            // A store in which nothing was taken.
            LimiterFallback::Allow => self.decide_in(&MemoryStore::new(), key, cost),
            LimiterFallback::Local => self.decide_in(&**lock(&self.local), key, cost),
        };
        let decided = decided.unwrap_or_else(|| Err(error.clone().into()));
        decided.map(|decision| Decision { is_fallback: true, ..decision })
    }

    /// Returns the decision of a store that does not have to be awaited, under a key of the store.
    fn decide_in(&self, store: &dyn Store, key: &str, cost: &Cost) -> Option<Answer> {
        let batch = BatchCosts::of(&self.stored, std::iter::once(cost));
        let (scope, costs) = (self.scope(key), batch.costs());
        let call = Check { scope, limits: &self.stored, costs, generation: 0 };
        Some(match store.try_check(call)? {
            Ok(Checked { stamp, mut verdicts, .. }) => Ok(self.limits.decision(stamp.now, verdicts.pop()?)),
            Err(error) => Err(error.into()),
        })
    }

    /// Has the store decide on these checks of one key.
    async fn decide(self: Arc<Self>, key: String, requests: Vec<Request<Answer>>) {
        let batch = batch_costs(&self.stored, &requests);
        let (scope, costs) = (self.scope(&key), batch.costs());
        let call = Check { scope, limits: &self.stored, costs, generation: 0 };
        match self.store.check(call).await {
            Ok(Checked { stamp, verdicts, .. }) => {
                // A caller that is gone needs no answer.
                for (Request { answer, .. }, verdict) in requests.into_iter().zip(verdicts) {
                    let _ = answer.send(Ok(self.limits.decision(stamp.now, verdict)));
                }
            }
            Err(error) if error.is_away() => {
                if self.breaker.failed(&error) {
                    let (limiter, fallback) = (&self.name, self.on_unavailable);
                    tracing::warn!(limiter, %error, ?fallback, "checks are answered without the store");
                }
                self.answer_without_store(&key, requests, &error);
            }
            Err(error) => {
                for Request { answer, .. } in requests {
                    let _ = answer.send(Err(error.clone().into()));
                }
            }
        }
    }

    /// Answers these checks of one key while the store cannot be reached.
    fn answer_without_store(&self, key: &str, requests: Vec<Request<Answer>>, error: &StoreError) {
        for Request { cost, answer } in requests {
            let _ = answer.send(self.decide_without_store(key, &cost, error));
        }
    }

    /// Tries whether the store can be reached again.
    async fn try_again(self: Arc<Self>) {
        // The record is on the server that has the states of the limiter.
        let read = self.store.read_record(&self.downstream).await;
        // Any answer shows that it can be reached.
        let outcome = read.map(drop).or_else(|error| if error.is_away() { Err(error) } else { Ok(()) });
        if self.breaker.tried(outcome) {
            tracing::info!(limiter = self.name, "the store answers checks again");
            if self.on_unavailable == LimiterFallback::Local {
                let returns = self.breaker.returns();
                sleep(LOCAL_KEPT).await;
                // If it went away again meanwhile, the local states must not start again. Later they only take memory.
                if self.breaker.returns() == returns && self.breaker.error().is_none() {
                    *lock(&self.local) = Arc::default();
                }
            }
        }
    }
}

/// How long the states of this process alone are kept after the store is back.
const LOCAL_KEPT: Duration = Duration::from_secs(600);

/// The most checks that are taken in before the store is called.
const MAX_CHECKS_PER_TURN: usize = 1024;

/// Runs the task of a limiter: it calls the store for each key, until all clones are dropped.
async fn run(policy: Arc<Policy>, mut inbox: mpsc::UnboundedReceiver<Ask>) {
    let mut calls = Calls::<String, Queue<Answer>, ()>::new();
    let mut is_open = true;
    loop {
        calls.start(|key, queue| {
            if let Some(error) = policy.breaker.error() {
                // They came before the store was found to be away, and wait no longer.
                policy.answer_without_store(key, queue.take(usize::MAX), &error);
                return None;
            }
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
                    std::iter::once(ask).chain(more).for_each(|(key, request)| calls.queue(key).push(request));
                }
                None => is_open = false,
            },
            _ = calls.next(), if !calls.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests;
