//! The signals that stop a command, and the one that makes the daemon read its configuration again.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Exit;

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// SIGHUP.
pub(super) struct Hangups(Signal);

impl Hangups {
    /// From now on the signal ends nothing by itself.
    pub(super) fn new() -> Result<Self, Exit> {
        signal(SignalKind::hangup()).map(Self).map_err(|error| deaf(&error))
    }

    /// The next one; several that come before this is asked count once. Cancel safe.
    pub(super) async fn next(&mut self) {
        // It ends with the runtime.
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

fn deaf(error: &std::io::Error) -> Exit {
    tracing::error!(%error, "cannot listen for signals");
    Exit::Failed
}

impl Signals {
    /// From now on the signals end nothing by themselves.
    pub(super) fn new() -> Result<Self, Exit> {
        let listen = || -> std::io::Result<Self> {
            let terminate = signal(SignalKind::terminate())?;
            Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
        };
        listen().map_err(|error| deaf(&error))
    }

    /// The next signal's name. Cancel safe.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
