//! The store's answers to reserve and check calls.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::ask::SLACK;
use super::{Effect, Engine, Refusal};
use crate::limit::Passed;
use crate::pace::meters::Abandoned;
use crate::pace::pacing::{Answer, Call, InLanes, Reply, Tail};
use crate::pace::release::{Held, LONGEST_CALL};
use crate::pace::schedule::Spacing;
use crate::pace::{LaneId, Settings, Waiter};
use crate::store::{Checked, NextTurn, Observed, Reserved, Stamp};
use crate::time::{Deadline, Micros};

/// The longest wait for the end of a window before the store is asked again, since the clocks of the store and of
/// this machine drift apart.
pub(super) const BARRED: Duration = Duration::from_secs(300);

/// The delay before a slot is requested again for a trial waiter that was granted none.
const TRIAL_AGAIN: Duration = Duration::from_millis(20);

/// The shortest wait after a call that was granted no slot.
pub(super) const SHORTEST_WAIT: Duration = Duration::from_millis(1);

impl<W: Waiter> Engine<W> {
    /// Handles the reply to a call: holds the waiters that were granted a slot, and refuses those that the limits do
    /// not allow. The others return to the backlog.
    pub(super) fn on_reply(&mut self, call: Call<W>, reply: Reply) {
        let Call { lane, mut batch, settings, costs, in_lanes, is_local, is_trial, goes_on, .. } = call;
        let mut stale = Vec::new();
        let Reply { sent, received, answer } = reply;
        // If the process was stopped during the call, the instants of the slots are too uncertain.
        let stood_still = received - sent > LONGEST_CALL;
        // Slots that were requested before a suspension are not used during it.
        let suspended = self.pacing.suspended().filter(|_| !is_trial);
        match answer {
            // The local pace has ended; its slots mean nothing to other replicas.
            _ if is_local && self.pacing.state().local().is_none() => {}
            Ok(Answer::Reserved(reserved)) => {
                let is_newest = is_local || self.take_in(sent, received, &reserved);
                if reserved.outdated || (self.pacing.state().local().is_some() && !is_local) {
                    self.on_replicas(reserved.replicas);
                } else {
                    let in_lanes = in_lanes.as_deref().map(|in_lanes| (in_lanes, &*settings));
                    self.on_reserved((lane, goes_on, in_lanes), sent, &reserved, &batch, is_newest);
                }
                if stood_still {
                    self.meters.abandoned(reserved.slots.len(), Abandoned::Late);
                } else if let Some(reason) = suspended {
                    self.meters.abandoned(reserved.slots.len(), reason);
                } else {
                    stale = self.hold(&mut batch, sent, received, &reserved);
                }
                if !is_local {
                    let tail = Tail::new((lane, in_lanes), settings, costs, reserved);
                    self.keep_tail(tail, stood_still || suspended.is_some());
                }
            }
            Ok(Answer::Checked(checked)) => {
                let allowed = checked.verdicts.iter().filter(|verdict| verdict.earliest <= checked.stamp.now);
                let allowed = allowed.count();
                if !is_local {
                    self.on_round_trip(sent, received, allowed);
                    self.on_stamp(sent, received, checked.stamp);
                }
                if stood_still {
                    self.meters.abandoned(allowed, Abandoned::Late);
                } else {
                    self.on_checked(lane, &mut batch, (sent, received), (checked, suspended));
                }
            }
            Err(error) => {
                self.meters.reserve_failed();
                self.on_failure(&error);
            }
        }
        self.end_call(batch, received);
        if suspended.is_some() {
            self.give_back_turn(received);
        }
        // The last slot is withdrawn first, since only the last slot can go back to the store.
        stale.into_iter().rev().for_each(|seq| self.withdraw_held(seq));
        self.pass_on_all();
    }

    /// Returns the waiters of a call that were granted no slot to the backlog.
    fn end_call(&mut self, batch: VecDeque<W>, received: Instant) {
        if self.pacing.is_suspended() && !batch.is_empty() {
            // The trial waiter was not granted a slot, for any reason: one is requested again soon.
            self.pacing.reserve_not_before(received + TRIAL_AGAIN);
        }
        if let Some(lanes) = self.schedule.keyed_mut() {
            // An answer that was not accepted grants nothing.
            lanes.end();
        }
        batch.into_iter().for_each(|waiter| self.backlog.push(waiter));
    }

