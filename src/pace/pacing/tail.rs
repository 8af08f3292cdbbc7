//! The slots of the last answer, for those that are given back unused.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::limit::Costs;
use crate::pace::{LaneId, Settings};
use crate::store::{BoxFuture, Cancel, Granted, Reserved, Scope, Store, StoreError};
use crate::time::Micros;

/// More slots than this are not on their way back at one time: each is a round trip.
const MOST: usize = 32;

/// Slots that go back to the store.
#[derive(Default)]
pub(crate) struct Returns {
    /// Those that the store granted last.
    tail: Option<Tail>,
    /// How many tails there were.
    tails: u64,
    /// Those on their way back, the first one first, each with the number of its tail.
    under_way: VecDeque<(u64, Return)>,
}

/// The slots that the store granted last, and what giving them back needs. The store takes back a slot as long as no
/// later one was taken, so that the last one of them goes back first.
pub(crate) struct Tail {
    lane: LaneId,
    settings: Arc<Settings>,
    /// What each of those cost whom the call asked for.
    costs: Vec<u32>,
    slots: Slots,
}

/// The slots of a tail.
enum Slots {
    /// As they were told.
    Told(Box<Reserved>),
    /// Each with its cost and what giving it back needs. Those that went back are gone.
    Worked(Vec<(u32, Granted)>),
}

/// A slot on its way back to the store.
type Return = BoxFuture<'static, Result<bool, StoreError>>;

impl Returns {
    /// The store granted these slots: until it grants others they can be given back.
    pub(crate) fn on_granted(&mut self, tail: Tail) {
        if !tail.is_empty() {
            (self.tail, self.tails) = (Some(tail), self.tails + 1);
        }
    }

    /// Gives a slot of this lane and cost back that nobody used, if it is the last one that the store granted here.
    pub(crate) fn give_back(&mut self, lane: LaneId, cost: u32, slot: Micros, store: &Arc<dyn Store>) {
        let tail = self.tail.as_mut().filter(|_| self.under_way.len() < MOST);
        let granted = tail.and_then(|tail| Some((Arc::clone(&tail.settings), tail.pop(lane, cost, slot)?)));
        if let Some((settings, granted)) = granted {
            let cancel = Box::pin(cancel(Arc::clone(store), settings, lane, granted));
            self.under_way.push_back((self.tails, cancel));
        }
    }

    /// Whether none is on its way back.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether the next slot went back; never, where none is on its way. Cancel safe.
    pub(crate) async fn next(&mut self) -> bool {
        let Some((number, first)) = self.under_way.front_mut() else { return std::future::pending().await };
        let number = *number;
        let given_back = first.await.unwrap_or_else(|error| {
            tracing::debug!(%error, "a slot that nobody used could not be given back");
            false
        });
        self.under_way.pop_front();
        if !given_back {
            // Somebody took a later slot, or the store is away: those of this tail before it cannot go back either.
            self.tail = self.tail.take().filter(|_| number != self.tails);
            self.under_way.retain(|(other, _)| *other != number);
        }
        given_back
    }
}

impl Tail {
    pub(crate) fn new(lane: LaneId, settings: Arc<Settings>, costs: Vec<u32>, reserved: Reserved) -> Self {
        Self { lane, settings, costs, slots: Slots::Told(Box::new(reserved)) }
    }

    fn is_empty(&self) -> bool {
        match &self.slots {
            Slots::Told(reserved) => reserved.slots.is_empty(),
            Slots::Worked(granted) => granted.is_empty(),
        }
    }

    /// Takes the last slot out, if it is this one, of this lane and cost. Slots of one lane, instant and cost are alike.
    fn pop(&mut self, lane: LaneId, cost: u32, slot: Micros) -> Option<Granted> {
        if self.lane != lane {
            return None;
        }
        if let Slots::Told(reserved) = &self.slots {
            let limits = self.settings.limits_of(lane);
            let costs = reserved.jobs().map(|job| self.costs.get(job).copied().unwrap_or_default());
            let granted = reserved.granted(limits, Costs::Each(&self.costs));
            self.slots = Slots::Worked(costs.zip(granted).collect());
        }
        let Slots::Worked(granted) = &mut self.slots else { return None };
        granted
            .pop_if(|(charged, granted)| *charged == cost && granted.slot == slot)
            .map(|(_, granted)| granted)
    }
}

async fn cancel(
    store: Arc<dyn Store>,
    settings: Arc<Settings>,
    lane: LaneId,
    granted: Granted,
) -> Result<bool, StoreError> {
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
    store.cancel(call).await
}
