//! The way of a job, one dispatcher per downstream and replica:
//!
//! ```text
//! source ─▶ intake ─▶ lane ─▶ pacer ─▶ release clock ─▶ sink ─▶ settle
//!           decode    FIFO    reserve  hold until       HTTP    ack / retry /
//!           validate          a slot   the slot                 dead-letter
//! ```
//!
//! The pacer owns the jobs that wait, asks for slots and holds each job until its own; a flight takes
//! one job from its slot to its settlement. Read `flight.rs` first, then `pacer.rs`.

mod asking;
mod clock;
mod flight;
mod held;
mod intake;
mod lane;
mod meters;
mod pacer;
mod places;
mod retry;
mod source;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::job::Rules;
use crate::limit::LimitSet;
use crate::sink::Sink;
use crate::store::Store;

pub use clock::{Alarm, Precision, ReleaseClock, ThreadClock, TokioClock, ring};
pub use retry::RetryPolicy;
pub use source::{DeadLetter, Delivery, Report, Source, Ticket};

/// What one downstream's dispatcher goes by.
#[derive(Clone, Debug)]
pub struct Options {
    /// The downstream's name.
    pub downstream: String,
    /// The limits, all of which must agree.
    pub limits: LimitSet,
    /// How far ahead of now a slot may be granted.
    pub horizon: Duration,
    /// Jobs that are being sent at once.
    pub concurrency: usize,
    /// When a failed job is tried again.
    pub retry: RetryPolicy,
    /// What a message must obey to be a job.
    pub rules: Rules,
    /// How long sends in flight may take to end once the dispatcher is stopped.
    pub drain_timeout: Duration,
}

/// Releases the jobs of one downstream, each at its slot.
#[derive(Debug)]
pub struct Dispatcher {
    options: Options,
    store: Arc<dyn Store>,
    sink: Arc<dyn Sink>,
    clock: Arc<dyn ReleaseClock>,
}

/// How a dispatcher ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Sends that had not ended within the drain time-out; their jobs will be delivered again.
    pub unfinished: usize,
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
        Self { options, store, sink, clock }
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
