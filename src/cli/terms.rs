//! `paced terms`: the limits in force as the store has them, and the way back from them.

use paced::api::order::{DropTerms, ForceTerms};
use paced::api::{DROP_TERMS, Downstream, Endpoint, FORCE_TERMS, StoredTerms, TERMS};
use serde::Serialize;

use super::ask::Daemon;
use super::exit::Exit;
use super::{Global, Output, confirm, out};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Shows the limits in the store, also those that the daemon cannot read
    Show(ShowArgs),
    /// Puts the limits of the daemon's file in force, even if the present ones have a higher revision; rates that were set
    /// stay
    Force(ReplaceArgs),
    /// Replaces all terms by the limits of the daemon's file, also the terms of a newer paced; rates that were set are lost
    Drop(ReplaceArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// The downstream, as in the daemon's configuration
    downstream: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct ReplaceArgs {
    /// The downstream, as in the daemon's configuration
    downstream: String,
    /// Does not ask for a confirmation
    #[arg(long)]
    yes: bool,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) async fn run(global: &Global, command: Command) -> Result<(), Exit> {
    match command {
        Command::Show(ShowArgs { downstream }) => show(global, &downstream).await,
        Command::Force(args) => {
            let order = ForceTerms { reason: args.reason.clone() };
            let question = "Put the limits of the daemon's file in force, with any revision, for";
            replace(global, &args, question, (&FORCE_TERMS, order)).await
        }
        Command::Drop(args) => {
            let order = DropTerms { reason: args.reason.clone() };
            let question =
                "Drop the limits in force, and the rates that were set, for those of the daemon's file for";
            replace(global, &args, question, (&DROP_TERMS, order)).await
        }
    }
}

async fn show(global: &Global, downstream: &str) -> Result<(), Exit> {
    let stored = Daemon::of(global)?.ask(&TERMS, downstream, &()).await?;
    if global.output == Output::Json {
        return out::json(&stored);
    }
    lines(&stored).iter().try_for_each(out::line)
}

fn lines(stored: &StoredTerms) -> Vec<String> {
    let number = |number: Option<u64>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
    let mut lines = vec![
        format!("generation    {}", stored.generation),
        format!("version       {} (the daemon reads up to {})", number(stored.version), stored.reads_version),
        format!(
            "revision      {} (the daemon's file: {})",
            number(stored.revision),
            number(stored.own_revision)
        ),
        format!(
            "in force      {}",
            if stored.is_own { "the limits of the daemon's file" } else { "other limits" }
        ),
    ];
    lines.extend(stored.error.as_ref().map(|error| format!("error         {}", out::printable(error))));
    lines.extend(stored.text.as_ref().map(|text| format!("text          {}", out::printable(text))));
    lines
}

async fn replace<O: Serialize>(
    global: &Global,
    ReplaceArgs { downstream, yes, .. }: &ReplaceArgs,
    question: &str,
    (endpoint, order): (&Endpoint<O, Downstream>, O),
) -> Result<(), Exit> {
    // A caller without the permission to change anything is not asked for a confirmation first.
    let daemon = Daemon::of(global)?;
    if !yes && !confirm::is_possible() {
        let problem = "this changes the limits in force everywhere; add --yes to confirm it";
        return Err(out::fail(Exit::Usage, problem));
    }
    if !yes {
        confirm::confirm(format_args!("{question} {downstream}?"))?;
    }
    let changed = daemon.ask(endpoint, downstream, &order).await?;
    if global.output == Output::Json {
        return out::json(&changed);
    }
    let limits = changed.rates.limits.iter().map(|limit| format!("{} {}", limit.name, limit.rate));
    let limits: Vec<String> = limits.collect();
    out::line(format_args!("{downstream}: {} (generation {})", limits.join(", "), changed.rates.generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_cannot_be_read_are_shown_all_the_same() {
        let stored = StoredTerms {
            generation: 7,
            version: Some(9),
            reads_version: 2,
            error: Some("they are of version 9".to_owned()),
            own_revision: Some(3),
            text: Some("{\u{1b}[2J".to_owned()),
            ..StoredTerms::default()
        };
        assert_eq!(
            lines(&stored),
            [
                "generation    7",
                "version       9 (the daemon reads up to 2)",
                "revision      none (the daemon's file: 3)",
                "in force      other limits",
                "error         they are of version 9",
                "text          {\\u{1b}[2J",
            ]
        );
    }
}
