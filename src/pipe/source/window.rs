//! The places for jobs that are read ahead of their outcomes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::dispatch::Stay;
use crate::job::Message;
use crate::pipe::outcome::{Place, Share};
use crate::pipe::{WINDOW, WINDOW_BYTES};

/// A job that was read, and may go.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) line: u64,
    pub(super) message: Message,
    /// Its stay, if it waited for its time.
    pub(super) stay: Option<Stay>,
    /// Its share of the places, if it must not go yet.
    pub(super) share: Option<Share>,
}

/// The jobs and bytes that may be read ahead, and what is kept of the next one when
/// [`Source::next`](crate::dispatch::Source::next) is dropped.
#[derive(Debug)]
pub(super) struct Window {
    jobs: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// The part of these for jobs that must not go yet: if they had all places, they would stop the others.
    shares: (Arc<Semaphore>, Arc<Semaphore>),
    /// The next job's place.
    place: Option<OwnedSemaphorePermit>,
    /// The next job, which waits for room for its body.
    pub(super) read: Option<Ready>,
}

/// The bytes of the part for jobs that must not go yet.
const SHARE_BYTES: usize = WINDOW_BYTES / 2;

impl Window {
    pub(super) fn new() -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            jobs: semaphore(WINDOW),
            bytes: semaphore(WINDOW_BYTES),
            shares: (semaphore(WINDOW / 2), semaphore(SHARE_BYTES)),
            place: None,
            read: None,
        }
    }

    /// Waits for a place for one more job. Cancel safe.
    pub(super) async fn open(&mut self) {
        if self.place.is_none() {
            // The semaphore is never closed.
            self.place = Arc::clone(&self.jobs).acquire_owned().await.ok();
        }
    }

    /// Waits for room for the job that was read. Cancel safe.
    pub(super) async fn take(&mut self) -> Option<(Ready, Place)> {
        let bytes = body(&self.read.as_ref()?.message, WINDOW_BYTES);
        let bytes = Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok()?;
        let (mut ready, job) = self.read.take().zip(self.place.take())?;
        let share = ready.share.take();
        Some((ready, Place { job, bytes, share }))
    }

    /// Waits for a share of the places, for a job that must not go yet. Cancel safe.
    pub(super) async fn share(&self, message: &Message) -> Option<Share> {
        let (jobs, bytes) = &self.shares;
        // The semaphores are never closed.
        let job = Arc::clone(jobs).acquire_owned().await.ok()?;
        let bytes = Arc::clone(bytes).acquire_many_owned(body(message, SHARE_BYTES)).await.ok()?;
        Some(Share { job, bytes })
    }
}

/// The bytes of a body, at most `most`.
fn body(message: &Message, most: usize) -> u32 {
    u32::try_from(message.content.body.len().min(most)).unwrap_or(u32::MAX)
}
