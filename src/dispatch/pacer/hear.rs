//! What the pacer learns from the store's answers.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::Pacer;
use super::ask::SLACK;
use super::call::{Answer, Call, Reply};
use crate::dispatch::entry::Entry;
use crate::dispatch::intake::rejected;
use crate::dispatch::source::Report;
use crate::limit::Passed;
use crate::pace::LaneId;
use crate::pace::release::{Held, LONGEST_CALL};
use crate::pace::schedule::Spacing;
use crate::store::{Checked, NextTurn, Observed, Reserved, StoreError};
use crate::time::{Deadline, Micros};

/// How long to wait before the store is asked again after an error: at first, and at most. With a call that
/// fails for want of an answer and the fence of a store that lost its state, all goes on within 2 s.
const STORE_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The clocks of the store and of this machine go apart: what waits for the end of a window longer than this is told
/// again meanwhile when that is.
const BARRED: Duration = Duration::from_secs(300);

/// A trial job that was granted no slot is not asked for again before.
const TRIAL_AGAIN: Duration = Duration::from_millis(20);

impl Pacer {
    /// Holds the jobs that were granted a slot until then, and buries those that were rejected; the
    /// others go back to the backlog.
    pub(super) fn hear(&mut self, call: Call, reply: Reply) {
        let Call { lane, mut batch, alone, .. } = call;
        let Reply { sent, received, answer } = reply;
        // If the process stood still meanwhile, it cannot be told when the slots come, or came.
        let stood_still = received - sent > LONGEST_CALL;
        match answer {
            // The store is there again: slots of one's own count for nobody else.
            _ if alone && self.paced_alone().is_none() => {}
            Ok(Answer::Reserved(reserved)) => {
                let newest = alone || self.answered_with(sent, received, &reserved);
                if reserved.outdated || (self.paced_alone().is_some() && !alone) {
                    self.share(reserved.replicas);
                } else {
                    self.heard(lane, sent, &reserved, &batch, newest);
                }
                if stood_still {
                    self.gear.meters.late.increment(reserved.slots.len() as u64);
                } else {
                    self.hold(&mut batch, sent, received, &reserved);
                }
            }
            Ok(Answer::Checked(checked)) => {
                let allowed = checked.verdicts.iter().filter(|verdict| verdict.earliest <= checked.now);
                let allowed = allowed.count();
                if !alone {
                    self.answered(sent, received, allowed);
                    let observed = self.observe(sent, checked.now, checked.epoch, received);
                    self.on_status(checked.status, checked.now, checked.epoch, observed);
                }
                if stood_still {
                    self.gear.meters.late.increment(allowed as u64);
                } else {
                    self.decide(lane, &mut batch, (sent, received), checked);
                }
            }
            Err(error) => {
                self.gear.meters.store_errors.increment(1);
                self.failed(&error);
            }
        }
        if self.halt.is_halted() && !batch.is_empty() {
            // Whatever refused the trial, it is asked for again before long.
            self.ask_at = self.ask_at.max(received + TRIAL_AGAIN);
        }
        batch.into_iter().for_each(|entry| self.backlog.push(entry));
    }

    /// Holds the jobs that were granted a slot until then.
    fn hold(&mut self, batch: &mut VecDeque<Entry>, sent: Instant, received: Instant, reserved: &Reserved) {
        let now = Deadline::at(received);
        let mut granted = reserved.jobs().peekable();
        let mut slots = reserved.slots.iter();
        for job in 0..batch.len() {
            let Some(entry) = batch.pop_front() else { break };
            let Some(&slot) = granted.next_if_eq(&job).and_then(|_| slots.next()) else {
                batch.push_back(entry);
                continue;
            };
            let deadline = self.slots.hold(slot).unwrap_or_else(Deadline::now);
            if !self.halt.may_use_slots() {
                self.halted_slots().increment(1);
                self.backlog.push(entry);
                continue;
            }
            let waited = sent.saturating_duration_since(entry.since);
            match self.release.hold(Held { waiter: entry, slot, deadline }) {
                Ok(()) => self.gear.meters.granted(waited, deadline.since(now)),
                // The pause began while the call was under way.
                Err(entry) => {
                    self.gear.meters.paused_slots.increment(1);
                    self.backlog.push(entry);
                }
            }
        }
    }

