//! `paced run`: the daemon.

use super::exit::Exit;
use super::{Global, parts};
use crate::daemon::{Daemon, End, Error, Hangups, Signals};

#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Args {
    /// Logs a line for each job that is settled: its id, outcome, status and attempts, how long it waited, and how late it
    /// was released. So does `-vv`
    #[arg(long)]
    pub(super) log_jobs: bool,
}

pub(super) async fn run(global: &Global) -> Result<(), Exit> {
    let loaded = parts::load_to_run(global)?;
    let ran = async {
        // A signal that comes during the start waits for its end.
        let (signals, hangups) = (Signals::new()?, Hangups::new()?);
        let daemon = Daemon::build(parts::sources(global), loaded).await?.spawn()?;
        Ok::<_, Error>(daemon.run(signals, hangups).await)
    };
    match ran.await {
        Ok(End::Drained) => Ok(()),
        Ok(End::Undrained) => Err(Exit::Undrained),
        Ok(End::Failed) => Err(Exit::Failed),
        Err(error) => {
            tracing::error!("{error}");
            Err(Exit::from(&error))
        }
    }
}
