//! What one replica paces by: the pace that all share, or while the store is away its own, or none. It makes the calls
//! for slots, one at a time.

mod call;
mod local;
mod snapshot;
mod state;
mod tail;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::meters::Abandoned;
use super::{LaneId, OnLimit, OnUnavailable, Settings, Waiter};
use crate::store::{BoxFuture, SlotClock, Store};
use crate::time::Micros;
pub(crate) use call::{Answer, Ask, Call, Reply, ask};
pub(crate) use local::LocalPace;
pub(crate) use snapshot::SharedSnapshot;
pub(crate) use state::{Fallback, Probed, State};
use tail::Returns;
pub(crate) use tail::Tail;

/// How often a store that is away is asked whether it is there again; by such a probe the others see who is.
const PROBE: Duration = Duration::from_millis(100);

/// A replica that may have to pace alone asks at least as often how many there are, if it asks at all.
const REPLICA_REFRESH: Duration = Duration::from_millis(500);

/// The shortest lease: it is over at once.
const RELEASED: Duration = Duration::from_millis(1);

/// The owner of what this replica paces by, and of its calls for slots.
pub(crate) struct Pacing<W> {
    pub(crate) state: State,
    /// The call that is under way.
    call: Option<Call<W>>,
    probing: Probing,
    /// The earliest instant of the next call for slots: a turn, the horizon, or back-off.
    next_reserve_at: Instant,
    lease: LeaseRenewal,
    pub(crate) last_shared: SharedSnapshot,
    /// Maps slots to this process's clock.
    pub(crate) slots: Arc<SlotClock>,
    suspension: Option<Suspension<W>>,
    returns: Returns,
}

/// What is asked while the store is away, and by replicas that others must know of.
#[derive(Default)]
struct Probing {
    /// The probe that is under way.
    call: Option<BoxFuture<'static, Reply>>,
    /// The earliest instant of the next one.
    next_at: Option<Instant>,
}

/// This replica's lease on a share of the pace.
#[derive(Debug)]
struct LeaseRenewal {
    /// Tells this replica from others.
    replica: Arc<str>,
    /// The earliest instant to renew it.
    next_at: Instant,
    /// It is to be ended, since then.
    ends: Option<Instant>,
}

/// Nobody is asked for, but one at a time who is to find out whether the downstream can be used again.
#[derive(Debug)]
struct Suspension<W> {
    /// What becomes of slots that were asked for before.
    reason: Abandoned,
    trial: Option<W>,
}

impl<W: std::fmt::Debug> std::fmt::Debug for Pacing<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { state, call, suspension, .. } = self;
        let mut shown = f.debug_struct("Pacing");
        shown
            .field("state", state)
            .field("call", call)
            .field("suspension", suspension)
            .finish_non_exhaustive()
    }
}

impl<W> Pacing<W> {
    pub(crate) fn new(settings: &Settings, now: Instant) -> Self {
        Self {
            state: State::Shared,
            call: None,
            probing: Probing { call: None, next_at: Some(now) },
            next_reserve_at: now,
            lease: LeaseRenewal {
                replica: format!("{:016x}", fastrand::u64(..)).into(),
                next_at: now,
                ends: None,
            },
            last_shared: SharedSnapshot::new(settings.lanes().count()),
            slots: Arc::default(),
            suspension: None,
            returns: Returns::default(),
        }
    }

    /// The store granted these slots: until it grants others they can be given back.
    pub(crate) fn on_granted(&mut self, tail: Tail) {
        self.returns.on_granted(tail);
    }

    /// Gives a slot of this lane and cost back that nobody used, if it is the last one that the store granted here.
    pub(crate) fn give_back(&mut self, lane: LaneId, cost: u32, slot: Micros, store: &Arc<dyn Store>) {
        // A pace of its own is nobody else's.
        if self.state.local().is_none() {
            self.returns.give_back(lane, cost, slot, store);
        }
    }

    /// Whether slots are on their way back to the store.
    pub(crate) fn has_returns(&self) -> bool {
        !self.returns.is_empty()
    }

