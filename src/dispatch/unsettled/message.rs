//! How messages are recognized that are delivered again.

use std::cell::OnceCell;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, LazyLock};

use crate::job::{Content, Job};
use crate::time::Micros;

/// What a job is recognized by.
pub(super) enum Identity {
    Job { job: Arc<Job>, has_own_id: bool },
    Digest([u64; 2]),
}

/// A message that came, as a job.
#[derive(Clone, Copy)]
pub(in crate::dispatch) struct Message<'a> {
    pub(in crate::dispatch) job: &'a Arc<Job>,
    pub(in crate::dispatch) has_own_id: bool,
    /// The time until which its job was parked, if the message is the copy of a parked job. No other copy of that job
    /// has the same time, nor has the message that it was made of.
    pub(in crate::dispatch) parked_until: Option<Micros>,
}

/// A message whose record is searched for.
pub(super) struct Sought<'a> {
    pub(super) message: Message<'a>,
    /// As [`Message::fingerprint`].
    pub(super) fingerprint: u64,
    /// Computed when it is first compared, since that reads the whole body.
    digest: OnceCell<[u64; 2]>,
}

impl<'a> Sought<'a> {
    pub(super) fn new(message: Message<'a>) -> Self {
        Self { message, fingerprint: message.fingerprint(), digest: OnceCell::new() }
    }

    fn digest(&self) -> &[u64; 2] {
        self.digest.get_or_init(|| digest(self.message.job))
    }
}

impl Identity {
    pub(super) fn of(Message { job, has_own_id, .. }: Message<'_>) -> Self {
        Self::Job { job: Arc::clone(job), has_own_id }
    }

    /// Whether this is the identity of that message.
    pub(super) fn is(&self, sought: &Sought<'_>) -> bool {
        let Message { job, has_own_id, .. } = sought.message;
        match self {
            Self::Job { job: known, has_own_id: has_known_id } => {
                *has_known_id == has_own_id
                    && (!has_own_id || known.id == job.id)
                    && is_same_request(known, job)
            }
            Self::Digest(known) => has_own_id && known == sought.digest(),
        }
    }

    /// Keeps no more of the job than it is recognized by.
    pub(super) fn reduce(&mut self) {
        if let Self::Job { job, .. } = self {
            *self = Self::Digest(digest(job));
        }
    }
}

impl Message<'_> {
    /// A hash of its id, or else of its body: equal for equal jobs, and hardly ever for others.
    pub(super) fn fingerprint(self) -> u64 {
        let Job { id, content: Content { body, .. }, .. } = &**self.job;
        KEYS[0].hash_one(if self.has_own_id { id.as_bytes() } else { &body[..] })
    }
}

/// Nobody outside of this process knows them.
static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);

/// A digest of a job and its id.
fn digest(job: &Job) -> [u64; 2] {
    let Job { id, lane, cost, plan, priority, times, request, content, reply } = job;
    let Content { body, content_type, content_encoding } = content;
    let rest = format!("{:?}", (lane, cost, plan, priority, times, request, reply));
    KEYS.each_ref().map(|keys| keys.hash_one((id, &rest, content_type, content_encoding, &body[..])))
}

/// Whether two jobs are equal but for their ids.
fn is_same_request(one: &Job, other: &Job) -> bool {
    let Job { id: _, lane, cost, plan, priority, times, request, content, reply } = one;
    (lane, cost, plan, priority) == (&other.lane, &other.cost, &other.plan, &other.priority)
        && (times, request, reply) == (&other.times, &other.request, &other.reply)
        && *content == other.content
}
