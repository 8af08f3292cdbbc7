//! The release clock: wakes each held job at its slot.

mod thread;

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::store::BoxFuture;

pub use thread::ThreadClock;

/// Waits for slots. Never wakes early; how late it wakes is what tells the clocks apart.
pub trait ReleaseClock: Send + Sync + fmt::Debug + 'static {
    /// Returns once `deadline` has come, however far it is.
    ///
    /// Cancel safe: a dropped wait leaves nothing behind.
    fn until(&self, deadline: Instant) -> BoxFuture<'_, ()>;
}

/// Tokio's timer: costs nothing, wakes up to 1 to 2 ms late, and obeys paused time.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

/// Tokio's timer reaches about two years; longer waits go in chunks.
const CHUNK: Duration = Duration::from_secs(30 * 86_400);

impl ReleaseClock for TokioClock {
    fn until(&self, deadline: Instant) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            while deadline.saturating_duration_since(Instant::now()) > CHUNK {
                sleep_until(Instant::now() + CHUNK).await;
            }
            sleep_until(deadline).await;
        })
    }
}
