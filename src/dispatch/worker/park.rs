//! Jobs that must wait for long are parked: they wait in their broker, so that they block no job here.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::flight::Event;
use crate::dispatch::source::{ParkReason, Parked};
use crate::pace::Waiter;
use crate::time::wall_now;

/// How long a job is held at most where it can be parked. RabbitMQ takes back what is unacked for 30 minutes unless its
/// `consumer_timeout` says otherwise, together with what is being sent at that time.
const LONGEST_HOLD: Duration = Duration::from_secs(20 * 60);

/// The time from one scan for jobs that are held for too long to the next.
const SCAN_INTERVAL: Duration = Duration::from_secs(60);

/// The jobs that wait in their broker.
pub(super) struct Parking {
    /// The number of jobs that are being parked: one that is refused comes back.
    pub(super) in_progress: usize,
    /// When the next scan looks for jobs that are held for too long.
    next_scan_at: Instant,
    /// How long a job that cannot go yet is held here.
    pub(super) hold_max: Duration,
}

impl Parking {
    pub(super) fn new(hold_max: Duration) -> Self {
        Self { in_progress: 0, next_scan_at: Instant::now(), hold_max }
    }
}

impl Worker {
    /// Parks the jobs that are held for too long: their downstream's own limits are used up, or it is paused.
    ///
    /// They block no runnable job, so they are not parked earlier: the whole queue would be.
    pub(super) fn park_long_held(&mut self, now: Instant) {
        if now < self.parking.next_scan_at {
            return;
        }
        self.parking.next_scan_at = now + SCAN_INTERVAL;
        let is_meant = |entry: &Entry| entry.can_park() && entry.held_since + LONGEST_HOLD <= now;
        for mut entry in self.engine.take_waiting_if(is_meant) {
            let earliest = now + self.parking.hold_max + SCAN_INTERVAL;
            let due = entry.due_or_end(self.engine.next_slot(entry.lane()).max(earliest));
            if due > now + self.parking.hold_max {
                self.park(due, ParkReason::Limit, entry);
            } else {
                self.engine.offer(entry);
            }
        }
    }

    /// Returns the instant of the next scan for jobs that are held for too long.
    pub(super) fn park_scan_at(&self) -> Option<Instant> {
        (self.engine.waiting() > 0).then_some(self.parking.next_scan_at)
    }

    /// Has a job wait until `due`: in its broker if that is far off and the source can, or else here.
    pub(super) fn wait(&mut self, due: Instant, reason: ParkReason, mut entry: Entry) {
        let due = entry.due_or_end(due);
        let wait = due.saturating_duration_since(Instant::now());
        if wait > self.parking.hold_max && entry.can_park() {
            self.park(due, reason, entry);
        } else {
            self.engine.offer_later(due, entry);
        }
    }

    /// Parks the jobs of plans that can have no slot for long: others, which can, would wait behind them.
    pub(super) fn park_unreachable(&mut self, now: Instant) {
        for (due, mut entry) in self.engine.take_unreachable(now, self.parking.hold_max) {
            let due = entry.due_or_end(due);
            if entry.can_park() && due > now + self.parking.hold_max / 2 {
                self.park(due, ParkReason::Limit, entry);
            } else {
                // It must not be looked at again in each turn of the loop.
                self.engine.offer_later(due.min(now + self.parking.hold_max), entry);
            }
        }
    }

    /// Parks a job until `due`. If that is refused, the job waits here.
    pub(super) fn park(&mut self, due: Instant, reason: ParkReason, entry: Entry) {
        self.parking.in_progress += 1;
        let until = wall_now().plus(due.saturating_duration_since(Instant::now()));
        let stay = entry.stay(until, reason);
        let Entry { job, has_own_id, ticket, first_seen, age, held_since, attempts, request, .. } = entry;
        let (downstream, id) = (&self.context.downstream, &job.id);
        tracing::debug!(downstream, id, reason = reason.as_str(), until = until.0 / 1000, "parking");
        // The call itself has the job's place in the order.
        let parking = ticket.park(stay);
        let (context, events) = (Arc::clone(&self.context), self.flights.events.clone());
        self.flights.spawn(async move {
            let event = match parking.await {
                Parked::Done => {
                    context.meters.parked();
                    Event::Parked
                }
                Parked::Lost => Event::Parked,
                Parked::Refused(ticket) => {
                    let may_park = false;
                    let entry = Entry {
                        job,
                        has_own_id,
                        ticket,
                        first_seen,
                        age,
                        held_since,
                        may_park,
                        attempts,
                        request,
                    };
                    Event::Unparked(due, entry)
                }
            };
            // Without a dispatcher nobody receives the event, and its ticket gives the job back.
            let _ = events.send(event);
        });
    }
}
