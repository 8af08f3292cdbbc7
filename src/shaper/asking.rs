//! What a [`Shaper`](super::Shaper) asks the store for, under one key: slots, and to take some back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::{Carrier, Lanes, Queue, Request, fares};
use super::cost::kind;
use super::reservation::{Grant, Reservation};
use super::{Core, ReserveError};
use crate::store::{Outcome, Reserve, Reserved};
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
            max_wait: Some(self.max_wait),
            ..Reserve::new(self.scope(key), &self.stored, fares.costs(), self.max_wait)
        };
        let sent = Instant::now();
        match self.store.reserve(call).await {
            Ok(reserved) => {
                self.observe(sent, reserved.now, reserved.epoch, reserved.status);
                self.hand_out(key, requests, &reserved, &call);
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
        call: &Reserve<'_>,
    ) {
        let mut slots = reserved.granted(&self.stored, call.costs).into_iter();
        let decided = reserved.jobs_decided();
        let (mut refused, mut again) = (None, vec![]);
        for ((job, request), outcome) in requests.into_iter().enumerate().zip(reserved.outcomes(call)) {
            let granted = matches!(outcome, Outcome::Granted(_)).then(|| slots.next()).flatten();
            let grant = granted.and_then(|granted| {
                let mapped = self.clock.mapping(granted.slot)?;
                Some(Grant::new(Reservation::new(self, key, granted, mapped)))
            });
            let answer = match grant {
                Some(grant) => Ok(grant),
                None => {
                    // The store decided on the first of them. Those alike would get the same slot; the others
                    // may fit, and must not be refused for whom they ride with.
                    let kind = kind(&self.stored, &request.cost);
                    if job >= decided && *refused.get_or_insert(kind) != kind {
                        again.push(request);
                        continue;
                    }
                    Err(self.refusal(reserved.now.plus(self.max_wait), outcome))
                }
            };
            // Whoever is gone: dropping a grant gives its slot back.
            let _ = request.answer.send(answer);
        }
        if let Some(lane) = self.lanes.lock().get_mut(key) {
            lane.waiting.put_back(again);
        }
    }

    /// Why a job got no slot up to `latest`.
    fn refusal(&self, latest: Micros, outcome: Outcome) -> ReserveError {
        let (retry_after, limit) = match outcome {
            Outcome::Paused { until } => {
                return ReserveError::Paused { retry_after: until.map(|until| until.since(latest)) };
            }
            Outcome::QueueFull { retry_after, limit } => (retry_after, limit),
            // What lies beyond instants that are exact.
            Outcome::NotYet { limit, .. } => (Duration::ZERO, limit),
            _ => (Duration::ZERO, 0),
        };
        let limit = self.limits.get(limit).map(|limit| limit.name().to_owned()).unwrap_or_default();
        ReserveError::QueueFull { retry_after, limit }
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
