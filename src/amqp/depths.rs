//! The lengths of the downstreams' queues, and of `PREFIX.unroutable`.
//!
//! The broker reports a length only on request. paced requests lengths by passive declarations over the consuming
//! connection, few at a time, on a channel that serves nothing else: the broker closes that channel if a queue is
//! missing or the user may not read it, and this must not disturb what is consumed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lapin::{Channel, Connection};
use tokio::sync::Notify;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Options;
use super::connection::{channel, close};
use super::error::Error;
use super::ladder::OWN_RUNGS;
use super::supervisor::{ConnectionWatch, up};
use super::topology::{Names, find_queue};
use crate::lock::lock;
use gauges::Gauges;
use length::Length;
use waits::MissingWaits;

mod gauges;
mod length;
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

/// A queue that is checked.
#[derive(Debug)]
struct Queue {
    name: String,
    length: Length,
}

impl Queue {
    fn new(name: String, haste: u32) -> Self {
        Self { name, length: Length::new(haste) }
    }

    /// Checks the queue, if that is due.
    ///
    /// # Errors
    /// The connection cannot be used.
    async fn check(&mut self, probe: &mut Probe<'_>) -> Result<(), Error> {
        let began = Instant::now();
        if !self.length.is_due(began) {
            return Ok(());
        }
        match probe.count(&self.name).await? {
            Ok(messages) => self.length.found(messages),
            Err(Error::NotFound { .. }) => self.length.missing(began),
            Err(error) => {
                if self.length.failed(Instant::now()) {
                    debug!(queue = self.name, %error, "the length of a queue cannot be read");
                }
            }
        }
        Ok(())
    }
}

/// A queue of jobs that wait for a limit.
#[derive(Debug)]
struct WaitQueue {
    queue: Queue,
    /// How long they stay.
    stay: Duration,
}

/// The queues of a downstream.
#[derive(Debug)]
struct Queues {
    downstream: String,
    jobs: Queue,
    home: Queue,
    /// The queues of jobs that wait for a limit, which are declared together on first use.
    waits: Vec<WaitQueue>,
    dead: Queue,
    gauges: Gauges,
}

impl Queues {
    fn new(downstream: &str, jobs: String, names: &Names, haste: u32, rung_unit: Duration) -> Self {
        let queue = |name| Queue::new(name, haste);
        Self {
            downstream: downstream.to_owned(),
            jobs: queue(jobs),
            home: queue(names.home_queue(downstream)),
            waits: names
                .waits(downstream)
                .map(|delay| WaitQueue {
                    queue: Queue { name: delay.name, length: Length::seldom(haste) },
                    stay: delay.rung.stay(rung_unit),
                })
                .collect(),
            dead: queue(names.dead(downstream)),
            gauges: Gauges::new(downstream),
        }
    }

    async fn check(&mut self, probe: &mut Probe<'_>) -> Result<Option<Depth>, Error> {
        self.jobs.check(probe).await?;
        self.home.check(probe).await?;
        self.dead.check(probe).await?;
        for wait in &mut self.waits {
            wait.queue.check(probe).await?;
            if wait.queue.length.get().is_none() {
                break;
            }
        }
        let mut waits = [Waiting::default(); OWN_RUNGS];
        for (waiting, wait) in waits.iter_mut().zip(&self.waits) {
            *waiting = Waiting { within: wait.stay, jobs: wait.queue.length.get().unwrap_or(0) };
        }
        let depth = |jobs: u32| Depth {
            // Where no queue exists for parked jobs that come home, all jobs are in the other one.
            ready: jobs.saturating_add(self.home.length.get().unwrap_or(0)),
            waits,
            dead: self.dead.length.get(),
            at: Instant::now(),
        };
        Ok(self.jobs.length.get().map(depth))
    }
}

/// The channel of a sweep. It is opened when it is first needed, and again after each check that closed it.
struct Probe<'a> {
    connection: &'a Connection,
    channel: Option<Channel>,
    pace: &'a mut Interval,
    stop: &'a CancellationToken,
}

