//! The sources that wake an engine besides the store's answers.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::pace::release::clock::Alarm;
use crate::store::Changes;

/// The sources that wake an engine besides the store's answers.
#[derive(Debug)]
pub(crate) struct Wakeups {
    /// The precise alarm for slots.
    pub(super) alarm: Box<dyn Alarm>,
    /// The timer for ticks, which need no precision; the runtime coalesces them.
    pub(super) timer: Pin<Box<Sleep>>,
    /// The instant to which the timer is set.
    pub(super) timed: Option<Instant>,
    pub(super) changes: Changes,
}

impl Wakeups {
    pub(super) fn new(alarm: Box<dyn Alarm>, changes: Changes) -> Self {
        Self { alarm, timer: Box::pin(sleep(Duration::ZERO)), timed: None, changes }
    }

    /// Sets the instants of the next slot and of the next tick.
    pub(super) fn set(&mut self, slot: Option<Instant>, tick: Option<Instant>) {
        self.alarm.set(slot);
        if let Some(at) = tick.filter(|_| tick != self.timed) {
            self.timer.as_mut().reset(at);
        }
        self.timed = tick;
    }
}
