//! Jobs that must wait for long are parked: they wait in their broker, so that they block no job here.
//!
//! | the window | jobs that are parked |
//! |---|---|
//! | at least a fifth of its places is free | those that wait for anything but a slot for longer than `hold_max` |
//! | less is free | also those of the others that wait longest, down to waits of two seconds, until a fifth is free |
//! | any | those that were held for 20 minutes |

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Worker;
use crate::dispatch::entry::Entry;
use crate::dispatch::find::{ParkedJob, ParkedLately};
use crate::dispatch::flight::Event;
use crate::dispatch::source::{ParkReason, Parked, Report, Source, Ticket};
use crate::dispatch::unsettled::{LeftOver, Track};
use crate::pace::Waiter;
use crate::time::wall_now;

/// How long a job is held at most where it can be parked. RabbitMQ takes back what is unacked for 30 minutes unless its
/// `consumer_timeout` says otherwise, together with what is being sent at that time.
const LONGEST_HOLD: Duration = Duration::from_secs(20 * 60);

/// The time from one scan for jobs that are held for too long to the next.
const SCAN_INTERVAL: Duration = Duration::from_secs(60);

/// The time from one scan for jobs that wait for their lanes to the next, where lanes are made by keys: there may be many of
/// them. It is shorter while the window has few free places, and after a scan that found any.
const LANE_SCAN_INTERVAL: Duration = Duration::from_secs(1);
const PRESSED_SCAN_INTERVAL: Duration = Duration::from_millis(100);

/// The shortest stay in the broker. A job that is parked for less comes back at once.
const SHORTEST_STAY: Duration = Duration::from_secs(1);

/// The shortest wait that is worth parking: what is left of it after the shortest stay is held.
const SHORTEST_WAIT: Duration = Duration::from_secs(2);

/// The most rounds of one scan where lanes are made by keys: one for what waits for longer than `hold_max`, and one to free
/// places. The next scan is soon.
const LANE_ROUNDS: usize = 2;

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
    /// Whether the jobs that are parked for a limit are to come back.
    unpark: bool,
    /// How often limits changed, so that jobs may go sooner. Jobs whose parking for a limit began before the last
    /// change must come back too.
    changes: u64,
    /// When the next scan looks for jobs that wait for their lanes, and when it does if the window has few free places.
    next_lane_scan_at: Instant,
    next_pressed_scan_at: Instant,
    /// The jobs that were parked last, for searches.
    pub(super) lately: ParkedLately,
}

impl Parking {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let (next_scan_at, next_lane_scan_at, next_pressed_scan_at) = (now, now, now);
        Self {
            in_progress: 0,
            next_scan_at,
            unpark: false,
            changes: 0,
            next_lane_scan_at,
            next_pressed_scan_at,
            lately: ParkedLately::default(),
        }
    }

    /// Handles that jobs may go sooner than was expected when they were parked.
    const fn eased(&mut self) {
        (self.unpark, self.changes) = (true, self.changes + 1);
    }

    /// Handles that a job is parked, or stays here. If it was to wait for a limit, `began` is the number of changes
    /// when its parking began. Returns whether jobs may go sooner by now.
    pub(super) fn ended(&mut self, began: Option<u64>) -> bool {
        self.in_progress -= 1;
        let is_outdated = began.is_some_and(|began| began < self.changes);
        self.unpark |= is_outdated;
        is_outdated
    }

    /// Whether the lanes are scanned now. `is_pressed` is true if the window has few free places.
    fn scans_lanes(&mut self, now: Instant, is_pressed: bool) -> bool {
        if now < self.next_pressed_scan_at || (now < self.next_lane_scan_at && !is_pressed) {
            return false;
        }
        self.next_pressed_scan_at = now + PRESSED_SCAN_INTERVAL;
        self.next_lane_scan_at = now + LANE_SCAN_INTERVAL;
        true
    }

    /// Makes the next scan of the lanes come soon: the jobs that take the places of parked ones may wait as long.
    const fn scan_lanes_soon(&mut self) {
        self.next_lane_scan_at = self.next_pressed_scan_at;
    }
}

impl Worker {
    /// Makes a job wait until `due`: here, until it is parked.
    pub(super) fn wait(&mut self, due: Instant, mut entry: Box<Entry>) {
        let due = entry.due_or_end(due);
        self.engine.offer_later(due, entry);
    }

    /// Makes a job that came in wait for its slot. If it was parked for a limit that is still used up for long, it
    /// waits until the end of its earlier estimate.
    pub(super) fn offer(&mut self, entry: Box<Entry>) {
        let wait = self.engine.next_slot(entry.lane()).saturating_duration_since(Instant::now());
        match self.expected(&entry).filter(|_| wait > self.engine.settings().hold_max()) {
            Some(until) => self.wait(until, entry),
            None => self.engine.offer(entry),
        }
    }

    /// Until when a job was to wait for a limit, by those in force.
    fn expected(&self, entry: &Entry) -> Option<Instant> {
        entry.hold.expected.as_ref()?;
        entry.expected(Some(&self.engine.limits_version()?))
    }

