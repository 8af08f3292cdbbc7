//! Slots however far ahead: calls to the store for reservations, and for slots that are given back.
//!
//! While others wait in order for slots of the downstream, here or elsewhere, no slot lies beyond the horizon, and these
//! calls take turns as all others do. A refusal says when to ask again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ReserveError;
use super::calls::Calls;
use super::cost::kind;
use super::grant::{Grant, Place, ReserveResult, Taken};
use super::queue::{Queue, Request, batch_costs};
use crate::limit::{LimitSet, MAX_BATCH};
use crate::pace::{LaneId, Settings};
use crate::store::{Mapping, Outcome, Reserve, Reserved, Scope, Store};
use crate::time::Micros;
pub(super) use ask::Done;
use ask::{Ask, give_back};
use yielding::Yielding;

mod ask;
mod yielding;

/// The pending reservations, and the slots that are given back.
pub(super) struct Far {
    store: Arc<dyn Store>,
    max_wait: Duration,
    calls: Calls<Place, KeyQueue, Done>,
    /// How these calls yield to callers that wait in order, under the settings of the last call; `None` before the
    /// first call.
    yielding: Option<Yielding>,
}

/// The requests and returned slots of one key that wait for a call.
#[derive(Debug, Default)]
struct KeyQueue {
    requests: Queue<ReserveResult>,
    returned: Vec<Taken>,
}

/// The most slots that are given back before the queue is read again. They are sent one after the other, and none waits for
/// the answer of another.
const MAX_RETURNS_PER_CALL: usize = 32;

impl KeyQueue {
    /// Takes the contents of the next call, with this many requests at most.
    fn take(&mut self, most: usize) -> (Vec<Request<ReserveResult>>, Vec<Taken>) {
        let requests = self.requests.take(most);
        // Only the tail can be given back, so the latest goes first. Stable, and read from the end:
        // among equal slots (a burst) the last one taken goes first.
        self.returned.sort_by_key(|returned| returned.granted.slot);
        let keep = self.returned.len().saturating_sub(MAX_RETURNS_PER_CALL);
        let returned = self.returned.split_off(keep);
        if !requests.is_empty() {
            // Callers must not wait for more round trips. The remaining slots stay unused, which keeps the pace.
            self.returned.clear();
        }
        (requests, returned)
    }
}

impl Far {
    pub(super) fn new(store: Arc<dyn Store>, max_wait: Duration) -> Self {
        Self { store, max_wait, calls: Calls::new(), yielding: None }
    }

    /// Adds a request for a slot.
    pub(super) fn ask(&mut self, place: Place, request: Request<ReserveResult>) {
        self.calls.queue(place).requests.push(request);
    }

    /// Adds a slot that is to be given back.
    pub(super) fn give_back(&mut self, returned: Taken) {
        self.calls.queue(returned.place.clone()).returned.push(returned);
    }

    /// Refuses the pending requests with this error.
    pub(super) fn fail(&mut self, error: &ReserveError) {
        for mut queue in self.calls.take_idle() {
            while !queue.requests.is_empty() {
                refuse(queue.requests.take_batch(), error);
            }
        }
    }

    /// Starts the calls that are due, under limits of this generation. `waits_here` says whether callers of this process
    /// wait in order.
    pub(super) fn call(
        &mut self,
        settings: &Arc<Settings>,
        (generation, replica): (u64, &Arc<str>),
        waits_here: bool,
    ) {
        if !self.calls.has_idle() {
            return;
        }
        let (store, max_wait, now) = (&self.store, self.max_wait, Instant::now());
        let yielding = match self.yielding.take().filter(|yielding| yielding.is_under(settings)) {
            Some(yielding) => yielding,
            None => Yielding::new(settings),
        };
        let yielding = &*self.yielding.insert(yielding);
        self.calls.start(|place, queue| {
            let limits = settings.limits_of(place.0);
            let most = if place.1.is_empty() { yielding.most(waits_here) } else { MAX_BATCH };
            if let Some(error) = yielding.refusal(now).filter(|_| place.1.is_empty()) {
                refuse(queue.requests.take(usize::MAX), error);
            }
            let (requests, returned) = queue.take(most);
            let mut requests = fitting(limits, requests);
            while requests.is_empty() && !queue.requests.is_empty() {
                requests = fitting(limits, queue.requests.take(most));
            }
            let is_needed = !requests.is_empty() || !returned.is_empty();
            is_needed.then(|| {
                let (store, settings, replica) =
                    (Arc::clone(store), Arc::clone(settings), Arc::clone(replica));
                let unit = limits.unit()[0].max(1);
                // A request whose cost for the first limit is 0 waits for a slot too.
                let units =
                    |request: &Request<ReserveResult>| u64::from((request.cost.row(limits)[0] / unit).max(1));
                let asker = yielding.asker(now, requests.iter().map(units).sum(), max_wait);
                let ask = Ask {
                    store,
                    settings,
                    max_wait,
                    generation,
                    replica,
                    asker,
                    waits_here,
                    requests,
                    returned,
                };
                ask.carry_out(place.clone())
            })
        });
    }

