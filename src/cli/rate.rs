//! `paced rate`: an operator's rates over those of the configuration, everywhere and at once.

use hyper::Method;
use paced::Amount;
use serde_json::{Value, json};

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, out, parts};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Shows the limits in force, and the rates set over them
    Get(GetArgs),
    /// Sets a rate over a limit, for a while or until it is unset
    Set(SetArgs),
    /// Goes back to the rate of the configuration
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
    /// COUNT/UNIT, such as 20/s or 1000/5m; of a quota also week and month
    #[arg(value_parser = amount)]
    rate: Amount,
    /// The limit [default: the one of `rate = "..."`, or the only one]
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// For so long, such as 2h [default: until it is unset]
    #[arg(long = "for", value_name = "DURATION", value_parser = parts::span)]
    span: Option<String>,
    /// Why, for the audit log and for whoever looks
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
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

fn amount(text: &str) -> Result<Amount, String> {
    text.parse().map_err(|error: paced::RateError| error.to_string())
}

pub(super) async fn run(global: &Global, command: Command) -> Exit {
    let (method, downstream, body) = match command {
        Command::Get(args) => (Method::GET, args.downstream, None),
        Command::Set(args) => {
            let SetArgs { downstream, rate, limit, span, reason } = args;
            let rate = rate.to_string();
            let body = json!({ "rate": rate, "limit": limit, "for": span, "reason": reason });
            (Method::PUT, downstream, Some(body))
        }
        Command::Unset(UnsetArgs { downstream, limit, reason }) => {
            (Method::DELETE, downstream, Some(json!({ "limit": limit, "reason": reason })))
        }
    };
    let outcome = async {
        let told = Daemon::of(global)?.ask(method, &downstream, "rate", body).await?;
        match global.output {
            Output::Json => out::json(&told),
            Output::Human => table(&told),
        }
    };
    outcome.await.err().unwrap_or(Exit::Ok)
}

/// The columns of the table. `FROM` names the replica that put a rate in force, and `SINCE` says when.
const COLUMNS: [&str; 7] = ["LIMIT", "ALGORITHM", "FILE", "IN FORCE", "SINCE", "FROM", "SET"];

