//! What a flight reports to its dispatcher.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::dispatch::entry::Entry;
use crate::dispatch::failures::Ending;
use crate::dispatch::health::Contact;
use crate::dispatch::source::{DeadLetter, ParkReason};
use crate::limit::JobCost;
use crate::pace::{LaneId, ProbeEnd};

use crate::sink::Response;
use crate::time::{Deadline, Micros};

/// An event that a flight reports to its dispatcher.
#[derive(Debug)]
pub(in crate::dispatch) enum Event {
    /// The slot was given up: the job waits for another one, in its old position.
    Back(Box<Entry>),
    /// Nothing was sent at this slot, which was granted for this lane and cost.
    Unused { lane: LaneId, cost: JobCost, slot: Micros },
    /// The job failed and is tried again later.
    Retry(Instant, Box<Entry>),
    /// The downstream throttled the job, which is tried again later.
    Throttled(Instant, Box<Entry>),
    /// A job is parked, or its message is not live any more. If it was parked for a limit, the number says how often
    /// limits had changed before.
    Parked(Option<u64>),
    /// The job cannot be parked: it waits here until this instant. The number is that of [`Event::Parked`].
    Unparked(Instant, Option<u64>, Box<Entry>),
    /// The downstream asks for a pause until this instant, in its answer to a job with this key.
    Pause(Deadline, Arc<[String]>),
    /// The downstream throttles a job with this key, and does not say for how long. This is when the job was sent.
    CoolDown(Instant, Arc<[String]>),
    /// The downstream refused the credentials of the request.
    Refused(Box<Refused>),
    /// The send is over.
    Ended(FlightEnd),
}

/// A job that was refused, and the dead letter that it becomes if the job itself is at fault.
#[derive(Debug)]
pub(in crate::dispatch) struct Refused {
    pub(in crate::dispatch) entry: Box<Entry>,
    pub(in crate::dispatch) sent: Instant,
    pub(in crate::dispatch) letter: DeadLetter,
    pub(in crate::dispatch) response: Response,
    /// Whether the credentials are at fault, or may be: then the refusal never makes the job a dead letter.
    pub(in crate::dispatch) is_blameless: bool,
}

/// The end of a flight.
#[derive(Debug)]
pub(in crate::dispatch) struct FlightEnd {
    /// The instant at which it began.
    pub(in crate::dispatch) since: Instant,
    /// The values of the key of its job.
    pub(in crate::dispatch) key: Arc<[String]>,
    /// How long the downstream took, if it answered.
    pub(in crate::dispatch) took: Option<Duration>,
    pub(in crate::dispatch) contact: Contact,
    /// Whether the downstream worked.
    pub(in crate::dispatch) ending: Ending,
}

impl FlightEnd {
    /// What the flight shows about the downstream, if it was the probe of a cool-down.
    pub(in crate::dispatch) const fn as_probe(&self) -> ProbeEnd {
        match self.contact {
            Contact::None => ProbeEnd::NotSent,
            Contact::Delivered | Contact::Sent if self.took.is_some() => ProbeEnd::Answered,
            _ => ProbeEnd::Unknown,
        }
    }
}

/// Reports to the dispatcher that the send is over, however the flight ends.
pub(in crate::dispatch) struct FlightGuard {
    events: mpsc::UnboundedSender<Box<Event>>,
    pub(super) end: FlightEnd,
}

impl Event {
    /// The job that was put back with it, if any. It is ready from the end of its wait.
    pub(in crate::dispatch) fn into_entry(self) -> Option<Box<Entry>> {
        match self {
            Self::Back(entry) => Some(entry),
            Self::Retry(due, mut entry) | Self::Throttled(due, mut entry) => {
                // It may have waited for a limit before.
                entry.hold.reason = ParkReason::Retry;
                entry.request.since = due;
                Some(entry)
            }
            Self::Unparked(due, _, mut entry) => {
                entry.request.since = due;
                Some(entry)
            }
            Self::Refused(refused) => Some(refused.entry),
            Self::Unused { .. } | Self::Pause(..) | Self::CoolDown(..) | Self::Parked(_) | Self::Ended(_) => {
                None
            }
        }
    }
}

impl FlightGuard {
    pub(in crate::dispatch) fn new(events: mpsc::UnboundedSender<Box<Event>>, key: Arc<[String]>) -> Self {
        let (contact, ending) = (Contact::None, Ending::Other);
        let end = FlightEnd { since: Instant::now(), key, took: None, contact, ending };
        Self { events, end }
    }

    pub(super) fn send(&self, event: Event) {
        // Without a dispatcher nobody receives the event; the job returns to its broker with the connection.
        let _ = self.events.send(Box::new(event));
    }
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        let FlightEnd { since, took, contact, .. } = self.end;
        let (ending, key) = (std::mem::take(&mut self.end.ending), Arc::clone(&self.end.key));
        self.send(Event::Ended(FlightEnd { since, key, took, contact, ending }));
    }
}