    /// Waits for the result of the next call; forever, if none is in flight. Cancel safe.
    pub(super) async fn next(&mut self) -> Done {
        self.calls.next().await.1
    }

    /// Waits for the calls in flight, and gives the slots back that they are granted.
    pub(super) async fn end(&mut self) {
        while !self.calls.is_quiet() {
            let Done { place, settings, requests, answer, .. } = self.calls.next().await.1;
            let Some((.., Ok(reserved))) = answer else { continue };
            let costs = batch_costs(settings.limits_of(place.0), &requests);
            let granted = reserved.granted(settings.limits_of(place.0), costs.costs()).into_iter();
            let (place, settings) = (&place, &settings);
            let returned = granted.map(|granted| Taken {
                place: place.clone(),
                settings: Arc::clone(settings),
                granted,
            });
            give_back(&*self.store, returned.collect()).await;
        }
        if let Some(yielding) = self.yielding.take() {
            yielding.give_back(&*self.store).await;
        }
    }

    /// Hands out the slots that a call was granted. `mapping` maps a slot to this process's clock, if that is known.
    pub(super) fn on_done(
        &mut self,
        done: Done,
        mapping: impl Fn(Micros) -> Option<Mapping>,
        not_yet: impl Fn(Micros, Duration) -> ReserveError,
    ) {
        let Done { place, settings, requests, answer, kept, .. } = done;
        if let Some(last) = kept {
            // Earlier slots cannot be given back either.
            self.calls.queue(place.clone()).returned.retain(|returned| returned.granted.slot > last);
        }
        match answer {
            None => {}
            Some((.., Err(error))) => {
                self.yielding.iter_mut().for_each(Yielding::on_failure);
                refuse(requests, &error.into());
            }
            // The requests are repeated once the limits in force are known.
            Some((.., Ok(reserved))) if reserved.outdated => {
                self.calls.queue(place).requests.put_back(requests);
            }
            Some((sent, received, Ok(reserved))) => {
                let max_wait = self.max_wait;
                let turn = self.yielding.as_mut();
                let turn =
                    turn.and_then(|yielding| yielding.on_answer((sent, received), &reserved, max_wait));
                let latest = reserved.stamp.now.plus(max_wait);
                let (lane, of) = (place.0, Arc::clone(&settings));
                let why = |outcome| refusal((&of, lane), latest, outcome, turn, &not_yet);
                self.hand_out((place, settings), requests, &reserved, mapping, why);
            }
        }
    }