    /// Sends the jobs off that are allowed, and buries the others.
    fn decide(
        &mut self,
        lane: LaneId,
        batch: &mut VecDeque<Entry>,
        (sent, received): (Instant, Instant),
        Checked { now: slot, verdicts, status, .. }: Checked,
    ) {
        let deadline = Deadline::at(received);
        for verdict in verdicts {
            // What no limit refuses, but a pause, waits for its end: also one that is over by now.
            if self.terms.pauses.is_paused() || status.paused_until() > slot {
                break;
            }
            let Some(entry) = batch.pop_front() else { break };
            // A decision is a turn, whichever it is: a plan that is used up must not be asked for always.
            self.schedule.on_granted(lane, entry.job.cost.into(), None);
            if verdict.earliest <= slot && !self.halt.may_use_slots() {
                self.halted_slots().increment(1);
                self.backlog.push(entry);
                continue;
            }
            if verdict.earliest <= slot {
                let waited = sent.saturating_duration_since(entry.since);
                self.gear.meters.granted(waited, Duration::ZERO);
                self.release.hold_at_once(Held { waiter: entry, slot, deadline });
                continue;
            }
            let limit = self.settings.limits_of(lane).get(verdict.limit);
            let report = Report { attempts: entry.tries.sent, ..Report::UNSENT };
            let letter = rejected(limit, verdict.earliest, report);
            self.bury(entry.ticket, letter, entry.job.reply.is_some());
        }
    }

    /// The store answered: learns all but its slots. False where it has said something newer already.
    fn answered_with(&mut self, sent: Instant, received: Instant, reserved: &Reserved) -> bool {
        self.answered(sent, received, reserved.slots.len());
        let observed = self.observe(sent, reserved.now, reserved.epoch, received);
        self.on_status(reserved.status, reserved.now, reserved.epoch, observed)
    }

    /// The store answered, and granted so many.
    fn answered(&mut self, sent: Instant, received: Instant, granted: usize) {
        let meters = &self.gear.meters;
        meters.roundtrip.record((received - sent).as_secs_f64());
        self.schedule.turns_mut().on_trip(received - sent);
        #[expect(clippy::cast_precision_loss, reason = "a histogram of at most 1024")]
        meters.batch.record(granted as f64);
        meters.slots.increment(granted as u64);
        self.answers(received);
    }

    /// The store is there.
    pub(super) fn answers(&mut self, received: Instant) {
        self.gear.meters.store_connected.set(1.0);
        self.terms.calls.on_heard(received);
        if self.failures > 0 {
            tracing::info!(downstream = self.settings.downstream, "the store answers again");
            self.failures = 0;
            self.terms.calls.postpone(received);
            self.terms.pauses.on_store_back();
        }
    }

    /// Learns from an answer what time it is at the store.
    pub(super) fn observe(
        &mut self,
        sent: Instant,
        now: Micros,
        epoch: Micros,
        received: Instant,
    ) -> Observed {
        let observed = self.slots.observe(sent, now, epoch, received);
        match observed {
            Observed::Consistent => {}
            Observed::SteppedBack => {
                tracing::warn!(
                    downstream = self.settings.downstream,
                    "the store's clock stepped back: held slots keep their time"
                );
                self.schedule.forget();
            }
            Observed::Stepped => {
                tracing::warn!(
                    downstream = self.settings.downstream,
                    "the store's clock stepped or its state was lost: held slots are given up and reserved anew"
                );
                let given_up = self.release.give_up_all();
                self.gear.meters.stepped.increment(given_up.len() as u64);
                given_up.into_iter().for_each(|entry| self.backlog.push(entry));
                self.schedule.forget();
                // A turn that was booked there is none.
                self.ask_at = self.ask_at.min(received);
                // Others may have begun a record that only seems to be the same.
                self.terms.agreement.on_step();
            }
        }
        observed
    }

    fn share(&mut self, replicas: Option<u32>) {
        if let Some(replicas) = replicas {
            self.shared.share(replicas);
            if self.paced_alone().is_none() {
                self.schedule.set_replicas(replicas);
            }
        }
    }

