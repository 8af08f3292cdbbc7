//! Whose turn it is among the lanes of a downstream: pure.
//!
//! The highest priority goes first. Among equals the lane that was granted least goes first (start-time fair
//! queueing: each grant has a start tag, and virtual time is the start tag of the latest grant), so that lanes share
//! what the downstream allows evenly, whatever each call brings.
//!
//! A lane that its own limits refuse sleeps until they allow more, and the others go on. It is asked for again once
//! the slots of the downstream have come as far as its own; or shortly before its own, if there is nobody else. So
//! neither loses a slot: if it were granted earlier, the downstream would be spoken for until then; if it were granted
//! later, the lane would fall behind.

use std::time::Duration;

use tokio::time::Instant;

use super::backlog::Backlog;
use super::{LaneId, OnLimit, Settings, Waiter};
use crate::limit::{Limit, LimitSet};
use crate::rate::Rate;
use crate::store::{Asker, Turn};

mod batching;
mod turn_taking;

use batching::{Batch, Batching};
use turn_taking::TurnTaking;

/// How early a lane asks for a slot that its own limits set, where nobody else waits. If this were shorter than a
/// round trip to the store, the lane would lose pace.
const LEAD: Duration = Duration::from_millis(20);

/// How exactly the instants of slots are known here, over the way to the store and back.
const SLACK: Duration = Duration::from_millis(2);

/// The lanes of a downstream, and how each gets on.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// By lane.
    lanes: Vec<LaneState>,
    /// The start tag of the latest grant to any lane.
    virtual_time: u64,
    /// This replica's place among those who ask for slots.
    turns: TurnTaking,
    /// How far apart the slots of the downstream are at least.
    min_spacing: Duration,
    /// How far apart they are where many are taken.
    mean_spacing: Duration,
    /// When the downstream has its next slot, as far as this replica knows.
    next_slot: Instant,
    /// The bars were lifted, and the jobs that were put aside may go again.
    bars_lifted: bool,
    /// Holds back a small call for slots until more concurrency is free, until then at most.
    batch_delay_until: Option<Instant>,
}

#[derive(Debug)]
struct LaneState {
    batching: Batching,
    /// Its slots lie further apart than the downstream's, as the last answer has it; before the first one, if its
    /// limits are slower.
    slower_than_downstream: bool,
    /// Its next slot, where its own limits set it.
    sleeping: Option<Sleep>,
    /// The virtual time at which its next grant starts: where its last one ended.
    start_tag: u64,
    /// Jobs that cost as much or more have no slot before a window ends: the cost, and when it ends.
    barred: Option<(u32, Instant)>,
}

/// A lane sleeps until a slot that its own limits set.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    until: Instant,
    /// When to ask for that slot, if nobody else waits.
    ask_at: Instant,
}

/// A lane whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) lane: LaneId,
    /// Those of a lower priority wait behind the first one of another lane: those whose rank is above this one.
    pub(crate) rank: u8,
    /// How far ahead of now a slot may lie.
    pub(crate) ahead: Duration,
    /// Others wait for slots that this lane would only pass over.
    is_contended: bool,
    /// The turn that the call is for.
    turn: Option<Turn>,
    /// How many units it takes at most.
    max_units: u32,
    /// Other lanes go on at the same turn.
    goes_on: bool,
}

/// What an answer says of the slots of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spacing {
    /// From the last slot that was granted to the next one: zero, and more may go at the same instant. `None` where
    /// none was granted and the next one is later than now.
    pub(crate) apart: Option<Duration>,
    /// The cost of the job that the last slot went to.
    pub(crate) last_cost: Option<u32>,
    /// How far apart slots will lie, where the store tells.
    pub(crate) told: Option<Duration>,
}

impl LaneState {
    fn new(limits: &LimitSet, settings: &Settings) -> Self {
        let batching = Batching::new(limits, settings.horizon, settings.concurrency);
        let polices = settings.on_limit == OnLimit::Reject;
        let batching = if polices { batching.at_once() } else { batching };
        let is_slower = limits.rate().interval() > settings.limits.rate().interval();
        Self {
            batching,
            slower_than_downstream: !polices && is_slower,
            sleeping: None,
            start_tag: 0,
            barred: None,
        }
    }

    /// Whether its own limits allow a slot at `instant`, as far as it is known.
    fn is_awake_at(&self, instant: Instant) -> bool {
        self.sleeping.is_none_or(|sleep| sleep.until <= instant)
    }
}

impl Schedule {
    pub(crate) fn new(settings: &Settings) -> Self {
        let even = settings.limits.iter().filter(|limit| limit.burst() == 1);
        let spacing = even.map(Limit::rate).map(Rate::interval).max();
        Self {
            lanes: settings.lanes().map(|limits| LaneState::new(limits, settings)).collect(),
            virtual_time: 0,
            turns: TurnTaking::new(settings.horizon),
            min_spacing: spacing.unwrap_or_default(),
            mean_spacing: spacing.unwrap_or_else(|| settings.limits.rate().interval()),
            next_slot: Instant::now(),
            bars_lifted: false,
            batch_delay_until: None,
        }
    }

