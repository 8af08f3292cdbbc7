//! The source of one replica's slots: the pace that all replicas share, or, while the store is unavailable, a local
//! pace or none. This module makes the reserve calls, one at a time.

mod call;
mod lanes;
mod local;
mod peers;
mod probing;
mod snapshot;
mod state;
mod suspension;
mod tail;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::meters::Abandoned;
use super::release::Unused;
use super::{LaneId, OnLimit, OnUnavailable, Settings, Waiter};
use crate::limit::JobCost;
use crate::store::{BoxFuture, Reserved, SlotClock, Store};
use crate::time::Micros;
pub(crate) use call::{Answer, Ask, Call, Reply, ask};
pub(crate) use lanes::InLanes;
pub(crate) use local::LocalPace;
pub use peers::Peers;
use probing::Probing;
pub(crate) use snapshot::SharedSnapshot;
pub(crate) use state::{Fallback, Probed, State};
use suspension::Suspension;
use tail::Returns;
pub(crate) use tail::Tail;

/// The longest interval at which a replica with `on_unavailable = "local"` refreshes the number of replicas, while it
/// makes calls.
const REPLICA_REFRESH: Duration = Duration::from_millis(500);

/// The owner of the pacing state of this replica, and of its reserve calls.
pub(crate) struct Pacing<W> {
    state: State,
    /// The call in flight.
    call: Option<Call<W>>,
    probing: Probing,
    /// The earliest instant of the next reserve call, as turns, the horizon or back-off determine it.
    next_reserve_at: Instant,
    lease: LeaseRenewal,
    last_shared: SharedSnapshot,
    /// Maps slots to this process's clock.
    slots: Arc<SlotClock>,
    suspension: Suspension<W>,
    returns: Returns,
}

