//! The slots of the last answer, which can be given back unused.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tokio::task::unconstrained;

use crate::limit::{CallCosts, JobCost};
use crate::pace::meters::Abandoned;
use crate::pace::release::Unused;
use crate::pace::{LaneId, Settings};
use crate::store::{BoxFuture, Cancel, Granted, Reserved, Scope, Store};
use crate::time::Micros;

/// The most slots that are given back at one time. They are sent one after the other, and none waits for the answer of
/// another: the store takes back a slot only if it has taken back all behind it.
const MAX_RETURNS: usize = 32;

/// The slots that are given back to the store.
#[derive(Default)]
pub(crate) struct Returns {
    /// The slots that the store granted last.
    tail: Option<Tail>,
    /// The number of the current tail, counted from 1.
    tail_number: u64,
    /// The returns in flight, in order. Each yields the number of its tail, and whether the store took the slot.
    under_way: FuturesOrdered<BoxFuture<'static, (u64, bool)>>,
    /// Slots that were not used while a call is in flight, which decides what becomes of them.
    pub(super) unused: Vec<(Unused, Abandoned)>,
}

/// The slots that the store granted last, and the data to give them back. The store takes back a slot as long as no
/// later one was taken, so that the last slot goes back first.
pub(crate) struct Tail {
    lane: LaneId,
    settings: Arc<Settings>,
    /// The cost of each waiter of the call.
    costs: Vec<JobCost>,
    slots: Slots,
}

/// The slots of a tail.
enum Slots {
    /// The reply of the store.
    Reply(Box<Reserved>),
    /// The remaining slots, each with its cost and the data to give it back.
    Remaining(Vec<(JobCost, Granted)>),
}

impl Returns {
    /// Records the slots that the store granted last; they can be given back until it grants others.
    pub(crate) fn on_granted(&mut self, tail: Tail) {
        if !tail.is_empty() {
            (self.tail, self.tail_number) = (Some(tail), self.tail_number + 1);
        }
    }

    /// Gives an unused slot of this lane and cost back, if it is the last one that the store granted to this replica.
    pub(crate) fn give_back(&mut self, lane: LaneId, cost: JobCost, slot: Micros, store: &Arc<dyn Store>) {
        let tail = self.tail.as_mut().filter(|_| self.under_way.len() < MAX_RETURNS);
        let granted = tail.and_then(|tail| Some((Arc::clone(&tail.settings), tail.pop(lane, cost, slot)?)));
        if let Some((settings, granted)) = granted {
            let (number, cancel) = (self.tail_number, cancel(Arc::clone(store), settings, lane, granted));
            self.under_way.push_back(Box::pin(async move { (number, cancel.await) }));
        }
    }

    /// Whether no slot is being given back.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Waits for the outcome of the next return: whether the store took the slot. It waits forever if there is none.
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> bool {
        // Tokio's cooperative budget could change their order. They are few.
        let Some((number, given_back)) = unconstrained(self.under_way.next()).await else {
            return std::future::pending().await;
        };
        if !given_back {
            // A later slot was taken, or the store is unavailable: the earlier slots of this tail cannot go back
            // either.
            self.tail = self.tail.take().filter(|_| number != self.tail_number);
        }
        given_back
    }
}

impl Tail {
    pub(crate) fn new(
        lane: LaneId,
        settings: Arc<Settings>,
        costs: Vec<JobCost>,
        reserved: Reserved,
    ) -> Self {
        Self { lane, settings, costs, slots: Slots::Reply(Box::new(reserved)) }
    }

    /// Returns the cost and the slot of each waiter that was granted one.
    pub(crate) fn slots(&self) -> Vec<(JobCost, Micros)> {
        match &self.slots {
            Slots::Reply(reserved) => self.costs_of(reserved).zip(reserved.slots.iter().copied()).collect(),
            Slots::Remaining(granted) => {
                granted.iter().map(|(cost, granted)| (*cost, granted.slot)).collect()
            }
        }
    }

    /// Returns the costs of the waiters that were granted slots.
    fn costs_of<'a>(&'a self, reserved: &'a Reserved) -> impl Iterator<Item = JobCost> + 'a {
        reserved.jobs().map(|job| self.costs.get(job).copied().unwrap_or_default())
    }

    fn is_empty(&self) -> bool {
        match &self.slots {
            Slots::Reply(reserved) => reserved.slots.is_empty(),
            Slots::Remaining(granted) => granted.is_empty(),
        }
    }

    /// Takes the last slot out if it has this instant, lane and cost. Slots of the same lane, instant and cost are
    /// interchangeable.
    fn pop(&mut self, lane: LaneId, cost: JobCost, slot: Micros) -> Option<Granted> {
        if self.lane != lane {
            return None;
        }
        if let Slots::Reply(reserved) = &self.slots {
            let limits = self.settings.limits_of(lane);
            let costs = self.costs_of(reserved);
            let all = CallCosts::of(&self.costs, limits);
            let granted = reserved.granted(limits, all.costs());
            self.slots = Slots::Remaining(costs.zip(granted).collect());
        }
        let Slots::Remaining(granted) = &mut self.slots else { return None };
        granted
            .pop_if(|(charged, granted)| *charged == cost && granted.slot == slot)
            .map(|(_, granted)| granted)
    }
}

async fn cancel(store: Arc<dyn Store>, settings: Arc<Settings>, lane: LaneId, granted: Granted) -> bool {
    let call = Cancel {
        scope: Scope { downstream: &settings.downstream, key: "" },
        limits: settings.limits_of(lane),
        lane: None,
        slot: granted.slot,
        charged: &granted.charged,
        before: &granted.before,
        after: &granted.after,
        is_unused: true,
    };
    store.cancel(call).await.unwrap_or_else(|error| {
        let downstream = settings.downstream.as_str();
        tracing::debug!(downstream, %error, "a slot that nobody used could not be given back");
        false
    })
}
