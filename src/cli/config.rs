//! `paced config`: what is in force, where it comes from, and what may be in it.

use super::exit::Exit;
use super::{Global, Output, out, parts};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Prints the configuration in force as TOML, each line with its source; with -o json one object per key. Secrets
    /// are masked
    Show,
    /// Prints the JSON Schema of the configuration file, for editors and taplo
    Schema,
}

pub(super) fn run(global: &Global, command: &Command) -> Result<(), Exit> {
    match command {
        Command::Show => show(global),
        Command::Schema => schema(global),
    }
}

fn show(global: &Global) -> Result<(), Exit> {
    let loaded = parts::load(global)?;
    match global.output {
        Output::Human => out::line(paced::config::show(&loaded).trim_end_matches('\n')),
        Output::Json => paced::config::show_json(&loaded).try_for_each(|entry| out::json(&entry)),
    }
}

fn schema(global: &Global) -> Result<(), Exit> {
    let schema = paced::config::schema();
    match global.output {
        Output::Human => out::line(format_args!("{schema:#}")),
        Output::Json => out::json(&schema),
    }
}
