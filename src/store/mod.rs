//! Where the state of the limits lives: in this process ([`MemoryStore`]), or shared in Redis.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::limit::{Charge, Costs, LimitSet, Mark, Passed, Refusal, Verdict};
use crate::time::Micros;

mod call;
mod changes;
mod dump;
mod lanes;
mod memory;
mod offset;
mod record;
#[cfg(feature = "redis")]
mod redis;
pub(crate) mod turns;

pub use crate::limit::MAX_BATCH;
pub(crate) use call::check_downstream;
pub use changes::Changes;
pub use lanes::{Lane, Lanes, MAX_STATES, Outcome};
pub use memory::{MemoryHandle, MemoryStore};
pub(crate) use offset::Mapping;
pub use offset::{Observed, SlotClock};
pub use record::{Change, LONGEST_PAUSE, Pause, Recall, RecordState, Status};
#[cfg(feature = "redis")]
pub use redis::{Options as RedisOptions, RedisStore};
pub use turns::{Asker, Booking, NextTurn, Turn};

/// A clock that falls behind the highest instant seen by more than this has stepped back.
const STEP: Duration = Duration::from_millis(100);
/// The highest instant seen is written down when it has risen by as much: not with every call.
const TICK: Duration = Duration::from_millis(25);
/// The longest [`Lease`] that can be asked for.
pub const LONGEST_LEASE: Duration = Duration::from_secs(60);
/// One who has booked a turn lives at least twice as long as until then, but no longer than this.
const LONGEST_LIFE: Duration = Duration::from_secs(600);
/// How long a state is kept once it equals absence.
const GRACE: Duration = Duration::from_secs(60);

/// A future that a trait object hands out.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whose state a call touches: one downstream, and inside it one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope<'a> {
    /// The downstream's name; in Redis also the hash tag of all its keys.
    pub downstream: &'a str,
    /// The key of a limit that each key has for itself; empty: the limit is the whole downstream's.
    pub key: &'a str,
}

/// One call for the slots of up to [`MAX_BATCH`] jobs.
#[derive(Clone, Copy, Debug)]
pub struct Reserve<'a> {
    /// Whose limits.
    pub scope: Scope<'a>,
    /// The limits, which decide together.
    pub limits: &'a LimitSet,
    /// What each job costs, in the order in which they take their slots.
    pub costs: Costs<'a>,
    /// How far after the store's now a slot may lie; a job whose slot lies further gets none.
    pub ahead: Duration,
    /// Says that this replica is alive, and asks how many are; not needed with every call.
    pub lease: Option<Lease<'a>>,
    /// Says how far ahead a slot may lie while others work on the downstream; not together with a lease or with lanes.
    pub shared: Option<SharedHorizon<'a>>,
    /// The generation of the terms that the limits are from: slots are granted only while these are in force. 0: they
    /// are nobody's business.
    pub generation: u64,
    /// Takes turns with others; not for who asks once, whenever slots are free.
    pub asker: Option<Asker>,
    /// The lanes of the jobs. Then `limits` are the downstream's own, under no key, and take the same of each job.
    pub lanes: Option<Lanes<'a>>,
    /// How long a job may wait at most. It decides on nothing, but says whom [`Reserved::outcomes`] calls refused for
    /// good.
    pub max_wait: Option<Duration>,
}

impl<'a> Reserve<'a> {
    /// Asks once for slots up to `ahead` of now, under whatever terms are in force.
    #[must_use]
    pub const fn new(scope: Scope<'a>, limits: &'a LimitSet, costs: Costs<'a>, ahead: Duration) -> Self {
        Self {
            scope,
            limits,
            costs,
            ahead,
            lease: None,
            shared: None,
            generation: 0,
            asker: None,
            lanes: None,
            max_wait: None,
        }
    }
}

/// A replica's word that it works on a downstream, good for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a> {
    /// Tells the replicas of a downstream apart: 1 to 64 bytes.
    pub replica: &'a str,
    /// How long it counts as alive from the store's now on: up to [`LONGEST_LEASE`].
    pub ttl: Duration,
}

/// How far ahead a slot may lie while other replicas hold leases on the downstream: slots far ahead would starve them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedHorizon<'a> {
    /// The caller: a lease of its own does not count. 1 to 64 bytes.
    pub replica: &'a str,
    /// A slot lies at most so far after the store's now then; without such leases as far as [`Reserve::ahead`].
    pub horizon: Duration,
}

