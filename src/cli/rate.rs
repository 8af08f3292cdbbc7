//! `paced rate`: an operator's rates over those of the configuration, everywhere and at once.

use paced::Amount;
use paced::api::order::{SetRate, Span, UnsetRate};
use paced::api::{Limit, Override, RATES, Rates, SET_RATE, SetOverride, Source, UNSET_RATE};
use serde::Serialize;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, out};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Shows the limits in force, and the rates that operators set over them
    Get(GetArgs),
    /// Sets a rate in place of a limit's, for a while or until it is unset
    Set(SetArgs),
    /// Ends a set rate: the rate of the configuration counts again
    Unset(UnsetArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct GetArgs {
    /// The downstream, as in the daemon's configuration
    downstream: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// COUNT/UNIT, such as 20/s or 1000/5m; for a quota also week and month
    #[arg(value_parser = amount)]
    rate: Amount,
    /// The limit [default: the one of `rate = "..."`, or the only one]
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// How long the rate lasts, such as 2h [default: until it is unset]
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<Span>,
    /// The reason, for the audit log; the status shows it too
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct UnsetArgs {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// The limit [default: the one of `rate = "..."`, or the only one]
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

fn amount(text: &str) -> Result<Amount, String> {
    text.parse().map_err(|error: paced::RateError| error.to_string())
}

pub(super) async fn run(global: &Global, command: Command) -> Result<(), Exit> {
    let daemon = Daemon::of(global)?;
    match command {
        Command::Get(GetArgs { downstream }) => {
            let rates = daemon.ask(&RATES, &downstream, &()).await?;
            show(global, &rates, &rates)
        }
        Command::Set(SetArgs { downstream, rate, limit, span, reason }) => {
            let order = SetRate { rate, limit, span, reason };
            let changed = daemon.ask(&SET_RATE, &downstream, &order).await?;
            show(global, &changed, &changed.rates)
        }
        Command::Unset(UnsetArgs { downstream, limit, reason }) => {
            let changed = daemon.ask(&UNSET_RATE, &downstream, &UnsetRate { limit, reason }).await?;
            show(global, &changed, &changed.rates)
        }
    }
}

/// Shows an answer: all of it as JSON, or its rates to people.
fn show(global: &Global, answer: &impl Serialize, rates: &Rates) -> Result<(), Exit> {
    match global.output {
        Output::Json => out::json(answer),
        Output::Human => table(rates),
    }
}

/// The columns of the table. `FROM` names the replica that put a rate in force, and `SINCE` says when.
const COLUMNS: [&str; 7] = ["LIMIT", "ALGORITHM", "FILE", "IN FORCE", "SINCE", "FROM", "SET"];

fn table(rates: &Rates) -> Result<(), Exit> {
    let limits = rates.limits.iter().chain(rates.plans.values().flatten());
    let rows: Vec<[String; 7]> = limits.map(|limit| row(limit, &rates.overrides)).collect();
    out::line(head(rates))?;
    out::table(COLUMNS, &(0..0), &rows)?;
    for SetOverride { set, .. } in rates.overrides.iter().filter(|set| set.idle) {
        let (limit, rate) = (&set.limit, &set.rate);
        out::say(format_args!("paced: the rate {rate} set for `{limit}` fits no limit any more; unset it"));
    }
    if let Some(own) = &rates.own_limits {
        let limit = |Limit { name, rate, burst, .. }: &Limit| match burst {
            0 | 1 => format!("{name} {rate}"),
            burst => format!("{name} {rate} with a burst of {burst}"),
        };
        let limits = own.iter().map(limit).collect::<Vec<_>>().join(", ");
        out::say(format_args!(
            "paced: the file of the replica that answers, {}, has other limits than those in force: {limits}",
            rates.replica
        ));
    }
    Ok(())
}

/// The generation of the terms in force, and the file that they are from.
fn head(Rates { name, generation, file, .. }: &Rates) -> String {
    let name = out::printable(name);
    match file {
        Some(file) => {
            let (from, since) = (replica(&file.source), out::rfc3339(file.since));
            format!("{name}: generation {generation}, by the file that replica {from} loaded at {since}")
        }
        None if *generation == 0 => {
            format!(
                "{name}: nothing is in force yet; these are the limits of the file of the replica that answers"
            )
        }
        None => format!("{name}: generation {generation}"),
    }
}

/// The id of a replica, and its machine if that is known.
fn replica(Source { replica, host }: &Source) -> String {
    match host.as_str() {
        "" => out::printable(replica),
        host => format!("{} on {}", out::printable(replica), out::printable(host)),
    }
}

fn row(limit: &Limit, overrides: &[SetOverride]) -> [String; 7] {
    let set = overrides.iter().find(|set| set.set.limit == limit.name && !set.idle);
    let unknown = || "-".to_owned();
    [
        out::printable(&limit.name),
        out::printable(&limit.algorithm),
        out::printable(limit.file_rate.as_ref().unwrap_or(&limit.rate)),
        // The rate that was set is shown as it was written.
        out::printable(set.map_or(&limit.rate, |set| &set.set.rate)),
        limit.since.map_or_else(unknown, out::rfc3339),
        limit.from.as_ref().map_or_else(unknown, replica),
        set.map_or_else(unknown, |set| set_by(&set.set)),
    ]
}

/// The author of a rate, when it was set, its end, and the reason.
fn set_by(set: &Override) -> String {
    let by = set.by.as_ref().map(|by| format!("by {} ", out::printable(by))).unwrap_or_default();
    let end = match set.until {
        Some(until) => format!("until {}", out::rfc3339(until)),
        None => "until it is unset".to_owned(),
    };
    let why = set.reason.as_ref().map(|why| format!(" ({})", out::printable(why))).unwrap_or_default();
    format!("{by}at {}, {end}{why}", out::rfc3339(set.set_at))
}

#[cfg(test)]
mod tests {
    use paced::api::File;

    use super::*;

    fn source(host: &str) -> Source {
        Source { replica: "3f2a91bc".to_owned(), host: host.to_owned() }
    }

    #[test]
    fn the_head_says_whose_file_is_in_force() {
        let file = File { source: source("api-7"), since: 1_764_000_000_000 };
        let mut rates =
            Rates { name: "billing".to_owned(), generation: 7, file: Some(file), ..Rates::default() };
        assert_eq!(
            head(&rates),
            "billing: generation 7, by the file that replica 3f2a91bc on api-7 loaded at 2025-11-24T16:00:00Z"
        );
        rates.file = None;
        assert_eq!(head(&rates), "billing: generation 7");
        rates.generation = 0;
        assert!(head(&rates).starts_with("billing: nothing is in force yet"));
    }

    #[test]
    fn a_row_says_what_the_file_says_and_what_is_in_force_since_when_and_from_whom() {
        let text = |text: &str| Some(text.to_owned());
        let plain = Limit {
            name: "calls".to_owned(),
            algorithm: "gcra".to_owned(),
            rate: "50/s".to_owned(),
            ..Limit::default()
        };
        let limit = Limit {
            rate: "100/s".to_owned(),
            file_rate: text("50/s"),
            since: Some(1_764_000_000_000),
            from: Some(source("")),
            ..plain.clone()
        };
        let set = Override {
            limit: "calls".to_owned(),
            rate: "10/100ms".to_owned(),
            by: text("127.0.0.1"),
            set_at: 1_764_000_000_000,
            until: Some(1_764_000_060_000),
            reason: text("trial\u{1b}[2J"),
        };
        let cells = row(&limit, &[SetOverride { set: set.clone(), idle: false }]);
        let expected = ["calls", "gcra", "50/s", "10/100ms", "2025-11-24T16:00:00Z", "3f2a91bc"];
        assert_eq!(cells[..6], expected);
        assert_eq!(
            cells[6],
            "by 127.0.0.1 at 2025-11-24T16:00:00Z, until 2025-11-24T16:01:00Z (trial\\u{1b}[2J)"
        );
        let idle = SetOverride { set: set.clone(), idle: true };
        assert_eq!(row(&plain, &[idle]), ["calls", "gcra", "50/s", "50/s", "-", "-", "-"]);
        let lasting = Override { by: None, until: None, reason: None, ..set };
        assert_eq!(set_by(&lasting), "at 2025-11-24T16:00:00Z, until it is unset");
    }
}