    /// Whether the next slot went back to the store; never, where none is on its way. Cancel safe.
    pub(crate) async fn next_return(&mut self) -> bool {
        self.returns.next().await
    }

    /// A call is under way from now on. There is one at a time.
    pub(crate) fn start(&mut self, call: Call<W>) {
        self.call = Some(call);
    }

    pub(crate) const fn is_calling(&self) -> bool {
        self.call.is_some()
    }

    /// How the call under way ended; never, where there is none. Cancel safe.
    async fn reply(call: &mut Option<Call<W>>) -> (Call<W>, Reply) {
        let Some(under_way) = call else { return std::future::pending().await };
        let reply = under_way.reply.as_mut().await;
        match call.take() {
            Some(call) => (call, reply),
            None => std::future::pending().await,
        }
    }

    /// How the probe under way ended; never, where there is none. Cancel safe.
    async fn probe_reply(probe: &mut Option<BoxFuture<'static, Reply>>) -> Reply {
        let Some(under_way) = probe else { return std::future::pending().await };
        let reply = under_way.as_mut().await;
        *probe = None;
        reply
    }

    /// What ends first: the call under way, the probe, or the way of a slot back to the store. Cancel safe.
    pub(crate) async fn next(&mut self) -> Ended<W> {
        let Self { call, probing, returns, .. } = self;
        tokio::select! {
            biased;
            (call, reply) = Self::reply(call) => Ended::Call(call, reply),
            reply = Self::probe_reply(&mut probing.call) => Ended::Probe(reply),
            given_back = returns.next() => Ended::Return(given_back),
        }
    }

    /// Takes the name that an engine before this one had.
    pub(crate) fn set_replica(&mut self, replica: Arc<str>) {
        self.lease.replica = replica;
    }

    /// This replica's name at the store.
    pub(crate) const fn replica(&self) -> &Arc<str> {
        &self.lease.replica
    }

    /// The earliest instant of the next call for slots.
    pub(crate) const fn next_reserve_at(&self) -> Instant {
        self.next_reserve_at
    }

    /// The next call for slots is made then.
    pub(crate) const fn reserve_at(&mut self, at: Instant) {
        self.next_reserve_at = at;
    }

    /// The next call for slots is made then at the earliest.
    pub(crate) fn reserve_not_before(&mut self, at: Instant) {
        self.next_reserve_at = self.next_reserve_at.max(at);
    }

    /// The next call for slots may be made then, if it may not be made before.
    pub(crate) fn reserve_by(&mut self, at: Instant) {
        self.next_reserve_at = self.next_reserve_at.min(at);
    }

    /// The lease to renew with the next call, four times as often as it needs: the replica, and for how long.
    pub(crate) fn lease(
        &mut self,
        now: Instant,
        ttl: Duration,
        on_unavailable: OnUnavailable,
    ) -> Option<(Arc<str>, Duration)> {
        // A trial is no share of the pace.
        if now < self.lease.next_at || self.is_suspended() {
            return None;
        }
        let refresh =
            if on_unavailable == OnUnavailable::Local { REPLICA_REFRESH.min(ttl / 4) } else { ttl / 4 };
        self.lease.next_at = now + refresh;
        Some((Arc::clone(&self.lease.replica), ttl))
    }

    /// The lease is renewed with the next call.
    pub(crate) const fn renew_lease(&mut self, now: Instant) {
        self.lease.next_at = now;
    }

    /// Asks whether the store is there, if that is due; the lease lasts for `ttl` then.
    pub(crate) fn probe(
        &mut self,
        now: Instant,
        ttl: Duration,
        (store, settings): (&Arc<dyn Store>, &Arc<Settings>),
    ) {
        let is_due = self.probe_at(settings).is_some_and(|due| due <= now);
        if self.probing.call.is_some() || !is_due {
            return;
        }
        // One that takes no jobs has no share: the others go on at the whole pace.
        let ttl = if self.is_suspended() { RELEASED } else { ttl };
        self.lease.ends = None;
        let lease = (Arc::clone(&self.lease.replica), ttl);
        self.probing.call = Some(Box::pin(call::probe(Arc::clone(store), Arc::clone(settings), lease)));
    }