    /// Records that a job waits for a limit until about `until`, by the limits in force. While these are unknown, the
    /// earlier estimate of the job stays, if it had one.
    fn note_expected(&self, until: Instant, entry: &mut Entry) {
        entry.hold.reason = ParkReason::Limit;
        if let Some(limits) = self.engine.limits_version() {
            entry.hold.expected = Some((until, limits));
        }
    }

    /// Offers the jobs that wait for a limit again: the limit changed, so they may go sooner than expected.
    pub(super) fn eased(&mut self) {
        self.parking.eased();
        for entry in self.engine.take_waiting_if(|entry| entry.hold.reason == ParkReason::Limit) {
            self.offer_eased(entry);
        }
    }

    /// Handles that a job cannot be parked.
    pub(super) fn stays_here(&mut self, due: Instant, began: Option<u64>, entry: Box<Entry>) {
        let may_go_sooner = self.parking.ended(began);
        self.parking.lately.forget(&entry.job.id);
        if entry.ticket.is_live()
            && let Some(entry) = self.unless_cancelled(entry)
        {
            if may_go_sooner {
                self.offer_eased(entry);
            } else {
                self.engine.offer_later(due, entry);
            }
        }
    }

    /// Makes a job that waited for a limit wait for its slot.
    fn offer_eased(&mut self, mut entry: Box<Entry>) {
        entry.request.since = Instant::now();
        entry.renew_end();
        self.engine.offer(entry);
    }

    /// Parks the jobs that are to wait elsewhere, if the source can.
    pub(super) fn park_waiting(&mut self, now: Instant, source: &impl Source) {
        let scans = now >= self.parking.next_scan_at;
        if scans {
            self.parking.next_scan_at = now + SCAN_INTERVAL;
        }
        let is_to_look = !self.engine.has_many_lanes()
            || (now >= self.parking.next_pressed_scan_at && {
                let is_pressed = self.excess(source) > 0;
                self.parking.scans_lanes(now, is_pressed)
            });
        if source.can_park() {
            if is_to_look && self.park_long_waits(now, source) {
                self.parking.scan_lanes_soon();
            }
            if scans {
                self.park_long_held(now);
            }
        }
    }

    /// Brings parked jobs back that may go sooner than expected.
    pub(super) fn unpark_eased(&mut self, source: &impl Source) {
        if std::mem::take(&mut self.parking.unpark) {
            source.unpark(self.engine.versions());
        }
    }

    /// Returns the instant of the next scan for jobs that are held for too long.
    pub(super) fn park_scan_at(&self) -> Option<Instant> {
        let of_lanes = self.engine.has_many_lanes().then_some(self.parking.next_lane_scan_at);
        let at = of_lanes.into_iter().chain([self.parking.next_scan_at]).min();
        at.filter(|_| self.engine.waiting() > 0)
    }

    /// Parks the jobs that wait for anything but a slot for longer than `hold_max`, since others would wait behind them. If
    /// the window has few free places, so are those that wait longest, down to [`SHORTEST_WAIT`]: it is for what can go
    /// soon. Returns whether there were any.
    fn park_long_waits(&mut self, now: Instant, source: &impl Source) -> bool {
        let hold_max = self.engine.settings().hold_max();
        let most_rounds = if self.engine.has_many_lanes() { LANE_ROUNDS } else { usize::MAX };
        let mut has_any = false;
        for _ in 0..most_rounds {
            let longest = self.engine.longest_wait(now);
            let (patience, most) = if longest > hold_max {
                (hold_max, usize::MAX)
            } else if longest > SHORTEST_WAIT && !self.halt.is_halted() {
                ((longest / 2).max(SHORTEST_WAIT), self.excess(source))
            } else {
                break;
            };
            let taken = self.engine.take_unreachable(now, patience, most);
            if taken.is_empty() {
                break;
            }
            has_any = true;
            taken.into_iter().for_each(|(due, entry)| self.park_or_hold(now, patience, due, entry));
        }
        has_any
    }

    /// The number of jobs that must leave, so that enough places are free in the window, or in the part of it that
    /// the source uses at present.
    fn excess(&self, source: &impl Source) -> usize {
        let all = self.engine.in_hand() + self.halt.jobs() + self.flights.tasks.len();
        let window = usize::from(self.window()).min(source.most_at_once(all));
        let stay = all.saturating_sub(self.parking.in_progress);
        stay.saturating_sub(window - window.div_ceil(FREE_PLACES))
    }

