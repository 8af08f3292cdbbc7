//! The sends in progress, which are matched with messages that are delivered again meanwhile.
//!
//! A channel that is lost takes the right to settle its messages with it, and their broker delivers them
//! again, while requests for some of them are still on their way. Such a message is not sent a second time:
//! its ticket is handed to the send that is under way, which settles it by its own outcome.
//!
//! Only a message that is flagged as delivered before is matched, and only a send whose own message came through an
//! earlier channel. Each send takes one live ticket at most: two jobs that are equal are sent twice, whichever message
//! settles which.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entry::Entry;
use super::source::Ticket;
use crate::job::{Content, Job};
use crate::sink::Closing;

/// The sends of one downstream that are in progress.
///
/// Every send is noted, but only a message that is delivered again is looked for: so noting one is cheap, and
/// looking for one goes over all of them.
#[derive(Debug, Default)]
pub(super) struct Sending {
    table: Mutex<Table>,
    closing: Closing,
}

/// The records; free entries are reused.
#[derive(Debug, Default)]
struct Table {
    records: Vec<Option<Record>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Record {
    job: Arc<Job>,
    has_own_id: bool,
    /// As in [`Ticket::generation`].
    generation: u64,
    /// A fingerprint: equal for equal jobs, and seldom for others.
    fingerprint: u64,
    /// The ticket of the message as it was delivered again.
    redelivered: Option<Box<dyn Ticket>>,
}

/// One send in progress. When dropped, it is removed.
#[derive(Debug)]
pub(super) struct SendGuard {
    sending: Arc<Sending>,
    place: Option<usize>,
}

impl Sending {
    /// Records that the job is being sent.
    pub(super) fn begin(self: &Arc<Self>, entry: &Entry) -> SendGuard {
        let generation = entry.ticket.generation();
        // A source that never delivers a message again has only one generation, which is 0.
        let place = (generation > 0).then(|| {
            let (job, has_own_id) = (Arc::clone(&entry.job), entry.has_own_id);
            self.lock().insert(Record {
                job,
                has_own_id,
                generation,
                fingerprint: fingerprint(entry),
                redelivered: None,
            })
        });
        SendGuard { sending: Arc::clone(self), place }
    }

    /// When answers that are successes are not waited for any more.
    pub(super) const fn closing(&self) -> &Closing {
        &self.closing
    }

    /// Hands the ticket of a message that was delivered again to the send of that message; returns the entry if there
    /// is no such send.
    pub(super) fn hand_over(&self, entry: Entry) -> Option<Entry> {
        if !entry.ticket.is_redelivered() {
            return Some(entry);
        }
        let (mut table, fingerprint) = (self.lock(), fingerprint(&entry));
        let mut alike = table.records.iter_mut().flatten().filter(|record| record.fingerprint == fingerprint);
        match alike.find(|record| record.is_of(&entry)) {
            Some(record) => {
                record.redelivered = Some(entry.ticket);
                None
            }
            None => Some(entry),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No method leaves the table inconsistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn insert(&mut self, record: Record) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.records[place] = Some(record);
                place
            }
            None => {
                self.records.push(Some(record));
                self.records.len() - 1
            }
        }
    }

    fn remove(&mut self, place: usize) -> Option<Record> {
        let record = self.records.get_mut(place)?.take()?;
        self.free.push(place);
        Some(record)
    }
}

impl Record {
    /// Whether `entry` is another delivery of the message that is being sent.
    fn is_of(&self, entry: &Entry) -> bool {
        // If the channel of the redelivery was lost as well, a later one replaces its ticket.
        let newest = match &self.redelivered {
            Some(redelivered) if redelivered.is_live() => return false,
            Some(redelivered) => redelivered.generation(),
            None => self.generation,
        };
        newest < entry.ticket.generation()
            && self.has_own_id == entry.has_own_id
            && (!self.has_own_id || self.job.id == entry.job.id)
            && is_same_request(&self.job, &entry.job)
    }
}

/// The fingerprint of a job: the length of its body, and the end of the fields that tell jobs apart.
fn fingerprint(entry: &Entry) -> u64 {
    let Job { id, content: Content { body, .. }, .. } = &*entry.job;
    let text = if entry.has_own_id { id.as_bytes() } else { &body[..] };
    let mut end = [0; 8];
    for (to, from) in end.iter_mut().zip(text.iter().rev()) {
        *to = *from;
    }
    u64::from_le_bytes(end) ^ (body.len() as u64).rotate_left(32)
}

/// Whether two jobs are equal but for their ids.
fn is_same_request(one: &Job, other: &Job) -> bool {
    let Job { id: _, lane, cost, plan, priority, times, request, content, reply } = one;
    (lane, cost, plan, priority) == (&other.lane, &other.cost, &other.plan, &other.priority)
        && (times, request, reply) == (&other.times, &other.request, &other.reply)
        && *content == other.content
}

impl SendGuard {
    /// Ends the send; returns the ticket of its redelivered message, if there was one.
    pub(super) fn end(&mut self) -> Option<Box<dyn Ticket>> {
        let place = self.place.take()?;
        let record = self.sending.lock().remove(place)?;
        record.redelivered
    }
}

impl Drop for SendGuard {
    fn drop(&mut self) {
        // A ticket that is dropped gives its message back.
        drop(self.end());
    }
}