/// The answer to [`Reserve`]: slots for the first jobs that fit, and why there are no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The store's clock when it decided.
    pub now: Micros,
    /// When the store's record of the downstream began; another value means that state was lost.
    pub epoch: Micros,
    /// The mark of each limit before the first slot was taken; behind them those of the states of lanes, in the order
    /// in which the lanes name them first.
    pub before: Vec<Mark>,
    /// The slots granted, in the order of [`Reserve::costs`]; see [`Reserved::jobs`].
    pub slots: Vec<Micros>,
    /// Which limits each of those jobs was charged to: the downstream's, then its lane's.
    pub charges: Vec<Charge>,
    /// The jobs that were passed over while later ones got slots: those that wait for the end of a window, of which
    /// a job that costs less may have what is left. In a call with lanes, all that got none.
    pub passed: Vec<Passed>,
    /// The first slot that was not granted to the jobs behind all these. In a call with lanes, the downstream's next
    /// one, where that ended it.
    pub refused: Option<Refusal>,
    /// The first slot of a job of cost 1 after those granted, as far as this call knows: the downstream's.
    pub next: Micros,
    /// The replicas of the downstream that live, the caller among them; `None` without a lease.
    pub replicas: Option<u32>,
    /// The next turn of one who takes turns.
    pub booking: Option<Booking>,
    /// What else holds for the downstream.
    pub status: Status,
    /// Other terms are in force than those of [`Reserve::generation`]: nothing was granted for it.
    pub outdated: bool,
}

/// A granted slot, and what giving it back needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The slot.
    pub slot: Micros,
    /// What each limit was charged; 0: nothing.
    pub charged: Vec<u32>,
    /// The mark of each limit before it was taken.
    pub before: Vec<Mark>,
    /// The mark of each limit after it was taken.
    pub after: Vec<Mark>,
}

impl Reserved {
    /// The slots granted to a call without lanes, with what giving them back needs. `limits` and `costs` are the
    /// call's.
    #[must_use]
    pub fn granted(&self, limits: &LimitSet, costs: Costs<'_>) -> Vec<Granted> {
        let mut marks = self.before.clone();
        let mut granted = self.jobs().peekable();
        let rows = limits.rows(costs).enumerate().filter(|(job, _)| granted.next_if_eq(job).is_some());
        let grants = self.slots.iter().zip(&self.charges).zip(rows.map(|(_, row)| row));
        let grant = |((&slot, &charge), row): ((&Micros, &Charge), _)| {
            let charged = limits.charged(&row, charge);
            let after = limits.marks_after(&marks, slot, &charged);
            let before = std::mem::replace(&mut marks, after.clone());
            Granted { slot, charged, before, after }
        };
        grants.map(grant).collect()
    }
}

/// One call that asks whether up to [`MAX_BATCH`] jobs fit now, and takes those that do.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Whose limits.
    pub scope: Scope<'a>,
    /// The limits.
    pub limits: &'a LimitSet,
    /// What each job costs. Those that do not fit take nothing, and hinder no other. One that costs
    /// nothing only looks.
    pub costs: Costs<'a>,
    /// As in [`Reserve::generation`].
    pub generation: u64,
}

/// The answer to [`Check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The store's clock when it decided.
    pub now: Micros,
    /// As in [`Reserved::epoch`].
    pub epoch: Micros,
    /// One for each job; none where other terms are in force.
    pub verdicts: Vec<Verdict>,
    /// As in [`Reserved::status`].
    pub status: Status,
    /// As in [`Reserved::outdated`].
    pub outdated: bool,
}

/// A reservation to give back: its slot and the marks before and after it was taken.
#[derive(Clone, Copy, Debug)]
pub struct Cancel<'a> {
    /// Whose limits.
    pub scope: Scope<'a>,
    /// The same limits as when it was reserved.
    pub limits: &'a LimitSet,
    /// The job's lane, if it had one.
    pub lane: Option<Lane<'a>>,
    /// The slot.
    pub slot: Micros,
    /// As in [`Granted::charged`].
    pub charged: &'a [u32],
    /// As in [`Granted::before`].
    pub before: &'a [Mark],
    /// As in [`Granted::after`].
    pub after: &'a [Mark],
    /// Whether the slot is given back although it has passed: for those who know that they did not use it.
    pub is_unused: bool,
}

