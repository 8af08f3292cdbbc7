//! Jobs that must wait for long are parked: they wait in their broker, so that they block no job here.
//!
//! | the window | parked are |
//! |---|---|
//! | at least a fifth of its places is free | jobs that wait for anything but a slot for longer than `hold_max` |
//! | less is free | of the others, those that wait longest, until a fifth is free: down to waits of two seconds |
//! | any | jobs that were held for 20 minutes |

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::flight::Event;
use crate::dispatch::source::{ParkReason, Parked, Report, Source};
use crate::dispatch::unsettled::LeftOver;
use crate::pace::Waiter;
use crate::time::wall_now;

/// How long a job is held at most where it can be parked. RabbitMQ takes back what is unacked for 30 minutes unless its
/// `consumer_timeout` says otherwise, together with what is being sent at that time.
const LONGEST_HOLD: Duration = Duration::from_secs(20 * 60);

/// The time from one scan for jobs that are held for too long to the next.
const SCAN_INTERVAL: Duration = Duration::from_secs(60);

/// The shortest wait that is worth parking: the shortest stay takes a second, and what is left of a wait is held.
const SHORTEST_WAIT: Duration = Duration::from_secs(2);

/// One in this many places of the window is kept free of jobs that wait for anything but a slot.
const FREE_PLACES: usize = 5;

/// How long a job is parked at least that came back to a plan that still has no slots for it.
const RETURN: Duration = Duration::from_secs(10);

/// The jobs that wait in their broker.
pub(super) struct Parking {
    /// The number of jobs that are being parked: one that is refused comes back.
    pub(super) in_progress: usize,
    /// When the next scan looks for jobs that are held for too long.
    next_scan_at: Instant,
}

impl Parking {
    pub(super) fn new() -> Self {
        Self { in_progress: 0, next_scan_at: Instant::now() }
    }
}

impl Worker {
    /// Has a job wait until `due`: here, until it is parked.
    pub(super) fn wait(&mut self, due: Instant, mut entry: Entry) {
        let due = entry.due_or_end(due);
        self.engine.offer_later(due, entry);
    }

    /// Parks the jobs that are to wait elsewhere, if the source can.
    pub(super) fn park_waiting(&mut self, now: Instant, source: &impl Source) {
        let scans = now >= self.parking.next_scan_at;
        if scans {
            self.parking.next_scan_at = now + SCAN_INTERVAL;
        }
        if source.can_park() {
            self.park_long_waits(now, source);
            if scans {
                self.park_long_held(now);
            }
        }
    }

    /// Returns the instant of the next scan for jobs that are held for too long.
    pub(super) fn park_scan_at(&self) -> Option<Instant> {
        (self.engine.waiting() > 0).then_some(self.parking.next_scan_at)
    }

    /// Parks the jobs that wait for anything but a slot for longer than `hold_max`, since others would wait behind them. If
    /// the window has few free places, so are those that wait longest, down to [`SHORTEST_WAIT`]: it is for what can go
    /// soon.
    fn park_long_waits(&mut self, now: Instant, source: &impl Source) {
        let hold_max = self.engine.settings().hold_max();
        loop {
            let longest = self.engine.longest_wait(now);
            let (patience, most) = if longest > hold_max {
                (hold_max, usize::MAX)
            } else if longest > SHORTEST_WAIT && !self.halt.is_halted() {
                ((longest / 2).max(SHORTEST_WAIT), self.excess(source))
            } else {
                return;
            };
            let taken = self.engine.take_unreachable(now, patience, most);
            if taken.is_empty() {
                return;
            }
            taken.into_iter().for_each(|(due, entry)| self.park_or_hold(now, patience, due, entry));
        }
    }

    /// The number of jobs beyond those that leave enough places free in the window, or in the part of it that the source
    /// uses at present.
    fn excess(&self, source: &impl Source) -> usize {
        let all = self.engine.in_hand() + self.halt.jobs() + self.flights.tasks.len();
        let window = usize::from(self.window()).min(source.most_at_once(all));
        let stay = all.saturating_sub(self.parking.in_progress);
        stay.saturating_sub(window - window.div_ceil(FREE_PLACES))
    }

