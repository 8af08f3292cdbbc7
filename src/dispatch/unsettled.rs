//! The jobs that this replica has sent and not settled, which are matched with messages that are delivered again.
//!
//! A channel that is lost takes the right to settle its messages with it, and their broker delivers them again, as it does
//! with what is unacked for its `consumer_timeout`. What this replica has done for such a message is not done again:
//!
//! | the job | its message, delivered again |
//! |---|---|
//! | is being sent, settled or parked | its ticket goes to the task that does that, which settles it by its own outcome |
//! | waited for another attempt | waits for the rest of that, and keeps the attempts that it has had |
//! | was delivered, dead or parked, but not acked | is not sent: what is left of its settlement is done |
//!
//! Only a message that the broker flags as delivered before is matched, and only with a job whose own message came
//! through an earlier channel. The copy that a job is parked as is another message, and never matches that job. A job
//! that this replica does not hold any more is matched by its `message_id` and a digest. Each job takes one live
//! ticket at most. So two equal jobs are sent twice, and either message may settle either job.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::retry::Attempts;
use super::source::{DeadLetter, Liveness, Report, Ticket};
use crate::lock::lock;
use crate::sink::{Closing, Receipt, Response};
use crate::time::Micros;

mod message;

pub(super) use message::Message;
use message::{Identity, Sought};

/// How long it is remembered what was done for a message whose channel was lost.
const MEMORY: Duration = Duration::from_secs(3600);

/// The same for a job that became a dead letter. Its message comes again within that time, or went to another
/// replica, which made another letter. Later, somebody may have replayed that letter.
const MEMORY_OF_DEAD: Duration = Duration::from_secs(300);

/// The most messages of a downstream that are remembered so, and the most bytes of their answers.
const MOST: usize = 1000;
const MOST_BYTES: usize = 4 << 20;

/// The jobs of one downstream that were sent and are not settled.
///
/// Each send adds a record. A search for a record is rare: only a message that is delivered again needs it. So a record is cheap to
/// make, and a search reads all records.
#[derive(Default)]
pub(super) struct Unsettled {
    table: Mutex<Table>,
    closing: Closing,
}

#[derive(Default)]
struct Table {
    next: u64,
    records: BTreeMap<u64, Record>,
    /// The records whose channel was lost, without those in `dead`.
    left: Left,
    /// The records of dead letters whose channel was lost.
    dead: Left,
}

/// The keys of some records, the oldest first; each with the instant at which it was added, and the bytes that its
/// record keeps.
#[derive(Default)]
struct Left(VecDeque<(u64, Instant, usize)>);

struct Record {
    message: Identity,
    /// As in [`Ticket::generation`].
    generation: u64,
    /// As in [`Message`].
    parked_until: Option<Micros>,
    /// As [`Message::fingerprint`].
    fingerprint: u64,
    state: State,
}

enum State {
    /// Work on the job is in progress. The ticket is that of a new delivery of its message, if there was one.
    AtWork(Option<Box<dyn Ticket>>),
    /// The job waits until this instant, after these attempts. It waits here if there is a [`Liveness`]; without one,
    /// its channel is lost.
    Waits(Instant, Attempts, Option<Liveness>),
    /// It was sent and settled, except for its ack.
    Ended(LeftOver),
}

/// What is left to be done for a job that was sent.
pub(super) enum LeftOver {
    /// It was delivered, or parked.
    Delivered(Delivered),
    /// It becomes a dead letter: the answer is still to be replied, where there is one, and the letter to be
    /// published.
    Dead(DeadLetter, Option<Response>),
    /// Its letter is published, and nothing but its ack is left.
    Buried(Report),
}

/// A job that was delivered and is not acked.
pub(super) struct Delivered {
    pub(super) receipt: Receipt,
    pub(super) report: Report,
    /// Whether nobody waits for the answer any more.
    pub(super) is_replied: bool,
}

/// What was done for a message that was delivered again.
pub(super) enum Known {
    Nothing,
    /// It was tried, and is to wait until then.
    Waits(Instant, Attempts),
    /// It was sent, and this is left to be done.
    Ended(LeftOver),
}

/// A handle on the record of one job. If it is dropped while the job waits and its channel is lost, the attempts are
/// remembered.
#[derive(Default)]
pub(super) struct Track(Option<(Arc<Unsettled>, u64)>);

impl Unsettled {
    /// Says when sends stop waiting for the rest of successful answers.
    pub(super) const fn closing(&self) -> &Closing {
        &self.closing
    }

