//! `paced cancel`: jobs that are not sent, wherever they wait.

use paced::api::CANCEL;
use paced::api::order::{Cancel, Span};
use paced::store::{MAX_TOMBSTONE_BATCH, MAX_TOMBSTONES};
use tokio::io::AsyncBufReadExt as _;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, input, out};

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
        (Output::Human, false) => out::line(format_args!(
            "{downstream}: {} id(s) are cancelled, and remembered whether or not such jobs wait now",
            ids.len()
        )),
        (Output::Human, true) => out::line(format_args!(
            "{downstream}: {changed} of {} job(s) were cancelled, and are not any more",
            ids.len()
        )),
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
