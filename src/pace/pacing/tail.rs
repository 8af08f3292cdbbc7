//! The slots of the last answer, which can be given back unused.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tokio::task::unconstrained;

use super::lanes::InLanes;
use crate::limit::{CallCosts, Costs, JobCost};
use crate::pace::meters::Abandoned;
use crate::pace::release::Unused;
use crate::pace::{LaneId, Settings};
use crate::store::{BoxFuture, Cancel, Granted, Lane, Reserve, Reserved, Scope, Store};
use crate::time::Micros;

/// The most slots that are given back at one time. They are sent one after the other, without a wait for the answers:
/// the store takes back a slot only if it has taken back all behind it.
const MAX_RETURNS: usize = 32;

/// The slots that are given back to the store.
#[derive(Default)]
pub(crate) struct Returns {
    /// The slots that the store granted last.
    tail: Option<Tail>,
    /// The number of the current tail, counted from 1.
    tail_number: u64,
    /// The returns in flight, in order. Each yields the number of its tail, and the lane of the slot if the store took it.
    under_way: FuturesOrdered<BoxFuture<'static, (u64, Option<LaneId>)>>,
    /// Slots that were not used while a call is in flight: its answer decides whether they are passed on or given
    /// back.
    pub(super) unused: Vec<(Unused, Abandoned)>,
}

/// The slots that the store granted last, and the data to give them back. The store takes back a slot as long as no
/// later one was taken, so the last slot goes back first.
pub(crate) struct Tail {
    lane: LaneId,
    /// The lanes of the waiters, where lanes are made by keys.
    in_lanes: Option<Arc<InLanes>>,
    settings: Arc<Settings>,
    /// The cost of each waiter of the call.
    costs: Vec<JobCost>,
    slots: Slots,
}

/// The slots of a tail.
enum Slots {
    /// The reply of the store.
    Reply(Box<Reserved>),
    /// The remaining slots, each with its lane, its cost and the data to give it back; the last slot is at the end.
    Remaining(Vec<(LaneId, JobCost, Granted)>),
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
        let granted = tail.and_then(|tail| {
            let granted = tail.pop(lane, cost, slot)?;
            Some((Arc::clone(&tail.settings), tail.in_lanes.clone(), granted))
        });
        if let Some((settings, in_lanes, granted)) = granted {
            let cancel = cancel(Arc::clone(store), (settings, in_lanes), lane, granted);
            let number = self.tail_number;
            self.under_way.push_back(Box::pin(async move { (number, cancel.await.then_some(lane)) }));
        }
    }

    /// Whether no slot is being given back.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Waits for the outcome of the next return: the lane of the slot if the store took it. It waits forever if there is
    /// none. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<LaneId> {
        // Tokio's cooperative budget could change their order. They are few.
        let Some((number, given_back)) = unconstrained(self.under_way.next()).await else {
            return std::future::pending().await;
        };
        if given_back.is_none() {
            // A later slot was taken, or the store is unavailable: the earlier slots of this tail cannot go back
            // either.
            self.tail = self.tail.take().filter(|_| number != self.tail_number);
        }
        given_back
    }
}

impl Tail {
    pub(crate) fn new(
        (lane, in_lanes): (LaneId, Option<Arc<InLanes>>),
        settings: Arc<Settings>,
        costs: Vec<JobCost>,
        reserved: Reserved,
    ) -> Self {
        Self { lane, in_lanes, settings, costs, slots: Slots::Reply(Box::new(reserved)) }
    }

    /// Returns the lane, the cost and the slot of each waiter that was granted one, the last slot at the end.
    pub(crate) fn slots(&self) -> Vec<(LaneId, JobCost, Micros)> {
        let mut slots: Vec<(LaneId, JobCost, Micros)> = match &self.slots {
            Slots::Reply(reserved) => {
                let slots = self.lanes_and_costs_of(reserved).zip(reserved.slots.iter().copied());
                slots.map(|((lane, cost), slot)| (lane, cost, slot)).collect()
            }
            Slots::Remaining(granted) => {
                granted.iter().map(|(lane, cost, granted)| (*lane, *cost, granted.slot)).collect()
            }
        };
        slots.sort_by_key(|(.., slot)| *slot);
        slots
    }

    /// Returns the lanes and costs of the waiters that were granted slots.
    fn lanes_and_costs_of<'a>(
        &'a self,
        reserved: &'a Reserved,
    ) -> impl Iterator<Item = (LaneId, JobCost)> + 'a {
        reserved.jobs().map(|job| {
            let lane = self.in_lanes.as_ref().and_then(|lanes| lanes.ids.get(job));
            (lane.copied().unwrap_or(self.lane), self.costs.get(job).copied().unwrap_or_default())
        })
    }

    /// Returns the data to give each slot of the reply back.
    fn granted(&self, reserved: &Reserved) -> Vec<Granted> {
        let settings = &self.settings;
        let Some(in_lanes) = &self.in_lanes else {
            let limits = settings.limits_of(self.lane);
            return reserved.granted(limits, CallCosts::of(&self.costs, limits).costs());
        };
        let costs = in_lanes.costs(&self.costs);
        let (sets, keys) = (in_lanes.sets(settings), in_lanes.keys());
        let all = in_lanes.lanes(&sets, &keys);
        let scope = Scope { downstream: &settings.downstream, key: "" };
        let call = Reserve::new(scope, &settings.limits, Costs::Each(&costs), Duration::ZERO);
        reserved.granted_in_lanes(&Reserve { lanes: Some(in_lanes.of_call(&all)), ..call })
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
        if self.in_lanes.is_none() && self.lane != lane {
            return None;
        }
        if let Slots::Reply(reserved) = &self.slots {
            let granted = self.lanes_and_costs_of(reserved).zip(self.granted(reserved));
            let mut granted: Vec<_> = granted.map(|((lane, cost), granted)| (lane, cost, granted)).collect();
            granted.sort_by_key(|(.., granted)| granted.slot);
            self.slots = Slots::Remaining(granted);
        }
        let Slots::Remaining(granted) = &mut self.slots else { return None };
        granted
            .pop_if(|(of, charged, granted)| *of == lane && *charged == cost && granted.slot == slot)
            .map(|(.., granted)| granted)
    }
}

async fn cancel(
    store: Arc<dyn Store>,
    (settings, in_lanes): (Arc<Settings>, Option<Arc<InLanes>>),
    lane: LaneId,
    granted: Granted,
) -> bool {
    let in_lanes = in_lanes.as_deref();
    let set = in_lanes.and_then(|_| settings.own_set(lane));
    let keys = in_lanes.map(|lanes| lanes.keys_of(lane)).unwrap_or_default();
    let call = Cancel {
        scope: Scope { downstream: &settings.downstream, key: "" },
        limits: if in_lanes.is_some() { &settings.limits } else { settings.limits_of(lane) },
        lane: set.as_ref().map(|limits| Lane { limits, keys: &keys }),
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