    /// Parks a job that waits until `due`, for longer than `patience`, for a time or for its plan. If the time is
    /// only the engine's estimate, and the job would give up before it, the job waits for less.
    fn park_or_hold(&mut self, now: Instant, patience: Duration, due: Instant, mut entry: Box<Entry>) {
        let is_short = due < now + patience;
        let (mut due, mut look_again) = (due, due);
        if entry.since() <= now {
            // It waits for its plan. If it came back from that, it must not do so again and again.
            if entry.hold.reason == ParkReason::Limit && !is_short {
                due = due.max(now + RETURN);
            }
            self.note_expected(due, &mut entry);
            look_again = now + patience;
        }
        due = entry.due_or_end(due);
        // The end of the job may be near.
        let shortest = if is_short { SHORTEST_STAY } else { (patience / 2).max(SHORTEST_STAY).min(patience) };
        if entry.may_wait_elsewhere() && due > now + shortest {
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
        let held_long =
            self.engine.take_waiting_if(|entry| entry.can_park() && entry.hold.since + LONGEST_HOLD <= now);
        for mut entry in held_long {
            if entry.since() > now {
                self.park(entry.since(), entry.hold.reason, entry);
                continue;
            }
            let earliest = now + hold_max + SCAN_INTERVAL;
            let due = entry.due_or_end(self.engine.next_slot(entry.lane()).max(earliest));
            if due > now + hold_max {
                self.note_expected(due, &mut entry);
                self.park(due, ParkReason::Limit, entry);
            } else {
                self.engine.offer(entry);
            }
        }
    }

    /// The versions of the limits by which it was estimated until when a job waits for one, and of pauses. If other
    /// limits are in force when the job comes home, it asks for a slot again.
    fn versions_of(&self, entry: &Entry) -> Option<String> {
        entry.hold.expected.as_ref().map(|(_, limits)| self.engine.versions_with(limits))
    }

    /// Parks a job until `due`. If that is refused, the job waits here.
    pub(super) fn park(&mut self, due: Instant, reason: ParkReason, mut entry: Box<Entry>) {
        self.parking.in_progress += 1;
        entry.hold.reason = reason;
        let is_limited = reason == ParkReason::Limit;
        let began = is_limited.then_some(self.parking.changes);
        let until = wall_now().plus(due.saturating_duration_since(Instant::now()));
        let stay = entry.stay(until, reason, self.versions_of(&entry).filter(|_| is_limited));
        let until = stay.until;
        self.parking.lately.add(&entry.job.id, ParkedJob { at: wall_now(), until, reason });
        // If its message is delivered again meanwhile, this settles it.
        entry.begin(&self.context.unsettled);
        let Entry { job, has_own_id, ticket, age, mut hold, attempts, request, mut track, key } = *entry;
        let (downstream, id) = (&self.context.downstream, &job.id);
        tracing::debug!(downstream, id, reason = reason.as_str(), until = until.0 / 1000, "parking");
        // The call, not the first poll, decides the job's place in the order.
        let parking = ticket.park(stay);
        let (context, events) = (Arc::clone(&self.context), self.flights.events.clone());
        // A job that waited for a limit and comes again asks for a slot: nothing would end another wait sooner.
        let lands = move || if is_limited { Instant::now() } else { due };
        self.flights.spawn(async move {
            let parked = parking.await;
            let kept = match (parked, track.redelivered()) {
                (Parked::Done, None) => None,
                // Its message is acked, so the new delivery may be of an equal job.
                (Parked::Done, Some(other)) => {
                    other.give_back();
                    None
                }
                (Parked::Unacked, ticket) => {
                    let report = Report { attempts: attempts.sent, ..Report::UNSENT };
                    ack_parked(std::mem::take(&mut track), ticket, has_own_id, report);
                    None
                }
                (Parked::Lost, None) => {
                    track.lose(lands(), has_own_id.then_some(attempts));
                    return drop(events.send(Box::new(Event::Parked(began))));
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
                    context.meters.parked(reason, until);
                    Event::Parked(began)
                }
                Some(ticket) => {
                    let entry = Entry { job, has_own_id, ticket, age, hold, attempts, request, track, key };
                    let mut entry = Box::new(entry);
                    entry.land(lands());
                    Event::Unparked(due, began, entry)
                }
            };
            // Without a dispatcher nobody receives the event, and its ticket gives the job back.
            let _ = events.send(Box::new(event));
        });
    }
}

/// Acks a message whose copy is confirmed, with the ticket that it has now: this one, or that of its redelivery.
fn ack_parked(track: Track, ticket: Option<Box<dyn Ticket>>, has_own_id: bool, report: Report) {
    let left = || track.leave(has_own_id, LeftOver::acked_only(report)).map(|(_, ticket, _)| ticket);
    ticket.or_else(left).into_iter().for_each(|ticket| ticket.discard(report));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn however_many_turns_the_loop_makes_lanes_are_looked_through_a_few_times_a_second() {
        for (is_pressed, expected) in [(false, 10), (true, 100)] {
            let mut parking = Parking::new();
            let start = Instant::now();
            let scans = (0..100_000_u64)
                .filter(|turn| parking.scans_lanes(start + Duration::from_micros(100 * turn), is_pressed));
            assert_eq!(scans.count(), expected, "in ten seconds");
        }
        let (mut parking, start) = (Parking::new(), Instant::now());
        assert!(parking.scans_lanes(start, false));
        let soon = start + PRESSED_SCAN_INTERVAL;
        assert!(parking.scans_lanes(soon, true), "at once where places are few");
        assert!(!parking.scans_lanes(soon + PRESSED_SCAN_INTERVAL, false));
        parking.scan_lanes_soon();
        assert!(parking.scans_lanes(soon + PRESSED_SCAN_INTERVAL, false), "and while any are parked");
    }
}
