//! One call for reservations: slots that go back to the store, then requests for slots.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tokio::task::unconstrained;
use tokio::time::Instant;

use crate::pace::{Answered, Settings};
use crate::shaper::grant::{Place, ReserveResult, Taken};
use crate::shaper::queue::{Request, batch_costs};
use crate::store::{Asker, Reserve, Reserved, Scope, SharedHorizon, Sharing, Store, StoreError};
use crate::time::Micros;

/// The contents of one call.
pub(super) struct Ask {
    pub(super) store: Arc<dyn Store>,
    pub(super) settings: Arc<Settings>,
    pub(super) max_wait: Duration,
    pub(super) generation: u64,
    pub(super) replica: Arc<str>,
    /// The part in the queue of turns.
    pub(super) asker: Asker,
    /// Whether callers of this process wait in order.
    pub(super) waits_here: bool,
    pub(super) requests: Vec<Request<ReserveResult>>,
    pub(super) returned: Vec<Taken>,
}

/// The result of a call.
pub(in crate::shaper) struct Done {
    pub(super) place: Place,
    pub(super) settings: Arc<Settings>,
    pub(super) requests: Vec<Request<ReserveResult>>,
    /// The instants at which it was sent and received, and the answer; `None` if it had no requests.
    pub(super) answer: Option<(Instant, Instant, Result<Reserved, StoreError>)>,
    /// The number of slots that were given back, and the first one that could not be.
    pub(super) given_back: usize,
    pub(super) kept: Option<Micros>,
}

impl Done {
    /// Returns the stamp of the store's answer, if there is one.
    pub(in crate::shaper) fn answered(&self) -> Option<Answered> {
        let Some((sent, received, Ok(reserved))) = &self.answer else { return None };
        Some(Answered { sent: *sent, received: *received, stamp: reserved.stamp })
    }

    /// Whether slots were given back, so that the next slot is earlier.
    pub(in crate::shaper) const fn has_given_back(&self) -> bool {
        self.given_back > 0
    }
}

impl Ask {
    pub(super) async fn carry_out(self, place: Place) -> Done {
        let Self { store, settings, max_wait, generation, replica, asker, waits_here, requests, returned } =
            self;
        // Tokio's cooperative budget could change their order. They are few.
        let (given_back, kept) = unconstrained(give_back(&*store, returned)).await;
        let mut answer = None;
        if !requests.is_empty() {
            let limits = settings.limits_of(place.0);
            let costs = batch_costs(limits, &requests);
            let scope = Scope { downstream: &settings.downstream, key: &place.1 };
            // A cost of more than one unit has to reach as much further ahead; the first request determines the reach
            // of all.
            let reach = requests.first().map(|request| limits.reach_of(&request.cost.row(limits)));
            let horizon = settings.horizon.saturating_add(reach.unwrap_or_default());
            // Limits of a key of its own cannot starve other callers.
            let is_shared = place.1.is_empty();
            let shared = || Sharing::Horizon(SharedHorizon { replica: &replica, horizon, waits_here });
            let call = Reserve {
                generation,
                asker: is_shared.then_some(asker),
                sharing: if is_shared { shared() } else { Sharing::None },
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

/// Gives slots back, the last one first. Returns how many were given back, and the first one that could not be. The
/// other slots stay unused, which keeps the pace.
pub(super) async fn give_back(store: &dyn Store, returned: Vec<Taken>) -> (usize, Option<Micros>) {
    let cancel = |returned: Taken| async move {
        let outcome = returned.cancel(store).await;
        (returned, outcome)
    };
    let mut outcomes: FuturesOrdered<_> = returned.into_iter().rev().map(cancel).collect();
    let (mut given_back, mut kept) = (0, None);
    while let Some((returned, outcome)) = outcomes.next().await {
        if let Err(error) = &outcome {
            let downstream = returned.settings.downstream.as_str();
            tracing::debug!(downstream, %error, "a slot that nobody wants could not be given back");
        }
        match outcome {
            Ok(true) => given_back += 1,
            Ok(false) | Err(_) => kept = kept.or(Some(returned.granted.slot)),
        }
    }
    (given_back, kept)
}
