//! `paced status`: what every downstream is doing, over all replicas.

use std::fmt::Write as _;
use std::io::{IsTerminal, stdout};
use std::time::Duration;

use paced::api::state::{Downstream, Orphan, Silent, State};

use super::ask::Daemon;
use super::exit::Exit;
use super::facts::{self, pace};
use super::{Global, Output, out, parts};
use crate::daemon::Signals;

/// How often `--watch` asks.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only this downstream, with all its details
    downstream: Option<String>,
    /// Shows the state again every second, until you interrupt it
    #[arg(short, long)]
    watch: bool,
}

pub(super) async fn run(global: &Global, args: &Args) -> Result<(), Exit> {
    let daemon = Daemon::of(global)?;
    if !args.watch {
        return show(global, args, &daemon.state().await?);
    }
    let mut signals = Signals::new().map_err(out::failed)?;
    loop {
        let round = async {
            let state = daemon.state().await?;
            clear();
            show(global, args, &state)?;
            tokio::time::sleep(INTERVAL).await;
            Ok::<_, Exit>(())
        };
        tokio::select! {
            ended = round => ended?,
            _ = signals.next() => return Ok(()),
        }
    }
}

/// Clears a terminal, so that the next table stands where the last one stood.
fn clear() {
    if stdout().is_terminal() {
        use std::io::Write as _;
        // If the terminal cannot be written, the next line fails with the error.
        let _ = stdout().write_all(b"\x1b[H\x1b[2J");
    }
}

fn show(global: &Global, args: &Args, state: &State) -> Result<(), Exit> {
    let mut orphans = state.unclaimed.orphans.iter();
    if let Some(orphan) = orphans.find(|orphan| Some(&orphan.name) == args.downstream.as_ref()) {
        return match global.output {
            Output::Json => out::json(orphan),
            Output::Human => out::line(unserved(orphan)),
        };
    }
    let named = args.downstream.as_ref().map(|name| {
        state.downstreams.iter().find(|downstream| downstream.name == *name).ok_or_else(|| {
            let known: Vec<&str> = state.downstreams.iter().map(|known| known.name.as_str()).collect();
            let known = known.join(", ");
            out::fail(Exit::Usage, format_args!("no downstream `{name}`; this daemon has {known}"))
        })
    });
    let named = named.transpose()?;
    match (global.output, named) {
        (Output::Json, None) => out::json(state),
        (Output::Json, Some(downstream)) => out::json(downstream),
        (Output::Human, None) => {
            out::line(head(state))?;
            state.unclaimed.orphans.iter().try_for_each(|orphan| out::line(unserved(orphan)))?;
            silent_replicas(state).into_iter().try_for_each(out::line)?;
            out::line("")?;
            let rows: Vec<[String; 10]> =
                state.downstreams.iter().map(|downstream| row(downstream, state.now)).collect();
            out::table(COLUMNS, &(1..9), &rows)
        }
        (Output::Human, Some(downstream)) => out::line(details(downstream, state.now)),
    }
}

/// The servers and the replicas, in a line.
fn head(state: &State) -> String {
    let replicas = facts::fleet(state);
    let amqp = facts::broker(state);
    let store = match &state.store.error {
        None => "store ok".to_owned(),
        Some(error) => format!("store AWAY ({error})"),
    };
    let mut head = format!("paced {}: {replicas}, {amqp}, {store}", state.version);
    if let Some(unroutable) = state.unclaimed.unroutable.filter(|messages| *messages > 0) {
        // Writing to a String cannot fail.
        let _ = write!(head, ", {unroutable} message(s) for no downstream");
    }
    head
}

/// A downstream that no replica serves any more, in a line.
fn unserved(Orphan { name, since }: &Orphan) -> String {
    let served = since.map(|at| format!(" (last served {} UTC)", out::instant(at))).unwrap_or_default();
    out::printable(&format!(
        "{name}: no replica serves it{served}, and its queues still take jobs; see `paced downstream --help`"
    ))
}

/// The most silent replicas that are named.
const MAX_SILENT: usize = 10;

/// The replicas that are silent, or unknown since the store does not answer, in a line each.
fn silent_replicas(state: &State) -> Vec<String> {
    let line = |Silent { id, host, pid, seen_at }: &Silent| {
        let span = parts::for_people(state.now - seen_at);
        let how = match state.store.connected {
            true => format!("has been silent for {span}"),
            false => format!("is unknown while the store does not answer; it last reported {span} ago"),
        };
        out::printable(&format!("replica {id} ({host}, process {pid}) {how}"))
    };
    let silent = &state.fleet.silent;
    let mut lines: Vec<String> = silent.iter().take(MAX_SILENT).map(line).collect();
    if silent.len() > MAX_SILENT {
        lines.push(format!("and {} more replicas", silent.len() - MAX_SILENT));
    }
    lines
}

/// The titles of the table's columns; from the second to the last but one they are numbers.
const COLUMNS: [&str; 10] =
    ["DOWNSTREAM", "RATE", "LIMIT", "LEFT", "QUEUED", "HERE", "SENDING", "PARKED", "DEAD", "WHAT BINDS"];

fn row(downstream: &Downstream, now: i64) -> [String; 10] {
    let counts = &downstream.counts;
    let known = |count: Option<String>| count.unwrap_or_else(|| "-".to_owned());
    let binds = match &downstream.health.failing {
        Some(failing) => format!("{}; {}", facts::failing(failing, now), downstream.binding.text),
        None => downstream.binding.text.clone(),
    };
    [
        downstream.name.clone(),
        pace(downstream.releases.rate),
        known(downstream.terms.rate_limit.map(pace)),
        known(facts::least_left(downstream)),
        known(downstream.queues.queued.map(|jobs| jobs.to_string())),
        (counts.waiting + counts.delayed + counts.retrying + counts.held).to_string(),
        counts.sending.to_string(),
        known(downstream.queues.parked.map(|jobs| jobs.to_string())),
        known(downstream.queues.dead.map(|letters| letters.to_string())),
        out::printable(&binds),
    ]
}

/// All that is known of a downstream.
fn details(downstream: &Downstream, now: i64) -> String {
    let line = |(title, text): (&str, String)| format!("\n  {title:<10} {text}");
    let lines: String = facts::of(downstream, now).into_iter().map(line).collect();
    format!("{}{lines}", downstream.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_ten_replicas_are_named_as_silent_and_as_unknown_while_the_store_is_away() {
        let silent = |number: u32| Silent {
            id: format!("r{number}"),
            host: "h".to_owned(),
            pid: number,
            seen_at: 1_000,
        };
        let mut state = State { now: 31_000, ..State::default() };
        state.store.connected = true;
        assert!(silent_replicas(&state).is_empty());
        state.fleet.silent = (0..12).map(silent).collect();
        let lines = silent_replicas(&state);
        assert_eq!(lines[0], "replica r0 (h, process 0) has been silent for 30 s");
        assert_eq!((lines.len(), lines[10].as_str()), (11, "and 2 more replicas"));
        state.store.connected = false;
        assert_eq!(
            silent_replicas(&state)[0],
            "replica r0 (h, process 0) is unknown while the store does not answer; it last reported 30 s ago"
        );
        assert!(head(&state).starts_with("paced : 0 replica(s) and 12 unknown, "), "{}", head(&state));
    }
}
