//! A time-out that does not run while the connection is not read.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::amqp::valve::Meter;

/// The time-out at shutdown, as a drain has little time.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// How often it is checked whether the connection is read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A time-out that counts only the time in which the connection is read. At shutdown the connection is read whatever is
/// held, and at most [`SHUTDOWN_TIMEOUT`] remains.
pub(super) struct ReadTimeout<'a> {
    meter: &'a Meter,
    closing: &'a CancellationToken,
    left: Duration,
    is_last: bool,
}

impl<'a> ReadTimeout<'a> {
    pub(super) const fn new(meter: &'a Meter, closing: &'a CancellationToken, within: Duration) -> Self {
        Self { meter, closing, left: within, is_last: false }
    }

    /// Ends when the time is over. Cancel safe: elapsed time stays counted, except for the last second.
    pub(super) async fn elapsed(&mut self) {
        while !self.left.is_zero() {
            let look = CHECK_INTERVAL.min(self.left);
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
        self.left = self.left.min(SHUTDOWN_TIMEOUT);
    }
}
