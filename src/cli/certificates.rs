//! The certificates of the daemon's connections, which may be replaced while it runs.

use std::sync::Arc;
use std::time::Duration;

use paced::tls::Tls;
use tokio::time::MissedTickBehavior;

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// The handles of all connections that have files.
#[derive(Clone)]
pub(super) struct Certificates(Arc<Vec<Tls>>);

impl Certificates {
    pub(super) fn new(handles: Vec<Tls>) -> Self {
        Self(Arc::new(handles))
    }

    /// Looks at all files, and reads again what has changed; what comes of it is logged.
    pub(super) async fn refresh(&self) {
        let handles = Arc::clone(&self.0);
        let look = move || handles.iter().for_each(Tls::refresh);
        // Only a runtime that shuts down does not run it.
        let _ = tokio::task::spawn_blocking(look).await;
    }

    /// Looks at all files each second, and never returns. Connections look themselves when they are opened; this tells
    /// of a file that cannot be used when it is put there, and not when a connection is lost weeks later.
    pub(super) async fn watch(self) {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.refresh().await;
        }
    }
}
