//! `paced pause` and `paced resume`: an operator stops the releases of a downstream, everywhere.

use hyper::Method;
use serde_json::{Value, json};

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, out, parts};

#[derive(Debug, clap::Args)]
pub(super) struct PauseArgs {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// For so long, such as 10m [default: until it is resumed]
    #[arg(long = "for", value_name = "DURATION", value_parser = parts::span)]
    span: Option<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct ResumeArgs {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) async fn pause(global: &Global, args: &PauseArgs) -> Exit {
    let body = json!({ "for": args.span, "reason": args.reason });
    ended(change(global, &args.downstream, "pause", body).await)
}

pub(super) async fn resume(global: &Global, args: &ResumeArgs) -> Exit {
    ended(change(global, &args.downstream, "resume", json!({ "reason": args.reason })).await)
}

fn ended(outcome: Result<(), Exit>) -> Exit {
    outcome.err().unwrap_or(Exit::Ok)
}

async fn change(global: &Global, downstream: &str, what: &str, body: Value) -> Result<(), Exit> {
    let told = Daemon::of(global)?.ask(Method::POST, downstream, what, Some(body)).await?;
    if global.output == Output::Json {
        return out::json(&told);
    }
    let until = told["pause"]["until"].as_i64();
    if told["pause"].is_null() {
        out::line(format_args!("{downstream} is resumed"))
    } else if let Some(until) = until {
        out::line(format_args!("{downstream} is paused until {} UTC", out::instant(until)))
    } else {
        out::line(format_args!("{downstream} is paused until it is resumed"))
    }
}
