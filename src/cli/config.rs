//! `paced config`: what is in force, and where it comes from.

use super::exit::Exit;
use super::{Global, out, parts};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Prints the configuration in force as TOML, each line with its source; secrets are masked
    Show,
}

pub(super) fn run(global: &Global, command: &Command) -> Exit {
    match command {
        Command::Show => match parts::load(global) {
            Ok(loaded) => match out::line(paced::config::show(&loaded).trim_end_matches('\n')) {
                Ok(()) => Exit::Ok,
                Err(exit) => exit,
            },
            Err(exit) => exit,
        },
    }
}