/// Keeps the state of limits and decides on it atomically: [`MemoryStore`] and `RedisStore`, and an [`Arc`] of either.
///
/// All callers of one store see one clock: the store's. It is sealed: its methods are the protocol of this version of
/// paced, and change with it.
pub trait Store: sealed::Sealed + Send + Sync + fmt::Debug + 'static {
    /// Reserves slots in one round trip. A refusal consumes nothing.
    ///
    /// Not cancel safe: slots granted to a dropped future are lost (never taken twice). It is not
    /// retried either, since a reply may be lost after the slots were taken.
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> BoxFuture<'a, Result<Reserved, StoreError>>;

    /// Asks in one round trip whether jobs fit now, and takes those that do. A denial consumes nothing.
    ///
    /// Not cancel safe: what was taken for a dropped future stays taken. Not retried, as
    /// [`Store::reserve`] is not.
    fn check<'a>(&'a self, call: Check<'a>) -> BoxFuture<'a, Result<Checked, StoreError>>;

    /// [`Store::check`] where that needs no waiting; `None` where it does, and nothing is decided.
    fn try_check(&self, call: Check<'_>) -> Option<Result<Checked, StoreError>> {
        let _ = call;
        None
    }

    /// Gives a slot back if it lies ahead, or was not used ([`Cancel::is_unused`]), and nobody took a later one; says
    /// whether it did.
    ///
    /// Cancel safe: the slot is given back, or not.
    fn cancel<'a>(&'a self, call: Cancel<'a>) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Forgets the state of the limits under `scope`: the next slot is now, whatever was reserved.
    ///
    /// Cancel safe: it is forgotten, or not.
    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Tells what holds for a whole downstream: pauses, and the terms in force.
    ///
    /// Cancel safe.
    fn read_record<'a>(&'a self, downstream: &'a str) -> BoxFuture<'a, Result<RecordState, StoreError>>;

    /// Changes what holds for a whole downstream, and tells what does then. Others who work on it learn of it through
    /// [`Store::changes`].
    ///
    /// Cancel safe: it is changed, or not. Not retried by itself; each change may be made again.
    fn update_record<'a>(
        &'a self,
        downstream: &'a str,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<RecordState, StoreError>>;

    /// Says how far ahead slots are granted at most to those who work on the downstream: a store that has lost its
    /// state grants none so near, also where the caller that finds the loss asks for none.
    fn set_horizon(&self, downstream: &str, horizon: Duration) {
        let _ = (downstream, horizon);
    }

    /// Tells from now on when somebody changed what holds for a downstream. Changes may be missed while the
    /// store is away; who depends on them looks now and then.
    fn changes(&self, downstream: &str) -> Changes;

    /// Asks the store for its clock: is it there?
    ///
    /// Cancel safe.
    fn ping(&self) -> BoxFuture<'_, Result<Micros, StoreError>>;
}

/// Keeps others from being stores: each must decide as all others do, to the microsecond.
pub(crate) mod sealed {
    pub trait Sealed {}
}

impl<S: Store + ?Sized> sealed::Sealed for Arc<S> {}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> BoxFuture<'a, Result<Reserved, StoreError>> {
        (**self).reserve(call)
    }

    fn check<'a>(&'a self, call: Check<'a>) -> BoxFuture<'a, Result<Checked, StoreError>> {
        (**self).check(call)
    }

    fn try_check(&self, call: Check<'_>) -> Option<Result<Checked, StoreError>> {
        (**self).try_check(call)
    }

    fn cancel<'a>(&'a self, call: Cancel<'a>) -> BoxFuture<'a, Result<bool, StoreError>> {
        (**self).cancel(call)
    }

    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> BoxFuture<'a, Result<(), StoreError>> {
        (**self).reset(scope, limits)
    }

    fn read_record<'a>(&'a self, downstream: &'a str) -> BoxFuture<'a, Result<RecordState, StoreError>> {
        (**self).read_record(downstream)
    }

    fn update_record<'a>(
        &'a self,
        downstream: &'a str,
        change: Change<'a>,
    ) -> BoxFuture<'a, Result<RecordState, StoreError>> {
        (**self).update_record(downstream, change)
    }

    fn set_horizon(&self, downstream: &str, horizon: Duration) {
        (**self).set_horizon(downstream, horizon);
    }

    fn changes(&self, downstream: &str) -> Changes {
        (**self).changes(downstream)
    }

    fn ping(&self) -> BoxFuture<'_, Result<Micros, StoreError>> {
        (**self).ping()
    }
}

/// Why a store did not answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It cannot be reached, did not answer in time, or says that it cannot serve just now.
    #[error("the store at {address} is not reachable: {detail}; is it running, and its URL right?")]
    Unreachable {
        /// Where, without credentials.
        address: String,
        /// What the connection said.
        detail: String,
    },
    /// The call or the URL is wrong; trying again does not help.
    #[error("{0}")]
    Invalid(String),
    /// It answered what paced does not understand.
    #[error("the store at {address} answered unexpectedly: {detail}")]
    Unexpected {
        /// Where, without credentials.
        address: String,
        /// The answer, and what to do.
        detail: String,
    },
}

impl StoreError {
    /// Whether the store is away: it was not reached, did not answer in time, or says that it cannot serve just now.
    /// Any other error is an answer that it will give again until somebody mends the cause.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::Invalid(_))
    }
}