fn table(told: &Value) -> Result<(), Exit> {
    let overrides = list(&told["overrides"]);
    let plans = told["plans"].as_object().into_iter().flat_map(|plans| plans.values());
    let limits = list(&told["limits"]).into_iter().chain(plans.flat_map(list));
    let rows: Vec<[String; 7]> = limits.map(|limit| row(&limit, &overrides)).collect();
    out::line(head(told))?;
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.chain([COLUMNS[column].len()]).max().unwrap_or_default()
    };
    let widths: [usize; 7] = std::array::from_fn(width);
    let line = |cells: [&str; 7]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        out::line(padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    line(COLUMNS)?;
    rows.iter().try_for_each(|row| line(row.each_ref().map(String::as_str)))?;
    for set in overrides.iter().filter(|set| set["idle"] == true) {
        let (limit, rate) = (text(&set["limit"]), text(&set["rate"]));
        out::say(format_args!("paced: the rate {rate} set for `{limit}` fits no limit any more; unset it"));
    }
    if let Some(own) = told["own_limits"].as_array() {
        let limit = |limit: &Value| {
            let burst = limit["burst"].as_u64().filter(|burst| *burst > 1);
            let burst = burst.map(|burst| format!(" with a burst of {burst}")).unwrap_or_default();
            format!("{} {}{burst}", text(&limit["name"]), text(&limit["rate"]))
        };
        let (replica, limits) =
            (text(&told["replica"]), own.iter().map(limit).collect::<Vec<_>>().join(", "));
        out::say(format_args!(
            "paced: the file of the replica that answers, {replica}, has other limits than those in force: {limits}"
        ));
    }
    Ok(())
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn text(value: &Value) -> String {
    out::printable(value.as_str().unwrap_or("-"))
}

/// The generation of what is in force, and whose file it is.
fn head(told: &Value) -> String {
    let (name, generation, file) = (text(&told["name"]), &told["generation"], &told["file"]);
    match file["since"].as_i64() {
        Some(since) => {
            let (from, since) = (replica(file), out::rfc3339(since));
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
fn replica(from: &Value) -> String {
    match from["host"].as_str().filter(|host| !host.is_empty()) {
        Some(host) => format!("{} on {}", text(&from["replica"]), out::printable(host)),
        None => text(&from["replica"]),
    }
}

fn row(limit: &Value, overrides: &[Value]) -> [String; 7] {
    let file = if limit["file_rate"].is_string() { &limit["file_rate"] } else { &limit["rate"] };
    let set = overrides.iter().find(|set| set["limit"] == limit["name"] && set["idle"] != true);
    // The rate that was set is shown as it was written.
    let in_force = set.map_or(&limit["rate"], |set| &set["rate"]);
    [
        text(&limit["name"]),
        text(&limit["algorithm"]),
        text(file),
        text(in_force),
        limit["since"].as_i64().map_or_else(|| "-".to_owned(), out::rfc3339),
        replica(&limit["from"]),
        set.map_or_else(|| "-".to_owned(), set_by),
    ]
}

/// This tells who set a rate and when, for how long it applies, and why.
fn set_by(set: &Value) -> String {
    let by = set["by"].as_str().map(|by| format!("by {} ", out::printable(by))).unwrap_or_default();
    let at = set["set_at"].as_i64().map(|at| format!("at {}, ", out::rfc3339(at))).unwrap_or_default();
    let end = match set["until"].as_i64() {
        Some(until) => format!("until {}", out::rfc3339(until)),
        None => "until it is unset".to_owned(),
    };
    let why = set["reason"].as_str().map(|why| format!(" ({})", out::printable(why))).unwrap_or_default();
    format!("{by}{at}{end}{why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Value {
        json!({
            "name": "billing", "generation": 7, "replica": "3f2a91bc",
            "file": { "replica": "3f2a91bc", "host": "api-7", "since": 1_764_000_000_000_i64 },
        })
    }

    #[test]
    fn the_head_says_whose_file_is_in_force() {
        let mut told = told();
        assert_eq!(
            head(&told),
            "billing: generation 7, by the file that replica 3f2a91bc on api-7 loaded at 2025-11-24T16:00:00Z"
        );
        told["file"] = Value::Null;
        assert_eq!(head(&told), "billing: generation 7");
        told["generation"] = json!(0);
        assert!(head(&told).starts_with("billing: nothing is in force yet"));
    }

    #[test]
    fn a_row_says_what_the_file_says_and_what_is_in_force_since_when_and_from_whom() {
        let limit = json!({
            "name": "calls", "algorithm": "gcra", "rate": "100/s", "file_rate": "50/s",
            "since": 1_764_000_000_000_i64, "from": { "replica": "3f2a91bc", "host": "" },
        });
        let set = json!({
            "limit": "calls", "rate": "10/100ms", "by": "127.0.0.1", "set_at": 1_764_000_000_000_i64,
            "until": 1_764_000_060_000_i64, "reason": "trial\u{1b}[2J", "idle": false,
        });
        let cells = row(&limit, std::slice::from_ref(&set));
        let expected = ["calls", "gcra", "50/s", "10/100ms", "2025-11-24T16:00:00Z", "3f2a91bc"];
        assert_eq!(cells[..6], expected);
        assert_eq!(
            cells[6],
            "by 127.0.0.1 at 2025-11-24T16:00:00Z, until 2025-11-24T16:01:00Z (trial\\u{1b}[2J)"
        );
        let mut idle = set;
        idle["idle"] = json!(true);
        let unknown = json!({ "name": "calls", "algorithm": "gcra", "rate": "50/s" });
        assert_eq!(row(&unknown, &[idle]), ["calls", "gcra", "50/s", "50/s", "-", "-", "-"]);
        assert_eq!(set_by(&json!({ "rate": "5/s", "until": null })), "until it is unset");
    }
}