/// This replica's lease on a share of the pace.
#[derive(Debug)]
struct LeaseRenewal {
    /// The name that distinguishes this replica from others.
    replica: Arc<str>,
    /// The earliest instant of the next renewal.
    next_at: Instant,
    /// The instant since which the lease should end, if it should.
    ends: Option<Instant>,
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
            probing: Probing::new(now),
            next_reserve_at: now,
            lease: LeaseRenewal {
                replica: format!("{:016x}", fastrand::u64(..)).into(),
                next_at: now,
                ends: None,
            },
            last_shared: SharedSnapshot::new(settings.sets().count()),
            slots: Arc::default(),
            suspension: Suspension::None,
            returns: Returns::default(),
        }
    }

    /// Returns the pacing state of this replica.
    pub(crate) const fn state(&self) -> &State {
        &self.state
    }

    /// Returns the shared pace as last seen.
    pub(crate) const fn last_shared(&self) -> &SharedSnapshot {
        &self.last_shared
    }

    /// Maps slots to this process's clock.
    pub(crate) const fn slots(&self) -> &Arc<SlotClock> {
        &self.slots
    }

    /// Replaces the mapping of slots. It is called before any slot was granted.
    pub(crate) fn set_slots(&mut self, slots: Arc<SlotClock>) {
        self.slots = slots;
    }

    /// Uses this number of replicas besides that of leases.
    pub(crate) fn set_peers(&mut self, peers: Peers) {
        self.last_shared.set_peers(peers);
    }

    /// Sets the number of replicas that share the pace.
    pub(crate) const fn set_replicas(&mut self, replicas: u32) {
        self.last_shared.set_replicas(replicas);
    }

    /// Records that the store granted slots of a lane, for this number of units.
    pub(crate) fn on_shared_grant(&mut self, lane: LaneId, reserved: &Reserved, units: u64) {
        self.last_shared.on_granted(lane, reserved, units);
    }

    /// Forgets the usage of windows, since the counts of the limits were reset to 0.
    pub(crate) fn forget_usage(&mut self) {
        self.last_shared.forget_usage();
    }

    /// Records that the store answered a reserve call, or one about the record. Returns whether calls had
    /// failed while there was no fallback (`Held`).
    pub(crate) fn on_answer(&mut self) -> bool {
        self.state.on_answer()
    }

    /// Records that the store answered a probe at `now`. Returns whether it was unavailable until then.
    pub(crate) fn on_probe_answer(&mut self, now: Instant) -> bool {
        self.state.on_probe_answer(now)
    }

    /// Records that a call failed while this replica has no fallback. Returns how many failed before, and the longest
    /// back-off.
    pub(crate) fn on_failure(&mut self) -> (u32, Duration) {
        self.state.on_failure()
    }

    /// Records that the store is unavailable while this replica uses its fallback. Returns false if it has none.
    pub(crate) fn on_away_again(&mut self) -> bool {
        self.state.on_away_again()
    }

    /// Ends the fallback, and holds instead. Returns `None` if there was no fallback.
    pub(crate) fn take_fallback(&mut self) -> Option<Fallback> {
        self.state.take_fallback()
    }

    /// Replaces the local pace by another one, or by none.
    pub(crate) fn replace_local(&mut self, pace: Option<LocalPace>) {
        self.state.replace_local(pace);
    }

    /// Returns to the shared pace: requests slots at once, and renews the lease.
    pub(crate) fn rejoin(&mut self, now: Instant) {
        self.state.rejoin();
        (self.next_reserve_at, self.lease.next_at) = (now, now);
    }

    /// Records the slots that the store granted last; they can be given back until it grants others.
    pub(crate) fn on_granted(&mut self, tail: Tail) {
        self.returns.on_granted(tail);
    }

    /// Gives an unused slot of this lane and cost back, if it is the last one that the store granted to this replica.
    pub(crate) fn give_back(&mut self, lane: LaneId, cost: JobCost, slot: Micros, store: &Arc<dyn Store>) {
        // Slots of a local pace are of no use to other replicas.
        if self.state.local().is_none() {
            self.returns.give_back(lane, cost, slot, store);
        }
    }

    /// Keeps a slot that was not used during a call, until the answer has arrived.
    pub(crate) fn keep_unused(&mut self, unused: Unused, reason: Abandoned) {
        self.returns.unused.push((unused, reason));
    }

    /// Whether there are slots that were not used during a call.
    pub(crate) fn has_unused(&self) -> bool {
        !self.returns.unused.is_empty()
    }

    /// Takes the slots that were not used during a call.
    pub(crate) fn take_unused(&mut self) -> Vec<(Unused, Abandoned)> {
        std::mem::take(&mut self.returns.unused)
    }

    /// Forgets the slots that were not used during a call, since they are void.
    pub(crate) fn forget_unused(&mut self) {
        self.returns.unused.clear();
    }

    /// Whether slots are being given back to the store.
    pub(crate) fn has_returns(&self) -> bool {
        !self.returns.is_empty()
    }

    /// Waits until the store has answered for the next slot that is being given back. It waits forever if there is none.
    /// Cancel safe.
    pub(crate) async fn next_return(&mut self) {
        self.returns.next().await;
    }

    /// Starts a call. There is one at a time.
    pub(crate) fn start(&mut self, call: Call<W>) {
        self.call = Some(call);
    }

    /// Returns the waiters of the call in flight.
    pub(crate) fn batch(&self) -> impl Iterator<Item = &W> {
        self.call.iter().flat_map(|call| &call.batch)
    }

    pub(crate) const fn is_calling(&self) -> bool {
        self.call.is_some()
    }

    /// Waits for the reply to the call in flight; forever, if there is none. Cancel safe.
    async fn reply(call: &mut Option<Call<W>>) -> (Call<W>, Reply) {
        let Some(under_way) = call else { return std::future::pending().await };
        let reply = under_way.reply.as_mut().await;
        match call.take() {
            Some(call) => (call, reply),
            None => std::future::pending().await,
        }
    }

    /// Waits for the reply to the probe in flight; forever, if there is none. Cancel safe.
    async fn probe_reply(probe: &mut Option<BoxFuture<'static, Reply>>) -> Reply {
        let Some(under_way) = probe else { return std::future::pending().await };
        let reply = under_way.as_mut().await;
        *probe = None;
        reply
    }

    /// Waits for what ends first: the call in flight, the probe, or the return of a slot to the store. Cancel safe.
    pub(crate) async fn next(&mut self) -> Ended<W> {
        let Self { call, probing, returns, .. } = self;
        tokio::select! {
            biased;
            (call, reply) = Self::reply(call) => Ended::Call(call, reply),
            reply = Self::probe_reply(&mut probing.call) => Ended::Probe(reply),
            given_back = returns.next() => Ended::Return(given_back),
        }
    }

    /// Sets the replica's name to that of a previous engine.
    pub(crate) fn set_replica(&mut self, replica: Arc<str>) {
        self.lease.replica = replica;
    }

    /// Returns this replica's name at the store.
    pub(crate) const fn replica(&self) -> &Arc<str> {
        &self.lease.replica
    }

    /// Returns the earliest instant of the next reserve call.
    pub(crate) const fn next_reserve_at(&self) -> Instant {
        self.next_reserve_at
    }

    /// Sets the earliest instant of the next reserve call.
    pub(crate) const fn reserve_at(&mut self, at: Instant) {
        self.next_reserve_at = at;
    }

    /// Delays the next reserve call until this instant, if it was to be made earlier.
    pub(crate) fn reserve_not_before(&mut self, at: Instant) {
        self.next_reserve_at = self.next_reserve_at.max(at);
    }

    /// Allows the next reserve call at this instant, if it was to be made later.
    pub(crate) fn reserve_by(&mut self, at: Instant) {
        self.next_reserve_at = self.next_reserve_at.min(at);
    }

    /// Returns the lease to renew with the next call: the replica and the time to live. It is renewed at least four times per
    /// lease.
    pub(crate) fn lease(
        &mut self,
        now: Instant,
        ttl: Duration,
        on_unavailable: OnUnavailable,
    ) -> Option<(Arc<str>, Duration)> {
        // A replica that only tests the downstream takes no share of the pace.
        if now < self.lease.next_at || self.is_suspended() {
            return None;
        }
        let refresh =
            if on_unavailable == OnUnavailable::Local { REPLICA_REFRESH.min(ttl / 4) } else { ttl / 4 };
        self.lease.next_at = now + refresh;
        Some((Arc::clone(&self.lease.replica), ttl))
    }

    /// Makes the next call renew the lease.
    pub(crate) const fn renew_lease(&mut self, now: Instant) {
        self.lease.next_at = now;
    }

    /// Begins the fallback, since the store became unavailable at `now`.
    pub(crate) fn begin_fallback(&mut self, fallback: Fallback, now: Instant) {
        self.state = State::Away(fallback);
        self.next_reserve_at = now;
        self.probing.begin(now);
    }

    pub(crate) const fn is_suspended(&self) -> bool {
        self.suspension.is_active()
    }

    /// Returns the reason of the suspension, if there is one.
    pub(crate) const fn suspended(&self) -> Option<Abandoned> {
        self.suspension.reason()
    }

    /// Stops requesting slots from `now` on, and ends the lease if there is one. Returns the trial waiter of an earlier
    /// suspension.
    pub(crate) fn suspend(&mut self, settings: &Settings, reason: Abandoned, now: Instant) -> Option<W> {
        let counts = settings.on_unavailable == OnUnavailable::Local;
        self.lease.ends = (settings.on_limit == OnLimit::Wait || counts).then_some(now);
        self.suspension.begin(reason)
    }

    /// Requests slots for all waiters again. Returns the trial waiter.
    pub(crate) fn resume(&mut self, now: Instant) -> Option<W> {
        self.lease.ends = None;
        (self.next_reserve_at, self.lease.next_at, self.probing.next_at) = (now, now, Some(now));
        self.suspension.end()
    }

    /// Makes this waiter the trial. Returns it if there is no suspension, or else the previous trial waiter.
    pub(crate) const fn try_one(&mut self, waiter: W) -> Option<W> {
        self.suspension.try_one(waiter)
    }

    /// Takes the trial waiter.
    pub(crate) const fn take_trial(&mut self) -> Option<W> {
        self.suspension.take_trial()
    }

    /// Drops the trial waiter if its caller is gone.
    pub(crate) fn drop_stale_trial(&mut self)
    where
        W: Waiter,
    {
        self.suspension.drop_stale_trial();
    }

    pub(crate) const fn has_trial(&self) -> bool {
        self.suspension.has_trial()
    }

    /// Returns the trial waiter.
    pub(crate) const fn trial(&self) -> Option<&W> {
        self.suspension.trial()
    }

    /// Takes the waiters of the call in flight, and the trial waiter.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        let mut waiters: Vec<W> =
            self.call.iter_mut().flat_map(|call| std::mem::take(&mut call.batch)).collect();
        waiters.extend(self.take_trial());
        waiters
    }
}

/// The operation that ended, with its result.
pub(crate) enum Ended<W> {
    Call(Call<W>, Reply),
    Probe(Reply),
    /// The return of a slot to the store: its lane, if the store took it.
    Return(Option<LaneId>),
}
