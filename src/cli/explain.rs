//! `paced explain`: where a job is, and what it waits for.

use paced::dispatch::Question;

use super::ask::{Daemon, Failure};
use super::exit::Exit;
use super::{Global, Output, out};

/// Says where a job is and what it waits for: its place, what holds it back, and about when it goes. It asks one daemon. If
/// that does not hold it, the other replicas are asked too.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// The id of the job: its message_id
    #[arg(required_unless_present = "lane", conflicts_with = "lane")]
    id: Option<String>,
    /// The lane whose next job is meant, with all of its parts, such as "endpoint=x&tenant=acme"; "" is the lane of jobs
    /// without any part
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
}

pub(super) async fn run(global: &Global, Args { downstream, id, lane }: &Args) -> Result<(), Exit> {
    let daemon = Daemon::of(global)?;
    let question = match lane {
        Some(lane) => Question::Lane(lane.clone()),
        None => Question::Id(id.clone().unwrap_or_default()),
    };
    let mut found = daemon.try_find(downstream, &question, false).await.map_err(Failure::say)?;
    if found.jobs.is_empty() && !found.not_asked.is_empty() {
        // The other replicas take some seconds to answer, so they are asked only if this one has no such job.
        found = daemon.try_find(downstream, &question, true).await.map_err(Failure::say)?;
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
