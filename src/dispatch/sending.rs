//! What is being sent, for messages that are delivered again meanwhile.
//!
//! A channel that is lost takes the right to settle its messages with it, and their broker delivers them
//! again, while requests for some of them are still on their way. Such a message is not sent a second time:
//! its ticket is handed to the send that is under way, which settles it by its own outcome.
//!
//! Only a message that says that it was delivered before takes part, and only a send whose own message
//! came through an earlier channel. Each send takes one ticket at most: two jobs that are equal are sent
//! twice, whichever message settles which.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::lane::Entry;
use super::source::Ticket;
use crate::job::Job;

/// How much of either end of a body is looked at to tell jobs apart quickly.
const GLANCE: usize = 64;

/// The sends of one downstream that are under way, by a fingerprint of the job and its place in the order of
/// arrival.
#[derive(Debug, Default)]
pub(super) struct Sending {
    underway: Mutex<BTreeMap<(u64, u64), Record>>,
    fingerprints: RandomState,
}

#[derive(Debug)]
struct Record {
    job: Arc<Job>,
    has_own_id: bool,
    /// As in [`Ticket::generation`].
    generation: u64,
    /// Of the message as it was delivered again.
    heir: Option<Box<dyn Ticket>>,
}

/// One send that is under way. Dropped, it is so no more.
#[derive(Debug)]
pub(super) struct Underway {
    sending: Arc<Sending>,
    key: Option<(u64, u64)>,
}

impl Sending {
    /// The job is being sent from now on.
    pub(super) fn begin(self: &Arc<Self>, entry: &Entry) -> Underway {
        let generation = entry.ticket.generation();
        // A source whose messages never come again has but one.
        let key = (generation > 0).then(|| (self.fingerprint(entry), entry.seq));
        if let Some(key) = key {
            let (job, has_own_id) = (Arc::clone(&entry.job), entry.has_own_id);
            self.lock().insert(key, Record { job, has_own_id, generation, heir: None });
        }
        Underway { sending: Arc::clone(self), key }
    }

    /// Hands the ticket of a message that was delivered again to the send of that message; the entry comes
    /// back where there is none.
    pub(super) fn hand_over(&self, entry: Entry) -> Option<Entry> {
        if !entry.ticket.is_redelivered() {
            return Some(entry);
        }
        let fingerprint = self.fingerprint(&entry);
        let mut underway = self.lock();
        let mut candidates = underway.range_mut((fingerprint, 0)..=(fingerprint, u64::MAX));
        match candidates.find(|(_, record)| record.is_of(&entry)) {
            Some((_, record)) => {
                record.heir = Some(entry.ticket);
                None
            }
            None => Some(entry),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Record>> {
        // No method leaves it half changed.
        self.underway.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Equal for equal jobs.
    fn fingerprint(&self, entry: &Entry) -> u64 {
        let Job { id, path, lane, body, .. } = &*entry.job;
        let mut hasher = self.fingerprints.build_hasher();
        if entry.has_own_id {
            id.hash(&mut hasher);
        }
        (path, lane, body.len()).hash(&mut hasher);
        hasher.write(&body[..body.len().min(GLANCE)]);
        hasher.write(&body[body.len().saturating_sub(GLANCE)..]);
        hasher.finish()
    }
}

impl Record {
    /// Whether `entry` is of the message that is being sent, delivered again.
    fn is_of(&self, entry: &Entry) -> bool {
        self.heir.is_none()
            && self.generation < entry.ticket.generation()
            && self.has_own_id == entry.has_own_id
            && (!self.has_own_id || self.job.id == entry.job.id)
            && is_same_request(&self.job, &entry.job)
    }
}

/// Whether two jobs are equal but for their ids.
fn is_same_request(one: &Job, other: &Job) -> bool {
    let Job {
        id: _,
        lane,
        cost,
        plan,
        priority,
        not_before,
        deadline,
        method,
        path,
        headers,
        content_type,
        content_encoding,
        body,
        reply,
    } = one;
    (lane, cost, plan, priority) == (&other.lane, &other.cost, &other.plan, &other.priority)
        && (not_before, deadline, method) == (&other.not_before, &other.deadline, &other.method)
        && (path, headers, reply) == (&other.path, &other.headers, &other.reply)
        && (content_type, content_encoding) == (&other.content_type, &other.content_encoding)
        && *body == other.body
}

impl Underway {
    /// The send is over: the ticket of its message as it was delivered again, if it was.
    pub(super) fn end(&mut self) -> Option<Box<dyn Ticket>> {
        let record = self.sending.lock().remove(&self.key.take()?)?;
        record.heir
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        // A ticket that is dropped gives its message back.
        drop(self.end());
    }
}
