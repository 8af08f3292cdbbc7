//! The background task of a shaper or a limiter.

use std::sync::Mutex;

use tokio::sync::mpsc;

use crate::home::Home;
use crate::lock::lock;

/// A task that takes messages. It is started by the first message, and again if it ended by a panic. It has to end when
/// all senders of its channel are dropped.
#[derive(Debug)]
pub(super) struct Task<M> {
    home: Home,
    inbox: Mutex<Option<mpsc::UnboundedSender<M>>>,
}

impl<M> Task<M> {
    /// Creates a task that is to run on this runtime.
    pub(super) const fn new(home: Home) -> Self {
        Self { home, inbox: Mutex::new(None) }
    }

    /// Returns the runtime.
    pub(super) const fn home(&self) -> &Home {
        &self.home
    }

    /// Sends a message if the task runs. Returns false if it does not.
    pub(super) fn send_if_running(&self, message: M) -> bool {
        let running = lock(&self.inbox);
        running.as_ref().is_some_and(|sender| sender.send(message).is_ok())
    }

    /// Sends a message, and starts the task by `run` if it does not run. Returns false if there is no runtime for it. On a
    /// runtime that has ended the message is dropped.
    pub(super) fn send<F>(&self, mut message: M, run: impl FnOnce(mpsc::UnboundedReceiver<M>) -> F) -> bool
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Nothing panics while it holds the lock.
        let mut running = lock(&self.inbox);
        if let Some(sender) = running.as_ref() {
            match sender.send(message) {
                Ok(()) => return true,
                Err(mpsc::error::SendError(back)) => message = back,
            }
        }
        let (sender, inbox) = mpsc::unbounded_channel();
        // The receiver still exists, so that this cannot fail.
        let _ = sender.send(message);
        *running = Some(sender);
        self.home.spawn(run(inbox)).is_some()
    }
}