    /// Keeps what is needed to give back the slots of an answer. Unused slots go back at once.
    fn keep_tail(&mut self, tail: Tail, is_unused: bool) {
        let unused = if is_unused { tail.slots() } else { vec![] };
        self.pacing.on_granted(tail);
        // The last slot is given back first, since only the last slot can go back to the store.
        unused.into_iter().rev().for_each(|slot| self.give_back_unused(slot));
    }

    /// Holds the waiters that were granted a slot until their slots. Returns the stale ones among them.
    fn hold(
        &mut self,
        batch: &mut VecDeque<W>,
        sent: Instant,
        received: Instant,
        reserved: &Reserved,
    ) -> Vec<u64> {
        let mut stale = Vec::new();
        let now = Deadline::at(received);
        let mut granted = reserved.jobs().peekable();
        let mut slots = reserved.slots.iter();
        for job in 0..batch.len() {
            let Some(waiter) = batch.pop_front() else { break };
            let Some(&slot) = granted.next_if_eq(&job).and_then(|_| slots.next()) else {
                batch.push_back(waiter);
                continue;
            };
            let deadline = self.pacing.slots().hold(slot).unwrap_or_else(Deadline::now);
            if !waiter.is_live() {
                stale.push(waiter.seq());
            }
            let request = *waiter.request();
            match self.release.hold(Held { waiter, slot, deadline }) {
                Ok(()) => self.meters.granted(&request, sent, deadline.since(now)),
                // The pause began while the call was in flight.
                Err(waiter) => self.put_back(vec![waiter], Abandoned::Paused),
            }
        }
        stale
    }

    /// Handles the verdicts of a check call: releases the allowed waiters, and refuses the others.
    fn on_checked(
        &mut self,
        lane: LaneId,
        batch: &mut VecDeque<W>,
        (sent, received): (Instant, Instant),
        (Checked { stamp: Stamp { now: slot, status, .. }, verdicts, .. }, suspended): (
            Checked,
            Option<Abandoned>,
        ),
    ) {
        let deadline = Deadline::at(received);
        for verdict in verdicts {
            // A waiter that only a pause refuses goes back and waits, even if the pause is over by now.
            if self.terms.pauses().is_paused() || status.paused_until() > slot {
                break;
            }
            let Some(waiter) = batch.pop_front() else { break };
            // Every decision counts as a turn, so that a plan that is used up is not chosen every time.
            let units = waiter.cost().units(self.settings.limits_of(lane));
            self.schedule.on_granted(lane, units.into(), None);
            let (earliest, limit) = (verdict.earliest, verdict.limit);
            match suspended {
                _ if earliest > slot => {
                    let refusal = Refusal::Limited { lane, limit, earliest };
                    self.driver.effects.push(Effect::Refuse(waiter, refusal));
                }
                Some(reason) => self.put_back(vec![waiter], reason),
                None => {
                    self.meters.granted(waiter.request(), sent, Duration::ZERO);
                    self.release.hold_at_once(Held { waiter, slot, deadline });
                }
            }
        }
    }

    /// Accepts all of an answer except its slots. Returns false if a newer answer was accepted already.
    fn take_in(&mut self, sent: Instant, received: Instant, reserved: &Reserved) -> bool {
        self.on_round_trip(sent, received, reserved.slots.len());
        self.on_stamp(sent, received, reserved.stamp)
    }

    /// Records that the store answered, and granted this number of slots.
    fn on_round_trip(&mut self, sent: Instant, received: Instant, granted: usize) {
        self.meters.reserved(received - sent, granted);
        self.schedule.turns_mut().on_round_trip(received - sent);
        self.on_store_there(received);
    }

    /// Records that the store is available.
    pub(super) fn on_store_there(&mut self, received: Instant) {
        self.meters.connected(true);
        self.terms.on_answer(received);
        if self.pacing.on_answer() {
            self.on_store_back(received);
        }
    }

    /// Records that the store is available again.
    pub(super) fn on_store_back(&mut self, received: Instant) {
        tracing::info!(downstream = self.settings.downstream, "the store answers again");
        self.terms.on_store_back(received);
    }

