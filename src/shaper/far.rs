//! Slots however far ahead: calls to the store for those who reserve, and for slots that are given back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ReserveError;
use super::calls::Calls;
use super::cost::kind;
use super::queue::{Queue, Request, batch_costs};
use super::reservation::Reservation;
use crate::limit::LimitSet;
use crate::pace::{LaneId, Settings, Stamp};
use crate::store::{Cancel, Granted, Outcome, Reserve, Reserved, Scope, SharedHorizon, Store, StoreError};
use crate::time::Micros;

/// What one who reserves is told.
pub(super) type Given = Result<Reservation, ReserveError>;

/// The state that a slot is taken from: the lane of its limits, and the key.
pub(super) type Place = (LaneId, String);

/// A slot that nobody uses.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) place: Place,
    /// The settings that it was granted under.
    pub(super) settings: Arc<Settings>,
    pub(super) granted: Granted,
}

/// Those who reserve, and the slots that are given back.
pub(super) struct Far {
    store: Arc<dyn Store>,
    max_wait: Duration,
    calls: Calls<Place, Line, Done>,
}

/// What waits for the store under one key.
#[derive(Debug, Default)]
struct Line {
    requests: Queue<Given>,
    returned: Vec<Returned>,
}

/// What one call asks.
struct Ask {
    store: Arc<dyn Store>,
    settings: Arc<Settings>,
    max_wait: Duration,
    generation: u64,
    replica: Arc<str>,
    requests: Vec<Request<Given>>,
    returned: Vec<Returned>,
}

/// How a call ended.
pub(super) struct Done {
    place: Place,
    settings: Arc<Settings>,
    requests: Vec<Request<Given>>,
    /// When it was sent and received, and what was answered; none where nobody reserved.
    answer: Option<(Instant, Instant, Result<Reserved, StoreError>)>,
    /// How many slots were given back, and the first one that could not be.
    given_back: usize,
    kept: Option<Micros>,
}

/// How many slots are given back before the next look at who waits: each is a round trip.
const RETURNS: usize = 32;

impl Line {
    /// What the next call is made for.
    fn take(&mut self) -> (Vec<Request<Given>>, Vec<Returned>) {
        let requests = self.requests.take_batch();
        // Only the tail can be given back, so the latest goes first. Stable, and read from the end:
        // among equal slots (a burst) the last one taken goes first.
        self.returned.sort_by_key(|returned| returned.granted.slot);
        let keep = self.returned.len().saturating_sub(RETURNS);
        let returned = self.returned.split_off(keep);
        if !requests.is_empty() {
            // Those who wait must not wait for more round trips. The remaining slots stay empty: the pace is kept.
            self.returned.clear();
        }
        (requests, returned)
    }
}

impl Far {
    pub(super) fn new(store: Arc<dyn Store>, max_wait: Duration) -> Self {
        Self { store, max_wait, calls: Calls::new() }
    }

    /// One asks for a slot.
    pub(super) fn ask(&mut self, place: Place, request: Request<Given>) {
        self.calls.line(place).requests.push(request);
    }

    /// A slot is not used.
    pub(super) fn give_back(&mut self, returned: Returned) {
        self.calls.line(returned.place.clone()).returned.push(returned);
    }

    /// Nobody gets a slot for the time being.
    pub(super) fn fail(&mut self, error: &ReserveError) {
        for mut line in self.calls.take_idle() {
            while !line.requests.is_empty() {
                refuse(line.requests.take_batch(), error);
            }
        }
    }

    /// Makes the calls that are due, by limits of this generation.
    pub(super) fn call(&mut self, settings: &Arc<Settings>, (generation, replica): (u64, &Arc<str>)) {
        let (store, max_wait) = (&self.store, self.max_wait);
        self.calls.start(|place, line| {
            let (requests, returned) = line.take();
            let mut requests = fitting(settings.limits_of(place.0), requests);
            while requests.is_empty() && !line.requests.is_empty() {
                requests = fitting(settings.limits_of(place.0), line.requests.take_batch());
            }
            let is_needed = !requests.is_empty() || !returned.is_empty();
            is_needed.then(|| {
                let (store, settings, replica) =
                    (Arc::clone(store), Arc::clone(settings), Arc::clone(replica));
                let ask = Ask { store, settings, max_wait, generation, replica, requests, returned };
                ask.carry_out(place.clone())
            })
        });
    }

