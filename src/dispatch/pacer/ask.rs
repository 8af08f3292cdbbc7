//! When the pacer asks the store, and for which jobs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pacer;
use super::call::{Ask, Call, ask};
use crate::dispatch::intake::expired;
use crate::dispatch::lane::Entry;
use crate::dispatch::source::{DeadLetter, Report};
use crate::dispatch::turns::Next;
use crate::job::Reason;
use crate::time::wall_now;

impl Pacer {
    /// Asks for slots for the jobs whose turn it is, unless it is too early.
    pub(super) fn ask(&mut self, now: Instant) -> Option<Call> {
        let settled = self.accord.settled().filter(|_| now >= self.ask_from());
        let next = settled.and_then(|generation| Some((generation, self.turns.next(&self.lane, now)?)));
        let Some((generation, next)) = next else {
            self.gather_until = None;
            return None;
        };
        let want = self.turns.batch(next, self.lane.ready(next.queue), self.free());
        if want.count == 0 {
            self.gather_until = None;
            return None;
        }
        let gathering = self.turns.asking(next.queue).gathering();
        if want.scarce && now < *self.gather_until.get_or_insert(now + gathering) {
            return None;
        }
        self.gather_until = None;
        let batch = self.pick(next, want.count);
        if batch.is_empty() {
            return None;
        }
        let costs: Vec<u32> = batch.iter().map(|entry| entry.job.cost).collect();
        // A connection takes as long to open as the call and the hold take together, or longer.
        self.gear.sink.warm();
        let Next { queue, ahead, .. } = next;
        let first = costs.first().copied().unwrap_or_default();
        // Of a plan's own limits no reach: with the slot the downstream's limits would move on as far.
        let ahead = ahead.saturating_add(self.options.limits.reach(first));
        let lease = self.lease(now);
        let reply = ask(
            Arc::clone(&self.store),
            Arc::clone(&self.options),
            Ask { queue, costs, ahead, lease, generation },
        );
        Some(Call { queue, batch, reply: Box::pin(reply) })
    }

    /// Takes up to so many jobs out of the lane, and sorts out those that need no slot any more.
    fn pick(&mut self, Next { queue, rank, .. }: Next, count: usize) -> VecDeque<Entry> {
        let mut batch = VecDeque::with_capacity(count);
        let wall = wall_now();
        while batch.len() < count && self.lane.first(queue).is_some_and(|(own, _)| own <= rank) {
            let Some(entry) = self.lane.pop(queue) else { break };
            if !entry.ticket.is_live() {
                // The connection is gone, and with it this and, likely, many others.
                drop(entry);
                self.purge();
            } else if let Some(deadline) = entry.job.deadline.filter(|deadline| *deadline < wall) {
                // Here already: a slot would be wasted on it.
                let report = Report { attempts: entry.attempts, ..Report::UNSENT };
                self.bury(entry.ticket, expired(deadline, report), entry.job.reply.is_some());
            } else if let Err(detail) = self.options.rules.fits(entry.job.plan, entry.job.cost) {
                // It was a job under other limits, and would be asked for in vain for ever.
                let report = Report { attempts: entry.attempts, ..Report::UNSENT };
                let letter = DeadLetter { reason: Reason::CostTooLarge, detail, report };
                self.bury(entry.ticket, letter, entry.job.reply.is_some());
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
            let ttl = self.turns.lease();
            self.lease_at = now + ttl / 4;
            (Arc::clone(&self.replica), ttl)
        })
    }
}
