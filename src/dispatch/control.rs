//! Changes the options of a running dispatcher, and asks whether it still turns.

use std::sync::Arc;

use tokio::sync::watch;

use super::Options;
use super::pulse::{Beat, Pulse};

type Latest = Option<Arc<Options>>;

/// A handle on a dispatcher, which may outlive the dispatcher.
#[derive(Clone, Debug)]
pub struct Control {
    options: watch::Sender<Latest>,
    pulse: Pulse,
}

/// The dispatcher's end of its handles.
#[derive(Debug)]
pub(super) struct OptionsReceiver {
    control: Control,
    latest: watch::Receiver<Latest>,
}

impl Control {
    /// Gives the dispatcher these options: its limits and its plans' (as many plans as before, in the same order),
    /// revision, horizon, concurrency and when failed jobs are tried again. They apply to every job that was not yet
    /// handed to the sink. All other options stay as they are.
    ///
    /// The last of several calls in quick succession applies. Nothing happens once the dispatcher has ended.
    pub fn reload(&self, options: Options) {
        self.options.send_replace(Some(Arc::new(options)));
    }

    /// Waits for a turn of the dispatcher's loop that begins after this call. A dispatcher that is not stuck takes one at
    /// once, also while its jobs wait; before [`Dispatcher::run`](super::Dispatcher::run), while it drains and after its
    /// end there is none, and this never returns. Cancel safe.
    pub async fn turn(&self) {
        self.pulse.turn().await;
    }
}

impl Default for OptionsReceiver {
    fn default() -> Self {
        let (tell, latest) = watch::channel(None);
        Self { control: Control { options: tell, pulse: Pulse::default() }, latest }
    }
}

impl OptionsReceiver {
    pub(super) fn control(&self) -> Control {
        self.control.clone()
    }

    /// The loop's side of [`Control::turn`].
    pub(super) fn beat(&self) -> Beat {
        self.control.pulse.beat()
    }

    /// Waits for options that were given since the last call. Cancel safe.
    pub(super) async fn next(&mut self) -> Arc<Options> {
        loop {
            // There is always a sender, since this struct has one.
            if self.latest.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Some(options) = self.latest.borrow_and_update().clone() {
                return options;
            }
        }
    }
}