    /// How the next call ended; never, while none is under way. Cancel safe.
    pub(super) async fn next(&mut self) -> Done {
        self.calls.next().await.1
    }

    /// Waits for the calls under way, and gives back what they are granted.
    pub(super) async fn end(&mut self) {
        while !self.calls.is_quiet() {
            let Done { place, settings, requests, answer, .. } = self.calls.next().await.1;
            let Some((.., Ok(reserved))) = answer else { continue };
            let costs = batch_costs(settings.limits_of(place.0), &requests);
            let granted = reserved.granted(settings.limits_of(place.0), costs.costs()).into_iter();
            let (place, settings) = (&place, &settings);
            let returned = granted.map(|granted| Returned {
                place: place.clone(),
                settings: Arc::clone(settings),
                granted,
            });
            give_back(&*self.store, returned.collect()).await;
        }
    }

    /// Hands out what a call was granted. `reservation` makes one, where anybody is left who could have it.
    pub(super) fn on_done(
        &mut self,
        done: Done,
        reservation: impl Fn(LaneId, &str, Granted, &Arc<Settings>) -> Option<Reservation>,
        not_yet: impl Fn(Micros, Duration) -> ReserveError,
    ) {
        let Done { place, settings, requests, answer, kept, .. } = done;
        if let Some(last) = kept {
            // Those before it cannot be given back either.
            self.calls.line(place.clone()).returned.retain(|returned| returned.granted.slot > last);
        }
        let reserved = match answer {
            None => return,
            Some((.., Err(error))) => return refuse(requests, &error.into()),
            Some((.., Ok(reserved))) => reserved,
        };
        if reserved.outdated {
            // They are asked for anew once it is known which limits are in force.
            return self.calls.line(place).requests.put_back(requests);
        }
        let limits = settings.limits_of(place.0);
        let costs = batch_costs(limits, &requests);
        let scope = Scope { downstream: &settings.downstream, key: &place.1 };
        let max_wait = Some(self.max_wait);
        let call = Reserve { max_wait, ..Reserve::new(scope, limits, costs.costs(), self.max_wait) };
        let mut granted = reserved.granted(limits, call.costs).into_iter();
        let decided = reserved.jobs_decided();
        let (mut refused, mut again) = (None, vec![]);
        for ((job, request), outcome) in requests.into_iter().enumerate().zip(reserved.outcomes(&call)) {
            let slot = matches!(outcome, Outcome::Granted(_)).then(|| granted.next()).flatten();
            let answer = match slot.and_then(|granted| reservation(place.0, &place.1, granted, &settings)) {
                Some(reservation) => Ok(reservation),
                None => {
                    // The store decided on the first of them. Those alike would get the same slot; the others
                    // may fit, and must not be refused because of others in the same call.
                    let kind = kind(limits, &request.cost);
                    if job >= decided && *refused.get_or_insert(kind) != kind {
                        again.push(request);
                        continue;
                    }
                    let latest = reserved.now.plus(self.max_wait);
                    Err(refusal(&settings, place.0, latest, outcome, &not_yet))
                }
            };
            // The slot of one that is gone goes back before others are asked for. A refusal needs no hearer.
            if let Err(Ok(reservation)) = request.answer.send(answer) {
                self.calls.line(place.clone()).returned.extend(reservation.into_returned());
            }
        }
        if !again.is_empty() {
            self.calls.line(place).requests.put_back(again);
        }
    }
}

impl Done {
    /// What the store told with its answer.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let Some((sent, received, Ok(reserved))) = &self.answer else { return None };
        let (sent, received) = (*sent, *received);
        Some(Stamp { sent, received, now: reserved.now, epoch: reserved.epoch, status: reserved.status })
    }

    /// Whether the next slot is an earlier one now.
    pub(super) const fn has_given_back(&self) -> bool {
        self.given_back > 0
    }
}

