//! `paced find`: where a job is, by its id.

use super::ask::{Daemon, Failure};
use super::exit::Exit;
use super::{Global, Output, out};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// The id of the job: its message_id
    id: String,
}

pub(super) async fn run(global: &Global, Args { downstream, id }: &Args) -> Result<(), Exit> {
    let daemon = Daemon::of(global)?;
    let mut found = daemon.try_find(downstream, id, false).await.map_err(Failure::say)?;
    if found.jobs.is_empty() && !found.not_asked.is_empty() {
        // They take some seconds for it.
        found = daemon.try_find(downstream, id, true).await.map_err(Failure::say)?;
    }
    match global.output {
        Output::Json => out::json(&found),
        // The texts of a daemon are foreign, too.
        Output::Human => found
            .text
            .iter()
            .try_for_each(|line| out::line(format_args!("{downstream}: {}", out::printable(line)))),
    }
}
