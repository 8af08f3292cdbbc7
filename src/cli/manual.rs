//! `paced completions` and `paced man`: made of the definition of the command line, so that they tell what it takes.

use std::path::PathBuf;

use clap::CommandFactory as _;
use clap_complete::Shell;
use serde_json::json;

use super::exit::Exit;
use super::{Cli, Global, Output, out};

#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// Whose completions
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Where to write them: paced.1, paced-run.1 and so on; it is made if it is missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "paced", &mut script);
    out::raw(&script).err().unwrap_or(Exit::Ok)
}

/// Writes the pages, and prints their paths.
pub(super) fn pages(global: &Global, args: &ManArgs) -> Exit {
    let dir = &args.dir;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    if let Err(error) = std::fs::create_dir_all(dir).and_then(|()| page(&root, dir, &mut pages)) {
        out::say(format_args!("paced: cannot write to {}: {error}", dir.display()));
        return Exit::Failed;
    }
    let printed = pages.iter().try_for_each(|path| match global.output {
        Output::Human => out::line(path.display()),
        Output::Json => out::json(&json!({ "file": path })),
    });
    printed.err().unwrap_or(Exit::Ok)
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