impl Probe<'_> {
    /// Asks for the length of a queue, at the pace of all checks. The inner error is the queue's.
    ///
    /// # Errors
    /// The connection is lost, or takes no further channel, or the daemon stops.
    async fn count(&mut self, queue: &str) -> Result<Result<u32, Error>, Error> {
        if self.stop.run_until_cancelled(self.pace.tick()).await.is_none() {
            let (what, detail) = ("the lengths of queues".to_owned(), "the daemon stops".to_owned());
            return Err(Error::Failed { what, detail });
        }
        let channel = match self.channel.take().filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => channel(self.connection).await?,
        };
        let count = find_queue(&channel, queue).await;
        match count {
            Ok(_) => self.channel = Some(channel),
            // It may be waiting for an answer that will never come.
            Err(_) => close(&channel).await,
        }
        match count {
            Err(error) if !self.connection.status().connected() => Err(error),
            count => Ok(count),
        }
    }

    async fn close(self) {
        if let Some(channel) = &self.channel {
            close(channel).await;
        }
    }
}

/// Checks all queues, one after the other.
struct Sweeper {
    depths: Depths,
    downstreams: BTreeMap<String, Queues>,
    unroutable: Queue,
    names: Names,
    /// Divides the intervals.
    haste: u32,
    /// The unit of the stay in a rung.
    rung_unit: Duration,
}

impl Sweeper {
    fn new(depths: Depths, options: &Options) -> Self {
        let (names, haste) = (options.names(), options.haste.max(1));
        let unroutable = Queue::new(names.unroutable(), haste);
        Self { depths, downstreams: BTreeMap::new(), unroutable, names, haste, rung_unit: options.rung_unit }
    }

    /// Takes in which downstreams there are now.
    fn sync(&mut self) {
        let followed = lock(&self.depths.0.followed).clone();
        self.downstreams.retain(|name, queues| {
            let stays = followed.get(name) == Some(&queues.jobs.name);
            if !stays {
                queues.gauges.show(None);
            }
            stays
        });
        for (name, queue) in followed {
            let queues = self.downstreams.entry(name);
            queues
                .or_insert_with_key(|name| Queues::new(name, queue, &self.names, self.haste, self.rung_unit));
        }
    }

    async fn run(mut self, mut current: ConnectionWatch, stop: CancellationToken) {
        let mut pace = interval(PACE / self.haste);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.sync();
            if !current.borrow().as_ref().is_some_and(|connection| connection.status().connected()) {
                self.show_unknown();
            }
            let Some(Some(connection)) = stop.run_until_cancelled(up(&mut current)).await else { return };
            let began = Instant::now();
            let mut probe = Probe { connection: &connection, channel: None, pace: &mut pace, stop: &stop };
            let swept = self.sweep(&mut probe).await;
            probe.close().await;
            if let Err(error) = swept {
                debug!(%error, "a sweep over the lengths of queues has ended early");
                self.show_unknown();
            }
            drop(connection);
            stop.run_until_cancelled(self.depths.0.rest(began, self.haste)).await;
        }
    }

    /// Makes all lengths unknown, since the last ones may be long outdated.
    fn show_unknown(&self) {
        self.downstreams.values().for_each(|queues| queues.gauges.show(None));
        let mut seen = lock(&self.depths.0.seen);
        seen.depths.clear();
        seen.unroutable = None;
    }

    /// Checks each queue once.
    ///
    /// # Errors
    /// The connection cannot be used.
    async fn sweep(&mut self, probe: &mut Probe<'_>) -> Result<(), Error> {
        for queues in self.downstreams.values_mut() {
            {
                let mut seen = lock(&self.depths.0.seen);
                if seen.outdated.remove(&queues.downstream) {
                    // The length before the change must not make a drop to 0 doubtful.
                    queues.dead.length.forget();
                }
                if seen.declared.remove(&queues.downstream) {
                    queues.waits.iter_mut().for_each(|wait| wait.queue.length.declared());
                }
            }
            let mut depth = queues.check(probe).await?;
            queues.gauges.show(depth);
            let mut seen = lock(&self.depths.0.seen);
            if let Some(at) = queues.waits.first().and_then(|wait| wait.queue.length.missing_at()) {
                seen.missing_waits.found(&queues.downstream, at);
            }
            if let Some(depth) = &mut depth
                && seen.outdated.contains(&queues.downstream)
            {
                // The dead letters were changed during the check.
                depth.dead = None;
            }
            // It may have been left meanwhile.
            let is_followed = lock(&self.depths.0.followed).contains_key(&queues.downstream);
            match depth.filter(|_| is_followed) {
                Some(depth) => drop(seen.depths.insert(queues.downstream.clone(), depth)),
                None => drop(seen.depths.remove(&queues.downstream)),
            }
        }
        self.unroutable.check(probe).await?;
        lock(&self.depths.0.seen).unroutable = self.unroutable.length.get();
        Ok(())
    }
}
