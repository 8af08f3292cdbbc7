//! Tokio's timer as a release clock.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::{Alarm, ReleaseClock};

/// Tokio's timer: costs nothing, wakes up to 1 to 2 ms late, and obeys paused time.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

/// Tokio's timer reaches about two years; longer waits go in chunks.
const CHUNK: Duration = Duration::from_secs(30 * 86_400);

impl ReleaseClock for TokioClock {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(TokioAlarm::default())
    }
}

#[derive(Debug, Default)]
struct TokioAlarm {
    at: Option<Instant>,
    /// From the first poll on: a sleep needs a runtime.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm for TokioAlarm {
    fn set(&mut self, at: Option<Instant>) {
        self.at = at;
    }

    fn poll_ring(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else { return Poll::Pending };
        loop {
            let now = Instant::now();
            if now >= at {
                self.at = None;
                return Poll::Ready(());
            }
            let next = at.min(now + CHUNK);
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(next)));
            // Within a chunk the sleep is left as it is.
            if sleep.is_elapsed() || sleep.deadline() > next || (sleep.deadline() < next && next == at) {
                sleep.as_mut().reset(next);
            }
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