    /// Goes by other limits of the same lanes from now on; each lane keeps its start tag. What was learnt of slots is
    /// void.
    pub(crate) fn follow(&mut self, settings: &Settings) {
        let new = Self::new(settings);
        for (lane, new) in self.lanes.iter_mut().zip(new.lanes) {
            let replicas = lane.batching.replicas();
            *lane = LaneState { start_tag: lane.start_tag, ..new };
            lane.batching.set_replicas(replicas);
        }
        (self.min_spacing, self.mean_spacing) = (new.min_spacing, new.mean_spacing);
        self.turns.follow(settings.horizon);
        self.forget();
    }

    /// How to ask for the jobs of this lane.
    pub(crate) fn batching(&self, lane: LaneId) -> &Batching {
        &self.lanes[lane.row()].batching
    }

    /// This replica's place among those who ask for slots.
    pub(crate) const fn turns(&self) -> &TurnTaking {
        &self.turns
    }

    pub(crate) const fn turns_mut(&mut self) -> &mut TurnTaking {
        &mut self.turns
    }

    /// How many slots to ask for, where so many wait and so many would find room at their slots.
    pub(crate) fn batch(&self, next: Next, waiting: usize, room: usize) -> Batch {
        let lane = &self.lanes[next.lane.row()];
        // More of them would leave slots unused between each other.
        let only_one = next.is_contended && lane.slower_than_downstream && !lane.batching.is_burst();
        lane.batching.batch(if only_one { waiting.min(1) } else { waiting }, room, next.max_units)
    }

    /// Whether to wait a moment before a call for so many, or to make none.
    pub(crate) fn delays(&mut self, lane: LaneId, batch: Batch, now: Instant) -> bool {
        if batch.count > 0 && batch.is_scarce {
            let delay = self.lanes[lane.row()].batching.batch_delay();
            if now < *self.batch_delay_until.get_or_insert(now + delay) {
                return true;
            }
        }
        self.batch_delay_until = None;
        batch.count == 0
    }

    /// Until when a small call is held back.
    pub(crate) const fn batch_delay_until(&self) -> Option<Instant> {
        self.batch_delay_until
    }

    /// No call is held back any more.
    pub(crate) const fn forget_batch_delay(&mut self) {
        self.batch_delay_until = None;
    }

    /// How long a lease is to last: as the slowest lane needs it.
    pub(crate) fn lease(&self) -> Duration {
        self.lanes.iter().map(|lane| lane.batching.lease()).max().unwrap_or_default()
    }

    /// Sets how many replicas share the slots.
    pub(crate) fn set_replicas(&mut self, replicas: u32) {
        self.lanes.iter_mut().for_each(|lane| lane.batching.set_replicas(replicas));
    }

