//! One call to the store: what it asks for, and what its answer tells.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::dispatch::entry::Entry;
use crate::limit::Costs;
use crate::pace::{LaneId, OnLimit, Settings};
use crate::store::{Asker, BoxFuture, Check, Checked, Lease, Reserve, Reserved, Scope, Store, StoreError};

/// A call to the store, and the jobs that it asks for.
pub(super) struct Call {
    /// The lane that they come from.
    pub(super) lane: LaneId,
    pub(super) batch: VecDeque<Entry>,
    /// It goes to this replica's own pace, not to the store.
    pub(super) alone: bool,
    pub(super) reply: BoxFuture<'static, Reply>,
}

/// What a call asks for.
pub(super) struct Ask {
    pub(super) lane: LaneId,
    pub(super) costs: Vec<u32>,
    /// How far ahead a slot may lie.
    pub(super) ahead: Duration,
    pub(super) lease: Option<(Arc<str>, Duration)>,
    pub(super) asker: Option<Asker>,
    /// Of the terms that the limits are from.
    pub(super) generation: u64,
}

pub(super) struct Reply {
    pub(super) sent: Instant,
    pub(super) received: Instant,
    pub(super) answer: Result<Answer, StoreError>,
}

pub(super) enum Answer {
    /// Slots.
    Reserved(Reserved),
    /// Which may go now.
    Checked(Checked),
}

/// The answer of the call under way; never, when there is none. Cancel safe.
pub(super) async fn answer(call: &mut Option<Call>) -> Reply {
    match call {
        Some(call) => call.reply.as_mut().await,
        None => std::future::pending().await,
    }
}

/// One call for jobs that keep the same limits.
pub(super) async fn ask(store: Arc<impl Store + ?Sized>, settings: Arc<Settings>, ask: Ask) -> Reply {
    let Ask { lane, costs, ahead, lease, asker, generation } = ask;
    let lease = lease.as_ref().map(|(replica, ttl)| Lease { replica, ttl: *ttl });
    // The state of a limit of a plan is the downstream's too: its name tells it from others.
    let scope = Scope { downstream: &settings.downstream, key: "" };
    let (limits, costs) = (settings.limits_of(lane), Costs::Each(&costs));
    let sent = Instant::now();
    let answer = match settings.on_limit {
        OnLimit::Wait => {
            let call = Reserve { lease, generation, asker, ..Reserve::new(scope, limits, costs, ahead) };
            store.reserve(call).await.map(Answer::Reserved)
        }
        OnLimit::Reject => {
            let call = Check { scope, limits, costs, generation };
            store.check(call).await.map(Answer::Checked)
        }
    };
    Reply { sent, received: Instant::now(), answer }
}
