//! A job that this replica holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::retry::{Attempts, Refusals};
use super::source::{ParkReason, Stay, Ticket};
use super::unsettled::{Known, Message, Track, Unsettled};
use crate::job::Job;
use crate::pace::{End, SlotRequest, Waiter};
use crate::time::{Micros, wall_now};

/// A job that this replica holds, with the right to settle it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Arc<Job>,
    /// Whether the job's id is its producer's. Otherwise it was generated here, and changes with each delivery.
    pub(super) has_own_id: bool,
    pub(super) ticket: Box<dyn Ticket>,
    /// Its age, and the bounds of it.
    pub(super) age: Age,
    /// How its message is held here.
    pub(super) hold: Hold,
    /// The results of the attempts so far.
    pub(super) attempts: Attempts,
    /// What it asks for, and its position in the order.
    pub(super) request: SlotRequest,
    /// The memory of it for the case that its message is delivered again.
    pub(super) track: Track,
    /// The values of its key; all jobs of a lane share them.
    pub(super) key: Arc<[String]>,
}

/// How a message is held here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) since: Instant,
    /// Whether the job may be parked: not after that was refused once.
    pub(super) may_park: bool,
    /// The reason for which it waits, or waited last.
    pub(super) reason: ParkReason,
    /// Until when it is expected to wait, if it waits or waited for a limit, and the version of the limits by which
    /// this was estimated.
    pub(super) expected: Option<(Instant, String)>,
    /// The time for which it was parked, by the wall clock, if its message is a parked copy. If it is parked again,
    /// the new copy has another time.
    pub(super) parked_until: Option<Micros>,
}

/// The age of a job, by the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age {
    /// When the job was first taken in.
    pub(super) first_seen: Micros,
    /// The time from which on the age counts: when the job was made or first taken in, or its `paced-not-before` if
    /// that is later.
    pub(super) born: Micros,
    /// When the job gives up if it has not been tried.
    pub(super) give_up: Option<Micros>,
    /// When the job is too old to be tried again.
    pub(super) too_old: Option<Micros>,
}

impl Entry {
    /// Whether the job can be parked.
    pub(super) fn can_park(&self) -> bool {
        self.hold.may_park && self.ticket.can_park()
    }

    /// Whether the job has given up, by the wall clock.
    pub(super) fn has_given_up(&self, now: Micros) -> bool {
        self.patience().is_some_and(|give_up| give_up < now)
    }

    /// Whether the job takes no slot any more: it has expired, or given up.
    pub(super) fn has_ended(&self, now: Micros) -> bool {
        self.job.times.deadline.is_some_and(|deadline| deadline < now) || self.has_given_up(now)
    }

    /// Whether the job has been sent.
    pub(super) const fn is_tried(&self) -> bool {
        self.attempts.sent > 0
    }

    /// When the job gives up: the wait for its first attempt has an end of its own, and later waits have another one.
    pub(super) const fn patience(&self) -> Option<Micros> {
        if self.is_tried() { self.age.too_old } else { self.age.give_up }
    }

    /// Sets the instant at which the job ends if it has no slot by then. The caller repeats this when the wall clock
    /// was set, or the job was tried.
    pub(super) fn renew_end(&mut self) {
        let patience = self.patience();
        let ends = self.job.times.deadline.into_iter().chain(patience).min();
        // A millisecond later, since the job has ended only once that time has passed.
        let end = |at: Micros| End {
            at: Instant::now() + at.since(wall_now()) + Duration::from_millis(1),
            is_early: !self.is_tried() && self.job.times.deadline.is_none_or(|deadline| at < deadline),
        };
        self.request.end = ends.map(end);
    }

    /// The instant at which the job ends, if that is earlier than `due`; or else `due`. The end of a job
    /// ends each of its waits.
    pub(super) fn due_or_end(&mut self, due: Instant) -> Instant {
        self.renew_end();
        self.request.end.map_or(due, |end| end.at.min(due))
    }