    /// The lane whose turn it is.
    pub(crate) fn next<W: Waiter>(&self, backlog: &Backlog<W>, now: Instant) -> Option<Next> {
        if let [_] = self.lanes[..] {
            let lane = LaneId::DOWNSTREAM;
            let (turn, max_units, ahead) = self.reach(lane, now);
            let (rank, is_contended, goes_on) = (u8::MAX, false, false);
            let next = Next { lane, rank, ahead, is_contended, turn, max_units, goes_on };
            return backlog.first(lane).map(|_| next);
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

    /// The turn that a call at `now` for the jobs of a lane is for, how many units it takes, and how far ahead.
    fn reach(&self, lane: LaneId, now: Instant) -> (Option<Turn>, u32, Duration) {
        let turn = self.turns.turn(now);
        let (max_units, ahead) = self.turns.call_bounds(turn, self.batching(lane).spacing());
        (turn, max_units, ahead)
    }

    /// How this replica asks for jobs that cost so many units in all, where so many others wait for the same turn.
    pub(crate) fn asker(&self, next: Next, units: u64, others: u64, limits: &LimitSet) -> Asker {
        self.turns.asker(next.turn, units.saturating_add(others), limits, next.goes_on)
    }

    /// Whether jobs of other lanes than this one wait.
    pub(crate) fn has_others<W: Waiter>(&self, lane: LaneId, backlog: &Backlog<W>) -> bool {
        self.all().any(|(other, _)| other != lane && backlog.ready(other) > 0)
    }

    /// How many jobs wait that may have a slot as soon as the downstream has one.
    pub(crate) fn waiting<W: Waiter>(&self, backlog: &Backlog<W>, now: Instant) -> u64 {
        let base = now.max(self.next_slot);
        let awake = self.all().filter(|(_, state)| state.is_awake_at(base));
        awake.map(|(lane, _)| backlog.ready(lane) as u64).sum()
    }

    fn all(&self) -> impl Iterator<Item = (LaneId, &LaneState)> {
        self.lanes.iter().enumerate().map(|(row, state)| (LaneId::at(row), state))
    }

    /// The best lane among those that `may` go, and the rank of the first job of the others.
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

    /// How far ahead of now a lane may be granted a slot: not beyond what another one waits for; and where limits of
    /// its own may set it, hardly beyond what the downstream allows.
    fn ahead<W: Waiter>(
        &self,
        backlog: &Backlog<W>,
        (lane, is_contended): (LaneId, bool),
        (now, base): (Instant, Instant),
        reach: Duration,
    ) -> Duration {
        let own = if lane == LaneId::DOWNSTREAM || !self.lanes[lane.row()].slower_than_downstream {
            // The downstream sets its slots, so none is passed over.
            reach
        } else if is_contended {
            base - now + SLACK
        } else {
            base - now + self.lead()
        };
        let others = self.all().filter(|(other, _)| *other != lane && backlog.ready(*other) > 0);
        let due = others.filter_map(|(_, state)| state.sleeping.map(|sleep| sleep.until));
        // A slot at that instant would push the other one on.
        let before = |due: Instant| (due - now).saturating_sub(Duration::from_micros(1));
        let before = due.filter(|due| *due > base).min().map_or(reach, before);
        own.min(reach).min(before)
    }

    fn lead(&self) -> Duration {
        LEAD.min(self.turns.horizon() / 2)
    }

    /// When a lane that has jobs may ask, if none of them may before `since`.
    pub(crate) fn wake_at<W: Waiter>(&self, backlog: &Backlog<W>, since: Instant) -> Option<Instant> {
        let ready = self.all().filter(|(lane, _)| backlog.ready(*lane) > 0);
        let ask_at = |state: &LaneState| {
            let asleep = state.sleeping.filter(|sleep| sleep.until > self.next_slot);
            asleep.map_or(since, |sleep| sleep.ask_at.max(since))
        };
        ready.map(|(_, state)| ask_at(state)).min()
    }

    /// Units were granted to a lane; where slots are known, the latest one and the cost of its job.
    pub(crate) fn on_granted(&mut self, lane: LaneId, units: u64, last: Option<(Instant, u32)>) {
        let lane = &mut self.lanes[lane.row()];
        if units > 0 {
            self.virtual_time = lane.start_tag.max(self.virtual_time);
            lane.start_tag = self.virtual_time.saturating_add(units);
        }
        if let Some((slot, cost)) = last {
            self.next_slot = self.next_slot.max(slot + self.min_spacing.saturating_mul(cost));
        }
    }

    /// Whether this is the next slot that the downstream itself has after one with a job of this cost.
    pub(crate) fn is_next(&self, (last, cost): (Instant, u32), slot: Instant) -> bool {
        slot <= last + self.min_spacing.saturating_mul(cost)
    }

    /// The downstream has its next slot then, as `lane` was told.
    pub(crate) fn on_next_slot(&mut self, lane: LaneId, slot: Instant) {
        self.next_slot = self.next_slot.max(slot);
        self.lanes[lane.row()].sleeping = None;
    }

    /// An answer tells how far apart the slots of a lane are.
    pub(crate) fn on_spacing(&mut self, lane: LaneId, spacing: Spacing) {
        let lane = &mut self.lanes[lane.row()];
        if let (Some(apart), Some(cost)) = (spacing.apart, spacing.last_cost) {
            lane.slower_than_downstream = apart > self.mean_spacing.saturating_mul(cost);
        }
        lane.batching.on_spacing(spacing.apart, spacing.told);
    }

    /// A lane has its next slot then, as its own limits have it.
    pub(crate) fn sleep(&mut self, lane: LaneId, until: Instant) {
        let lead = self.lead();
        let lane = &mut self.lanes[lane.row()];
        let ask_at = until.checked_sub(lead).unwrap_or(until) + lane.batching.jitter(lead / 2);
        lane.sleeping = Some(Sleep { until, ask_at });
    }

    /// The store's clock stepped, or it lost what it knew: what was learnt of its slots is void.
    pub(crate) fn forget(&mut self) {
        self.next_slot = Instant::now();
        self.turns.forget();
        self.lanes.iter_mut().for_each(|lane| (lane.sleeping, lane.barred) = (None, None));
        self.bars_lifted = true;
    }

    /// Whether the bars were lifted since the last time that this was asked.
    pub(crate) const fn take_bars_lifted(&mut self) -> bool {
        std::mem::replace(&mut self.bars_lifted, false)
    }

    /// Jobs of this lane that cost as much or more wait for the end of a window, which is then.
    pub(crate) fn bar(&mut self, lane: LaneId, cost: u32, ends: Instant) {
        self.lanes[lane.row()].barred = Some((cost, ends));
    }

    /// When the window ends that a job of this cost waits for, if that is later than a call reaches.
    pub(crate) fn barred(&self, lane: LaneId, cost: u32, reaches: Instant) -> Option<Instant> {
        let barred = self.lanes[lane.row()].barred;
        barred.filter(|(least, ends)| cost >= *least && *ends > reaches).map(|(_, ends)| ends)
    }
}

#[cfg(test)]
mod tests;
