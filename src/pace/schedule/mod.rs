//! The choice of the next lane of a downstream. It is pure.
//!
//! The highest priority goes first. Among equals the lane that was granted least goes first (start-time fair queueing:
//! each grant has a start tag, and virtual time is the start tag of the latest grant), so that lanes share the
//! downstream's slots evenly, however many each call is granted.
//!
//! A lane that its own limits refuse sleeps until they allow more, while other lanes are granted slots. Slots are
//! requested for it again once the downstream's next slot is as late as its own, or shortly before its own if no other
//! lane has waiters. So neither loses a slot: if the lane were granted one earlier, the downstream would be reserved
//! until then; if later, the lane would fall behind.

use std::time::Duration;

use tokio::time::Instant;

use super::backlog::Backlog;
use super::{LaneId, Settings, Waiter};
use crate::limit::{Limit, LimitSet, MAX_BATCH};
use crate::rate::Rate;
use crate::store::Asker;

mod batching;
mod lane;
mod lanes;
mod next;
mod turn_taking;

use batching::{Batch, Batching};
use lane::{LaneState, PassedOn, Sleep};
pub(crate) use lanes::{Answer as LaneAnswer, BusyLane, LaneWait, Lanes, LanesView, WaiterPlace};
pub(crate) use next::{Next, Spacing};
use turn_taking::SentTurn;
pub(crate) use turn_taking::TurnTaking;

/// How long before a slot is requested that the lane's own limits determine, if no other lane has waiters. If this
/// were shorter than a round trip to the store, the lane would fall behind its pace.
const LEAD: Duration = Duration::from_millis(20);

/// The error of this replica's estimates of slots, which is due to the round trip to the store.
const SLACK: Duration = Duration::from_millis(2);

/// The lanes of a downstream, with their scheduling state.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// The state of each lane; where lanes are made by keys, that of the downstream comes first, and the others mean
    /// nothing.
    lanes: Vec<LaneState>,
    /// The lanes by keys, if the downstream has any.
    keyed: Option<Box<Lanes>>,
    /// The start tag of the latest grant to any lane.
    virtual_time: u64,
    /// This replica's place in the queue of turns.
    turns: TurnTaking,
    /// The minimum spacing of the downstream's slots.
    min_spacing: Duration,
    /// The mean spacing when many slots are taken.
    mean_spacing: Duration,
    /// The downstream's next slot, as far as this replica knows.
    next_slot: Instant,
    /// Whether the bars were lifted, so that the waiters that were put aside are ready again.
    bars_lifted: bool,
    /// The instant until which a small reserve call is delayed at most, so that more concurrency becomes free.
    batch_delay_until: Option<Instant>,
}

impl Schedule {
    pub(crate) fn new(settings: &Settings) -> Self {
        let even = settings.limits.iter().filter(|limit| limit.burst() == 1);
        let spacing = even.map(Limit::rate).map(Rate::interval).max();
        Self {
            lanes: settings.sets().map(|limits| LaneState::new(limits, settings)).collect(),
            keyed: Lanes::new(settings).map(Box::new),
            virtual_time: 0,
            turns: TurnTaking::new(settings.horizon, &settings.limits),
            min_spacing: spacing.unwrap_or_default(),
            mean_spacing: spacing.unwrap_or_else(|| settings.limits.rate().interval()),
            next_slot: Instant::now(),
            bars_lifted: false,
            batch_delay_until: None,
        }
    }

    /// Applies other limits of the same lanes; each lane keeps its start tag. The estimates of slots become void, and
    /// so does the turn, unless the limits and the horizon stay the same.
    pub(crate) fn follow(&mut self, settings: &Settings, keeps_turn: bool) {
        let new = Self::new(settings);
        for (lane, new) in self.lanes.iter_mut().zip(new.lanes) {
            let replicas = lane.batching.replicas();
            *lane = LaneState { start_tag: lane.start_tag, ..new };
            lane.batching.set_replicas(replicas);
        }
        if let Some(keyed) = &mut self.keyed {
            keyed.follow(settings);
        }
        (self.min_spacing, self.mean_spacing) = (new.min_spacing, new.mean_spacing);
        if !keeps_turn {
            self.turns.follow(settings.horizon, &settings.limits);
        }
        self.forget();
    }

    /// Returns the batching of this lane.
    pub(crate) fn batching(&self, lane: LaneId) -> &Batching {
        &self.lanes[lane.set()].batching
    }

    /// This replica's place in the queue of turns.
    pub(crate) const fn turns(&self) -> &TurnTaking {
        &self.turns
    }

