//! Where the state of the limits lives: in this process ([`MemoryStore`]), also in a file ([`FileStore`]), or shared in Redis.
//!
//! The other items are the protocol between the stores and this version of paced. They change with it, so that this
//! documentation leaves them out.

use std::fmt;
use std::time::Duration;

use crate::limit::{Costs, LimitSet, Mark, Passed, Refusal, Verdict};
use crate::time::Micros;

mod arc;
mod call;
mod changes;
mod error;
mod file;
mod fleet;
mod granted;
mod journal;
mod lanes;
mod memory;
mod offset;
mod parked;
mod record;
#[cfg(feature = "redis")]
mod redis;
mod served;
mod sharing;
mod swept;
#[cfg(any(test, feature = "failpoints"))]
mod tests;
mod tombstones;
pub(crate) mod turns;

#[doc(hidden)]
pub use crate::limit::MAX_BATCH;
pub(crate) use call::check_downstream;
#[doc(hidden)]
pub use changes::Changes;
pub use error::StoreError;
pub use file::FileStore;
#[doc(hidden)]
pub use fleet::{HISTORY_KEPT, HistoryEntry, MAX_HISTORY, MAX_HISTORY_BYTES};
#[doc(hidden)]
pub use fleet::{LONGEST_SUMMARY, MAX_SUMMARIES, MAX_SUMMARY_BYTES};
pub use futures_util::future::BoxFuture;
#[doc(hidden)]
pub use granted::{Charges, Granted};
#[doc(hidden)]
pub use lanes::{Lane, Lanes, MAX_STATES, Outcome};
pub use memory::{MemoryHandle, MemoryStore};
pub(crate) use offset::Mapping;
#[doc(hidden)]
pub use offset::{Observed, SlotClock};
#[doc(hidden)]
pub use parked::{MAX_PARKED_GROUPS, ParkedGroup, ParkedGroups};
#[doc(hidden)]
pub use record::{Change, LONGEST_NOTE, LONGEST_PAUSE, Pause, Recall, RecordState, Status};
#[doc(hidden)]
pub use record::{CoolDown, CoolDownCall};
#[cfg(feature = "redis")]
pub use redis::{Keeping, Options as RedisOptions, RedisStore};
#[doc(hidden)]
pub use served::{MAX_SERVED, MAX_SERVED_BATCH, Served, ServedReply, Unserved};
#[doc(hidden)]
pub use sharing::{Lease, SharedHorizon, Sharing};
#[doc(hidden)]
pub use tombstones::{
    LONGEST_TOMBSTONE, MAX_TOMBSTONE_BATCH, MAX_TOMBSTONES, Tombstone, TombstoneCall, TombstoneReply,
};
#[doc(hidden)]
pub use turns::{Asker, Booking, NextTurn, Turn};

/// The clock has stepped back if it falls behind the highest instant seen by more than this.
const STEP: Duration = Duration::from_millis(100);
/// The highest instant seen is stored when it has risen by this much, rather than with every call.
const TICK: Duration = Duration::from_millis(25);
/// The longest [`Lease`] that can be asked for.
#[doc(hidden)]
pub const LONGEST_LEASE: Duration = Duration::from_secs(60);
/// The lease of an asker that has booked a turn lasts at least twice the time until that turn, but no longer than this.
const LONGEST_TURN_LEASE: Duration = Duration::from_secs(600);
/// How long a state is kept once it equals absence.
const GRACE: Duration = Duration::from_secs(60);

/// The states that a call touches: those of one downstream, and within it of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub struct Scope<'a> {
    /// The downstream's name; in Redis also the hash tag of all its keys.
    pub downstream: &'a str,
    /// The key of a keyed limit; empty for limits that are the whole downstream's.
    pub key: &'a str,
}

/// One call for the slots of up to [`MAX_BATCH`] jobs.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Reserve<'a> {
    /// The downstream and the key of the limits.
    pub scope: Scope<'a>,
    /// The limits, which decide together.
    pub limits: &'a LimitSet,
    /// The cost of each job, in the order in which the jobs take their slots.
    pub costs: Costs<'a>,
    /// How far after the store's now a slot may lie; a job whose slot lies further gets none.
    pub ahead: Duration,
    /// How the caller shares the downstream with other replicas.
    pub sharing: Sharing<'a>,
    /// The generation of the terms that the limits are from: slots are granted only while these are in force. 0 stands
    /// for any.
    pub generation: u64,
    /// Books turns in the queue of askers. A caller that asks once, whenever slots are free, needs none.
    pub asker: Option<Asker>,
    /// The lanes of the jobs. With lanes, `limits` are the downstream's own, under no key, and each job costs all of
    /// them the same.
    pub lanes: Option<Lanes<'a>>,
    /// The longest wait that a job accepts. It does not change the decision, but which jobs [`Reserved::outcomes`]
    /// reports as [`Outcome::QueueFull`].
    pub max_wait: Option<Duration>,
}