    /// Accepts the store's clock and record from an answer. Returns false if a newer answer was accepted already.
    pub(super) fn on_stamp(&mut self, sent: Instant, received: Instant, stamp: Stamp) -> bool {
        let Stamp { now, epoch, status } = stamp;
        let observed = self.observe(sent, now, epoch, received);
        self.on_status(status, now, epoch, observed)
    }

    /// Accepts the store's clock from an answer.
    pub(super) fn observe(
        &mut self,
        sent: Instant,
        now: Micros,
        epoch: Micros,
        received: Instant,
    ) -> Observed {
        let observed = self.pacing.slots().observe(sent, now, epoch, received);
        match observed {
            Observed::Consistent => {}
            Observed::SteppedBack => {
                tracing::warn!(
                    downstream = self.settings.downstream,
                    "the store's clock stepped back: held slots keep their time"
                );
                self.forget_estimates_and_turn();
                self.terms.on_stepped_back();
                self.driver.effects.push(Effect::Recheck { has_stepped: true });
            }
            Observed::Stepped => {
                tracing::warn!(
                    downstream = self.settings.downstream,
                    "the store's clock stepped or its state was lost: held slots are given up, and others reserved"
                );
                let given_up = self.release.give_up_all();
                self.put_back(given_up, Abandoned::Stepped);
                self.driver.effects.push(Effect::Recheck { has_stepped: true });
                self.forget_estimates_and_turn();
                self.pacing.reserve_by(received);
                // Other replicas may have started a record that only seems to be the same.
                self.terms.on_step();
            }
        }
        observed
    }

    /// Accepts the number of replicas that share the pace, if the answer has it.
    pub(super) fn on_replicas(&mut self, replicas: Option<u32>) {
        let Some(replicas) = replicas else { return };
        self.pacing.set_replicas(replicas);
        if self.pacing.state().local().is_none() {
            self.schedule.set_replicas(replicas);
        }
    }

    /// Accepts the number of replicas, the granted units and, from the newest answer only, when to call again.
    fn on_reserved(
        &mut self,
        (lane, goes_on, in_lanes): (LaneId, bool, Option<(&InLanes, &Settings)>),
        sent: Instant,
        reserved: &Reserved,
        batch: &VecDeque<W>,
        is_newest: bool,
    ) {
        if let Some((in_lanes, settings)) = in_lanes {
            let is_full = in_lanes.is_full(reserved.slots.len());
            return self.on_reserved_in_lanes(settings, sent, reserved, batch, (is_newest, is_full));
        }
        self.on_replicas(reserved.replicas);
        let granted = reserved.jobs().filter_map(|job| batch.get(job)).map(Waiter::cost);
        let (mut units, mut last_cost) = (0, None);
        for cost in granted {
            let own = cost.units(self.settings.limits_of(lane));
            (units, last_cost) = (units + u64::from(own), Some(cost.known_units()));
        }
        let last = reserved.slots.last().map(|slot| sent + slot.since(reserved.stamp.now));
        let latest = last.zip(last_cost);
        self.schedule.on_granted(lane, units, latest);
        if !is_newest {
            return;
        }
        let is_barred = self.bar(lane, sent, reserved, batch);
        if self.pacing.state().local().is_none() {
            self.pacing.on_shared_grant(lane, reserved, units);
        }
        let is_used_up = reserved.booking.is_some_and(|booking| booking.next != NextTurn::None);
        if !is_used_up && !goes_on {
            // The store has taken the turn back, if there was one.
            self.schedule.turns_mut().drop_turn();
        }
        if is_barred {
            self.ask_for_others(sent, reserved);
            return;
        }
        let sleeps = self.on_next_slot(lane, sent, reserved, latest);
        // Other lanes use the rest of the turn at once.
        let has_others = self.schedule.has_others(lane, &self.backlog);
        // The next slot of a plan says nothing about other lanes.
        if !is_used_up && (sleeps || has_others) {
            return;
        }
        self.ask_again(sent, reserved);
    }