    /// Parks a job that waits until `due`, for longer than `patience`, for a time or for its plan.
    fn park_or_hold(&mut self, now: Instant, patience: Duration, due: Instant, mut entry: Entry) {
        let (mut due, mut look_again) = (due, due);
        if entry.since() <= now {
            // It waits for its plan. If it came back from that, it must not do so again and again.
            if entry.hold.reason == ParkReason::Limit {
                due = due.max(now + RETURN);
            }
            entry.hold.reason = ParkReason::Limit;
            look_again = now + patience;
        }
        due = entry.due_or_end(due);
        if entry.may_wait_elsewhere() && due > now + patience / 2 {
            self.park(due, entry.hold.reason, entry);
        } else {
            // It must not be checked again in each turn of the loop.
            self.engine.offer_later(due.min(look_again), entry);
        }
    }

    /// Parks the jobs that are held for too long: their downstream's own limits are used up, or it is paused.
    ///
    /// They block no runnable job, so they are not parked earlier: the whole queue would be. One that waits for a time of
    /// its own comes back for that.
    fn park_long_held(&mut self, now: Instant) {
        let hold_max = self.engine.settings().hold_max();
        let is_meant = |entry: &Entry| entry.can_park() && entry.hold.since + LONGEST_HOLD <= now;
        for mut entry in self.engine.take_waiting_if(is_meant) {
            if entry.since() > now {
                self.park(entry.since(), entry.hold.reason, entry);
                continue;
            }
            let earliest = now + hold_max + SCAN_INTERVAL;
            let due = entry.due_or_end(self.engine.next_slot(entry.lane()).max(earliest));
            if due > now + hold_max {
                self.park(due, ParkReason::Limit, entry);
            } else {
                self.engine.offer(entry);
            }
        }
    }

    /// Parks a job until `due`. If that is refused, the job waits here.
    pub(super) fn park(&mut self, due: Instant, reason: ParkReason, mut entry: Entry) {
        self.parking.in_progress += 1;
        let until = wall_now().plus(due.saturating_duration_since(Instant::now()));
        let stay = entry.stay(until, reason);
        // If its message is delivered again meanwhile, this settles it.
        entry.begin(&self.context.unsettled);
        let Entry { job, has_own_id, ticket, first_seen, age, mut hold, attempts, request, mut track } =
            entry;
        let (downstream, id) = (&self.context.downstream, &job.id);
        tracing::debug!(downstream, id, reason = reason.as_str(), until = until.0 / 1000, "parking");
        // The call itself has the job's place in the order.
        let parking = ticket.park(stay);
        let (context, events) = (Arc::clone(&self.context), self.flights.events.clone());
        self.flights.spawn(async move {
            let parked = parking.await;
            let kept = match (parked, track.redelivered()) {
                (Parked::Done, None) => None,
                // Its copy is confirmed, and either ticket may ack it.
                (Parked::Done | Parked::Unacked, ticket) => {
                    let report = Report { attempts: attempts.sent, ..Report::UNSENT };
                    let ticket = ticket.or_else(|| {
                        let track = std::mem::take(&mut track);
                        track.leave(has_own_id, LeftOver::acked_only(report)).map(|(_, ticket, _)| ticket)
                    });
                    ticket.into_iter().for_each(|ticket| ticket.discard(report));
                    None
                }
                (Parked::Lost, None) => {
                    track.lose(due, has_own_id.then_some(attempts));
                    return drop(events.send(Event::Parked));
                }
                (Parked::Lost | Parked::Refused(_), Some(ticket)) => Some(ticket),
                (Parked::Refused(ticket), None) => {
                    hold.may_park = false;
                    Some(ticket)
                }
            };
            let event = match kept {
                None => {
                    track.end();
                    context.meters.parked();
                    Event::Parked
                }
                Some(ticket) => {
                    let mut entry =
                        Entry { job, has_own_id, ticket, first_seen, age, hold, attempts, request, track };
                    entry.land(due);
                    Event::Unparked(due, entry)
                }
            };
            // Without a dispatcher nobody receives the event, and its ticket gives the job back.
            let _ = events.send(event);
        });
    }
}
