//! The probes of the store, for a store that is unavailable and for replicas that must count as alive. Also the
//! return of slots, turns and leases that a replica no longer needs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::call::probe;
use super::{Answer, Call, Pacing, Reply, State, Tail};
use crate::pace::{OnLimit, OnUnavailable, Settings};
use crate::store::{Asker, BoxFuture, NextTurn, Store};

/// The interval of probes while the store is unavailable: the first one, and the longest. A probe renews the lease,
/// which shows the other replicas that this one is alive. The interval grows with each probe that fails, and is
/// shortened at random by up to half, so that a store that returns is not overloaded with the probes of many
/// replicas.
const PROBE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(400));

/// Once the store answers, the next probe waits for this many round trips.
const TRIPS_APART: u32 = 8;

/// The shortest lease, which expires at once.
const RELEASED: Duration = Duration::from_millis(1);

/// The probes of the store: while it is unavailable, and for replicas that must count as alive.
pub(super) struct Probing {
    /// The probe in flight.
    pub(super) call: Option<BoxFuture<'static, Reply>>,
    /// The earliest instant of the next probe.
    pub(super) next_at: Option<Instant>,
    /// The longest wait after the next probe that fails.
    backoff: Duration,
    /// A turn to give back with the next probe, and since when.
    pub(super) turn: Option<(Asker, Instant)>,
}

impl Probing {
    pub(super) fn new(now: Instant) -> Self {
        Self { call: None, next_at: Some(now), backoff: PROBE.0, turn: None }
    }

    /// Schedules the first probe of a store that became unavailable at `now`.
    pub(super) fn begin(&mut self, now: Instant) {
        self.backoff = PROBE.0;
        self.next_at = Some(now + self.next_wait());
    }

    /// Returns the wait before the next probe of a store that does not answer; the wait after that is longer.
    fn next_wait(&mut self) -> Duration {
        let most = self.backoff;
        self.backoff = (2 * most).min(PROBE.1);
        spread(most)
    }
}

/// Returns this span, less up to half at random.
fn spread(most: Duration) -> Duration {
    most.mul_f64(1.0 - fastrand::f64() / 2.0)
}

impl<W> Pacing<W> {
    /// Starts a probe if one is due; it renews the lease for `ttl`.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        ttl: Duration,
        (store, settings): (&Arc<dyn Store>, &Arc<Settings>),
    ) {
        let is_due = self.probe_at(settings).is_some_and(|due| due <= now);
        if self.probing.call.is_some() || !is_due {
            return;
        }
        let asker = self.probing.turn.take().map(|(asker, _)| asker);
        // A replica that takes no jobs has no share, so that the others use the whole pace. A replica that gives its
        // turn back has none either, unless it must count while the store is away.
        let is_idle = asker.is_some() && settings.on_unavailable != OnUnavailable::Local;
        let ttl = if self.is_suspended() || is_idle { RELEASED } else { ttl };
        self.lease.ends = None;
        let lease = (Arc::clone(&self.lease.replica), ttl);
        self.probing.call = Some(Box::pin(probe(Arc::clone(store), Arc::clone(settings), lease, asker)));
    }

    /// Gives a turn back to the store that this replica does not need any more.
    pub(crate) fn give_back_turn(&mut self, asker: Asker, now: Instant) {
        if matches!(self.state, State::Shared) {
            self.probing.turn = Some((asker, now));
        }
    }

    /// Gives back what the store can still use before this replica ends: the slots and the turn of the call in
    /// flight, slots that are being given back, the turn of the asker, and the lease.
    pub(crate) async fn leave(
        &mut self,
        mut asker: Asker,
        (store, settings): (&Arc<dyn Store>, &Arc<Settings>),
    ) {
        if let Some(call) = self.call.take() {
            let Call { lane, settings, costs, in_lanes, is_local, reply, .. } = call;
            if let Ok(Answer::Reserved(reserved)) = reply.await.answer
                && !is_local
            {
                if let Some(booking) = reserved.booking {
                    asker.turn = match booking.next {
                        NextTurn::At(turn) => Some(turn),
                        _ => None,
                    };
                }
                let tail = Tail::new((lane, in_lanes), settings, costs, reserved);
                let granted = tail.slots();
                self.on_granted(tail);
                // The last slot is given back first, since only the last slot can go back to the store.
                granted
                    .into_iter()
                    .rev()
                    .for_each(|(lane, cost, slot)| self.give_back(lane, cost, slot, store));
            }
        }
        let asker = asker.turn.map(|_| asker);
        while self.has_returns() {
            self.next_return().await;
        }
        if matches!(self.state, State::Shared) && settings.on_limit == OnLimit::Wait {
            let lease = (Arc::clone(&self.lease.replica), RELEASED);
            probe(Arc::clone(store), Arc::clone(settings), lease, asker).await;
        }
    }

    /// Returns the instant of the next probe. Replicas that police or are idle have no lease otherwise. All must know
    /// of each other, since jobs may arrive while the store is unavailable.
    fn probe_at(&self, settings: &Settings) -> Option<Instant> {
        let counts = settings.on_unavailable == OnUnavailable::Local && !self.last_shared.knows_peers();
        let asks = self.probing.next_at.filter(|_| self.state.is_absent() || counts);
        let returns = self.probing.turn.map(|(_, since)| since);
        self.lease.ends.into_iter().chain(asks).chain(returns).min()
    }

    /// Returns the instant of the next [`Pacing::tick`].
    pub(crate) fn wake_at(&self, settings: &Settings) -> Option<Instant> {
        if self.probing.call.is_some() { None } else { self.probe_at(settings) }
    }

    /// Schedules the next probe after one that took `took` and was answered, or failed, at `now`. Leases last for
    /// `ttl`.
    pub(crate) fn on_probed(&mut self, now: Instant, took: Duration, is_answered: bool, ttl: Duration) {
        let wait = match (self.state.is_absent(), is_answered) {
            (false, _) => ttl / 3,
            (true, false) => self.probing.next_wait(),
            (true, true) => spread((TRIPS_APART * took).clamp(PROBE.0, PROBE.1)),
        };
        self.probing.next_at = Some(now + wait);
    }
}
