//! The signals that stop a command, and the one that makes the daemon read its configuration again.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::Error;

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

/// SIGHUP.
pub(crate) struct Hangups(Signal);

impl Hangups {
    /// Installs the handler: from now on the signal does not end the process by itself.
    pub(crate) fn new() -> Result<Self, Error> {
        signal(SignalKind::hangup()).map(Self).map_err(deaf)
    }

    /// Waits for the next signal; several that arrive before count once. Cancel safe.
    pub(crate) async fn next(&mut self) {
        // The stream ends with the runtime.
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

fn deaf(error: std::io::Error) -> Error {
    Error::failed("cannot listen for signals", error)
}

impl Signals {
    /// Installs the handlers: from now on the signals do not end the process by themselves.
    pub(crate) fn new() -> Result<Self, Error> {
        let listen = || -> std::io::Result<Self> {
            let terminate = signal(SignalKind::terminate())?;
            Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())?, hangup: None })
        };
        listen().map_err(deaf)
    }

    /// As [`Signals::new`], and with SIGHUP, which comes when the terminal is closed; unless it is ignored, as by `nohup`.
    pub(crate) fn with_hangup() -> Result<Self, Error> {
        let hangup = if ignores_hangup() { None } else { Some(Hangups::new()?.0) };
        Ok(Self { hangup, ..Self::new()? })
    }

    /// Waits for the next signal, and returns its name. Cancel safe.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = received(&mut self.hangup) => "SIGHUP",
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether this process was started with SIGHUP ignored. Only Linux reports it.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    has_ignored_hangup(&status)
}

fn has_ignored_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // SIGHUP is signal 1, which is the lowest bit.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_recognized() {
        assert!(has_ignored_hangup("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        assert!(!has_ignored_hangup("SigIgn:\t0000000000001000\n"));
        assert!(!has_ignored_hangup(""));
    }
}