    pub(crate) const fn turns_mut(&mut self) -> &mut TurnTaking {
        &mut self.turns
    }

    /// Returns how many slots to request for the `waiting` jobs. At their slots the concurrency has room for `room`
    /// of them.
    pub(crate) fn batch(&self, next: Next, waiting: usize, room: usize) -> Batch {
        let lane = &self.lanes[next.lane.set()];
        // More slots of this lane would leave slots of the downstream between them unused.
        let only_one = next.is_contended && lane.slower_than_downstream && !lane.batching.is_burst();
        lane.batching.batch(if only_one { waiting.min(1) } else { waiting }, room, next.max_units)
    }

    /// Whether to delay the call for this batch, or to make none.
    pub(crate) fn delays(&mut self, lane: LaneId, batch: Batch, now: Instant) -> bool {
        if batch.count > 0 && batch.is_scarce {
            let delay = self.lanes[lane.set()].batching.batch_delay();
            if now < *self.batch_delay_until.get_or_insert(now + delay) {
                return true;
            }
        }
        self.batch_delay_until = None;
        batch.count == 0
    }

    /// Returns the instant until which a small call is delayed.
    pub(crate) const fn batch_delay_until(&self) -> Option<Instant> {
        self.batch_delay_until
    }

    /// Ends the delay of a small call.
    pub(crate) const fn forget_batch_delay(&mut self) {
        self.batch_delay_until = None;
    }

    /// Returns the time to live of leases, as the slowest lane needs it.
    pub(crate) fn lease(&self) -> Duration {
        self.lanes.iter().map(|lane| lane.batching.lease()).max().unwrap_or_default()
    }

    /// Sets how many replicas share the slots.
    pub(crate) fn set_replicas(&mut self, replicas: u32) {
        self.lanes.iter_mut().for_each(|lane| lane.batching.set_replicas(replicas));
    }

    /// Updates which lanes by keys have new waiters, and which may be called for. Call it before [`Schedule::next`].
    pub(crate) fn refresh<W: Waiter>(&mut self, backlog: &mut Backlog<W>, now: Instant) {
        if let Some(keyed) = &mut self.keyed {
            keyed.refresh(backlog, now, now.max(self.next_slot));
        }
    }

    /// Returns the lane whose turn it is, if any has waiters and may be called for.
    pub(crate) fn next<W: Waiter>(&self, backlog: &Backlog<W>, now: Instant) -> Option<Next> {
        let is_keyed = self.keyed.as_ref().map(|keyed| keyed.has_ready());
        if is_keyed.is_some() || self.lanes.len() == 1 {
            let lane = LaneId::DOWNSTREAM;
            let (turn, max_units, ahead) = self.reach(lane, now);
            let (rank, is_contended, goes_on) = (u8::MAX, false, false);
            let next = Next { lane, rank, ahead, is_contended, turn, max_units, goes_on };
            return is_keyed.unwrap_or_else(|| backlog.first(lane).is_some()).then_some(next);
        }
        let base = now.max(self.next_slot);
        let may_ask = |lane: &LaneState| lane.sleeping.is_none_or(|sleep| sleep.ask_at <= now);
        let (lane, rank, is_contended) = self
            .best(backlog, |lane| lane.is_awake_at(base))
            .map(|(lane, rank)| (lane, rank, rank.is_some()))
            .or_else(|| self.best(backlog, may_ask).map(|(lane, rank)| (lane, rank, false)))?;
        let rank = rank.unwrap_or(u8::MAX);
        let (turn, max_units, reach) = self.reach(lane, now);
        let ahead = self.ahead(backlog, (lane, is_contended), (now, base), reach);
        let goes_on = self.has_others(lane, backlog);
        Some(Next { lane, rank, ahead, is_contended, turn, max_units, goes_on })
    }

    /// Returns the turn of a call for a lane at `now`, the most units of the call, and how far ahead its slots may lie.
    fn reach(&self, lane: LaneId, now: Instant) -> (Option<SentTurn>, u32, Duration) {
        let turn = self.turns.turn(now);
        let (max_units, ahead) = self.turns.call_bounds(turn, self.batching(lane).spacing());
        (turn, max_units, ahead)
    }

    /// Returns this replica's part in the queue of turns for a call of `units`, while `others` wait for the same turn.
    pub(crate) fn asker(&self, next: Next, units: u64, others: u64, limits: &LimitSet) -> Asker {
        self.turns.asker(next.turn, units.saturating_add(others), limits, next.goes_on)
    }

