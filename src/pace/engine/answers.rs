//! What the engine learns from the store's answers to calls for slots.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::ask::SLACK;
use super::{Effect, Engine, Refusal};
use crate::limit::Passed;
use crate::pace::meters::Abandoned;
use crate::pace::pacing::{Answer, Call, Reply, Tail};
use crate::pace::release::{Held, LONGEST_CALL};
use crate::pace::schedule::Spacing;
use crate::pace::{LaneId, Waiter};
use crate::store::{Checked, NextTurn, Observed, Reserved};
use crate::time::{Deadline, Micros};

/// The clocks of the store and of this machine go apart: one that waits for the end of a window longer than this is told
/// again meanwhile when that is.
const BARRED: Duration = Duration::from_secs(300);

/// One that is tried and was granted no slot is not asked for again before.
const TRIAL_AGAIN: Duration = Duration::from_millis(20);

impl<W: Waiter> Engine<W> {
    /// Holds those that were granted a slot until then, and refuses those that the limits do not allow; the others go
    /// back to the backlog.
    pub(super) fn on_reply(&mut self, call: Call<W>, reply: Reply) {
        let Call { lane, mut batch, settings, costs, is_local, is_trial, .. } = call;
        let mut stale = Vec::new();
        let Reply { sent, received, answer } = reply;
        // If the process stood still meanwhile, it cannot be told when the slots come, or came.
        let stood_still = received - sent > LONGEST_CALL;
        // What was asked for before a suspension is not used in it.
        let suspended = self.pacing.suspended().filter(|_| !is_trial);
        match answer {
            // The store is there again: slots of one's own count for nobody else.
            _ if is_local && self.pacing.state.local().is_none() => {}
            Ok(Answer::Reserved(reserved)) => {
                let is_newest = is_local || self.on_answered(sent, received, &reserved);
                if reserved.outdated || (self.pacing.state.local().is_some() && !is_local) {
                    self.share(reserved.replicas);
                } else {
                    self.learn(lane, sent, &reserved, &batch, is_newest);
                }
                if stood_still {
                    self.meters.abandoned(reserved.slots.len(), Abandoned::Late);
                } else if let Some(reason) = suspended {
                    self.meters.abandoned(reserved.slots.len(), reason);
                } else {
                    stale = self.hold(&mut batch, sent, received, &reserved);
                }
                if !is_local {
                    self.pacing.on_granted(Tail::new(lane, settings, costs, reserved));
                }
            }
            Ok(Answer::Checked(checked)) => {
                let allowed = checked.verdicts.iter().filter(|verdict| verdict.earliest <= checked.now);
                let allowed = allowed.count();
                if !is_local {
                    self.on_round_trip(sent, received, allowed);
                    let observed = self.observe(sent, checked.now, checked.epoch, received);
                    self.on_status(checked.status, checked.now, checked.epoch, observed);
                }
                if stood_still {
                    self.meters.abandoned(allowed, Abandoned::Late);
                } else {
                    self.decide(lane, &mut batch, (sent, received), (checked, suspended));
                }
            }
            Err(error) => {
                self.meters.reserve_failed();
                self.on_failure(&error);
            }
        }
        if self.pacing.is_suspended() && !batch.is_empty() {
            // Whatever refused the trial, it is asked for again before long.
            self.pacing.reserve_not_before(received + TRIAL_AGAIN);
        }
        batch.into_iter().for_each(|waiter| self.backlog.push(waiter));
        // The last one first: only the last slot can go back to the store.
        stale.into_iter().rev().for_each(|seq| self.withdraw_held(seq));
    }

