//! While the store is away: a pace of one's own, or none, and the way back to the shared one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::Pacer;
use super::call::Reply;
use crate::limit::{Costs, Level, LimitSet, Mark, State, Window};
use crate::pace::pacing::replica_share;
use crate::pace::release::Held;
use crate::pace::schedule::Next;
use crate::pace::{LaneId, OnLimit, OnUnavailable, PlanLimits, Settings};
use crate::store::{
    BoxFuture, Change, Lease, MemoryStore, Reserve, Reserved, Scope, SlotClock, Store, StoreError,
};
use crate::time::{Clock, Deadline, Micros, SystemClock};

/// How often a store that is away is asked whether it is there again; with it the others see who is.
const PROBE: Duration = Duration::from_millis(100);

/// Who may have to pace alone asks at least as often how many there are, if it asks at all.
pub(super) const COUNT: Duration = Duration::from_millis(500);

/// The shortest lease: it is over at once.
const RELEASED: Duration = Duration::from_millis(1);

/// How long to wait for the others, once the store is there again.
const PATIENCE: Duration = Duration::from_secs(1);

/// After so long what is in use is so by others, and not by a store that begins behind a fence.
const SETTLED: Duration = Duration::from_millis(300);

/// How long nothing is released when the shared pace begins anew: until all others have noticed. The pause
/// leaves the pace without a burst.
const HANDOVER: Duration = Duration::from_millis(150);

/// The store is away, or was until just now.
pub(super) struct Absence {
    /// What is released is paced by this replica alone; none: by nothing.
    alone: Option<Alone>,
    /// So many shared the pace when the store went away.
    replicas: u32,
    /// It is there again since then.
    back: Option<Instant>,
}

/// A pace of one's own.
#[derive(Clone)]
pub(super) struct Alone {
    pub(super) store: Arc<MemoryStore>,
    pub(super) settings: Arc<Settings>,
}

/// What was last heard of the pace that all share.
#[derive(Debug)]
pub(super) struct Heard {
    /// Replicas that share it.
    replicas: u32,
    /// The next slot.
    next: Micros,
    /// For each lane its limits as they were at that instant, and the units that were granted then.
    marks: Vec<Option<(Micros, Vec<Mark>, u64)>>,
}

/// Asks whether the store is there.
pub(super) type Probe = BoxFuture<'static, Reply>;

/// The answer of the probe under way; never, when there is none. Cancel safe.
pub(super) async fn probed(probe: &mut Option<Probe>) -> Reply {
    match probe {
        Some(probe) => probe.as_mut().await,
        None => std::future::pending().await,
    }
}

/// The store's clock as it goes on while the store is away.
#[derive(Debug)]
struct Carried {
    slots: Arc<SlotClock>,
    /// Before the store was ever heard.
    own: SystemClock,
}

impl Clock for Carried {
    fn now(&self) -> Micros {
        self.slots.store_now().unwrap_or_else(|| self.own.now())
    }
}

impl Heard {
    pub(super) fn new(queues: usize) -> Self {
        Self { replicas: 1, next: Micros(0), marks: vec![None; queues] }
    }

    /// So many share the pace.
    pub(super) const fn share(&mut self, replicas: u32) {
        self.replicas = replicas;
    }

    /// The counts of the limits began at 0: what was in use is so no more.
    pub(super) fn reset(&mut self) {
        self.marks.fill(None);
    }

    /// Slots of a lane were granted, for so many units.
    pub(super) fn granted(&mut self, lane: LaneId, reserved: &Reserved, units: u64) {
        self.next = reserved.next;
        if let Some(known) = self.marks.get_mut(lane.row()) {
            *known = Some((reserved.now, reserved.before.clone(), units));
        }
    }
}

impl Pacer {
    /// The store did not answer: goes on without it, if that is wanted and possible.
    pub(super) fn leave(&mut self, error: &StoreError) -> bool {
        if let Some(absence) = &mut self.absence {
            absence.back = None;
            return true;
        }
        if self.settings.on_unavailable != OnUnavailable::Hold {
            self.end_rates();
        }
        let (downstream, replicas) = (self.settings.downstream.clone(), self.shared.replicas);
        let alone = match self.settings.on_unavailable {
            OnUnavailable::Hold => return false,
            OnUnavailable::Local => {
                let Some(alone) = self.alone() else { return false };
                tracing::warn!(downstream, %error, replicas, "the store is away: pacing alone, by a part of the limits");
                Some(alone)
            }
            OnUnavailable::Open => {
                // Nobody sleeps until a slot any more.
                self.schedule.forget();
                tracing::warn!(downstream, %error, "the store is away: releasing without limits");
                None
            }
        };
        if let Some(alone) = &alone {
            self.schedule.follow(&alone.settings);
            self.schedule.set_replicas(1);
        }
        self.absence = Some(Absence { alone, replicas, back: None });
        self.tell_alone();
        let now = Instant::now();
        (self.ask_at, self.probe_at) = (now, now + PROBE);
        true
    }

