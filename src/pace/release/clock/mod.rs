//! The release clock: wakes whoever holds jobs at their slots.

mod queue;
mod spin;
mod thread;
mod timer;

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use tokio::time::Instant;

pub use thread::ThreadClock;
pub use timer::TokioClock;

/// Wakes whoever holds jobs at their slots. One per process.
///
/// How late its alarms ring is what tells the clocks apart; none of them rings early.
pub trait ReleaseClock: Send + Sync + fmt::Debug + 'static {
    /// An alarm that is not set.
    fn alarm(&self) -> Box<dyn Alarm>;
}

/// Rings once the instant has come that it is set to; never early.
pub trait Alarm: Send + fmt::Debug {
    /// Sets it to another instant, earlier or later, or to none. Cheap when nothing changes.
    ///
    /// Poll it again afterwards: whoever was told that it is pending may not be woken for the new
    /// instant.
    fn set(&mut self, at: Option<Instant>);

    /// Ready once the instant has come, however far it was; pending while none is set. After it has
    /// rung it is unset.
    ///
    /// Cancel safe: what is not polled any more loses nothing, it stays set.
    fn poll_ring(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// How punctual a process is, and what it pays for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// A thread that sleeps precisely: for that thread, and at most a thirtieth of a core that is spun.
    #[default]
    Fine,
    /// Tokio's timer: for nothing, but 1 to 2 ms late.
    Coarse,
}

/// Returns when the alarm rings; never, while none is set. Cancel safe: the alarm stays set.
pub async fn ring(alarm: &mut dyn Alarm) {
    poll_fn(|context| alarm.poll_ring(context)).await;
}