    /// Holds those that were granted a slot until then; returns those of them for whom nobody waits any more.
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
            let deadline = self.pacing.slots.hold(slot).unwrap_or_else(Deadline::now);
            if !waiter.is_live() {
                stale.push(waiter.seq());
            }
            let waited = sent.saturating_duration_since(waiter.since());
            match self.release.hold(Held { waiter, slot, deadline }) {
                Ok(()) => self.meters.granted(waited, deadline.since(now)),
                // The pause began while the call was under way.
                Err(waiter) => self.put_back(vec![waiter], Abandoned::Paused),
            }
        }
        stale
    }

    /// Sends off those that are allowed, and refuses the others.
    fn decide(
        &mut self,
        lane: LaneId,
        batch: &mut VecDeque<W>,
        (sent, received): (Instant, Instant),
        (Checked { now: slot, verdicts, status, .. }, suspended): (Checked, Option<Abandoned>),
    ) {
        let deadline = Deadline::at(received);
        for verdict in verdicts {
            // What no limit refuses, but a pause, waits for its end: also one that is over by now.
            if self.terms.pauses.is_paused() || status.paused_until() > slot {
                break;
            }
            let Some(waiter) = batch.pop_front() else { break };
            // A decision is a turn, whichever it is: a plan that is used up must not be asked for always.
            self.schedule.on_granted(lane, waiter.cost().into(), None);
            let (earliest, limit) = (verdict.earliest, verdict.limit);
            match suspended {
                _ if earliest > slot => {
                    let refusal = Refusal::Limited { lane, limit, earliest };
                    self.effects.push(Effect::Refuse(waiter, refusal));
                }
                Some(reason) => self.put_back(vec![waiter], reason),
                None => {
                    let waited = sent.saturating_duration_since(waiter.since());
                    self.meters.granted(waited, Duration::ZERO);
                    self.release.hold_at_once(Held { waiter, slot, deadline });
                }
            }
        }
    }

    /// The store answered: learns all but its slots. False where it has said something newer already.
    fn on_answered(&mut self, sent: Instant, received: Instant, reserved: &Reserved) -> bool {
        self.on_round_trip(sent, received, reserved.slots.len());
        let observed = self.observe(sent, reserved.now, reserved.epoch, received);
        self.on_status(reserved.status, reserved.now, reserved.epoch, observed)
    }

    /// The store answered, and granted so many.
    fn on_round_trip(&mut self, sent: Instant, received: Instant, granted: usize) {
        self.meters.reserved(received - sent, granted);
        self.schedule.turns_mut().on_trip(received - sent);
        self.on_store_there(received);
    }

    /// The store is there.
    pub(super) fn on_store_there(&mut self, received: Instant) {
        self.meters.connected(true);
        self.terms.calls.on_heard(received);
        if self.pacing.state.on_answer() {
            self.on_store_back(received);
        }
    }

    /// The store is there again.
    pub(super) fn on_store_back(&mut self, received: Instant) {
        tracing::info!(downstream = self.settings.downstream, "the store answers again");
        self.terms.calls.postpone(received);
        self.terms.pauses.on_store_back();
    }

    /// Learns from an answer what time it is at the store.
    pub(super) fn observe(
        &mut self,
        sent: Instant,
        now: Micros,
        epoch: Micros,
        received: Instant,
    ) -> Observed {
        let observed = self.pacing.slots.observe(sent, now, epoch, received);
        match observed {
            Observed::Consistent => {}
            Observed::SteppedBack => {
                tracing::warn!(
                    downstream = self.settings.downstream,
                    "the store's clock stepped back: held slots keep their time"
                );
                self.schedule.forget();
                self.effects.push(Effect::Recheck);
            }
            Observed::Stepped => {
                tracing::warn!(
                    downstream = self.settings.downstream,
                    "the store's clock stepped or its state was lost: held slots are given up and reserved anew"
                );
                let given_up = self.release.give_up_all();
                self.put_back(given_up, Abandoned::Stepped);
                self.effects.push(Effect::Recheck);
                self.schedule.forget();
                // A turn that was booked there is none.
                self.pacing.reserve_by(received);
                // Others may have begun a record that only seems to be the same.
                self.terms.agreement.on_step();
            }
        }
        observed
    }

    /// Learns how many replicas share the pace, where the store told.
    fn share(&mut self, replicas: Option<u32>) {
        let Some(replicas) = replicas else { return };
        self.pacing.last_shared.set_replicas(replicas);
        if self.pacing.state.local().is_none() {
            self.schedule.set_replicas(replicas);
        }
    }

    /// Learns how many replicas there are, and when to ask again; the latter only from the newest answer.
    fn learn(
        &mut self,
        lane: LaneId,
        sent: Instant,
        reserved: &Reserved,
        batch: &VecDeque<W>,
        is_newest: bool,
    ) {
        self.share(reserved.replicas);
        let when = |slot: Micros| sent + slot.since(reserved.now);
        let last = reserved.slots.last().copied();
        let granted = reserved.jobs().filter_map(|job| batch.get(job)).map(Waiter::cost);
        let (mut units, mut last_cost) = (0, None);
        for cost in granted {
            (units, last_cost) = (units + u64::from(cost), Some(cost));
        }
        let latest = last_cost.and_then(|cost| last.map(|slot| (when(slot), cost)));
        self.schedule.on_granted(lane, units, latest);
        if !is_newest {
            return;
        }
        let is_barred = self.bar(lane, sent, reserved, batch);
        if self.pacing.state.local().is_none() {
            self.pacing.last_shared.on_granted(lane, reserved, units);
        }
        if is_barred {
            self.ask_for_others(sent, reserved);
            return;
        }
        let before = last.or_else(|| (reserved.next <= reserved.now).then_some(reserved.now));
        let apart = before.map(|before| reserved.next.since(before));
        let told = reserved.booking.and_then(|booking| match booking.next {
            NextTurn::At(turn) => Some(turn.spacing),
            _ => None,
        });
        let last_cost = latest.map(|(_, cost)| cost);
        self.schedule.on_spacing(lane, Spacing { apart, last_cost, told });
        // The limits of the downstream come first in the set of each plan.
        let is_downstreams = match reserved.refused {
            Some(refused) => refused.limit < self.settings.limits.len(),
            // All were granted: it is the downstream's pace that sets the next slot, or the plan's own.
            None => latest.is_some_and(|latest| self.schedule.is_next(latest, when(reserved.next))),
        };
        let sleeps = lane != LaneId::DOWNSTREAM && !is_downstreams;
        if sleeps {
            self.schedule.sleep(lane, when(reserved.next));
        } else {
            self.schedule.on_next_slot(lane, when(reserved.next));
        }
        // A turn that is not used up is for other lanes too: they go on at once.
        let is_used_up = reserved.booking.is_some_and(|booking| booking.next != NextTurn::None);
        // And when a plan has its next slot says nothing of the others.
        if !is_used_up && (sleeps || self.schedule.has_others(lane, &self.backlog)) {
            return;
        }
        self.ask_again(sent, reserved);
    }

    /// Bars those who wait for the end of a window from the calls that do not reach it; says whether that is what ended
    /// this one: then those that cost less may still have slots.
    fn bar(&mut self, lane: LaneId, sent: Instant, reserved: &Reserved, batch: &VecDeque<W>) -> bool {
        if reserved.refused.is_none() && reserved.passed.is_empty() {
            return false;
        }
        let local = self.pacing.state.local();
        let limits = local.map_or(&self.settings, |local| &local.settings).limits_of(lane);
        let refused = reserved.refused.map(|refusal| Passed { job: reserved.jobs_decided(), refusal });
        let cost = |passed: &Passed| batch.get(passed.job).map_or(1, Waiter::cost);
        let waits = |passed: &&Passed| limits.waits_for_window(passed.refusal.limit) && cost(passed) > 1;
        let dear = reserved.passed.iter().chain(&refused).filter(waits);
        let Some(least) = dear.min_by_key(|passed| cost(passed)) else { return false };
        let ends = sent + least.refusal.slot.since(reserved.now).min(BARRED);
        let is_refused = refused.is_some_and(|refused| waits(&&refused));
        self.schedule.bar(lane, cost(least), ends);
        is_refused
    }

    /// Those that cost less than one that waits for the end of a window go on at the turn that was booked for them. If
    /// none was, they go on at once.
    fn ask_for_others(&mut self, sent: Instant, reserved: &Reserved) {
        if reserved.booking.is_some_and(|booking| matches!(booking.next, NextTurn::At(_))) {
            self.ask_again(sent, reserved);
        }
        // A call that was a little too early for the end of the window is not made again at the same instant.
        self.pacing.reserve_not_before(Instant::now() + SLACK / 2);
    }

    /// Asks again when the answer says.
    fn ask_again(&mut self, sent: Instant, reserved: &Reserved) {
        let before = self.schedule.turns().farthest();
        // Counted from when it was sent: a replica far from the store would always come too late otherwise, after a
        // nearer one took every slot.
        let at = match &reserved.booking {
            Some(booking) => self.schedule.turns_mut().on_booking(sent, reserved.now, booking, reserved.next),
            None => {
                let next = sent + reserved.next.since(reserved.now);
                next.checked_sub(self.settings.horizon / 2).unwrap_or(sent)
            }
        };
        self.pacing.reserve_not_before(at);
        let farthest = self.schedule.turns().farthest();
        if farthest != before {
            // After a loss nothing is granted so near, also where another replica has stretched the queue of turns.
            self.store.set_horizon(&self.settings.downstream, farthest);
        }
    }
}