    /// A pace of one's own, behind what is known of the shared one; none where nothing is known of it, or the
    /// part would be none.
    fn alone(&self) -> Option<Alone> {
        self.terms.agreement.is_usable().then_some(())?;
        let now = self.slots.store_now()?;
        let on_limit = self.settings.on_limit;
        let of = self.shared.replicas;
        let limits = replica_share(&self.settings.limits, of, on_limit)?;
        let share = |plan: &PlanLimits| {
            let limits = replica_share(&plan.limits, of, on_limit)?;
            Some(PlanLimits { name: plan.name.clone(), limits })
        };
        let plans = self.settings.plans.iter().map(share).collect::<Option<_>>()?;
        let settings = Settings { limits, plans, ..(*self.settings).clone() };
        let clock = Carried { slots: Arc::clone(&self.slots), own: SystemClock::new() };
        let alone =
            Alone { store: Arc::new(MemoryStore::with_clock(Arc::new(clock))), settings: Arc::new(settings) };
        for (row, limits) in alone.settings.lanes().enumerate() {
            self.remember(&alone, LaneId::at(row), limits);
        }
        if on_limit == OnLimit::Wait {
            // Each replica somewhere between two of its slots, or all would release at the same instants.
            let apart = u64::try_from(alone.settings.limits.spacing().as_micros()).unwrap_or(u64::MAX - 1);
            let phase = Duration::from_micros(fastrand::u64(0..=apart));
            // What others were granted last lies no further ahead, and is not known here.
            let begun = self.shared.next.since(now).max(self.settings.horizon);
            alone.tend(&self.settings.downstream, Change::Penalize(begun + phase));
        }
        Some(alone)
    }

    /// Takes this replica's part of what is used of windows.
    fn remember(&self, alone: &Alone, lane: LaneId, limits: &LimitSet) {
        let Some(Some((now, marks, units))) = self.shared.marks.get(lane.row()) else { return };
        for (limit, mark) in limits.iter().zip(marks) {
            let Mark::Window { window, .. } = mark else { continue };
            // The others have taken as much as this one since then, as far as it knows.
            let before = window.used.div_ceil(u64::from(self.shared.replicas.max(1)));
            let state = if window.end > *now {
                let used = before.saturating_add(*units).min(u64::from(limit.max_cost()));
                State { last: *now, level: Level::Window(Window { used, ..*window }) }
            } else {
                let used = u32::try_from(*units).unwrap_or(u32::MAX).min(limit.max_cost());
                limit.commit(&limit.fresh(), *now, used)
            };
            alone.store.put_state(&self.settings.downstream, limit, state);
        }
    }

    /// What calls for slots go to while the store is away.
    pub(super) fn paced_alone(&self) -> Option<Alone> {
        self.absence.as_ref()?.alone.clone()
    }

    /// Whether nothing paces.
    fn is_open(&self) -> bool {
        self.absence.as_ref().is_some_and(|absence| absence.alone.is_none())
    }

    /// Whether the store is away, and was not heard again.
    pub(super) fn is_away(&self) -> bool {
        self.absence.as_ref().is_some_and(|absence| absence.back.is_none())
    }

    /// Whether jobs may be asked slots for, as far as terms and the store go.
    pub(super) fn may_ask(&self) -> bool {
        match &self.absence {
            Some(absence) => absence.alone.is_some(),
            None => self.terms.agreement.settled().is_some(),
        }
    }

    /// Has a pause count in a pace of one's own too.
    pub(super) fn tell_alone(&self) {
        let (Some(alone), Some(end)) = (self.paced_alone(), self.terms.pauses.end()) else { return };
        let left = end.left().max(Duration::from_micros(1));
        alone.tend(&self.settings.downstream, Change::Penalize(left.min(crate::store::LONGEST_PAUSE)));
    }

    /// Releases what waits without a slot, where that is wanted.
    pub(super) fn go_open(&mut self, now: Instant) {
        if !self.is_open() || self.terms.pauses.is_paused() {
            return;
        }
        if self.halt.is_halted() {
            return self.try_openly(now);
        }
        while self.release.free() > 0 {
            let Some(next) = self.schedule.next(&self.backlog, now) else { break };
            let Next { lane, .. } = next;
            let batch = self.pick(next, self.release.free());
            if batch.is_empty() {
                break;
            }
            let slot = self.slots.store_now().unwrap_or_else(crate::time::wall_now);
            for entry in batch {
                self.schedule.on_granted(lane, entry.job.cost.into(), None);
                self.gear.meters.granted(now.saturating_duration_since(entry.since), Duration::ZERO);
                self.release.hold_at_once(Held { waiter: entry, slot, deadline: Deadline::at(now) });
            }
        }
    }

