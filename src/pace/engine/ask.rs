//! The reserve calls: when they are made, and for which waiters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Admission, Effect, Engine, Refusal};
use crate::limit::{JobCost, MAX_BATCH};
use crate::pace::pacing::{Ask, Call, LocalPace, ask};
use crate::pace::schedule::Next;
use crate::pace::{LaneId, Waiter};
use crate::store::Asker;

/// The error of this replica's estimate of the end of a window, which is due to the round trip to the store.
pub(super) const SLACK: Duration = Duration::from_millis(5);

/// The bounds of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The lane of the waiters; the downstream's where lanes are made by keys.
    pub(super) lane: LaneId,
    /// How far ahead of now a slot may lie.
    pub(super) ahead: Duration,
    /// The most slots that are granted, where lanes are made by keys; otherwise each waiter may be granted one.
    pub(super) most: usize,
}

impl<W: Waiter> Engine<W> {
    /// Makes a reserve call for the waiters whose turn it is, unless it is too early or a call is in flight.
    pub(super) fn ask(&mut self, now: Instant, admission: &impl Admission<W>) {
        // A call would take a slot behind those that are being given back, which then could not go back.
        if self.pacing.is_calling()
            || self.pacing.has_returns()
            || self.is_ahead_of_driver()
            || !self.is_to_ask()
        {
            return;
        }
        let call = if self.pacing.is_suspended() {
            self.schedule.forget_batch_delay();
            self.call_for_trial(now, admission)
        } else {
            self.call_for_next(now, admission)
        };
        if let Some(call) = call {
            self.pacing.start(call);
        }
    }

    /// Whether slots may be requested, as far as the terms and the store permit it.
    pub(super) fn may_ask(&self) -> bool {
        if self.pacing.state().is_absent() {
            return self.pacing.state().local().is_some();
        }
        // Slots granted before the cancellations are read would be missed.
        self.terms.agreement().settled().is_some() && !self.is_held_up()
    }

    /// Returns the earliest instant to request slots.
    pub(super) fn ask_from(&self) -> Instant {
        let at = self.pacing.next_reserve_at();
        self.terms.pauses().ask_from().map_or(at, |from| from.max(at))
    }

    /// Returns the instant at which [`Engine::ask`] has something to do.
    pub(super) fn ask_wake_at(&self) -> Option<Instant> {
        if self.pacing.is_calling() || self.pacing.has_returns() || !self.is_to_ask() {
            return None;
        }
        if self.pacing.is_suspended() {
            return self.trial_wake_at();
        }
        if !self.may_ask() {
            return None;
        }
        let from = self.ask_from();
        let from = self.driver.connections.waits_until().map_or(from, |until| until.max(from));
        let since = self.schedule.batch_delay_until().map_or(from, |until| until.max(from));
        (self.release.free() > 0).then(|| self.schedule.wake_at(&self.backlog, since)).flatten()
    }

    fn call_for_next(&mut self, now: Instant, admission: &impl Admission<W>) -> Option<Call<W>> {
        if self.schedule.take_bars_lifted() {
            self.backlog.take_all_back();
        }
        let may = self.may_ask() && now >= self.ask_from();
        self.schedule.refresh(&mut self.backlog, now);
        let next = if may { self.schedule.next(&self.backlog, now) } else { None };
        let Some(next) = next else {
            self.schedule.forget_batch_delay();
            return None;
        };
        // A waiter for the next window must be part of the first call that reaches it. Otherwise the waiters behind it
        // would use that window up.
        self.backlog.take_back(now + next.ahead + SLACK);
        self.schedule.refresh(&mut self.backlog, now);
        let spacing = self.schedule.batching(next.lane).spacing();
        let room = self.release.room(spacing);
        let ready = match self.schedule.keyed() {
            Some(keyed) => {
                usize::try_from(keyed.waiting(&self.backlog, MAX_BATCH as u64)).unwrap_or(MAX_BATCH)
            }
            None => self.backlog.ready(next.lane),
        };
        let batch = self.schedule.batch(next, ready, room);
        if self.schedule.delays(next.lane, batch, now) || self.opens_first(next, batch.count, now) {
            return None;
        }
        let waiters = self.pick(next, self.offers(batch.count), admission);
        if waiters.is_empty() {
            return None;
        }
        let limits = self.settings.limits_of(next.lane);
        let units = waiters.iter().map(|waiter| u64::from(waiter.cost().units(limits))).sum();
        let in_hand = self.backlog.len() + waiters.len() + self.release.held() + self.release.sending();
        let more = u64::from(self.settings.may_more_wait(in_hand));
        // A turn is of no use to waiters for which the concurrency has no room.
        let most = u64::try_from(self.release.room_in_turn(spacing)).unwrap_or(u64::MAX);
        let others = if self.driver.ends_at.is_some() {
            0
        } else {
            self.schedule.waiting(&self.backlog, now).max(more).min(most)
        };
        let asker = self.schedule.asker(next, units, others, &self.settings.limits);
        let bounds = Bounds { lane: next.lane, ahead: next.ahead, most: batch.count };
        Some(self.call(bounds, waiters, Some(asker), now))
    }

