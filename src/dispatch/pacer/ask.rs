//! When the pacer asks the store, and for which jobs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pacer;
use super::absence::{Alone, COUNT};
use super::call::{Ask, Call, ask};
use crate::dispatch::OnUnavailable;
use crate::dispatch::intake::expired;
use crate::dispatch::lane::Entry;
use crate::dispatch::schedule::Next;
use crate::dispatch::source::{DeadLetter, Report};
use crate::job::Reason;
use crate::store::Asker;
use crate::time::wall_now;

/// The error with which this replica knows the end of a window: the way to the store and back.
pub(super) const SLACK: Duration = Duration::from_millis(5);

impl Pacer {
    /// Asks for slots for the jobs whose turn it is, unless it is too early.
    pub(super) fn ask(&mut self, now: Instant) -> Option<Call> {
        if self.halt.is_halted() {
            self.gather_until = None;
            return self.ask_for_trial(now);
        }
        if self.schedule.is_freed() {
            self.lane.take_all_back();
        }
        let may = self.may_ask() && now >= self.ask_from();
        let Some(next) = may.then(|| self.schedule.next(&self.lane, now)).flatten() else {
            self.gather_until = None;
            return None;
        };
        // A job that waits for the next window must be in the first call that reaches it. Otherwise the jobs behind it
        // would use that window up.
        self.lane.take_back(now + next.ahead + SLACK);
        let spacing = self.schedule.asking(next.queue).spacing();
        let room = self.places.room(&self.held, spacing);
        let want = self.schedule.batch(next, self.lane.ready(next.queue), room);
        if want.count == 0 {
            self.gather_until = None;
            return None;
        }
        let gathering = self.schedule.asking(next.queue).gathering();
        if want.scarce && now < *self.gather_until.get_or_insert(now + gathering) {
            return None;
        }
        self.gather_until = None;
        let batch = self.pick(next, want.count);
        if batch.is_empty() {
            return None;
        }
        let units = batch.iter().map(|entry| u64::from(entry.job.cost)).sum();
        // Where the window is full more jobs wait at the broker.
        let in_hand = self.lane.len() + batch.len() + self.held.len() + self.places.sending();
        let more = u64::from(in_hand >= usize::from(self.options.window()));
        // A turn is of no use to jobs that would find no place at it.
        let most = u64::try_from(self.places.turn(spacing)).unwrap_or(u64::MAX);
        let others = self.schedule.waiting(&self.lane, now).max(more).min(most);
        let asker = self.schedule.asker(next, units, others, &self.options.limits);
        Some(self.call(next.queue, next.ahead, batch, Some(asker), now))
    }

    /// A call for slots for these jobs of one queue, at most so far ahead.
    pub(super) fn call(
        &mut self,
        queue: usize,
        ahead: Duration,
        batch: VecDeque<Entry>,
        asker: Option<Asker>,
        now: Instant,
    ) -> Call {
        // A connection takes as long to open as the call and the hold take together, or longer.
        self.gear.sink.warm();
        let alone = self.paced_alone();
        let options = alone.as_ref().map_or(&self.options, |alone| &alone.options);
        // A part of the limits may hold less than the whole does: more than all of it cannot be charged.
        let most = if alone.is_some() { options.limits_of(queue).max_cost() } else { u32::MAX };
        let costs: Vec<u32> = batch.iter().map(|entry| entry.job.cost.min(most)).collect();
        let first = costs.first().copied().unwrap_or_default();
        // Of a plan's own limits no reach: with the slot the downstream's limits would move on as far.
        let ahead = ahead.saturating_add(options.limits.reach(first));
        if let Some(Alone { store, options }) = alone {
            let asked = Ask { queue, costs, ahead, lease: None, asker, generation: 0 };
            return Call { queue, batch, alone: true, reply: Box::pin(ask(store, options, asked)) };
        }
        let generation = self.accord.settled().unwrap_or_default();
        // A trial is no share of the pace.
        let lease = if self.halt.is_halted() { None } else { self.lease(now) };
        let asked = Ask { queue, costs, ahead, lease, asker, generation };
        let reply = ask(Arc::clone(&self.store), Arc::clone(&self.options), asked);
        Call { queue, batch, alone: false, reply: Box::pin(reply) }
    }

    /// Takes up to so many jobs out of the lane, and sorts out those that need no slot any more.
    pub(super) fn pick(&mut self, Next { queue, rank, ahead, .. }: Next, count: usize) -> VecDeque<Entry> {
        let mut batch = VecDeque::with_capacity(count);
        // A job that was taken back because its window ends soon must not be put aside again at once.
        let reaches = Instant::now() + ahead.max(self.schedule.queueing.early()) + SLACK;
        let wall = wall_now();
        while batch.len() < count && self.lane.first(queue).is_some_and(|(own, _)| own <= rank) {
            let Some(entry) = self.lane.pop(queue) else { break };
            if !entry.ticket.is_live() {
                // The connection is gone, and with it this and, likely, many others.
                drop(entry);
                self.purge();
            } else if let Some(deadline) = entry.job.deadline.filter(|deadline| *deadline < wall) {
                // Here already: a slot would be wasted on it.
                let report = Report { attempts: entry.tries.sent, ..Report::UNSENT };
                self.bury(entry.ticket, expired(deadline, report), entry.job.reply.is_some());
            } else if let Err(detail) = self.options.rules.fits(entry.job.plan, entry.job.cost) {
                // It was a job under other limits, and would be asked for in vain for ever.
                let report = Report { attempts: entry.tries.sent, ..Report::UNSENT };
                let letter = DeadLetter { reason: Reason::CostTooLarge, detail, report };
                self.bury(entry.ticket, letter, entry.job.reply.is_some());
            } else if let Some(until) = self.schedule.barred(queue, entry.job.cost, reaches) {
                self.lane.put_aside(until, entry);
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
            let local = self.options.on_unavailable == OnUnavailable::Local;
            self.lease_at = now + if local { COUNT.min(ttl / 4) } else { ttl / 4 };
            (Arc::clone(&self.replica), ttl)
        })
    }
}
