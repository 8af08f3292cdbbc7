//! How long an answer may take over a connection that is not always read.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::amqp::valve::Meter;

/// For an answer once all ends: a drain has little time.
const LAST: Duration = Duration::from_secs(3);

/// How often it is looked at whether the connection is read.
const LOOK: Duration = Duration::from_secs(1);

/// Waits for so long, not counting the time in which the connection is not read. When all ends, it is read
/// again whatever is held, and [`LAST`] is left at most.
pub(super) struct Patience<'a> {
    meter: &'a Meter,
    closing: &'a CancellationToken,
    left: Duration,
    is_last: bool,
}

impl<'a> Patience<'a> {
    pub(super) const fn new(meter: &'a Meter, closing: &'a CancellationToken, within: Duration) -> Self {
        Self { meter, closing, left: within, is_last: false }
    }

    /// Ends when the time is over. Cancel safe: what has passed stays so, but for the last second.
    pub(super) async fn over(&mut self) {
        while !self.left.is_zero() {
            let look = LOOK.min(self.left);
            tokio::select! {
                biased;
                () = self.closing.cancelled(), if !self.is_last => self.hurry(),
                () = tokio::time::sleep(look) => {
                    if !self.meter.is_closed() {
                        self.left -= look;
                    }
                }
            }
        }
    }

    fn hurry(&mut self) {
        self.is_last = true;
        self.meter.disarm();
        self.left = self.left.min(LAST);
    }
}