    /// Accepts the next slot of an answer. `latest` is the instant of the last slot that was granted, and its cost.
    /// Returns whether the lane sleeps until the next slot, since its own limits determine that.
    fn on_next_slot(
        &mut self,
        lane: LaneId,
        sent: Instant,
        reserved: &Reserved,
        latest: Option<(Instant, u32)>,
    ) -> bool {
        let (now, next) = (reserved.stamp.now, reserved.next);
        let before = reserved.slots.last().copied().or_else(|| (next <= now).then_some(now));
        let apart = before.map(|before| next.since(before));
        let announced = reserved.booking.and_then(|booking| match booking.next {
            NextTurn::At(turn) => Some(turn.spacing),
            _ => None,
        });
        let last_cost = latest.map(|(_, cost)| cost);
        self.schedule.on_spacing(lane, Spacing { apart, last_cost, announced });
        let next = sent + next.since(now);
        // The set of each plan begins with the limits of the downstream.
        let is_downstreams = match reserved.refused {
            Some(refused) => refused.limit < self.settings.limits.len(),
            // If all were granted, either the downstream's limits or the plan's own determine the next slot.
            None => latest.is_some_and(|latest| self.schedule.is_next(latest, next)),
        };
        let sleeps = lane != LaneId::DOWNSTREAM && !is_downstreams;
        if sleeps {
            self.schedule.sleep(lane, next);
        } else {
            self.schedule.on_next_slot(lane, next);
        }
        sleeps
    }

    /// Some waiters wait for the end of a window. Leaves them out of calls that do not reach it. Returns whether such
    /// a waiter ended this call; then cheaper waiters may still be granted slots.
    fn bar(&mut self, lane: LaneId, sent: Instant, reserved: &Reserved, batch: &VecDeque<W>) -> bool {
        if reserved.refused.is_none() && reserved.passed.is_empty() {
            return false;
        }
        let local = self.pacing.state().local();
        let limits = local.map_or(&self.settings, |local| &local.settings).limits_of(lane);
        let refused = reserved.refused.map(|refusal| Passed { job: reserved.jobs_decided(), refusal });
        let cost = |passed: &Passed| batch.get(passed.job).map_or(1, |waiter| waiter.cost().known_units());
        let waits = |passed: &&Passed| limits.waits_for_window(passed.refusal.limit) && cost(passed) > 1;
        let costly = reserved.passed.iter().chain(&refused).filter(waits);
        let Some(least) = costly.min_by_key(|passed| cost(passed)) else { return false };
        let ends = sent + least.refusal.slot.since(reserved.stamp.now).min(BARRED);
        let is_refused = refused.is_some_and(|refused| waits(&&refused));
        self.schedule.bar(lane, cost(least), ends);
        is_refused
    }

    /// Schedules the next call for waiters that cost less than the barred one: at the booked turn, or at once if there
    /// is none.
    fn ask_for_others(&mut self, sent: Instant, reserved: &Reserved) {
        if reserved.booking.is_some_and(|booking| matches!(booking.next, NextTurn::At(_))) {
            self.ask_again(sent, reserved);
        }
        // A call that was slightly too early for the end of the window is not repeated at the same instant.
        self.pacing.reserve_not_before(Instant::now() + SLACK / 2);
    }

    /// Schedules the next call as the answer says.
    pub(super) fn ask_again(&mut self, sent: Instant, reserved: &Reserved) {
        let before = self.schedule.turns().farthest();
        // The time counts from when the call was sent. Otherwise a replica far from the store would always be late,
        // after a nearer one had taken every slot.
        let at = match &reserved.booking {
            Some(booking) => {
                let at = self.schedule.turns_mut().on_booking(sent, booking, reserved);
                // A call that was granted nothing is not repeated at once.
                if reserved.slots.is_empty() { at.max(Instant::now() + SHORTEST_WAIT) } else { at }
            }
            None => {
                let next = sent + reserved.next.since(reserved.stamp.now);
                next.checked_sub(self.settings.horizon / 2).unwrap_or(sent)
            }
        };
        self.pacing.reserve_not_before(at);
        let farthest = self.schedule.turns().farthest();
        if farthest != before {
            // After a loss of state, the fence covers this reach, even if another replica has extended the queue of
            // turns.
            self.store.set_horizon(&self.settings.downstream, farthest);
        }
    }
}