    /// Records that work is in progress on a job whose message has this ticket.
    pub(super) fn begin(self: &Arc<Self>, message: Message<'_>, ticket: &dyn Ticket) -> Track {
        let generation = ticket.generation();
        // A source that never delivers a message again has only one generation, which is 0.
        if generation == 0 {
            return Track::default();
        }
        let (fingerprint, state) = (message.fingerprint(), State::AtWork(None));
        let parked_until = message.parked_until;
        let message = Identity::of(message);
        let mut table = lock(&self.table);
        table.next += 1;
        let place = table.next;
        table.records.insert(place, Record { message, generation, parked_until, fingerprint, state });
        Track(Some((Arc::clone(self), place)))
    }

    /// How many jobs with this id are being sent, settled or parked.
    pub(super) fn at_work(&self, id: &str) -> usize {
        let has_id = |message: &Identity| matches!(message, Identity::Job { job, .. } if job.id == id);
        let is_meant = |record: &&Record| matches!(record.state, State::AtWork(_)) && has_id(&record.message);
        lock(&self.table).records.values().filter(is_meant).count()
    }

    /// Finds out what was done for a message that arrived. `None` if work on its job is in progress: then that work
    /// gets the ticket.
    pub(super) fn claim(
        &self,
        message: Message<'_>,
        ticket: Box<dyn Ticket>,
    ) -> Option<(Box<dyn Ticket>, Known)> {
        if !ticket.is_redelivered() {
            lock(&self.table).forget_dead(message);
            return Some((ticket, Known::Nothing));
        }
        let (sought, generation) = (Sought::new(message), ticket.generation());
        let mut table = lock(&self.table);
        table.forget_old();
        let mut records = table.records.iter_mut();
        let Some((&place, record)) = records.find(|(_, record)| record.is_of(&sought, generation)) else {
            return Some((ticket, Known::Nothing));
        };
        if let State::AtWork(redelivered) = &mut record.state {
            *redelivered = Some(ticket);
            return None;
        }
        table.left.remove(place);
        table.dead.remove(place);
        let known = match table.records.remove(&place).map(|record| record.state) {
            Some(State::Waits(until, attempts, _)) => Known::Waits(until, attempts),
            Some(State::Ended(rest)) => Known::Ended(rest),
            Some(State::AtWork(_)) | None => Known::Nothing,
        };
        Some((ticket, known))
    }
}

impl Table {
    /// Remembers a record whose channel was lost, and forgets what is too old or too much.
    fn leave(&mut self, place: u64, bytes: usize, is_dead: bool) {
        let left = if is_dead { &mut self.dead } else { &mut self.left };
        left.0.push_back((place, Instant::now(), bytes));
        self.forget_old();
    }

    fn forget_old(&mut self) {
        for (left, memory) in [(&mut self.left, MEMORY), (&mut self.dead, MEMORY_OF_DEAD)] {
            left.forget_old(&mut self.records, memory);
        }
    }

    /// Forgets the dead letter of the same job: this message was not delivered before, so somebody published it anew,
    /// perhaps by a replay of the letter.
    fn forget_dead(&mut self, message: Message<'_>) {
        if self.dead.0.is_empty() {
            return;
        }
        let (sought, records) = (Sought::new(message), &mut self.records);
        self.dead.0.retain(|(place, ..)| {
            let is_same = records.get(place).is_some_and(|record| record.is_about(&sought));
            if is_same {
                records.remove(place);
            }
            !is_same
        });
    }
}

impl Left {
    /// Forgets what is too old or too much.
    fn forget_old(&mut self, records: &mut BTreeMap<u64, Record>, memory: Duration) {
        let mut bytes: usize = self.0.iter().map(|(.., bytes)| bytes).sum();
        while let Some((place, since, first)) = self.0.front()
            && (self.0.len() > MOST || bytes > MOST_BYTES || since.elapsed() >= memory)
        {
            bytes -= first;
            records.remove(place);
            self.0.pop_front();
        }
    }

    fn remove(&mut self, place: u64) {
        self.0.retain(|(other, ..)| *other != place);
    }
}

impl Record {
    fn is_about(&self, sought: &Sought<'_>) -> bool {
        self.fingerprint == sought.fingerprint && self.message.is(sought)
    }

