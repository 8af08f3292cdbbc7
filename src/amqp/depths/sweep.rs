//! Sweeps over the queues of all downstreams, which check the lengths that are due.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::{Channel, Connection};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::allowance::Allowance;
use super::gauges::Gauges;
use super::length::Length;
use super::{Depth, Depths, PACE, Waiting};
use crate::amqp::Options;
use crate::amqp::connection::{channel, close};
use crate::amqp::error::Error;
use crate::amqp::ladder::OWN_RUNGS;
use crate::amqp::supervisor::{ConnectionWatch, up};
use crate::amqp::topology::{Names, find_queue};
use crate::lock::lock;

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

    /// Checks the queue if that is due. A queue that was missing is checked only if `probe.may_miss`.
    ///
    /// # Errors
    /// The connection cannot be used.
    async fn check(&mut self, probe: &mut Probe<'_>) -> Result<(), Error> {
        let began = Instant::now();
        if !self.length.is_due(began) || (self.length.is_missing() && !probe.may_miss) {
            return Ok(());
        }
        match probe.count(&self.name).await? {
            Ok(messages) => self.length.found(messages),
            Err(Error::NotFound { .. }) => {
                probe.missed += 1;
                self.length.missing(began);
            }
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

    /// Checks the queues that are due. The queues of jobs that wait for a limit, which most downstreams lack, are
    /// skipped if `all` is false and the first one is not known to exist.
    async fn check(&mut self, probe: &mut Probe<'_>, all: bool) -> Result<Option<Depth>, Error> {
        self.jobs.check(probe).await?;
        self.home.check(probe).await?;
        self.dead.check(probe).await?;
        let are_there = self.waits.first().is_some_and(|wait| wait.queue.length.get().is_some());
        let checked = if all || are_there { self.waits.len() } else { 0 };
        for wait in &mut self.waits[..checked] {
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
    /// Whether queues of the present downstream that were missing may be checked.
    may_miss: bool,
    /// How many checks of the present downstream found no queue.
    missed: usize,
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
            // The channel may still wait for an answer that will never come.
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
pub(super) struct Sweeper {
    depths: Depths,
    downstreams: BTreeMap<String, Queues>,
    allowance: Allowance,
    unroutable: Queue,
    names: Names,
    /// Divides the intervals.
    haste: u32,
    /// The unit of the stay in a rung.
    rung_unit: Duration,
}

impl Sweeper {
    pub(super) fn new(depths: Depths, options: &Options) -> Self {
        let (names, haste) = (options.names(), options.haste.max(1));
        let unroutable = Queue::new(names.unroutable(), haste);
        let (downstreams, allowance) = (BTreeMap::new(), Allowance::default());
        Self { depths, downstreams, allowance, unroutable, names, haste, rung_unit: options.rung_unit }
    }

    /// Adopts the present list of downstreams.
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

    pub(super) async fn run(mut self, mut current: ConnectionWatch, stop: CancellationToken) {
        let mut pace = interval(PACE / self.haste);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.sync();
            if !current.borrow().as_ref().is_some_and(|connection| connection.status().connected()) {
                self.show_unknown();
            }
            let Some(Some(connection)) = stop.run_until_cancelled(up(&mut current)).await else { return };
            let began = Instant::now();
            let (channel, may_miss, missed) = (None, true, 0);
            let mut probe =
                Probe { connection: &connection, channel, may_miss, missed, pace: &mut pace, stop: &stop };
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
        self.allowance.begin(self.downstreams.len());
        for queues in self.downstreams.values_mut() {
            (probe.may_miss, probe.missed) = (self.allowance.allows(&queues.downstream), 0);
            let mut checks_waits = self.allowance.is_free();
            {
                let mut seen = lock(&self.depths.0.seen);
                checks_waits |= probe.may_miss && seen.is_watched(Instant::now());
                if seen.outdated.remove(&queues.downstream) {
                    // Letters were removed: a drop to 0 is no error, and counts at once.
                    queues.dead.length.forget();
                }
                if seen.declared.remove(&queues.downstream) {
                    queues.waits.iter_mut().for_each(|wait| wait.queue.length.declared());
                    checks_waits = true;
                }
            }
            let began = Instant::now();
            let mut depth = queues.check(probe, checks_waits).await?;
            self.allowance.spend(&queues.downstream, probe.missed);
            queues.gauges.show(depth);
            let mut seen = lock(&self.depths.0.seen);
            if let Some(depth) = &mut depth
                && seen.outdated.contains(&queues.downstream)
            {
                // The dead letters were changed during the check.
                depth.dead = None;
            }
            // The downstream may have been removed meanwhile.
            let is_followed = lock(&self.depths.0.followed).contains_key(&queues.downstream);
            if let Some(first) = queues.waits.first().filter(|_| is_followed) {
                let length = &first.queue.length;
                if length.get().is_some() {
                    seen.missing_waits.seen(&queues.downstream, began);
                } else if let Some(at) = length.missing_at() {
                    seen.missing_waits.found(&queues.downstream, at);
                }
            }
            match depth.filter(|_| is_followed) {
                Some(depth) => drop(seen.depths.insert(queues.downstream.clone(), depth)),
                None => drop(seen.depths.remove(&queues.downstream)),
            }
        }
        self.allowance.end();
        probe.may_miss = true;
        self.unroutable.check(probe).await?;
        lock(&self.depths.0.seen).unroutable = self.unroutable.length.get();
        Ok(())
    }
}