impl<'a> Reserve<'a> {
    /// A call that asks once for slots up to `ahead` of now, under any terms.
    #[must_use]
    pub const fn new(scope: Scope<'a>, limits: &'a LimitSet, costs: Costs<'a>, ahead: Duration) -> Self {
        Self {
            scope,
            limits,
            costs,
            ahead,
            sharing: Sharing::None,
            generation: 0,
            asker: None,
            lanes: None,
            max_wait: None,
        }
    }
}

/// The answer to [`Reserve`]: the slots for the first jobs that fit, and the reason why there are no more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Reserved {
    /// When it was decided, and under which record.
    pub stamp: Stamp,
    /// The slots granted, in the order of [`Reserve::costs`]; see [`Reserved::jobs`].
    pub slots: Vec<Micros>,
    /// How the granted jobs were charged, by which slots can be given back.
    pub charges: Charges,
    /// The jobs that were passed over while later ones got slots: each waits for the end of a window, the rest of which
    /// a job that costs less may use. In a call with lanes these are all jobs without a slot.
    pub passed: Vec<Passed>,
    /// The first slot that was not granted to the remaining jobs. In a call with lanes, the downstream's next slot, if
    /// the downstream ended the call.
    pub refused: Option<Refusal>,
    /// The downstream's first slot for a job of cost 1 after those granted, as far as this call knows.
    pub next: Micros,
    /// The number of replicas of the downstream that hold a lease, including the caller; `None` without a lease.
    pub replicas: Option<u32>,
    /// The next turn of the caller, if it takes turns.
    pub booking: Option<Booking>,
    /// The terms in force are not those of [`Reserve::generation`], so nothing was granted.
    pub outdated: bool,
}

/// The clock and the record of a downstream when a store decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Stamp {
    /// The store's clock when it decided.
    pub now: Micros,
    /// When the store's record of the downstream began; another value means that state was lost.
    pub epoch: Micros,
    /// Pauses and the generation of the terms in force.
    pub status: Status,
}

/// One call that asks whether up to [`MAX_BATCH`] jobs fit now, and charges those that do.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Check<'a> {
    /// The downstream and the key of the limits.
    pub scope: Scope<'a>,
    /// The limits.
    pub limits: &'a LimitSet,
    /// The cost of each job. A job that does not fit is charged nothing, and does not affect the others. A job that
    /// costs nothing only reads the state.
    pub costs: Costs<'a>,
    /// As in [`Reserve::generation`].
    pub generation: u64,
}

/// The answer to [`Check`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Checked {
    /// When it was decided, and under which record.
    pub stamp: Stamp,
    /// The verdict on each job; empty where other terms are in force.
    pub verdicts: Vec<Verdict>,
    /// As in [`Reserved::outdated`].
    pub outdated: bool,
}

/// A reservation to give back: its slot and the marks before and after it was taken.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Cancel<'a> {
    /// The downstream and the key of the limits.
    pub scope: Scope<'a>,
    /// The limits of the reservation.
    pub limits: &'a LimitSet,
    /// The job's lane, if it has one.
    pub lane: Option<Lane<'a>>,
    /// The slot.
    pub slot: Micros,
    /// As in [`Granted::charged`].
    pub charged: &'a [u32],
    /// As in [`Granted::before`].
    pub before: &'a [Mark],
    /// As in [`Granted::after`].
    pub after: &'a [Mark],
    /// Whether the slot is given back although it has passed: set by callers that know that they did not use it.
    pub is_unused: bool,
}

