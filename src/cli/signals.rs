//! The signals that stop a command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Exit;

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on the signals end nothing by themselves.
    pub(super) fn new() -> Result<Self, Exit> {
        let listen = || -> std::io::Result<Self> {
            let terminate = signal(SignalKind::terminate())?;
            Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
        };
        listen().map_err(|error| {
            tracing::error!(%error, "cannot listen for signals");
            Exit::Failed
        })
    }

    /// The next signal's name. Cancel safe.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