    /// The stay of this job until `until`, by the wall clock, under these versions of what it waits for. It is a
    /// millisecond later if the message itself is a copy that was parked for that time, so that nobody mistakes the
    /// new copy for the message.
    pub(super) fn stay(&self, until: Micros, reason: ParkReason, versions: Option<String>) -> Stay {
        let Attempts { sent, throttled, refused, unreadable, .. } = self.attempts;
        let assigned_id = (!self.has_own_id).then(|| self.job.id.clone());
        let first_seen = self.age.first_seen;
        // Brokers keep it in ms.
        let millis = |at: Micros| at.0.saturating_add(999) / 1000;
        let is_same = self.hold.parked_until.is_some_and(|parked| millis(parked) == millis(until));
        Stay {
            until: if is_same { until.plus(Duration::from_millis(1)) } else { until },
            reason,
            attempts: sent,
            throttled,
            refused,
            unreadable,
            first_seen,
            assigned_id,
            versions,
        }
    }
}

impl Entry {
    /// Records that work on the job is in progress.
    pub(super) fn begin(&mut self, unsettled: &Arc<Unsettled>) {
        self.track.end();
        self.track = unsettled.begin(self.message(), &*self.ticket);
    }

    /// Records that no work on the job is in progress any more: it waits here until `until`. If its message was
    /// delivered again meanwhile, it continues with the ticket of the new delivery.
    pub(super) fn land(&mut self, until: Instant) {
        self.adopt();
        if !self.has_own_id || !self.is_tried() {
            // A message without an id cannot be distinguished from others like it.
            return self.track.end();
        }
        while let Some(ticket) = self.track.wait(until, self.attempts, self.ticket.liveness()) {
            self.ticket = ticket;
        }
    }

    /// Continues with the ticket of the new delivery, if the message was delivered again.
    pub(super) fn adopt(&mut self) {
        if let Some(ticket) = self.track.redelivered() {
            self.ticket = ticket;
        }
    }

    /// Finds out what this replica has done for a message that arrived. `None` if work on its job is in progress:
    /// then that work has the ticket now. The count of its attempts continues.
    pub(super) fn claim(mut self: Box<Self>, unsettled: &Arc<Unsettled>) -> Option<(Box<Self>, Known)> {
        let parked_until = self.hold.parked_until;
        let message = Message { job: &self.job, has_own_id: self.has_own_id, parked_until };
        let (ticket, known) = unsettled.claim(message, self.ticket)?;
        self.ticket = ticket;
        if let Known::Waits(until, attempts) = known {
            // It does not continue its row of refusals: the row may have ended meanwhile.
            let Refusals { outdated, blameless, .. } = attempts.refusals;
            let refusals = Refusals { outdated, blameless, ..Refusals::default() };
            self.attempts = Attempts { refusals, ..attempts };
            // Its copy may have been parked for another reason: it waits for its own attempt now, which no other limit ends.
            self.hold.reason = ParkReason::Retry;
            self.renew_end();
            // Its channel may be lost again before that.
            self.begin(unsettled);
            self.land(until);
        }
        Some((self, known))
    }

    fn message(&self) -> Message<'_> {
        let parked_until = self.hold.parked_until;
        Message { job: &self.job, has_own_id: self.has_own_id, parked_until }
    }
}

impl Waiter for Entry {
    fn request(&self) -> &SlotRequest {
        &self.request
    }

    fn request_mut(&mut self) -> &mut SlotRequest {
        &mut self.request
    }

    fn is_live(&self) -> bool {
        self.ticket.is_live()
    }

    fn expected(&self, limits: Option<&str>) -> Option<Instant> {
        let (until, by) = self.hold.expected.as_ref()?;
        let counts = limits.is_none_or(|limits| by == limits);
        (self.hold.reason == ParkReason::Limit && counts).then_some(*until)
    }

    fn key(&mut self) -> Option<&mut Arc<[String]>> {
        Some(&mut self.key)
    }

    /// A job whose credentials were refused must not: only this replica knows of the refusal.
    fn may_wait_elsewhere(&self) -> bool {
        self.hold.may_park && self.attempts.refusals.suspicion.is_none()
    }
}
