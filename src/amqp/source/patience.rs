//! How long an answer may take over a connection that is not always read.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::amqp::valve::Meter;

/// How often it is looked at whether the connection is read.
const LOOK: Duration = Duration::from_secs(1);

/// Waits for so long, not counting the time in which the connection is not read; when all ends, it is read
/// again whatever is held.
pub(super) struct Patience<'a> {
    meter: &'a Meter,
    closing: &'a CancellationToken,
    left: Duration,
}

impl<'a> Patience<'a> {
    pub(super) const fn new(meter: &'a Meter, closing: &'a CancellationToken, within: Duration) -> Self {
        Self { meter, closing, left: within }
    }

    /// Ends when the time is over. Cancel safe: what has passed stays so, but for the last second.
    pub(super) async fn over(&mut self) {
        if self.closing.is_cancelled() {
            self.meter.disarm();
        }
        while !self.left.is_zero() {
            let look = LOOK.min(self.left);
            let closing = !self.closing.is_cancelled();
            tokio::select! {
                () = tokio::time::sleep(look) => {
                    if !self.meter.is_closed() {
                        self.left -= look;
                    }
                }
                () = self.closing.cancelled(), if closing => self.meter.disarm(),
            }
        }
    }
}
