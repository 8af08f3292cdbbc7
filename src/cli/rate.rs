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

fn table(told: &Value) -> Result<(), Exit> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| out::printable(value.as_str().unwrap_or("-"));
    let overrides = list(&told["overrides"]);
    let plans = told["plans"].as_object().into_iter().flat_map(|plans| plans.values());
    let limits: Vec<Value> = list(&told["limits"]).into_iter().chain(plans.flat_map(list)).collect();
    let name = |limit: &Value| limit["name"].as_str().unwrap_or_default().chars().count();
    let width = limits.iter().map(name).max().unwrap_or_default().max("LIMIT".len());
    out::line(format_args!("{:width$}  {:<14}  {:<16}  SET", "LIMIT", "ALGORITHM", "RATE"))?;
    for limit in &limits {
        let set = overrides.iter().find(|set| set["limit"] == limit["name"]);
        let set = set.filter(|set| set["idle"] != true).map(|set| {
            let end = match set["until"].as_i64() {
                Some(until) => format!("until {} UTC", out::instant(until)),
                None => "until it is unset".to_owned(),
            };
            let was = limit["file_rate"].as_str().map(|rate| format!(" over {rate}")).unwrap_or_default();
            let why = set["reason"].as_str().map(|why| format!(" ({})", out::printable(why)));
            format!("{end}{was}{}", why.unwrap_or_default())
        });
        out::line(format_args!(
            "{:width$}  {:<14}  {:<16}  {}",
            text(&limit["name"]),
            text(&limit["algorithm"]),
            text(&limit["rate"]),
            set.as_deref().unwrap_or("-"),
        ))?;
    }
    for set in overrides.iter().filter(|set| set["idle"] == true) {
        let (limit, rate) = (text(&set["limit"]), text(&set["rate"]));
        out::say(format_args!("paced: the rate {rate} set for `{limit}` fits no limit any more; unset it"));
    }
    Ok(())
}
