//! Alarms, which every clock has.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use tokio::time::Instant;

/// A clock that wakes the holders of jobs at their slots. There is one per process.
///
/// The clocks differ in how late their alarms ring; none of them rings early.
pub trait ReleaseClock: Send + Sync + fmt::Debug + 'static {
    /// Creates an alarm that is not set.
    fn alarm(&self) -> Box<dyn Alarm>;
}

/// An alarm that rings once the instant to which it is set has come, and never early.
pub trait Alarm: Send + fmt::Debug {
    /// Sets it to another instant, earlier or later, or to none. The call is cheap when nothing changes.
    ///
    /// Poll it again afterwards: a task to which it was pending may not be woken for the new instant.
    fn set(&mut self, at: Option<Instant>);

    /// Returns ready once the instant has come, however far it was, and pending while none is set. After it has rung
    /// it is unset. It may spin for the last 80 µs, which blocks the thread of the runtime.
    ///
    /// Cancel safe: the alarm stays set while nobody polls it.
    fn poll_ring(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// Returns when the alarm rings; it waits forever while the alarm is not set. Cancel safe: the alarm stays set.
pub async fn ring(alarm: &mut dyn Alarm) {
    poll_fn(|context| alarm.poll_ring(context)).await;
}
