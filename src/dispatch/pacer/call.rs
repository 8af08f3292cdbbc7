//! One call to the store: what it asks for, and what its answer tells.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::dispatch::Options;
use crate::dispatch::lane::Entry;
use crate::limit::Costs;
use crate::store::{BoxFuture, Lease, Reserve, Reserved, Scope, Store, StoreError};

/// A call to the store, and the jobs that it asks for.
pub(super) struct Call {
    pub(super) batch: VecDeque<Entry>,
    pub(super) reply: BoxFuture<'static, Reply>,
}

pub(super) struct Reply {
    pub(super) sent: Instant,
    pub(super) received: Instant,
    pub(super) answer: Result<Reserved, StoreError>,
}

/// The answer of the call under way; never, when there is none. Cancel safe.
pub(super) async fn answer(call: &mut Option<Call>) -> Reply {
    match call {
        Some(call) => call.reply.as_mut().await,
        None => std::future::pending().await,
    }
}

/// One call for slots of the whole downstream.
pub(super) async fn reserve(
    store: Arc<dyn Store>,
    options: Arc<Options>,
    costs: Vec<u32>,
    lease: Option<(Arc<str>, Duration)>,
) -> Reply {
    let lease = lease.as_ref().map(|(replica, ttl)| Lease { replica, ttl: *ttl });
    let scope = Scope { downstream: &options.downstream, key: "" };
    let (limits, ahead) = (&options.limits, options.horizon);
    let sent = Instant::now();
    let costs = Costs::Each(&costs);
    let answer = store.reserve(Reserve { scope, limits, costs, ahead, now: None, lease }).await;
    Reply { sent, received: Instant::now(), answer }
}
