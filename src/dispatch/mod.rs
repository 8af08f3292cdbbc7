//! The way of a job, one dispatcher per downstream and replica:
//!
//! ```text
//! source ─▶ intake ─▶ lane ─▶ pacer ─▶ release clock ─▶ sink ─▶ settle
//!           decode    FIFO    reserve  hold until       HTTP    ack / retry /
//!           validate  a plan  a slot   the slot                 dead-letter
//! ```
//!
//! The pacer owns the jobs that wait, asks for slots and holds each job until its own; a flight takes
//! one job from its slot to its settlement. Read `flight.rs` first, then `pacer.rs`; `schedule.rs` says
//! which plan's jobs are next. Where limits police the pacer asks whether jobs may go now, and buries
//! those that may not.

mod asking;
mod clock;
mod control;
mod cost;
mod flight;
mod gate;
mod health;
mod held;
mod intake;
mod lane;
mod meters;
mod pacer;
mod part;
mod places;
mod queueing;
mod retry;
mod schedule;
mod sending;
mod source;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::job::Rules;
use crate::limit::{Limit, LimitSet};
use crate::sink::Sink;
use crate::store::Store;
use crate::terms::Terms;
use control::News;

pub use clock::{Alarm, Precision, ReleaseClock, ThreadClock, TokioClock, ring};
pub use control::Control;
pub use cost::max_cost;
pub use retry::{RefusalStatuses, RetryPolicy};
pub use source::{DeadLetter, Delivery, Report, Source, Ticket};

/// What one downstream's dispatcher goes by.
#[derive(Clone, Debug)]
pub struct Options {
    /// The downstream's name.
    pub downstream: String,
    /// The limits, all of which must agree.
    pub limits: LimitSet,
    /// For each of [`Rules::plans`], in their order: the limits again, and then those of the plan. All
    /// must agree.
    pub plans: Vec<LimitSet>,
    /// What becomes of a job that the limits do not allow at once.
    pub on_limit: OnLimit,
    /// How far ahead of now a slot may be granted.
    pub horizon: Duration,
    /// Jobs that are being sent at once.
    pub concurrency: usize,
    /// When a failed job is tried again.
    pub retry: RetryPolicy,
    /// The longest that a `Retry-After` may pause the downstream, or one of its jobs.
    pub max_pause: Duration,
    /// What becomes of the jobs while the store cannot be reached.
    pub on_unavailable: OnUnavailable,
    /// Of the file that the limits come from: a lower one never replaces a higher one.
    pub revision: Option<u64>,
    /// The most messages that the source hands out unsettled; fewer where the limits do not release as many
    /// soon, see [`window`].
    pub prefetch: u16,
    /// What a message must obey to be a job.
    pub rules: Rules,
    /// How long sends in flight may take to end once the dispatcher is stopped.
    pub drain_timeout: Duration,
}

/// What becomes of a job that the limits do not allow at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnLimit {
    /// It waits for its slot: the limits shape.
    #[default]
    Wait,
    /// It is dead-lettered as `rejected`: the limits police.
    Reject,
}

/// What becomes of the jobs while the store cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnUnavailable {
    /// They wait: nothing is released without a slot.
    #[default]
    Hold,
    /// Each replica releases its part of the pace: the limits divided by the replicas last known. One that has
    /// not reached the store yet knows of none, and waits.
    Local,
    /// They are released as fast as the downstream takes them.
    Open,
}

/// Releases the jobs of one downstream, each at its slot.
#[derive(Debug)]
pub struct Dispatcher {
    options: Options,
    store: Arc<dyn Store>,
    sink: Arc<dyn Sink>,
    clock: Arc<dyn ReleaseClock>,
    news: News,
}

/// How a dispatcher ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Sends that had not ended within the drain time-out; their jobs will be delivered again.
    pub unfinished: usize,
}

/// How many messages a replica has in hand at most, where `prefetch` is what was asked for: at most the slots
/// that the limits have in 60 s after a rest, and at least 1. More would only be held here, out of reach of
/// other replicas. Where the limits police nothing is held.
#[must_use]
pub fn window(prefetch: u16, limits: &LimitSet, on_limit: OnLimit) -> u16 {
    const HOLD_MAX: Duration = Duration::from_secs(60);
    if on_limit == OnLimit::Reject {
        return prefetch;
    }
    let slots = |limit: &Limit| limit.rate().units_in(HOLD_MAX).saturating_add(limit.burst() - 1);
    let least = limits.iter().map(slots).min().unwrap_or(1);
    prefetch.min(u16::try_from(least).unwrap_or(u16::MAX)).max(1)
}

impl Options {
    fn window(&self) -> u16 {
        window(self.prefetch, &self.limits, self.on_limit)
    }

    /// What they say that all replicas agree on: the limits, those of each plan by its name, the revision.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let names = self.rules.plans.iter().map(|plan| plan.name.clone());
        Terms::new(self.limits.clone(), names.zip(self.plans.iter().cloned()).collect(), self.revision)
    }

    /// Every set of limits: the downstream's own, then one for each plan.
    fn sets(&self) -> impl Iterator<Item = &LimitSet> {
        std::iter::once(&self.limits).chain(&self.plans)
    }

    /// The limits of the jobs in this queue of the lane.
    fn limits_of(&self, queue: usize) -> &LimitSet {
        queue.checked_sub(1).and_then(|plan| self.plans.get(plan)).unwrap_or(&self.limits)
    }
}

impl Dispatcher {
    /// A dispatcher between these parts. It does nothing before [`Dispatcher::run`].
    #[must_use]
    pub fn new(
        options: Options,
        store: Arc<dyn Store>,
        sink: Arc<dyn Sink>,
        clock: Arc<dyn ReleaseClock>,
    ) -> Self {
        Self { options, store, sink, clock, news: News::default() }
    }

    /// A handle that gives it other options while it runs.
    #[must_use]
    pub fn control(&self) -> Control {
        self.news.control()
    }

    /// Runs until the source ends and every job of it is settled, or until `stop`: then jobs that
    /// were not yet handed to the sink go back to the source at once, and sends in flight have the
    /// drain time-out to end.
    ///
    /// Not cancel safe: a dropped future leaves its jobs unsettled, which loses none of them, but
    /// those just being sent will be sent again.
    pub async fn run(self, source: impl Source, stop: CancellationToken) -> Drained {
        pacer::Pacer::run(self, source, stop).await
    }
}

#[cfg(test)]
mod tests;
