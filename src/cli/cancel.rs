//! `paced cancel`: jobs that are not sent, wherever they wait.

use std::time::Duration;

use paced::api::CANCEL;
use paced::api::order::{Cancel, Span};
use paced::dispatch::Question;
use paced::store::{MAX_TOMBSTONE_BATCH, MAX_TOMBSTONES};
use tokio::io::AsyncBufReadExt as _;
use tokio::time::timeout;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, input, out};

/// How long the replica may take to say whether it has the job. The job may be sent meanwhile, and is to be stopped.
const SEARCH: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// The ids of the jobs; - reads them from stdin, one on each line
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// How long the cancellation lasts, such as 30d; until then copies of the jobs are not sent either [default: 366d]
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "undo")]
    span: Option<Span>,
    /// Ends the cancellation: jobs with these ids are sent again from now on
    #[arg(long)]
    undo: bool,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) async fn run(global: &Global, args: Args) -> Result<(), Exit> {
    let Args { downstream, ids, span, undo, reason } = args;
    let daemon = Daemon::of(global)?;
    let ids = all(ids).await?;
    let is_held = match ids.as_slice() {
        [id] if global.output == Output::Human && !undo => is_held(&daemon, &downstream, id).await,
        // A search takes 50 ms at least: of many ids the last ones would be cancelled late.
        _ => None,
    };
    let mut changed = 0;
    for some in ids.chunks(MAX_TOMBSTONE_BATCH) {
        let order = Cancel { ids: some.to_vec(), span: span.clone(), undo, reason: reason.clone() };
        let answer = match daemon.ask(&CANCEL, &downstream, &order).await {
            Ok(answer) => answer,
            Err(exit) => {
                if changed > 0 {
                    out::say(format_args!("paced: {changed} id(s) were changed before that"));
                }
                return Err(exit);
            }
        };
        changed += answer.cancelled.map_or(0, |cancelled| cancelled.changed);
        if global.output == Output::Json {
            out::json(&answer)?;
        }
    }
    match (global.output, undo) {
        (Output::Json, _) => Ok(()),
        (Output::Human, false) => out::line(format_args!("{downstream}: {}", cancelled(ids.len(), is_held))),
        (Output::Human, true) => out::line(format_args!(
            "{downstream}: {changed} of {} job(s) were cancelled, and are not any more",
            ids.len()
        )),
    }
}

/// Whether the replica that answers has the job of this id, or has parked it; `None` where it does not say so in time.
async fn is_held(daemon: &Daemon, downstream: &str, id: &str) -> Option<bool> {
    // The search may fail: the daemon may be of an earlier version, or require a token for reads. The cancellation
    // does not need it.
    let question = Question::Id(id.to_owned());
    let found = timeout(SEARCH, daemon.try_find(downstream, &question, false)).await.ok()?.ok()?;
    Some(!found.jobs.is_empty() || found.parked.is_some())
}

/// How many ids are cancelled; of a single one whether the replica that answers had its job.
fn cancelled(ids: usize, is_held: Option<bool>) -> String {
    match is_held {
        None => format!("{ids} id(s) are cancelled, and remembered whether or not such jobs wait now"),
        Some(false) => format!(
            "{ids} id(s) are cancelled, and only remembered: this replica has no such job, but the queue or others may"
        ),
        Some(true) => format!("{ids} id(s) are cancelled, of a job of this replica"),
    }
}

/// The ids that the arguments name, with those of stdin in place of `-`.
async fn all(named: Vec<String>) -> Result<Vec<String>, Exit> {
    let mut ids = Vec::new();
    for id in named {
        if id == "-" {
            read(&mut ids).await?;
        } else {
            ids.push(id);
        }
    }
    if ids.is_empty() {
        return Err(out::fail(Exit::Usage, "stdin has no ids; write one a line"));
    }
    Ok(ids)
}

/// Adds the ids of stdin; empty lines are skipped.
async fn read(ids: &mut Vec<String>) -> Result<(), Exit> {
    let mut lines = input::open(None).await?.lines();
    loop {
        match lines.next_line().await {
            Ok(Some(line)) => ids.extend(Some(line.trim().to_owned()).filter(|line| !line.is_empty())),
            Ok(None) => return Ok(()),
            Err(error) => return Err(out::fail(Exit::Failed, format_args!("stdin: {error}"))),
        }
        if ids.len() > MAX_TOMBSTONES {
            let problem = format_args!("more than {MAX_TOMBSTONES} ids; that many can be cancelled at most");
            return Err(out::fail(Exit::Usage, problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_only_remembered_is_said() {
        let unknown = "3 id(s) are cancelled, and remembered whether or not such jobs wait now";
        assert_eq!(cancelled(3, None), unknown);
        assert!(cancelled(1, Some(false)).starts_with("1 id(s) are cancelled, and only remembered"));
        assert_eq!(cancelled(1, Some(true)), "1 id(s) are cancelled, of a job of this replica");
    }
}
