//! When the pacer asks the store, and for which jobs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pacer;
use super::absence::{Alone, COUNT};
use super::call::{Ask, Call, ask};
use crate::dispatch::OnUnavailable;
use crate::dispatch::entry::Entry;
use crate::dispatch::intake::expired;
use crate::dispatch::source::{DeadLetter, Report};
use crate::job::Reason;
use crate::pace::schedule::Next;
use crate::pace::{LaneId, Waiter as _};
use crate::store::Asker;
use crate::time::wall_now;

/// The error with which this replica knows the end of a window: the way to the store and back.
pub(super) const SLACK: Duration = Duration::from_millis(5);

impl Pacer {
    /// Asks for slots for the jobs whose turn it is, unless it is too early.
    pub(super) fn ask(&mut self, now: Instant) -> Option<Call> {
        if self.halt.is_halted() {
            self.batch_delay_until = None;
            return self.ask_for_trial(now);
        }
        if self.schedule.take_bars_lifted() {
            self.backlog.take_all_back();
        }
        let may = self.may_ask() && now >= self.ask_from();
        let Some(next) = may.then(|| self.schedule.next(&self.backlog, now)).flatten() else {
            self.batch_delay_until = None;
            return None;
        };
        // A job that waits for the next window must be in the first call that reaches it. Otherwise the jobs behind it
        // would use that window up.
        self.backlog.take_back(now + next.ahead + SLACK);
        let spacing = self.schedule.batching(next.lane).spacing();
        let room = self.release.room(spacing);
        let want = self.schedule.batch(next, self.backlog.ready(next.lane), room);
        if want.count == 0 {
            self.batch_delay_until = None;
            return None;
        }
        let gathering = self.schedule.batching(next.lane).batch_delay();
        if want.is_scarce && now < *self.batch_delay_until.get_or_insert(now + gathering) {
            return None;
        }
        self.batch_delay_until = None;
        let batch = self.pick(next, want.count);
        if batch.is_empty() {
            return None;
        }
        let units = batch.iter().map(|entry| u64::from(entry.job.cost)).sum();
        // Where the window is full more jobs wait at the broker.
        let in_hand = self.backlog.len() + batch.len() + self.release.held() + self.release.sending();
        let more = u64::from(in_hand >= usize::from(self.window()));
        // A turn is of no use to jobs that would find no place at it.
        let most = u64::try_from(self.release.room_in_turn(spacing)).unwrap_or(u64::MAX);
        let others = self.schedule.waiting(&self.backlog, now).max(more).min(most);
        let asker = self.schedule.asker(next, units, others, &self.settings.limits);
        Some(self.call(next.lane, next.ahead, batch, Some(asker), now))
    }

    /// A call for slots for these jobs of one lane, at most so far ahead.
    pub(super) fn call(
        &mut self,
        lane: LaneId,
        ahead: Duration,
        batch: VecDeque<Entry>,
        asker: Option<Asker>,
        now: Instant,
    ) -> Call {
        // A connection takes as long to open as the call and the hold take together, or longer.
        self.gear.sink.warm();
        let alone = self.paced_alone();
        let settings = alone.as_ref().map_or(&self.settings, |alone| &alone.settings);
        // A part of the limits may hold less than the whole does: more than all of it cannot be charged.
        let most = if alone.is_some() { settings.limits_of(lane).max_cost() } else { u32::MAX };
        let costs: Vec<u32> = batch.iter().map(|entry| entry.cost().min(most)).collect();
        let first = costs.first().copied().unwrap_or_default();
        // Of a plan's own limits no reach: with the slot the downstream's limits would move on as far.
        let ahead = ahead.saturating_add(settings.limits.reach(first));
        if let Some(Alone { store, settings }) = alone {
            let asked = Ask { lane, costs, ahead, lease: None, asker, generation: 0 };
            return Call { lane, batch, alone: true, reply: Box::pin(ask(store, settings, asked)) };
        }
        let generation = self.terms.agreement.settled().unwrap_or_default();
        // A trial is no share of the pace.
        let lease = if self.halt.is_halted() { None } else { self.lease(now) };
        let asked = Ask { lane, costs, ahead, lease, asker, generation };
        let reply = ask(Arc::clone(&self.store), Arc::clone(&self.settings), asked);
        Call { lane, batch, alone: false, reply: Box::pin(reply) }
    }

    /// Takes up to so many jobs of a lane out of the backlog, and sorts out those that need no slot any more.
    pub(super) fn pick(&mut self, Next { lane, rank, ahead, .. }: Next, count: usize) -> VecDeque<Entry> {
        let mut batch = VecDeque::with_capacity(count);
        // A job that was taken back because its window ends soon must not be put aside again at once.
        let reaches = Instant::now() + ahead.max(self.schedule.turns().early()) + SLACK;
        let wall = wall_now();
        while batch.len() < count && self.backlog.first(lane).is_some_and(|(own, _)| own <= rank) {
            let Some(entry) = self.backlog.pop(lane) else { break };
            if !entry.ticket.is_live() {
                // The connection is gone, and with it this and, likely, many others.
                drop(entry);
                self.purge();
            } else if let Some(deadline) = entry.job.deadline.filter(|deadline| *deadline < wall) {
                // Here already: a slot would be wasted on it.
                let report = Report { attempts: entry.tries.sent, ..Report::UNSENT };
                self.bury(entry.ticket, expired(deadline, report), entry.job.reply.is_some());
            } else if let Err(detail) = self.rules.fits(entry.job.plan, entry.job.cost) {
                // It was a job under other limits, and would be asked for in vain for ever.
                let report = Report { attempts: entry.tries.sent, ..Report::UNSENT };
                let letter = DeadLetter { reason: Reason::CostTooLarge, detail, report };
                self.bury(entry.ticket, letter, entry.job.reply.is_some());
            } else if let Some(until) = self.schedule.barred(lane, entry.job.cost, reaches) {
                self.backlog.put_aside(until, entry);
            } else {
                batch.push_back(entry);
            }
        }
        batch
    }

    /// The lease to renew with the next call, four times as often as it needs.
    fn lease(&mut self, now: Instant) -> Option<(Arc<str>, Duration)> {
        let due = now >= self.lease_at;
        due.then(|| {
            let ttl = self.schedule.lease();
            let local = self.settings.on_unavailable == OnUnavailable::Local;
            self.lease_at = now + if local { COUNT.min(ttl / 4) } else { ttl / 4 };
            (Arc::clone(&self.replica), ttl)
        })
    }
}
