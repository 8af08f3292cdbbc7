//! The background task of a shaper or a limiter.

use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// A task that takes messages. It is started by the first message, on the runtime of its sender, and again if it ended
/// with that runtime. It has to end when all senders of its channel are dropped.
#[derive(Debug)]
pub(super) struct Task<M>(Mutex<Option<mpsc::UnboundedSender<M>>>);

impl<M> Default for Task<M> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<M> Task<M> {
    /// Sends a message if the task runs. Returns false if it does not.
    pub(super) fn send_if_running(&self, message: M) -> bool {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().is_some_and(|sender| sender.send(message).is_ok())
    }

    /// Sends a message, and starts the task by `run` if it does not run. Returns false without a runtime to start it
    /// in.
    pub(super) fn send<F>(&self, mut message: M, run: impl FnOnce(mpsc::UnboundedReceiver<M>) -> F) -> bool
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Nothing panics while it holds the lock.
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = running.as_ref() {
            match sender.send(message) {
                Ok(()) => return true,
                Err(mpsc::error::SendError(back)) => message = back,
            }
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        let (sender, inbox) = mpsc::unbounded_channel();
        // The receiver still exists, so that this cannot fail.
        let _ = sender.send(message);
        *running = Some(sender);
        runtime.spawn(run(inbox));
        true
    }
}
