//! `paced config`: what is in force, and where it comes from.

use super::exit::Exit;
use super::{Global, Output, out, parts};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Prints the configuration in force as TOML, each line with its source; with -o json one object per key. Secrets
    /// are masked
    Show,
}

pub(super) fn run(global: &Global, command: &Command) -> Exit {
    let Command::Show = command;
    let shown = parts::load(global).and_then(|loaded| match global.output {
        Output::Human => out::line(paced::config::show(&loaded).trim_end_matches('\n')),
        Output::Json => paced::config::show_json(&loaded).try_for_each(|entry| out::json(&entry)),
    });
    shown.err().unwrap_or(Exit::Ok)
}