    /// Learns how many replicas there are, and when to ask again; the latter only from the `newest` answer.
    fn heard(
        &mut self,
        lane: LaneId,
        sent: Instant,
        reserved: &Reserved,
        batch: &VecDeque<Entry>,
        newest: bool,
    ) {
        self.share(reserved.replicas);
        let when = |slot: Micros| sent + slot.since(reserved.now);
        let last = reserved.slots.last().copied();
        let granted = reserved.jobs().filter_map(|job| batch.get(job)).map(|entry| entry.job.cost);
        let (mut units, mut latest) = (0, None);
        for cost in granted {
            (units, latest) = (units + u64::from(cost), Some(cost));
        }
        let costs = latest.and_then(|cost| last.map(|slot| (when(slot), cost)));
        self.schedule.on_granted(lane, units, costs);
        if !newest {
            return;
        }
        let is_barred = self.bar(lane, sent, reserved, batch);
        if self.paced_alone().is_none() {
            self.shared.granted(lane, reserved, units);
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
        self.schedule.on_spacing(lane, Spacing { apart, last_cost: costs.map(|(_, cost)| cost), told });
        // The limits of the downstream come first in the set of each plan.
        let shared = match reserved.refused {
            Some(refused) => refused.limit < self.settings.limits.len(),
            // All were granted: it is the downstream's pace that sets the next slot, or the plan's own.
            None => costs.is_some_and(|last| self.schedule.is_next(last, when(reserved.next))),
        };
        let sleeps = lane != LaneId::DOWNSTREAM && !shared;
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

    /// Bars jobs that wait for the end of a window from the calls that do not reach it; says whether that is what ended
    /// this one: then jobs that cost less may still have slots.
    fn bar(&mut self, lane: LaneId, sent: Instant, reserved: &Reserved, batch: &VecDeque<Entry>) -> bool {
        if reserved.refused.is_none() && reserved.passed.is_empty() {
            return false;
        }
        let alone = self.paced_alone();
        let settings = alone.as_ref().map_or(&self.settings, |alone| &alone.settings);
        let limits = settings.limits_of(lane);
        let refused = reserved.refused.map(|refusal| Passed { job: reserved.jobs_decided(), refusal });
        let cost = |passed: &Passed| batch.get(passed.job).map_or(1, |entry| entry.job.cost);
        let waits = |passed: &&Passed| limits.waits_for_window(passed.refusal.limit) && cost(passed) > 1;
        let dear = reserved.passed.iter().chain(&refused).filter(waits);
        let Some(least) = dear.min_by_key(|passed| cost(passed)) else { return false };
        let ends = sent + least.refusal.slot.since(reserved.now).min(BARRED);
        self.schedule.bar(lane, cost(least), ends);
        refused.is_some_and(|refused| waits(&&refused))
    }

    /// Jobs that cost less than one that waits for the end of a window go on at the turn that was booked for them. If
    /// none was, they go on at once.
    fn ask_for_others(&mut self, sent: Instant, reserved: &Reserved) {
        if reserved.booking.is_some_and(|booking| matches!(booking.next, NextTurn::At(_))) {
            self.ask_again(sent, reserved);
        }
        // A call that was a little too early for the end of the window is not made again at the same instant.
        self.ask_at = self.ask_at.max(Instant::now() + SLACK / 2);
    }

    /// Asks again when the answer says.
    fn ask_again(&mut self, sent: Instant, reserved: &Reserved) {
        let when = |slot: Micros| sent + slot.since(reserved.now);
        // Counted from when it was sent: a replica far from the store would always come too late otherwise, after a
        // nearer one took every slot.
        let before = self.schedule.turns().farthest();
        let ask_at = match &reserved.booking {
            Some(booking) => self.schedule.turns_mut().on_booking(sent, reserved.now, booking, reserved.next),
            None => when(reserved.next).checked_sub(self.settings.horizon / 2).unwrap_or(sent),
        };
        self.ask_at = self.ask_at.max(ask_at);
        let farthest = self.schedule.turns().farthest();
        if farthest != before {
            // After a loss nothing is granted so near, also where another replica has stretched the queue of turns.
            self.store.set_horizon(&self.settings.downstream, farthest);
        }
    }

    /// The store did not answer.
    pub(super) fn failed(&mut self, error: &StoreError) {
        let now = Instant::now();
        self.lease_at = now;
        // It is there, and will say the same again (a wrong password, a missing right): that is no absence.
        let refuses = !error.is_away();
        if refuses {
            self.hold_on();
        } else {
            self.gear.meters.store_connected.set(0.0);
        }
        if refuses && self.failures == 0 {
            tracing::error!(downstream = self.settings.downstream, %error, "the store refuses the call; jobs are held");
        } else if !refuses && self.leave(error) {
            self.failures += 1;
            return;
        } else if self.failures == 0 {
            tracing::warn!(downstream = self.settings.downstream, %error, "no slots while the store is away; jobs are held");
        } else {
            tracing::debug!(downstream = self.settings.downstream, %error, "the store is still away");
        }
        let (first, most) = STORE_BACKOFF;
        let ceiling = first.saturating_mul(2_u32.saturating_pow(self.failures)).min(most);
        self.failures += 1;
        self.ask_at = now + ceiling.mul_f64(0.5 + 0.5 * fastrand::f64());
    }
}
