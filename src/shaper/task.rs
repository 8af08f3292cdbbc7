//! A task of a shaper's or a limiter's own.

use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// A task that takes messages. It is started with the first one, on the runtime of whoever sends it; and again where it
/// ended with that runtime. It is to end when its end of the channel says that nobody is left to send any.
#[derive(Debug)]
pub(super) struct Task<M>(Mutex<Option<mpsc::UnboundedSender<M>>>);

impl<M> Default for Task<M> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<M> Task<M> {
    /// Sends a message where the task is there; false where it is not.
    pub(super) fn tell(&self, message: M) -> bool {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().is_some_and(|sender| sender.send(message).is_ok())
    }

    /// Sends a message, and has `run` take it where the task is not there; false without a runtime to start it in.
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
        // The other end is here.
        let _ = sender.send(message);
        *running = Some(sender);
        runtime.spawn(run(inbox));
        true
    }
}