    /// Answers requests with their slots, or with the reason why they got none.
    fn hand_out(
        &mut self,
        (place, settings): (Place, Arc<Settings>),
        requests: Vec<Request<ReserveResult>>,
        reserved: &Reserved,
        mapping: impl Fn(Micros) -> Option<Mapping>,
        refusal: impl Fn(Outcome) -> ReserveError,
    ) {
        let limits = settings.limits_of(place.0);
        let costs = batch_costs(limits, &requests);
        let scope = Scope { downstream: &settings.downstream, key: &place.1 };
        let call = Reserve {
            max_wait: Some(self.max_wait),
            ..Reserve::new(scope, limits, costs.costs(), self.max_wait)
        };
        let mut granted = reserved.granted(limits, call.costs).into_iter();
        let decided = reserved.jobs_decided();
        let (mut refused, mut again) = (None, vec![]);
        for ((job, request), outcome) in requests.into_iter().enumerate().zip(reserved.outcomes(&call)) {
            let slot = matches!(outcome, Outcome::Granted(_)).then(|| granted.next()).flatten();
            let grant = slot.and_then(|granted| {
                let (mapped, settings) = (mapping(granted.slot)?, Arc::clone(&settings));
                Some(Grant { taken: Taken { place: place.clone(), settings, granted }, mapped })
            });
            if grant.is_none() && job >= decided {
                // The store decided on the first of them. Requests of the same kind would get the same slot; the
                // others may fit, and must not be refused because of others in the same call.
                let kind = kind(limits, &request.cost);
                if *refused.get_or_insert(kind) != kind {
                    again.push(request);
                    continue;
                }
            }
            // The slot of a caller that is gone is given back before more are requested. A refusal without a receiver
            // is dropped.
            if let Err(Ok(grant)) = request.answer.send(grant.ok_or_else(|| refusal(outcome))) {
                self.calls.queue(place.clone()).returned.push(grant.taken);
            }
        }
        if !again.is_empty() {
            self.calls.queue(place).requests.put_back(again);
        }
    }

    /// Forgets the turn, since the store's clock stepped or its state was lost.
    pub(super) fn forget_turn(&mut self) {
        self.yielding.iter_mut().for_each(Yielding::forget_turn);
    }
}

/// Returns the requests whose costs these limits can ever hold, and refuses the others. The limits in force may differ
/// from those against which a cost was checked first.
fn fitting(limits: &LimitSet, requests: Vec<Request<ReserveResult>>) -> Vec<Request<ReserveResult>> {
    let mut fitting = Vec::with_capacity(requests.len());
    for request in requests {
        match request.cost.check(limits) {
            Ok(()) => fitting.push(request),
            Err(invalid) => drop(request.answer.send(Err(invalid.into()))),
        }
    }
    fitting
}

fn refuse(requests: Vec<Request<ReserveResult>>, error: &ReserveError) {
    for Request { answer, .. } in requests {
        // A caller that is gone needs no answer.
        let _ = answer.send(Err(error.clone()));
    }
}

/// Returns the reason why a request got no slot up to `latest`. `turn` is when to ask again and the first slot then, if a
/// turn is booked.
fn refusal(
    (settings, lane): (&Settings, LaneId),
    latest: Micros,
    outcome: Outcome,
    turn: Option<(Instant, Micros)>,
    not_yet: impl Fn(Micros, Duration) -> ReserveError,
) -> ReserveError {
    let (retry_after, limit) = match (outcome, turn) {
        (Outcome::NotYet { .. }, Some((retry_at, begins))) if begins <= latest => {
            return ReserveError::NotYet { retry_at };
        }
        (Outcome::NotYet { limit, .. }, Some((_, begins))) => (begins.since(latest), limit),
        (outcome, _) => match outcome {
            Outcome::Paused { until } => {
                return ReserveError::Paused { retry_after: until.map(|until| until.since(latest)) };
            }
            Outcome::QueueFull { retry_after, limit } => (retry_after, limit),
            Outcome::NotYet { retry_at, .. } => return not_yet(retry_at, settings.horizon),
            _ => (Duration::ZERO, 0),
        },
    };
    let limit = settings.limits_of(lane).get(limit).map(|limit| limit.name().to_owned());
    ReserveError::QueueFull { retry_after, limit: limit.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::super::cost::Cost;
    use super::*;
    use crate::store::MemoryStore;

    #[tokio::test]
    async fn all_get_the_error_if_nobody_can_have_a_slot() {
        let mut far = Far::new(Arc::new(MemoryStore::new()), Duration::from_secs(60));
        let mut outcomes = vec![];
        for _ in 0..3 * MAX_BATCH {
            let (answer, outcome) = oneshot::channel();
            far.ask((LaneId::DOWNSTREAM, String::new()), Request { cost: Cost::Each(1), answer });
            outcomes.push(outcome);
        }
        far.fail(&ReserveError::NoLimits);
        for outcome in &mut outcomes {
            assert!(matches!(outcome.try_recv(), Ok(Err(ReserveError::NoLimits))));
        }
        assert!(far.calls.is_empty(), "nothing is kept for keys that nobody waits under");
    }
}
