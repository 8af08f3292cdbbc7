//! `paced reset`: the counts of limits begin at 0, everywhere and at once.

use paced::api::RESET;
use paced::api::order::Reset;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, confirm, out};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// Only this limit, which may be a plan's [default: all]
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Does not ask for a confirmation
    #[arg(long)]
    yes: bool,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) async fn run(global: &Global, args: Args) -> Result<(), Exit> {
    // A caller without the permission to change anything is not asked for a confirmation first.
    let daemon = Daemon::of(global)?;
    agreed(&args)?;
    let Args { downstream, limit, reason, .. } = args;
    let changed = daemon.ask(&RESET, &downstream, &Reset { limit, reason }).await?;
    if global.output == Output::Json {
        return out::json(&changed);
    }
    let names = changed.reset.iter().flatten();
    let names: Vec<String> = names.map(|name| format!("`{}`", out::printable(name))).collect();
    out::line(format_args!("{downstream}: the counts of {} begin at 0", names.join(", ")))
}

/// Asks for a confirmation on a terminal; elsewhere `--yes` is required.
fn agreed(Args { downstream, limit, yes, .. }: &Args) -> Result<(), Exit> {
    if *yes {
        return Ok(());
    }
    if !confirm::is_possible() {
        let problem = "a reset sets the counts of the limits to 0; add --yes to confirm it";
        return Err(out::fail(Exit::Usage, problem));
    }
    let what =
        limit.as_ref().map_or_else(|| "every limit".to_owned(), |limit| format!("the limit `{limit}`"));
    confirm::confirm(format_args!("Forget what was used of {what} of {downstream}?"))
}