    /// Whether other lanes have ready waiters.
    pub(crate) fn has_others<W: Waiter>(&self, lane: LaneId, backlog: &Backlog<W>) -> bool {
        self.all().any(|(other, _)| other != lane && backlog.ready(other) > 0)
    }

    /// Returns the number of waiters that may have a slot as soon as the downstream has one.
    pub(crate) fn waiting<W: Waiter>(&self, backlog: &Backlog<W>, now: Instant) -> u64 {
        if let Some(keyed) = &self.keyed {
            return keyed.waiting(backlog, MAX_BATCH as u64);
        }
        let base = now.max(self.next_slot);
        let awake = self.all().filter(|(_, state)| state.is_awake_at(base));
        awake.map(|(lane, _)| backlog.ready(lane) as u64).sum()
    }

    fn all(&self) -> impl Iterator<Item = (LaneId, &LaneState)> {
        self.lanes.iter().enumerate().map(|(row, state)| (LaneId::at(row), state))
    }

    /// Returns the best lane among those that satisfy `may`, and the rank of the first waiter of the others.
    fn best<W: Waiter>(
        &self,
        backlog: &Backlog<W>,
        may: impl Fn(&LaneState) -> bool,
    ) -> Option<(LaneId, Option<u8>)> {
        let candidates = || {
            self.all().filter_map(|(lane, state)| {
                let (rank, seq) = backlog.first(lane)?;
                may(state).then(|| (rank, state.start_tag.max(self.virtual_time), seq, lane))
            })
        };
        let (.., lane) = candidates().min()?;
        Some((lane, candidates().filter(|(.., other)| *other != lane).map(|(rank, ..)| rank).min()))
    }

    /// Returns how far ahead of now a lane may be granted a slot: not beyond the slot for which another lane sleeps
    /// and, if its own limits may determine the slot, hardly beyond the downstream's next slot.
    fn ahead<W: Waiter>(
        &self,
        backlog: &Backlog<W>,
        (lane, is_contended): (LaneId, bool),
        (now, base): (Instant, Instant),
        reach: Duration,
    ) -> Duration {
        let own = if lane == LaneId::DOWNSTREAM || !self.lanes[lane.set()].slower_than_downstream {
            // The downstream's limits determine its slots, so that none is skipped.
            reach
        } else if is_contended {
            base - now + SLACK
        } else {
            base - now + self.lead()
        };
        let others = self.all().filter(|(other, _)| *other != lane && backlog.ready(*other) > 0);
        let due = others.filter_map(|(_, state)| state.sleeping.map(|sleep| sleep.until));
        // A slot at that instant would delay the other lane's slot.
        let before = |due: Instant| (due - now).saturating_sub(Duration::from_micros(1));
        let before = due.filter(|due| *due > base).min().map_or(reach, before);
        own.min(reach).min(before)
    }

    fn lead(&self) -> Duration {
        LEAD.min(self.turns.horizon() / 2)
    }

    /// Returns when slots may be requested for a lane with waiters, `since` at the earliest.
    pub(crate) fn wake_at<W: Waiter>(&self, backlog: &Backlog<W>, since: Instant) -> Option<Instant> {
        if let Some(keyed) = &self.keyed {
            return keyed.wake_at(backlog, since);
        }
        let ready = self.all().filter(|(lane, _)| backlog.ready(*lane) > 0);
        let ask_at = |state: &LaneState| {
            let asleep = state.sleeping.filter(|sleep| sleep.until > self.next_slot);
            asleep.map_or(since, |sleep| sleep.ask_at.max(since))
        };
        ready.map(|(_, state)| ask_at(state)).min()
    }

    /// Records that units were granted to a lane and, if slots are known, the latest slot and the cost of its waiter.
    pub(crate) fn on_granted(&mut self, lane: LaneId, units: u64, last: Option<(Instant, u32)>) {
        let lane = &mut self.lanes[lane.set()];
        if units > 0 {
            self.virtual_time = lane.start_tag.max(self.virtual_time);
            lane.start_tag = self.virtual_time.saturating_add(units);
        }
        if let Some((slot, cost)) = last {
            self.next_slot = self.next_slot.max(slot + self.min_spacing.saturating_mul(cost));
        }
    }

    /// Whether `slot` is the next one that the downstream's limits allow after `last`, which was taken at this cost.
    pub(crate) fn is_next(&self, (last, cost): (Instant, u32), slot: Instant) -> bool {
        slot <= last + self.min_spacing.saturating_mul(cost)
    }

    /// Records the downstream's next slot, which a call for `lane` was answered.
    pub(crate) fn on_next_slot(&mut self, lane: LaneId, slot: Instant) {
        self.next_slot = self.next_slot.max(slot);
        self.lanes[lane.set()].sleeping = None;
    }