    /// Asks whether the store is there, if it is time to.
    pub(super) fn probe(&mut self, now: Instant) -> Option<Probe> {
        self.probe_due().filter(|due| *due <= now)?;
        let (store, settings) = (Arc::clone(&self.store), Arc::clone(&self.settings));
        let replica = Arc::clone(&self.replica);
        // One that takes no jobs has no share: the others go on at the whole pace.
        let ttl = if self.halt.is_halted() { RELEASED } else { self.schedule.lease() };
        self.halt.lease_is_ended();
        Some(Box::pin(async move {
            let call = Reserve {
                lease: Some(Lease { replica: &replica, ttl }),
                ..Reserve::new(
                    Scope { downstream: &settings.downstream, key: "" },
                    &settings.limits,
                    Costs::Each(&[]),
                    Duration::ZERO,
                )
            };
            let sent = Instant::now();
            let answer = store.reserve(call).await.map(super::call::Answer::Reserved);
            Reply { sent, received: Instant::now(), answer }
        }))
    }

    /// When to ask. Replicas that police hold no leases otherwise, nor do those that are idle; and all must know of
    /// each other, since jobs may come while the store is away.
    pub(super) fn probe_due(&self) -> Option<Instant> {
        let counted = self.settings.on_unavailable == OnUnavailable::Local;
        let release = self.halt.ends_lease().then(Instant::now);
        release.or_else(|| (self.absence.is_some() || counted).then_some(self.probe_at))
    }

    /// Learns whether the store is there.
    pub(super) fn found(&mut self, Reply { sent, received, answer }: Reply) {
        self.probe_at = received + if self.absence.is_some() { PROBE } else { self.schedule.lease() / 3 };
        let reserved = match answer {
            Ok(super::call::Answer::Reserved(reserved)) => reserved,
            Ok(super::call::Answer::Checked(_)) => return,
            Err(error) => {
                self.gear.meters.store_errors.increment(1);
                return self.failed(&error);
            }
        };
        self.answers(received);
        let observed = self.observe(sent, reserved.now, reserved.epoch, received);
        self.on_status(reserved.status, reserved.now, reserved.epoch, observed);
        let Some(absence) = &mut self.absence else {
            return self.shared.share(reserved.replicas.unwrap_or(1));
        };
        let back = *absence.back.get_or_insert(received);
        let all = reserved.replicas.is_some_and(|replicas| replicas >= absence.replicas);
        // Somebody has begun with the shared pace, as the pause before it tells; or it never stood still. A
        // record that was lost seems to be in use too, for a moment.
        let begun = reserved.status.penalty > reserved.now;
        let goes_on = begun || (reserved.next > reserved.now && received - back >= SETTLED);
        // All leases live on where it was this replica alone that did not reach it: the pace never stood still.
        let still = reserved.next <= reserved.now;
        if (all && still) || goes_on || absence.alone.is_none() || received - back >= PATIENCE {
            self.rejoin(goes_on, reserved.replicas);
        }
    }

    /// Back to the shared pace.
    fn rejoin(&mut self, goes_on: bool, replicas: Option<u32>) {
        self.absence = None;
        self.give_up_own();
        self.schedule.follow(&self.settings);
        if let Some(replicas) = replicas {
            self.shared.share(replicas);
            self.schedule.set_replicas(replicas);
        }
        let now = Instant::now();
        (self.ask_at, self.lease_at) = (now, now);
        if !goes_on {
            self.penalized(Deadline::at(now + HANDOVER));
        }
        tracing::info!(downstream = self.settings.downstream, "back to the pace that all replicas share");
    }

    /// The store is there, but of no use: nothing is released.
    pub(super) fn hold_on(&mut self) {
        if self.absence.take().is_some() {
            self.give_up_own();
            self.schedule.follow(&self.settings);
            self.schedule.set_replicas(self.shared.replicas);
        }
    }

    /// Slots of one's own count for nobody else.
    fn give_up_own(&mut self) {
        let given_up = self.release.give_up_all();
        self.gear.meters.own_slots.increment(given_up.len() as u64);
        given_up.into_iter().for_each(|entry| self.backlog.push(entry));
    }

    /// Other options count: also for a pace of one's own.
    pub(super) fn follow_alone(&mut self) {
        let Some(Absence { replicas, back, alone }) = self.absence.take() else { return };
        let wanted = self.settings.on_unavailable;
        let own = if wanted == OnUnavailable::Local { self.alone() } else { None };
        if own.is_none() && wanted != OnUnavailable::Open {
            // As if the store had been away under these options from the start.
            return self.give_up_own();
        }
        if alone.is_some() {
            self.give_up_own();
        }
        if let Some(own) = &own {
            self.schedule.follow(&own.settings);
            self.schedule.set_replicas(1);
        }
        self.absence = Some(Absence { alone: own, replicas, back });
        self.tell_alone();
    }
}

impl Alone {
    /// It is answered at once, and no such change fails: without it the pace would begin at once.
    fn tend(&self, downstream: &str, change: Change<'_>) {
        let _ = self.store.tend(downstream, change).now_or_never();
    }
}
