//! Single flight: per key one call to the store at a time, carrying all who wait.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::reservation::{Grant, Reservation};
use super::{Core, ReserveError};
use crate::limit::Costs;
use crate::store::{MAX_BATCH, Reserve, Reserved, StoreError};
use crate::time::Micros;

/// What waits for the store under one key. It exists as long as its driver runs.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) waiting: VecDeque<Request>,
    /// Granted, but nobody wants them any more.
    pub(super) returned: Vec<Reservation>,
}

/// One that wants a slot.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) cost: u32,
    pub(super) answer: oneshot::Sender<Result<Grant, ReserveError>>,
}

impl Core {
    /// Adds to a lane, and has it driven.
    pub(super) fn submit(self: &Arc<Self>, key: &str, add: impl FnOnce(&mut Lane)) {
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.get_mut(key) {
            return add(lane);
        }
        // Without a runtime (a reservation dropped after it ended) nobody can ask the store.
        let Ok(runtime) = Handle::try_current() else { return };
        add(lanes.entry(key.to_owned()).or_default());
        drop(lanes);
        // In a task of its own: a caller that is dropped must not stall the others.
        let driver = Driver { core: Arc::clone(self), key: key.to_owned(), finished: false };
        runtime.spawn(driver.run());
    }

    /// What the next call is for; `None` and the end of the lane when there is nothing.
    fn next(&self, key: &str) -> Option<(Vec<Request>, Vec<Reservation>)> {
        let mut lanes = self.lanes();
        let lane = lanes.get_mut(key)?;
        let mut requests = vec![];
        while requests.len() < MAX_BATCH {
            match lane.waiting.pop_front() {
                Some(request) if request.answer.is_closed() => {}
                Some(request) => requests.push(request),
                None => break,
            }
        }
        // Only the tail can be given back, so the latest goes first. Stable, and read from the end:
        // among equal slots (a burst) the last one taken goes first.
        lane.returned.sort_by_key(Reservation::slot);
        let keep = lane.returned.len().saturating_sub(RETURNS);
        let returned = lane.returned.split_off(keep);
        if !requests.is_empty() {
            // Who waits must not wait for more round trips. The rest stay empty: the pace is kept.
            lane.returned.clear();
        }
        if requests.is_empty() && returned.is_empty() {
            lanes.remove(key);
            return None;
        }
        Some((requests, returned))
    }

    /// Forgets what was returned up to `slot`: it cannot be given back.
    fn forget_before(&self, key: &str, slot: Micros) {
        if let Some(lane) = self.lanes().get_mut(key) {
            lane.returned.retain(|reservation| reservation.slot() > slot);
        }
    }
}

/// How many slots are given back before the next look at who waits: each is a round trip.
const RETURNS: usize = 32;

/// Asks the store for one lane until nothing waits.
struct Driver {
    core: Arc<Core>,
    key: String,
    finished: bool,
}

impl Driver {
    async fn run(mut self) {
        while let Some((requests, returned)) = self.core.next(&self.key) {
            if let Some(last) = give_back(returned).await {
                self.core.forget_before(&self.key, last);
            }
            if !requests.is_empty() {
                self.ask(requests).await;
            }
        }
        self.finished = true;
    }

    async fn ask(&self, requests: Vec<Request>) {
        let core = &self.core;
        let costs: Vec<u32> = requests.iter().map(|request| request.cost).collect();
        let call = Reserve {
            scope: core.scope(&self.key),
            limits: &core.limits,
            costs: Costs::Each(&costs),
            ahead: core.max_wait,
            now: None,
            lease: None,
        };
        let sent = Instant::now();
        match core.store.reserve(call).await {
            Ok(reserved) => {
                core.observe(sent, reserved.now, reserved.epoch);
                self.hand_out(requests, &reserved, Costs::Each(&costs));
            }
            Err(error) => fail(requests, &error),
        }
    }

    fn hand_out(&self, requests: Vec<Request>, reserved: &Reserved, costs: Costs<'_>) {
        let core = &self.core;
        let mut slots = reserved.granted(&core.limits, costs).into_iter();
        for Request { answer, .. } in requests {
            let granted = slots.next().and_then(|granted| {
                let mapped = core.clock.mapping(granted.slot)?;
                Some(Reservation::new(core, &self.key, granted, mapped))
            });
            let outcome = match granted {
                Some(reservation) => Ok(Grant::new(reservation)),
                None => {
                    let latest = reserved.now.plus(core.max_wait);
                    let retry_after = reserved.refused.map_or(latest, |refused| refused.slot).since(latest);
                    Err(ReserveError::QueueFull { retry_after })
                }
            };
            // Whoever is gone: dropping a grant gives its slot back.
            let _ = answer.send(outcome);
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.finished {
            // Broken off. Without the lane its callers learn of it, and the next one starts anew.
            let lane = self.core.lanes().remove(&self.key);
            drop(lane);
        }
    }
}

/// Gives slots back, the last one first, until one cannot be; says which. It stays empty, as those
/// before it do: the pace is kept either way.
async fn give_back(returned: Vec<Reservation>) -> Option<Micros> {
    for reservation in returned.into_iter().rev() {
        let slot = reservation.slot();
        match reservation.cancel().await {
            Ok(true) => {}
            Ok(false) => return Some(slot),
            Err(error) => {
                tracing::debug!(%error, "a slot that nobody wants could not be given back");
                return Some(slot);
            }
        }
    }
    None
}

fn fail(requests: Vec<Request>, error: &StoreError) {
    for request in requests {
        let _ = request.answer.send(Err(error.clone().into()));
    }
}
