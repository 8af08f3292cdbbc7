//! Calls for jobs of several lanes, where the downstream has lanes by keys.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::answers::{BARRED, SHORTEST_WAIT};
use super::ask::SLACK;
use super::{Admission, Effect, Engine, Refusal};
use crate::pace::Waiter;
use crate::pace::pacing::InLanes;
use crate::pace::schedule::{LaneAnswer, Lanes, Next, Spacing};
use crate::pace::terms::ProbeEnd;
use crate::pace::{LaneId, Settings};
use crate::store::{NextTurn, Reserved};
use crate::time::Deadline;

/// The cost of a waiter to every limit. Where lanes are made by keys, no limit has costs of its own.
fn units(waiter: &impl Waiter) -> u32 {
    waiter.cost().default_cost()
}

impl<W: Waiter> Engine<W> {
    /// Gives a waiter its lane, if lanes are made by keys, and notes whether others wait in that.
    pub(super) fn find_lane(&mut self, waiter: &mut W) {
        // An unused slot is kept for its lane. Another lane that took the row of a forgotten one would get it.
        let may_forget = !self.pacing.has_unused();
        let Some(lanes) = self.schedule.keyed_mut() else { return };
        let of = LaneId::at(waiter.lane().set());
        let lane = match waiter.key() {
            Some(values) => lanes.lane(of, values, may_forget),
            None => lanes.lane_without_values(of, may_forget),
        };
        let is_quiet = !lanes.is_offered(lane) && self.backlog.ready(lane) == 0;
        let request = waiter.request_mut();
        (request.lane, request.is_quiet) = (lane, is_quiet);
    }

    /// Whether this lane is paused alone at this instant.
    pub(super) fn is_paused_alone(&self, lane: LaneId, at: Instant) -> bool {
        self.schedule.keyed().is_some_and(|lanes| lanes.is_paused(lane, at))
    }

    /// The lanes by keys, if they wait alone where the downstream throttles one of their waiters.
    fn pausing_alone(&mut self) -> Option<&mut Lanes> {
        self.schedule.keyed_mut().filter(|lanes| lanes.pause_alone())
    }

    /// Has waiters wait until `end`, as the downstream asked for in its answer to one with this key: all, or those of some
    /// lanes alone. Returns the values of these if their pause begins.
    pub(crate) fn penalize_for(&mut self, key: &[String], end: Deadline) -> Option<Arc<str>> {
        if let Some(lanes) = self.pausing_alone() {
            return lanes.pause(key, (Instant::now(), end.instant()));
        }
        self.penalize(end);
        None
    }

    /// Begins or continues a cool-down, since the downstream throttled a waiter with this key that was sent at `sent`, and named
    /// no time: of all waiters, or of some lanes alone. One of all that is under way continues. Returns the values of these lanes if
    /// theirs begins.
    pub(crate) fn cool_down_for(&mut self, key: &[String], sent: Instant) -> Option<Arc<str>> {
        let (longest, is_on) = (self.terms.cooling().longest(), self.terms.cooling().is_on());
        if let Some(lanes) = self.pausing_alone().filter(|_| !is_on) {
            return lanes.cool_down(key, (sent, Instant::now()), longest);
        }
        self.cool_down(sent);
        None
    }

    /// Records the end of a send of a waiter with this key that began at `sent`.
    pub(crate) fn attempt_ended_for(&mut self, key: &[String], sent: Instant, end: ProbeEnd) {
        if let (ProbeEnd::Answered, Some(lanes)) = (end, self.pausing_alone()) {
            lanes.answered(key, sent);
        }
        self.attempt_ended(sent, end);
    }

    /// Returns how many waiters to offer for this number of slots: more than that, if lanes are made by keys and have
    /// limits.
    pub(super) fn offers(&self, slots: usize) -> usize {
        self.schedule.keyed().map_or(slots, |lanes| lanes.offers(slots))
    }

    /// As [`Engine::pick`], of all lanes, in the order in which they are to be granted slots.
    pub(super) fn pick_in_lanes(
        &mut self,
        next: Next,
        count: usize,
        admission: &impl Admission<W>,
    ) -> VecDeque<W> {
        let mut batch = VecDeque::with_capacity(count);
        let now = Instant::now();
        let reaches = now + next.ahead.max(self.schedule.turns().early()) + SLACK;
        if let Some(lanes) = self.schedule.keyed_mut() {
            lanes.begin(now);
        }
        while batch.len() < count {
            let Some((lane, turn)) = self.schedule.keyed_mut().and_then(|lanes| lanes.next(&self.backlog))
            else {
                break;
            };
            let Some(waiter) = self.backlog.pop(lane) else { continue };
            let cost = units(&waiter);
            let is_offered = if !waiter.is_live() {
                drop(waiter);
                self.backlog.note_left();
                self.drop_stale();
                self.driver.effects.push(Effect::DropStale);
                false
            } else if !admission.admits(&waiter) {
                self.backlog.note_left();
                self.driver.effects.push(Effect::Refuse(waiter, Refusal::NotAdmitted));
                false
            } else if let Some(until) = self.schedule.barred(LaneId::DOWNSTREAM, cost, reaches) {
                self.backlog.put_aside(until, waiter);
                false
            } else {
                batch.push_back(waiter);
                true
            };
            let Some(lanes) = self.schedule.keyed_mut() else { break };
            if is_offered {
                lanes.offer(&turn, cost, &self.backlog);
            } else {
                lanes.skip(&turn, &self.backlog);
            }
        }
        batch
    }