    /// Records the spacing of a lane's slots from an answer.
    pub(crate) fn on_spacing(&mut self, lane: LaneId, spacing: Spacing) {
        let lane = &mut self.lanes[lane.set()];
        if let (Some(apart), Some(cost)) = (spacing.apart, spacing.last_cost) {
            lane.slower_than_downstream = apart > self.mean_spacing.saturating_mul(cost);
        }
        lane.batching.on_spacing(spacing.apart, spacing.announced);
    }

    /// Makes a lane sleep until its next slot, which its own limits determine.
    pub(crate) fn sleep(&mut self, lane: LaneId, until: Instant) {
        let lead = self.lead();
        let lane = &mut self.lanes[lane.set()];
        let ask_at = until.checked_sub(lead).unwrap_or(until) + lane.batching.jitter(lead / 2);
        lane.sleeping = Some(Sleep { until, ask_at });
    }

    /// Returns the instant until which a lane sleeps, if it does.
    pub(crate) fn sleeps_until(&self, lane: LaneId) -> Option<Instant> {
        if let Some(keyed) = &self.keyed {
            return keyed.sleeps_until(lane);
        }
        self.lanes[lane.set()].sleeping.map(|sleep| sleep.until)
    }

    /// Returns an estimate of the next slot of a lane: when the downstream has one, and the lane does not sleep.
    pub(crate) fn next_slot(&self, lane: LaneId) -> Instant {
        self.sleeps_until(lane).map_or(self.next_slot, |until| until.max(self.next_slot))
    }

    /// Returns the waiters of a lane that were passed on to wait elsewhere and have no slot yet, if the lane's slots begin
    /// at `start` and are this far apart.
    pub(crate) fn passed_on(&mut self, lane: LaneId, start: Instant, apart: Duration) -> PassedOn {
        let passed_on = &mut self.lanes[lane.set()].passed_on;
        *passed_on.insert(passed_on.unwrap_or(PassedOn::nobody(start)).less_released(start, apart))
    }

    /// Records that the waiter of a lane with this position in the order of arrival is passed on.
    pub(crate) fn pass_on(&mut self, lane: LaneId, seq: u64) {
        let passed_on = &mut self.lanes[lane.set()].passed_on;
        *passed_on = passed_on.map(|others| others.with(seq));
    }

    /// Forgets which waiters were passed on, since they come back.
    pub(crate) fn forget_passed_on(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.passed_on = None);
    }

    /// The lanes by keys, if the downstream has any.
    pub(crate) fn keyed(&self) -> Option<&Lanes> {
        self.keyed.as_deref()
    }

    pub(crate) fn keyed_mut(&mut self) -> Option<&mut Lanes> {
        self.keyed.as_deref_mut()
    }

    /// Forgets the estimates of slots, since the store's slots have changed. The turn is kept.
    pub(crate) fn forget(&mut self) {
        self.forget_shared_slots();
        if let Some(keyed) = &mut self.keyed {
            keyed.forget();
        }
    }

    /// Forgets the estimates of slots that the return of a slot to the store makes void. There may be very many lanes
    /// by keys: the limits of those other than `lane` allow no more than before.
    pub(crate) fn forget_slots_of(&mut self, lane: LaneId) {
        self.forget_shared_slots();
        if let Some(keyed) = &mut self.keyed {
            keyed.forget_limits_of(lane);
        }
    }

    fn forget_shared_slots(&mut self) {
        self.next_slot = Instant::now();
        self.lanes.iter_mut().for_each(|lane| (lane.sleeping, lane.barred) = (None, None));
        self.bars_lifted = true;
    }

    /// Returns whether the bars were lifted since the last call.
    pub(crate) const fn take_bars_lifted(&mut self) -> bool {
        std::mem::replace(&mut self.bars_lifted, false)
    }

    /// Bars waiters of this lane with at least this cost until a window ends.
    pub(crate) fn bar(&mut self, lane: LaneId, cost: u32, ends: Instant) {
        self.lanes[lane.set()].barred = Some((cost, ends));
    }

    /// Returns the end of the window for which a waiter of this cost waits, if a call does not reach it.
    pub(crate) fn barred(&self, lane: LaneId, cost: u32, reaches: Instant) -> Option<Instant> {
        let barred = self.lanes[lane.set()].barred;
        barred.filter(|(least, ends)| cost >= *least && *ends > reaches).map(|(_, ends)| ends)
    }
}

#[cfg(test)]
mod tests;
