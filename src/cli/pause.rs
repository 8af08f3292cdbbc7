//! `paced pause` and `paced resume`: an operator stops the releases of a downstream, everywhere.

use paced::api::order::{Pause, Resume, Span};
use paced::api::{Downstream, Endpoint, PAUSE, RESUME};
use serde::Serialize;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, out};

#[derive(Debug, clap::Args)]
pub(super) struct PauseArgs {
    #[command(flatten)]
    which: Which,
    /// How long the pause lasts, such as 10m [default: until it is resumed]
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<Span>,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    which: Which,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// One downstream, or all.
#[derive(Debug, clap::Args)]
struct Which {
    /// The downstream, as in the daemon's configuration
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    downstream: Option<String>,
    /// Every downstream that the daemon has, one after another
    #[arg(long)]
    all: bool,
}

pub(super) async fn pause(global: &Global, args: PauseArgs) -> Result<(), Exit> {
    let PauseArgs { which, span, reason } = args;
    change(global, &PAUSE, which, Pause { span, reason }).await
}

pub(super) async fn resume(global: &Global, args: ResumeArgs) -> Result<(), Exit> {
    let ResumeArgs { which, reason } = args;
    change(global, &RESUME, which, Resume { reason }).await
}

/// Changes one downstream, or each. If one cannot be changed, the others still are, and the first exit code counts.
async fn change<O: Serialize>(
    global: &Global,
    endpoint: &Endpoint<O, Downstream>,
    which: Which,
    order: O,
) -> Result<(), Exit> {
    let daemon = Daemon::of(global)?;
    let Some(name) = which.downstream else {
        let mut all = Ok(());
        for downstream in daemon.state().await?.downstreams {
            let name = &downstream.name;
            let changed = one(global, &daemon, endpoint, name, &order).await;
            all = all.and(changed.inspect_err(|_| out::say(format_args!("paced: {name} was not changed"))));
        }
        return all;
    };
    one(global, &daemon, endpoint, &name, &order).await
}

async fn one<O: Serialize>(
    global: &Global,
    daemon: &Daemon,
    endpoint: &Endpoint<O, Downstream>,
    downstream: &str,
    order: &O,
) -> Result<(), Exit> {
    let changed = daemon.ask(endpoint, downstream, order).await?;
    match global.output {
        Output::Json => out::json(&changed),
        Output::Human => out::line(outcome(downstream, &changed)),
    }
}

/// The state after a change, for people.
pub(super) fn outcome(downstream: &str, changed: &Downstream) -> String {
    match changed.pause.as_ref().map(|pause| pause.until) {
        None => format!("{downstream} is resumed"),
        Some(Some(until)) => format!("{downstream} is paused until {} UTC", out::instant(until)),
        Some(None) => format!("{downstream} is paused until it is resumed"),
    }
}