    /// The lanes of the waiters of a call, if lanes are made by keys.
    pub(super) fn in_lanes(&self, batch: &VecDeque<W>, most: usize) -> Option<Arc<InLanes>> {
        let lanes = self.schedule.keyed()?;
        let of = batch.iter().map(Waiter::lane);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Some(Arc::new(InLanes::new(of, (lanes.lead(), most), |lane| lanes.keys(lane))))
    }

    /// Accepts an answer to a call for several lanes, as [`Engine::on_reserved`] does. The settings are those of the
    /// call, which may have changed since. `is_full` says that the call was granted the most slots that it may have.
    pub(super) fn on_reserved_in_lanes(
        &mut self,
        settings: &Settings,
        sent: Instant,
        reserved: &Reserved,
        batch: &VecDeque<W>,
        (is_newest, is_full): (bool, bool),
    ) {
        self.on_replicas(reserved.replicas);
        let granted: Vec<u32> = reserved.jobs().filter_map(|job| batch.get(job)).map(units).collect();
        let latest = granted.iter().copied().zip(&reserved.slots).max_by_key(|(_, slot)| **slot);
        let units = granted.iter().copied().map(u64::from).sum();
        let at = |slot: crate::time::Micros| sent + slot.since(reserved.stamp.now);
        let last = latest.map(|(cost, slot)| (at(*slot), cost));
        self.schedule.on_granted(LaneId::DOWNSTREAM, units, last);
        self.settle_lanes(settings, sent, reserved, (batch, is_full));
        if !is_newest {
            return;
        }
        if self.pacing.state().local().is_none() {
            self.pacing.on_shared_grant(LaneId::DOWNSTREAM, reserved, units);
        }
        let is_used_up = reserved.booking.is_some_and(|booking| booking.next != NextTurn::None);
        if !is_used_up {
            // The store has taken the turn back, if there was one.
            self.schedule.turns_mut().drop_turn();
        }
        let before = latest.map(|(_, slot)| *slot);
        let before = before.or_else(|| (reserved.next <= reserved.stamp.now).then_some(reserved.stamp.now));
        let apart = before.map(|before| reserved.next.since(before));
        let announced = reserved.booking.and_then(|booking| match booking.next {
            NextTurn::At(turn) => Some(turn.spacing),
            _ => None,
        });
        let last_cost = last.map(|(_, cost)| cost);
        self.schedule.on_spacing(LaneId::DOWNSTREAM, Spacing { apart, last_cost, announced });
        self.schedule.on_next_slot(LaneId::DOWNSTREAM, at(reserved.next));
        let has_more = self.schedule.keyed().is_some_and(Lanes::has_ready);
        if is_used_up || is_full || reserved.refused.is_some() || !has_more {
            return self.ask_again(sent, reserved);
        }
        // Other lanes use the remaining slots at once.
        if reserved.slots.is_empty() {
            self.pacing.reserve_not_before(Instant::now() + SHORTEST_WAIT);
        }
    }

    /// Gives the lanes the results of the jobs of a call, which was made under these settings.
    fn settle_lanes(
        &mut self,
        settings: &Settings,
        sent: Instant,
        reserved: &Reserved,
        (batch, is_full): (&VecDeque<W>, bool),
    ) {
        let (limits, own) = (&settings.limits, settings.limits.len());
        let at = |slot: crate::time::Micros| sent + slot.since(reserved.stamp.now);
        let mut answers: Vec<_> =
            batch.iter().map(|waiter| (waiter.lane(), units(waiter), LaneAnswer::Refused)).collect();
        for (job, slot) in reserved.jobs().zip(&reserved.slots) {
            answers[job].2 = LaneAnswer::Granted(at(*slot));
        }
        for passed in &reserved.passed {
            if let Some(index) = passed.refusal.limit.checked_sub(own) {
                answers[passed.job].2 = LaneAnswer::Limited(index, at(passed.refusal.slot));
            }
        }
        let waits = |passed: &&crate::limit::Passed| {
            let limit = passed.refusal.limit;
            limit < own && limits.waits_for_window(limit) && answers[passed.job].1 > 1
        };
        let costly = reserved.passed.iter().filter(waits).min_by_key(|passed| answers[passed.job].1);
        if let Some(costly) = costly {
            let ends = sent + costly.refusal.slot.since(reserved.stamp.now).min(BARRED);
            self.schedule.bar(LaneId::DOWNSTREAM, answers[costly.job].1, ends);
        }
        if let Some(lanes) = self.schedule.keyed_mut() {
            lanes.settle(settings, &answers, reserved.refused.is_none() && !is_full);
        }
    }
}
