//! The signals that stop a command.

use std::future::Future;

use tokio_util::sync::CancellationToken;

use super::exit::Exit;
use super::out;
use crate::daemon::Signals;

/// Waits for `work`. The first signal cancels `stop`, so that it ends in order; the second one ends it at once.
pub(super) async fn interruptible<T>(
    stop: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, Exit> {
    let mut signals = Signals::new().map_err(out::failed)?;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            _ = signals.next() => {
                if stop.is_cancelled() {
                    return Err(Exit::Undrained);
                }
                out::say("paced: stopping; a second signal stops at once");
                stop.cancel();
            }
        }
    }
}
