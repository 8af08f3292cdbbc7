//! Other options for a dispatcher that runs.

use std::sync::Arc;

use tokio::sync::watch;

use super::Options;

type Latest = Option<Arc<Options>>;

/// A handle on a dispatcher, which it outlives.
#[derive(Clone, Debug)]
pub struct Control(watch::Sender<Latest>);

/// What a dispatcher hears of its handles.
#[derive(Debug)]
pub(super) struct News {
    control: Control,
    latest: watch::Receiver<Latest>,
}

impl Control {
    /// Gives the dispatcher these options: its limits and its plans' (as many plans as before, in the same
    /// order), revision, horizon, concurrency and when failed jobs are tried again. They count for every job
    /// that was not yet handed to the sink. The rest stays as it was made.
    ///
    /// The last of several that come before the dispatcher looks counts. Nothing happens once the dispatcher
    /// has ended.
    pub fn reload(&self, options: Options) {
        self.0.send_replace(Some(Arc::new(options)));
    }
}

impl Default for News {
    fn default() -> Self {
        let (tell, latest) = watch::channel(None);
        Self { control: Control(tell), latest }
    }
}

impl News {
    pub(super) fn control(&self) -> Control {
        self.control.clone()
    }

    /// The options that were given since this last came back. Cancel safe.
    pub(super) async fn next(&mut self) -> Arc<Options> {
        loop {
            // It has a sender itself, so there is always one.
            if self.latest.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Some(options) = self.latest.borrow_and_update().clone() {
                return options;
            }
        }
    }
}
