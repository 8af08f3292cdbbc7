//! The lengths of the downstreams' queues, and of `PREFIX.unroutable`.
//!
//! The broker reports a length only on request. paced requests lengths by passive declarations over the consuming
//! connection, few at a time, on a channel that serves nothing else: the broker closes that channel if a queue is
//! missing or the user may not read it, and this must not disturb what is consumed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Options;
use super::ladder::OWN_RUNGS;
use super::supervisor::ConnectionWatch;
use crate::lock::lock;
use sweep::Sweeper;
use waits::MissingWaits;

mod allowance;
mod gauges;
mod length;
mod sweep;
mod waits;

pub use waits::Waiting;

/// The least time between two checks of queues: 20 a second.
const PACE: Duration = Duration::from_millis(50);

/// How often a sweep over all queues begins while a client reads lengths, unless the sweep takes longer.
const WATCHED_INTERVAL: Duration = Duration::from_secs(5);

/// How often a sweep begins otherwise.
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(60);

/// How long after a read the lengths count as watched.
const WATCHED_FOR: Duration = Duration::from_secs(30);

/// The lengths of queues as of their latest checks. Each read makes the checks more frequent for a while. Cheap to
/// clone.
#[derive(Clone, Debug, Default)]
pub struct Depths(Arc<Shared>);

/// The lengths of a downstream's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Depth {
    /// The jobs that are ready, in the queue of new jobs and in the queue of jobs that came back from where they were
    /// parked. Jobs that consumers hold unacked are not counted.
    pub ready: u32,
    /// The jobs that are parked for a limit of the downstream, by the queue that they are in: the shortest stay first.
    pub waits: [Waiting; OWN_RUNGS],
    /// The dead letters; `None` if their queue is missing, or cannot be checked.
    pub dead: Option<u32>,
    /// When the downstream's queues were last checked.
    pub at: Instant,
}

impl Depth {
    /// The number of jobs that are parked for a limit of the downstream.
    pub fn waiting(&self) -> u32 {
        self.waits.iter().fold(0, |sum, waiting| waiting.jobs.saturating_add(sum))
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// The downstreams whose queues are checked, each with the queue of its new jobs.
    followed: Mutex<BTreeMap<String, String>>,
    seen: Mutex<Seen>,
    /// Wakes the sweeper when a client reads a length.
    asked: Notify,
}

#[derive(Debug, Default)]
struct Seen {
    depths: BTreeMap<String, Depth>,
    unroutable: Option<u32>,
    /// The downstreams whose dead letters were changed since their latest check.
    outdated: BTreeSet<String>,
    /// The downstreams whose wait queues (of jobs that wait for a limit) were declared since the last sweep read them.
    declared: BTreeSet<String>,
    missing_waits: MissingWaits,
    asked_at: Option<Instant>,
}

impl Depths {
    /// The lengths of a downstream's queues; `None` if the queue of its new jobs was not checked yet, is missing, or
    /// cannot be checked. A drop to 0 is reported when two checks in a row have found it.
    pub fn of(&self, downstream: &str) -> Option<Depth> {
        self.0.asked().depths.get(downstream).copied()
    }

    /// Makes the dead letters of a downstream unknown until the next check, since some were moved or deleted just
    /// now.
    pub fn forget_dead(&self, downstream: &str) {
        let mut seen = lock(&self.0.seen);
        if let Some(depth) = seen.depths.get_mut(downstream) {
            depth.dead = None;
            seen.outdated.insert(downstream.to_owned());
        }
    }

    /// Makes the next sweeps check the queues of a downstream, given the queue of its new jobs.
    pub(super) fn follow(&self, downstream: String, queue: String) {
        lock(&self.0.followed).insert(downstream, queue);
    }

    /// Stops the checks of the queues of a downstream, and forgets their results.
    pub(super) fn leave(&self, downstream: &str) {
        lock(&self.0.followed).remove(downstream);
        let mut seen = lock(&self.0.seen);
        seen.depths.remove(downstream);
        seen.outdated.remove(downstream);
        seen.declared.remove(downstream);
        seen.missing_waits.forget(downstream);
    }

    /// Makes the next sweep read the wait queues of a downstream, which were declared just now.
    pub(super) fn waits_declared(&self, downstream: &str) {
        let mut seen = lock(&self.0.seen);
        seen.declared.insert(downstream.to_owned());
        seen.missing_waits.declared(downstream, Instant::now());
    }

    /// Whether the wait queues of a downstream were missing in a check of the last few minutes.
    pub(super) fn lacks_waits(&self, downstream: &str) -> bool {
        lock(&self.0.seen).missing_waits.has(downstream, Instant::now())
    }

    /// Notes that the wait queues of a downstream were missing when a check began at this time.
    pub(super) fn waits_missing(&self, downstream: &str, at: Instant) {
        lock(&self.0.seen).missing_waits.found(downstream, at);
    }

    /// The number of messages that reached no downstream's queue; `None` as in [`Depths::of`].
    pub fn unroutable(&self) -> Option<u32> {
        self.0.asked().unroutable
    }

    /// Checks the queues until `stop`.
    ///
    /// The caller waits for its end before it closes the connection. A check in progress then ends first: the refusal
    /// of an abandoned one would count as an error of the connection.
    pub(super) fn watch(
        &self,
        current: ConnectionWatch,
        options: &Options,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        for downstream in &options.downstreams {
            self.follow(downstream.name.clone(), options.names().queue(downstream));
        }
        Sweeper::new(self.clone(), options).run(current, stop)
    }
}

impl Shared {
    /// Records that a client reads lengths.
    fn asked(&self) -> MutexGuard<'_, Seen> {
        let (mut seen, now) = (lock(&self.seen), Instant::now());
        if !seen.is_watched(now) {
            self.asked.notify_one();
        }
        seen.asked_at = Some(now);
        seen
    }

    /// Waits until the next sweep is due, after one that began at `began`.
    async fn rest(&self, began: Instant, haste: u32) {
        loop {
            let is_watched = lock(&self.seen).is_watched(Instant::now());
            let span = if is_watched { WATCHED_INTERVAL } else { UNWATCHED_INTERVAL };
            if timeout_at(began + span / haste, self.asked.notified()).await.is_err() {
                return;
            }
        }
    }
}

impl Seen {
    fn is_watched(&self, now: Instant) -> bool {
        self.asked_at.is_some_and(|at| now.duration_since(at) < WATCHED_FOR)
    }
}