    /// When to probe. Replicas that police hold no leases otherwise, nor do those that are idle; and all must know of
    /// each other, since jobs may come while the store is away.
    fn probe_at(&self, settings: &Settings) -> Option<Instant> {
        let counts = settings.on_unavailable == OnUnavailable::Local;
        let asks = self.probing.next_at.filter(|_| self.state.is_absent() || counts);
        self.lease.ends.into_iter().chain(asks).min()
    }

    /// When [`Pacing::probe`] has something to do.
    pub(crate) fn probe_wake_at(&self, settings: &Settings) -> Option<Instant> {
        if self.probing.call.is_some() { None } else { self.probe_at(settings) }
    }

    /// A probe was answered, or failed, at `now`: when the next one is due, where leases last for `ttl`.
    pub(crate) fn on_probed(&mut self, now: Instant, ttl: Duration) {
        self.probing.next_at = Some(now + if self.state.is_absent() { PROBE } else { ttl / 3 });
    }

    /// The store went away just now: the fallback counts.
    pub(crate) fn leave(&mut self, fallback: Fallback, now: Instant) {
        self.state = State::Away(fallback);
        (self.next_reserve_at, self.probing.next_at) = (now, Some(now + PROBE));
    }

    pub(crate) const fn is_suspended(&self) -> bool {
        self.suspension.is_some()
    }

    /// Why nobody is asked for, where that is so.
    pub(crate) fn suspended(&self) -> Option<Abandoned> {
        self.suspension.as_ref().map(|suspension| suspension.reason)
    }

    /// Asks for nobody from `now` on, and ends the lease where there is one. The one that was to be tried in an earlier
    /// suspension comes back.
    pub(crate) fn suspend(&mut self, settings: &Settings, reason: Abandoned, now: Instant) -> Option<W> {
        let before = self.suspension.replace(Suspension { reason, trial: None });
        let counts = settings.on_unavailable == OnUnavailable::Local;
        self.lease.ends = (settings.on_limit == OnLimit::Wait || counts).then_some(now);
        before.and_then(|suspension| suspension.trial)
    }

    /// Asks for all again; the one that was to be tried comes back.
    pub(crate) fn resume(&mut self, now: Instant) -> Option<W> {
        self.lease.ends = None;
        (self.next_reserve_at, self.lease.next_at, self.probing.next_at) = (now, now, Some(now));
        self.suspension.take().and_then(|suspension| suspension.trial)
    }

    /// While nobody is asked for, asks for this one alone. It comes back where that is not so.
    pub(crate) fn try_one(&mut self, waiter: W) -> Option<W> {
        match &mut self.suspension {
            Some(suspension) => suspension.trial.replace(waiter),
            None => Some(waiter),
        }
    }

    /// The one that is to be tried.
    pub(crate) fn take_trial(&mut self) -> Option<W> {
        self.suspension.as_mut()?.trial.take()
    }

    /// Drops the one that is to be tried where nobody waits for it any more.
    pub(crate) fn drop_stale_trial(&mut self)
    where
        W: Waiter,
    {
        if let Some(suspension) = &mut self.suspension {
            suspension.trial.take_if(|waiter| !waiter.is_live());
        }
    }

    pub(crate) fn has_trial(&self) -> bool {
        self.suspension.as_ref().is_some_and(|suspension| suspension.trial.is_some())
    }

    /// Takes those whom a call under way asks for, and the one that is to be tried.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        let mut waiters: Vec<W> = self.call.take().into_iter().flat_map(|call| call.batch).collect();
        waiters.extend(self.take_trial());
        waiters
    }
}

/// What ended, with its reply.
pub(crate) enum Ended<W> {
    Call(Call<W>, Reply),
    Probe(Reply),
    /// A slot was on its way back to the store; whether it took it.
    Return(bool),
}