    /// Makes a call for these waiters of one lane, or of many that are made by keys.
    pub(super) fn call(
        &mut self,
        Bounds { lane, ahead, most }: Bounds,
        batch: VecDeque<W>,
        asker: Option<Asker>,
        now: Instant,
    ) -> Call<W> {
        let spacing = self.schedule.batching(lane).spacing();
        let at_once = self.release.connections(batch.len().min(most), spacing);
        let jobs = self.release.slots(batch.len().min(most));
        self.driver.effects.push(Effect::Prepare { jobs, at_once, is_awaited: false });
        let is_trial = self.pacing.is_suspended();
        let local = self.pacing.state().local().cloned();
        let settings = local.as_ref().map_or(&self.settings, |local| &local.settings);
        // A share of the limits may hold less than the limits do, so that at most the whole share is charged.
        let cost = |waiter: &W| match local.is_some() {
            true => waiter.cost().at_most(settings.limits_of(waiter.lane())),
            false => waiter.cost(),
        };
        let costs: Vec<JobCost> = batch.iter().map(cost).collect();
        let in_lanes = self.in_lanes(&batch, most);
        let first = costs.first().copied().unwrap_or_default();
        // A plan's own limits add no reach, since the downstream's limits would advance with the slot.
        let ahead = ahead.saturating_add(settings.limits.reach_of(&first.row(&settings.limits)));
        let (call_costs, goes_on) = (costs.clone(), asker.is_some_and(|asker| asker.goes_on));
        if let Some(LocalPace { store, settings }) = local {
            let in_lanes_of_call = in_lanes.clone();
            let asked = Ask { lane, costs, in_lanes, ahead, lease: None, asker, generation: 0 };
            let reply = Box::pin(ask(store, Arc::clone(&settings), asked));
            return Call {
                lane,
                batch,
                settings,
                costs: call_costs,
                in_lanes: in_lanes_of_call,
                is_local: true,
                is_trial,
                goes_on,
                reply,
            };
        }
        let generation = self.terms.agreement().settled().unwrap_or_default();
        let lease = self.pacing.lease(now, self.schedule.lease(), self.settings.on_unavailable);
        let asked = Ask { lane, costs, in_lanes: in_lanes.clone(), ahead, lease, asker, generation };
        let reply = Box::pin(ask(Arc::clone(&self.store), Arc::clone(&self.settings), asked));
        let settings = Arc::clone(&self.settings);
        let costs = call_costs;
        Call { lane, batch, settings, costs, in_lanes, is_local: false, is_trial, goes_on, reply }
    }

    /// Takes up to `count` waiters of a lane out of the backlog, and removes those that do not need a slot any more.
    pub(super) fn pick(&mut self, next: Next, count: usize, admission: &impl Admission<W>) -> VecDeque<W> {
        if self.schedule.keyed().is_some() {
            return self.pick_in_lanes(next, count, admission);
        }
        let Next { lane, rank, ahead, .. } = next;
        let mut batch = VecDeque::with_capacity(count);
        // A waiter that was taken back because its window ends soon must not be put aside again at once.
        let reaches = Instant::now() + ahead.max(self.schedule.turns().early()) + SLACK;
        while batch.len() < count && self.backlog.first(lane).is_some_and(|(own, _)| own <= rank) {
            let Some(waiter) = self.backlog.pop(lane) else { break };
            if !waiter.is_live() {
                // The connection was lost, so that probably many other waiters are stale too.
                drop(waiter);
                self.backlog.note_left();
                self.drop_stale();
                self.driver.effects.push(Effect::DropStale);
            } else if !admission.admits(&waiter) {
                self.backlog.note_left();
                self.driver.effects.push(Effect::Refuse(waiter, Refusal::NotAdmitted));
            } else if let Some(until) = self.schedule.barred(lane, waiter.cost().known_units(), reaches) {
                self.backlog.put_aside(until, waiter);
            } else {
                batch.push_back(waiter);
            }
        }
        batch
    }
}
