//! What a [`Shaper`](super::Shaper) asks the store for, under one key: slots, and to take some back.

use std::sync::Arc;

use tokio::time::Instant;

use super::batch::{Carrier, Lanes, Queue, Request, fares};
use super::cost::kind;
use super::reservation::{Grant, Reservation};
use super::{Core, ReserveError};
use crate::limit::Costs;
use crate::store::{Reserve, Reserved};
use crate::time::Micros;

/// What one who wants a slot is told.
type Answer = Result<Grant, ReserveError>;

/// What waits for the store under one key.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) waiting: Queue<Answer>,
    /// Granted, but nobody wants them any more.
    pub(super) returned: Vec<Reservation>,
}

/// How many slots are given back before the next look at who waits: each is a round trip.
const RETURNS: usize = 32;

impl Carrier for Core {
    type Lane = Lane;
    type Load = (Vec<Request<Answer>>, Vec<Reservation>);

    fn lanes(&self) -> &Lanes<Lane> {
        &self.lanes
    }

    fn load(lane: &mut Lane) -> Option<Self::Load> {
        let requests = lane.waiting.board();
        // Only the tail can be given back, so the latest goes first. Stable, and read from the end:
        // among equal slots (a burst) the last one taken goes first.
        lane.returned.sort_by_key(Reservation::slot);
        let keep = lane.returned.len().saturating_sub(RETURNS);
        let returned = lane.returned.split_off(keep);
        if !requests.is_empty() {
            // Who waits must not wait for more round trips. The rest stay empty: the pace is kept.
            lane.returned.clear();
        }
        (!requests.is_empty() || !returned.is_empty()).then_some((requests, returned))
    }

    async fn carry(self: &Arc<Self>, key: &str, (requests, returned): Self::Load) {
        if let Some(last) = give_back(returned).await {
            self.forget_before(key, last);
        }
        if !requests.is_empty() {
            self.ask(key, requests).await;
        }
    }
}

impl Core {
    /// Forgets what was returned up to `slot`: it cannot be given back.
    fn forget_before(&self, key: &str, slot: Micros) {
        if let Some(lane) = self.lanes.lock().get_mut(key) {
            lane.returned.retain(|reservation| reservation.slot() > slot);
        }
    }

    async fn ask(self: &Arc<Self>, key: &str, requests: Vec<Request<Answer>>) {
        let fares = fares(&self.stored, &requests);
        let call = Reserve {
            scope: self.scope(key),
            limits: &self.stored,
            costs: fares.costs(),
            ahead: self.max_wait,
            lease: None,
            generation: 0,
            asker: None,
        };
        let sent = Instant::now();
        match self.store.reserve(call).await {
            Ok(reserved) => {
                self.observe(sent, reserved.now, reserved.epoch, reserved.status);
                self.hand_out(key, requests, &reserved, fares.costs());
            }
            Err(error) => {
                for Request { answer, .. } in requests {
                    // Whoever is gone needs no answer.
                    let _ = answer.send(Err(error.clone().into()));
                }
            }
        }
    }

    fn hand_out(
        self: &Arc<Self>,
        key: &str,
        requests: Vec<Request<Answer>>,
        reserved: &Reserved,
        costs: Costs<'_>,
    ) {
        let mut slots = reserved.granted(&self.stored, costs).into_iter();
        let (mut refused, mut again) = (None, vec![]);
        for request in requests {
            let granted = slots.next().and_then(|granted| {
                let mapped = self.clock.mapping(granted.slot)?;
                Some(Reservation::new(self, key, granted, mapped))
            });
            let outcome = match granted {
                Some(reservation) => Ok(Grant::new(reservation)),
                None => {
                    // The store decided on the first of them. Those alike would get the same slot; the others
                    // may fit, and must not be refused for whom they ride with.
                    let kind = kind(&self.stored, &request.cost);
                    if *refused.get_or_insert(kind) != kind {
                        again.push(request);
                        continue;
                    }
                    Err(self.queue_full(reserved))
                }
            };
            // Whoever is gone: dropping a grant gives its slot back.
            let _ = request.answer.send(outcome);
        }
        if let Some(lane) = self.lanes.lock().get_mut(key) {
            lane.waiting.put_back(again);
        }
    }

    fn queue_full(&self, reserved: &Reserved) -> ReserveError {
        let latest = reserved.now.plus(self.max_wait);
        let until = reserved.status.paused_until();
        if until > latest {
            return ReserveError::Paused { retry_after: (until < Micros::MAX).then(|| until.since(latest)) };
        }
        let slot = reserved.refused.map_or(latest, |refused| refused.slot);
        let place = reserved.refused.map_or(0, |refused| refused.limit);
        let limit = self.limits.get(place).map(|limit| limit.name().to_owned()).unwrap_or_default();
        ReserveError::QueueFull { retry_after: slot.since(latest), limit }
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
