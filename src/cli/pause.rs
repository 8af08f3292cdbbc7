//! `paced pause` and `paced resume`: an operator stops the releases of a downstream, everywhere.

use paced::api::order::{Pause, Resume, Span};
use paced::api::{Downstream, Endpoint, PAUSE, RESUME};
use serde::Serialize;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, out};

#[derive(Debug, clap::Args)]
pub(super) struct PauseArgs {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// For so long, such as 10m [default: until it is resumed]
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<Span>,
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

pub(super) async fn pause(global: &Global, args: PauseArgs) -> Result<(), Exit> {
    let PauseArgs { downstream, span, reason } = args;
    change(global, &PAUSE, &downstream, Pause { span, reason }).await
}

pub(super) async fn resume(global: &Global, args: ResumeArgs) -> Result<(), Exit> {
    let ResumeArgs { downstream, reason } = args;
    change(global, &RESUME, &downstream, Resume { reason }).await
}

async fn change<O: Serialize>(
    global: &Global,
    endpoint: &Endpoint<O, Downstream>,
    downstream: &str,
    order: O,
) -> Result<(), Exit> {
    let changed = Daemon::of(global)?.ask(endpoint, downstream, &order).await?;
    match (global.output, changed.pause.as_ref().map(|pause| pause.until)) {
        (Output::Json, _) => out::json(&changed),
        (Output::Human, None) => out::line(format_args!("{downstream} is resumed")),
        (Output::Human, Some(Some(until))) => {
            out::line(format_args!("{downstream} is paused until {} UTC", out::instant(until)))
        }
        (Output::Human, Some(None)) => out::line(format_args!("{downstream} is paused until it is resumed")),
    }
}
