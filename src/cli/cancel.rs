//! `paced cancel`: jobs that are not sent, wherever they wait.

use paced::api::CANCEL;
use paced::api::order::{Cancel, Span};
use paced::dispatch::Question;
use paced::store::{MAX_TOMBSTONE_BATCH, MAX_TOMBSTONES};
use tokio::io::AsyncBufReadExt as _;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, input, out};

/// Up to how many ids the replica is asked whether it has their jobs: it answers 20 a second.
const MOST_SOUGHT: usize = 20;

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
    let is_asked = global.output == Output::Human && !undo && ids.len() <= MOST_SOUGHT;
    let held = if is_asked { held(&daemon, &downstream, &ids).await } else { None };
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
        (Output::Human, false) => out::line(format_args!("{downstream}: {}", cancelled(ids.len(), held))),
        (Output::Human, true) => out::line(format_args!(
            "{downstream}: {changed} of {} job(s) were cancelled, and are not any more",
            ids.len()
        )),
    }
}

/// How many of these ids the replica that answers has jobs of, or has parked jobs of; `None` where it does not say so.
async fn held(daemon: &Daemon, downstream: &str, ids: &[String]) -> Option<usize> {
    let mut held = 0;
    for id in ids {
        // It may be of an earlier version, and what looks may need another token. The cancellation needs neither.
        let found = daemon.try_find(downstream, &Question::Id(id.clone()), false).await.ok()?;
        held += usize::from(!found.jobs.is_empty() || found.parked.is_some());
    }
    Some(held)
}

/// How many ids are cancelled, and of how many of them the replica that answers had jobs.
fn cancelled(ids: usize, held: Option<usize>) -> String {
    match held {
        None => format!("{ids} id(s) are cancelled, and remembered whether or not such jobs wait now"),
        Some(0) => format!(
            "{ids} id(s) are cancelled, and only remembered: this replica has no such job, but the queue or others may"
        ),
        Some(held) if held < ids => {
            format!(
                "{ids} id(s) are cancelled: {held} of jobs of this replica, {} only remembered",
                ids - held
            )
        }
        Some(_) => format!("{ids} id(s) are cancelled, all of jobs of this replica"),
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
        assert!(cancelled(3, Some(0)).starts_with("3 id(s) are cancelled, and only remembered"));
        let some = "3 id(s) are cancelled: 2 of jobs of this replica, 1 only remembered";
        assert_eq!(cancelled(3, Some(2)), some);
        assert_eq!(cancelled(1, Some(1)), "1 id(s) are cancelled, all of jobs of this replica");
    }
}