/// What a store answers to a call.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Keeps the state of limits and decides on it atomically. [`MemoryStore`], [`FileStore`] and `RedisStore` implement it, and
/// an [`Arc`](std::sync::Arc) of each.
///
/// All callers of one store see one clock: the store's. It is sealed: its methods are the protocol of this version of
/// paced, and change with it.
pub trait Store: sealed::Sealed + Send + Sync + fmt::Debug + 'static {
    /// Reserves slots in one round trip. A refusal consumes nothing.
    ///
    /// Not cancel safe: slots granted to a dropped future are lost (never taken twice). It is not
    /// retried either, since a reply may be lost after the slots were taken.
    #[doc(hidden)]
    fn reserve<'a>(&'a self, call: Reserve<'a>) -> Answer<'a, Reserved>;

    /// Asks in one round trip whether jobs fit now, and takes those that do. A denial consumes nothing.
    ///
    /// Not cancel safe: what was taken for a dropped future stays taken. It is not retried, for the same reason as
    /// [`Store::reserve`].
    #[doc(hidden)]
    fn check<'a>(&'a self, call: Check<'a>) -> Answer<'a, Checked>;

    /// Answers [`Store::check`] if that needs no waiting; otherwise returns `None`, and nothing is decided.
    #[doc(hidden)]
    fn try_check(&self, call: Check<'_>) -> Option<Result<Checked, StoreError>> {
        let _ = call;
        None
    }

    /// Gives a slot back if it lies ahead, or was not used ([`Cancel::is_unused`]), and nobody took a later one.
    /// Returns whether it did.
    ///
    /// Cancel safe: the slot is given back, or not.
    #[doc(hidden)]
    fn cancel<'a>(&'a self, call: Cancel<'a>) -> Answer<'a, bool>;

    /// Discards the state of the limits under `scope`: the next slot is now, also after many reservations.
    ///
    /// Cancel safe: the state is discarded, or not.
    #[doc(hidden)]
    fn reset<'a>(&'a self, scope: Scope<'a>, limits: &'a LimitSet) -> Answer<'a, ()>;

    /// Reads the record of a downstream: pauses, and the terms in force.
    ///
    /// Cancel safe.
    #[doc(hidden)]
    fn read_record<'a>(&'a self, downstream: &'a str) -> Answer<'a, RecordState>;

    /// Changes the record of a downstream, and returns it as it is then. [`Store::changes`] notifies the others of it.
    ///
    /// Cancel safe: the record is changed, or not. It is not retried by itself; each change is idempotent.
    #[doc(hidden)]
    fn update_record<'a>(&'a self, downstream: &'a str, change: Change<'a>) -> Answer<'a, RecordState>;

    /// Changes or reads the tombstones of cancelled jobs. Others who work on the downstream are notified of a change
    /// through [`Store::changes`], and see a later version in the status of each answer.
    ///
    /// Cancel safe: the change is made, or not. It is not retried by itself; each change is idempotent.
    #[doc(hidden)]
    fn tombstones<'a>(&'a self, downstream: &'a str, call: TombstoneCall<'a>) -> Answer<'a, TombstoneReply>;

    /// Leaves a summary of a replica for all others, in place of the one before, for `ttl` from now on; a `ttl` of zero
    /// withdraws it. A summary is a text of at most [`MAX_SUMMARY_BYTES`], which is opaque to the store; it is left for at
    /// most [`LONGEST_SUMMARY`]. A store that loses its state loses the summaries.
    ///
    /// Cancel safe: the summary is left, or not.
    #[doc(hidden)]
    fn leave_summary<'a>(&'a self, _replica: &'a str, _summary: &'a str, _ttl: Duration) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// The summaries that have not ended, in the order of the replicas' names. Of more than [`MAX_SUMMARIES`], those that
    /// end last are listed; of more than 64 MiB, the first ones.
    ///
    /// Cancel safe.
    #[doc(hidden)]
    fn summaries(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Notes which downstreams are served, or forgets one, and returns those that nobody has served for a while. A store that
    /// loses its state loses all of them.
    ///
    /// Cancel safe: the call is made, or not.
    #[doc(hidden)]
    fn served<'a>(&'a self, _call: Served<'a>) -> Answer<'a, ServedReply> {
        Box::pin(async { Ok(ServedReply::default()) })
    }

    /// Adds to the number of parked jobs of a downstream, which never falls below 0, and returns it. 0 reads it. It is
    /// approximate: what was parked or came home while the store was away is not counted, and a store that loses its
    /// state counts from 0. Redis keeps it for 400 days after the last change.
    ///
    /// Not cancel safe: it is not known whether the jobs of a dropped future are counted.
    #[doc(hidden)]
    fn note_parked<'a>(&'a self, _downstream: &'a str, _jobs: i64) -> Answer<'a, i64> {
        Box::pin(async { Ok(0) })
    }

    /// Adds to the parked jobs of a downstream by what they wait for and until which hour, and returns the groups, in their
    /// order. As the number of all ([`Store::note_parked`]) they are approximate. A store in a file does not write them.
    ///
    /// Not cancel safe: it is not known whether the jobs of a dropped future are counted.
    #[doc(hidden)]
    fn parked_groups<'a>(
        &'a self,
        _downstream: &'a str,
        _call: ParkedGroups<'a>,
    ) -> Answer<'a, Vec<ParkedGroup>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Adds a text to the history of a downstream, if there is one, and returns that ([`HistoryEntry`]). Not cancel safe.
    #[doc(hidden)]
    fn history<'a>(&'a self, _downstream: &'a str, _text: Option<&'a str>) -> Answer<'a, Vec<HistoryEntry>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Sets how far ahead slots are granted at most to all who work on the downstream. A store that has lost its state
    /// grants no slot within that horizon, even if the caller that detects the loss asks for none.
    #[doc(hidden)]
    fn set_horizon(&self, _downstream: &str, _horizon: Duration) {}

    /// Subscribes to changes of a downstream's record. Notifications may be missed while the store is away; a caller
    /// that depends on them also reads the record periodically.
    #[doc(hidden)]
    fn changes(&self, downstream: &str) -> Changes;

    /// The hosts and ports of its servers, without credentials, if it has any.
    fn address(&self) -> Option<&str> {
        None
    }

    /// Reads the store's clock, which shows whether the store is reachable.
    ///
    /// Cancel safe.
    fn ping(&self) -> Answer<'_, Micros>;

    /// Ends the use of a store that belongs to this process alone: what it keeps is written as it is, and calls fail from then
    /// on. A store without a file has nothing to do.
    ///
    /// Cancel safe: the use still ends.
    fn finish(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Keeps other crates from implementing stores: each store must decide as all others do, to the microsecond.
pub(crate) mod sealed {
    pub trait Sealed {}
}
