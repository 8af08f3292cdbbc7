//! `paced completions` and `paced man`: made of the definition of the command line, so that they have all of its options.

use std::path::PathBuf;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::exit::Exit;
use super::{Cli, Global, out};

#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell that gets the completions
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// The folder for the pages: paced.1, paced-run.1 and so on; it is created if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> Result<(), Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "paced", &mut script);
    out::raw(&script)
}

/// Writes the pages, and prints their paths.
pub(super) fn pages(global: &Global, args: &ManArgs) -> Result<(), Exit> {
    let dir = &args.dir;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    std::fs::create_dir_all(dir).and_then(|()| page(&root, dir, &mut pages)).map_err(|error| {
        out::fail(Exit::Failed, format_args!("cannot write to {}: {error}", dir.display()))
    })?;
    pages.iter().try_for_each(|path| out::path(global.output, path))
}

/// Writes the page of this command, and those of its commands.
fn page(command: &clap::Command, dir: &std::path::Path, pages: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let man = clap_mangen::Man::new(command.clone());
    let path = dir.join(man.get_filename());
    let mut text = Vec::new();
    man.render(&mut text)?;
    std::fs::write(&path, text)?;
    pages.push(path);
    command.get_subcommands().filter(|one| !one.is_hide_set()).try_for_each(|one| page(one, dir, pages))
}
