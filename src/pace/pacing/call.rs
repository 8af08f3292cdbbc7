//! A single reserve or check call to the store: its request and its reply.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::lanes::InLanes;
use crate::limit::{CallCosts, Costs, JobCost};
use crate::pace::{LaneId, OnLimit, Settings};
use crate::store::{
    Asker, BoxFuture, Check, Checked, Lease, Reserve, Reserved, Scope, Sharing, Store, StoreError,
};

/// A call to the store, and the waiters for which it requests slots.
pub(crate) struct Call<W> {
    /// The lane of the waiters.
    pub(crate) lane: LaneId,
    pub(crate) batch: VecDeque<W>,
    /// The settings whose limits the call uses, and the cost of each waiter.
    pub(crate) settings: Arc<Settings>,
    pub(crate) costs: Vec<JobCost>,
    /// The lanes of the waiters, where lanes are made by keys. Then `lane` is the downstream's.
    pub(crate) in_lanes: Option<Arc<InLanes>>,
    /// Whether the call goes to this replica's local pace, not to the shared store.
    pub(crate) is_local: bool,
    /// Whether the call is for the trial: a single waiter that tests whether the downstream can be used again.
    pub(crate) is_trial: bool,
    /// Whether calls for other lanes follow at the same turn.
    pub(crate) goes_on: bool,
    pub(crate) reply: BoxFuture<'static, Reply>,
}

impl<W: fmt::Debug> fmt::Debug for Call<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lane, batch, .. } = self;
        f.debug_struct("Call").field("lane", lane).field("batch", batch).finish_non_exhaustive()
    }
}

/// The request of a call.
pub(crate) struct Ask {
    pub(crate) lane: LaneId,
    pub(crate) costs: Vec<JobCost>,
    pub(crate) in_lanes: Option<Arc<InLanes>>,
    /// How far ahead a slot may lie.
    pub(crate) ahead: Duration,
    /// The replica, and the time for which it counts as alive.
    pub(crate) lease: Option<(Arc<str>, Duration)>,
    pub(crate) asker: Option<Asker>,
    /// The generation of the terms that the limits come from.
    pub(crate) generation: u64,
}

/// The reply to a call.
pub(crate) struct Reply {
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) answer: Result<Answer, StoreError>,
}

/// The answer of the store.
pub(crate) enum Answer {
    /// The answer to a reserve call: slots.
    Reserved(Reserved),
    /// The answer to a check call: verdicts.
    Checked(Checked),
}

/// Makes one call for waiters under the same limits.
pub(crate) async fn ask(store: Arc<impl Store + ?Sized>, settings: Arc<Settings>, ask: Ask) -> Reply {
    let Ask { lane, costs, in_lanes, ahead, lease, asker, generation } = ask;
    let sharing = match &lease {
        Some((replica, ttl)) => Sharing::Lease(Lease { replica, ttl: *ttl }),
        None => Sharing::None,
    };
    // The state of a plan's limit belongs to the downstream too; its name distinguishes it from others.
    let scope = Scope { downstream: &settings.downstream, key: "" };
    if let Some(in_lanes) = in_lanes {
        let costs = in_lanes.costs(&costs);
        let call = Reserve {
            sharing,
            generation,
            asker,
            ..Reserve::new(scope, &settings.limits, Costs::Each(&costs), ahead)
        };
        return ask_in_lanes(store, (&settings, &in_lanes), call).await;
    }
    let limits = settings.limits_of(lane);
    let costs = CallCosts::of(&costs, limits);
    let costs = costs.costs();
    let sent = Instant::now();
    let answer = match settings.on_limit {
        OnLimit::Wait => {
            let call = Reserve { sharing, generation, asker, ..Reserve::new(scope, limits, costs, ahead) };
            store.reserve(call).await.map(Answer::Reserved)
        }
        OnLimit::Reject => {
            let call = Check { scope, limits, costs, generation };
            store.check(call).await.map(Answer::Checked)
        }
    };
    Reply { sent, received: Instant::now(), answer }
}

/// Makes one call for waiters of several lanes.
async fn ask_in_lanes<S: Store + ?Sized>(
    store: Arc<S>,
    (settings, in_lanes): (&Settings, &InLanes),
    call: Reserve<'_>,
) -> Reply {
    let sets = in_lanes.sets(settings);
    let keys = in_lanes.keys();
    let all = in_lanes.lanes(&sets, &keys);
    let call = Reserve { lanes: Some(in_lanes.of_call(&all)), ..call };
    let sent = Instant::now();
    let answer = store.reserve(call).await.map(Answer::Reserved);
    Reply { sent, received: Instant::now(), answer }
}

/// Probes whether the store is available, and renews the lease by that call. The call gives back the turn of the
/// asker, if there is one.
pub(crate) async fn probe(
    store: Arc<dyn Store>,
    settings: Arc<Settings>,
    (replica, ttl): (Arc<str>, Duration),
    asker: Option<Asker>,
) -> Reply {
    let scope = Scope { downstream: &settings.downstream, key: "" };
    let nothing = Reserve::new(scope, &settings.limits, Costs::Each(&[]), Duration::ZERO);
    let sent = Instant::now();
    let sharing = Sharing::Lease(Lease { replica: &replica, ttl });
    let answer = store.reserve(Reserve { sharing, asker, ..nothing }).await.map(Answer::Reserved);
    Reply { sent, received: Instant::now(), answer }
}