impl Ask {
    async fn carry_out(self, place: Place) -> Done {
        let Self { store, settings, max_wait, generation, replica, requests, returned } = self;
        let (given_back, kept) = give_back(&*store, returned).await;
        let mut answer = None;
        if !requests.is_empty() {
            let limits = settings.limits_of(place.0);
            let costs = batch_costs(limits, &requests);
            let scope = Scope { downstream: &settings.downstream, key: &place.1 };
            // What costs more than one unit has to reach as much further ahead: the first of them decides for all.
            let reach = requests.first().map(|request| limits.reach_of(&request.cost.row(limits)));
            let horizon = settings.horizon.saturating_add(reach.unwrap_or_default());
            // What each key has for itself nobody else can be starved of.
            let shared = place.1.is_empty().then_some(SharedHorizon { replica: &replica, horizon });
            let call = Reserve {
                generation,
                shared,
                max_wait: Some(max_wait),
                ..Reserve::new(scope, limits, costs.costs(), max_wait)
            };
            let sent = Instant::now();
            let reserved = store.reserve(call).await;
            answer = Some((sent, Instant::now(), reserved));
        }
        Done { place, settings, requests, answer, given_back, kept }
    }
}

/// Gives slots back, the last one first, until one cannot be; says how many, and which one that was. It stays empty,
/// as those before it do: the pace is kept either way.
async fn give_back(store: &dyn Store, returned: Vec<Returned>) -> (usize, Option<Micros>) {
    let mut given_back = 0;
    for returned in returned.into_iter().rev() {
        match returned.cancel(store).await {
            Ok(true) => given_back += 1,
            Ok(false) => return (given_back, Some(returned.granted.slot)),
            Err(error) => {
                tracing::debug!(%error, "a slot that nobody wants could not be given back");
                return (given_back, Some(returned.granted.slot));
            }
        }
    }
    (given_back, None)
}

impl Returned {
    /// Gives the slot back if it lies ahead and nobody took a later one; says whether it did.
    pub(super) async fn cancel(&self, store: &dyn Store) -> Result<bool, StoreError> {
        let Self { place: (lane, key), settings, granted } = self;
        let call = Cancel {
            scope: Scope { downstream: &settings.downstream, key },
            limits: settings.limits_of(*lane),
            lane: None,
            slot: granted.slot,
            charged: &granted.charged,
            before: &granted.before,
            after: &granted.after,
            is_unused: false,
        };
        store.cancel(call).await
    }
}

/// Those whose costs these limits can ever hold; the others are told that they cannot. The limits in force may be others
/// than those that a cost was checked against first.
fn fitting(limits: &LimitSet, requests: Vec<Request<Given>>) -> Vec<Request<Given>> {
    let mut fitting = Vec::with_capacity(requests.len());
    for request in requests {
        match request.cost.check(limits) {
            Ok(()) => fitting.push(request),
            Err(invalid) => drop(request.answer.send(Err(invalid.into()))),
        }
    }
    fitting
}

fn refuse(requests: Vec<Request<Given>>, error: &ReserveError) {
    for Request { answer, .. } in requests {
        // A caller that is gone needs no answer.
        let _ = answer.send(Err(error.clone()));
    }
}

/// Why one got no slot up to `latest`.
fn refusal(
    settings: &Settings,
    lane: LaneId,
    latest: Micros,
    outcome: Outcome,
    not_yet: impl Fn(Micros, Duration) -> ReserveError,
) -> ReserveError {
    let (retry_after, limit) = match outcome {
        Outcome::Paused { until } => {
            return ReserveError::Paused { retry_after: until.map(|until| until.since(latest)) };
        }
        Outcome::QueueFull { retry_after, limit } => (retry_after, limit),
        Outcome::NotYet { retry_at, .. } => return not_yet(retry_at, settings.horizon),
        _ => (Duration::ZERO, 0),
    };
    let limit = settings.limits_of(lane).get(limit).map(|limit| limit.name().to_owned());
    ReserveError::QueueFull { retry_after, limit: limit.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::super::cost::Cost;
    use super::*;
    use crate::store::{MAX_BATCH, MemoryStore};

    #[tokio::test]
    async fn all_are_told_where_nobody_can_have_a_slot() {
        let mut far = Far::new(Arc::new(MemoryStore::new()), Duration::from_secs(60));
        let mut told = vec![];
        for _ in 0..3 * MAX_BATCH {
            let (answer, outcome) = oneshot::channel();
            far.ask((LaneId::DOWNSTREAM, String::new()), Request { cost: Cost::Each(1), answer });
            told.push(outcome);
        }
        far.fail(&ReserveError::NoLimits);
        for outcome in &mut told {
            assert!(matches!(outcome.try_recv(), Ok(Err(ReserveError::NoLimits))));
        }
        assert!(far.calls.is_empty(), "nothing is kept for keys that nobody waits under");
    }
}