    /// Whether this is another delivery of this job's message, in a later generation.
    fn is_of(&self, sought: &Sought<'_>, generation: u64) -> bool {
        // A copy is not the message that it was made of: to settle one by the other could lose the job.
        if self.fingerprint != sought.fingerprint || self.parked_until != sought.message.parked_until {
            return false;
        }
        // If the channel of the redelivery was lost as well, a later one replaces its ticket.
        let newest = match &self.state {
            State::AtWork(Some(redelivered)) if redelivered.is_live() => return false,
            State::AtWork(Some(redelivered)) => redelivered.generation(),
            State::Waits(.., Some(is_live)) if is_live() => return false,
            _ => self.generation,
        };
        newest < generation && self.message.is(sought)
    }
}

impl LeftOver {
    /// What is left of a job for which everything is done except its ack.
    pub(super) fn acked_only(report: Report) -> Self {
        let receipt = Receipt::new(Response::default());
        Self::Delivered(Delivered { receipt, report, is_replied: true })
    }

    /// The bytes of the answer that it keeps.
    fn bytes(&self) -> usize {
        match self {
            Self::Delivered(Delivered { is_replied: true, .. }) | Self::Buried(_) => 0,
            Self::Delivered(Delivered { receipt, .. }) => receipt.response.body.len(),
            Self::Dead(letter, reply) => {
                letter.response.len() + reply.as_ref().map_or(0, |reply| reply.body.len())
            }
        }
    }
}

impl Track {
    /// Ends the record: the job is settled, or is sent anew.
    pub(super) fn end(&mut self) {
        if let Some((unsettled, place)) = self.0.take() {
            let record = lock(&unsettled.table).records.remove(&place);
            // A ticket that is dropped gives its message back, which needs no lock.
            drop(record);
        }
    }

    /// The ticket of the new delivery, if the message was delivered again.
    pub(super) fn redelivered(&self) -> Option<Box<dyn Ticket>> {
        self.with(|record| match &mut record.state {
            State::AtWork(ticket) => {
                let ticket = ticket.take()?;
                record.generation = ticket.generation();
                Some(ticket)
            }
            _ => None,
        })
    }

    /// Records that no work is in progress any more: the job waits after these attempts, and `liveness` says whether
    /// its channel is lost. If its message was delivered again meanwhile, nothing is recorded, and the new ticket is
    /// returned.
    pub(super) fn wait(
        &self,
        until: Instant,
        attempts: Attempts,
        liveness: Liveness,
    ) -> Option<Box<dyn Ticket>> {
        let ticket = self.redelivered();
        if ticket.is_none() {
            self.with(|record| {
                record.state = State::Waits(until, attempts, Some(liveness));
                Some(())
            });
        }
        ticket
    }

    /// Remembers the outcome of a job whose channel was lost. If its message was delivered again meanwhile, nothing
    /// is remembered, and the new ticket and the outcome are returned. A job without an id of its own is forgotten.
    pub(super) fn leave(
        mut self,
        has_own_id: bool,
        outcome: LeftOver,
    ) -> Option<(Self, Box<dyn Ticket>, LeftOver)> {
        if let Some(ticket) = self.redelivered() {
            return Some((self, ticket, outcome));
        }
        if !has_own_id {
            return None;
        }
        let (unsettled, place) = self.0.take()?;
        let mut table = lock(&unsettled.table);
        let record = table.records.get_mut(&place)?;
        let (bytes, is_dead) = (outcome.bytes(), matches!(outcome, LeftOver::Dead(..) | LeftOver::Buried(_)));
        record.message.reduce();
        record.state = State::Ended(outcome);
        table.leave(place, bytes, is_dead);
        None
    }

    /// Remembers the attempts at a job whose channel was lost, if there were any; it was to wait until `until`.
    pub(super) fn lose(mut self, until: Instant, attempts: Option<Attempts>) {
        match attempts.filter(|attempts| attempts.sent > 0) {
            // It is dropped, and not live.
            Some(attempts) => drop(self.wait(until, attempts, Arc::new(|| false))),
            None => self.end(),
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Record) -> Option<T>) -> Option<T> {
        let (unsettled, place) = self.0.as_ref()?;
        lock(&unsettled.table).records.get_mut(place).and_then(change)
    }
}

impl fmt::Debug for Track {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Track").field(&self.0.as_ref().map(|(_, place)| place)).finish()
    }
}

impl Drop for Track {
    fn drop(&mut self) {
        let is_lost = self.with(|record| {
            let State::Waits(.., liveness) = &mut record.state else { return None };
            // It is taken, since it keeps the channel open.
            let is_live = liveness.take()?;
            (!is_live()).then(|| record.message.reduce())
        });
        match self.0.take_if(|_| is_lost.is_some()) {
            Some((unsettled, place)) => lock(&unsettled.table).leave(place, 0, false),
            None => self.end(),
        }
    }
}
