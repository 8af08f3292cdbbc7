//! A release clock that misbehaves on demand.

use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::dispatch::{Alarm, ReleaseClock, TokioClock};

/// Tokio's clock, but late by this much once.
#[derive(Debug)]
pub(in crate::dispatch) struct LateOnce(pub(in crate::dispatch) Mutex<Option<Duration>>);

impl ReleaseClock for LateOnce {
    fn alarm(&self) -> Box<dyn Alarm> {
        let late = self.0.lock().unwrap().take().unwrap_or_default();
        Box::new(LateAlarm { late, set: None, inner: TokioClock.alarm() })
    }
}

/// An alarm that is late the first time that it is set.
#[derive(Debug)]
struct LateAlarm {
    late: Duration,
    set: Option<Instant>,
    inner: Box<dyn Alarm>,
}

impl Alarm for LateAlarm {
    fn set(&mut self, at: Option<Instant>) {
        if self.set != at {
            self.set = at;
            let late = at.map_or(Duration::ZERO, |_| std::mem::take(&mut self.late));
            self.inner.set(at.map(|at| at + late));
        }
    }

    fn poll_ring(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_ring(context).map(|()| self.set = None)
    }
}
