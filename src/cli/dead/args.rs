//! The arguments of `paced dead`.

use std::time::Duration;

use paced::Rate;
use paced::amqp::Filter;
use paced::config::Settings;

use crate::cli::exit::Exit;
use crate::cli::{out, parts};

#[derive(Debug, clap::Subcommand)]
pub(in crate::cli) enum Command {
    /// Lists dead letters; all stay where they are
    List(ListArgs),
    /// Shows all of a dead letter, with its body; it stays where it is
    Show(ShowArgs),
    /// Publishes dead letters as jobs again, and removes each once its copy is confirmed
    Replay(ReplayArgs),
    /// Removes dead letters for good
    Purge(PurgeArgs),
}

/// Which queue.
#[derive(Debug, clap::Args)]
pub(super) struct Origin {
    /// The downstream, as in the configuration
    #[arg(required_unless_present = "unroutable", conflicts_with = "unroutable")]
    downstream: Option<String>,
    /// Uses the messages that reached no downstream's queue, not dead letters
    #[arg(long)]
    unroutable: bool,
}

impl Origin {
    /// The downstream whose dead letters are meant; `None` for unroutable messages.
    pub(super) fn downstream(self) -> Option<String> {
        self.downstream.filter(|_| !self.unroutable)
    }
}

/// Which letters of it.
#[derive(Debug, clap::Args)]
pub(super) struct FilterArgs {
    /// Only letters with this reason, such as status
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only letters whose job the API answered with this status, such as 422
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,
    /// Only letters that are at least this old, such as 2h
    #[arg(long, value_name = "AGE", value_parser = paced::config::duration)]
    older_than: Option<Duration>,
    /// Only letters that are younger than this, such as 10m
    #[arg(long, value_name = "AGE", value_parser = paced::config::duration)]
    newer_than: Option<Duration>,
    /// Only letters whose job was published with exactly this routing key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only the letter whose job has this id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
}

impl From<FilterArgs> for Filter {
    fn from(args: FilterArgs) -> Self {
        let FilterArgs { reason, status, older_than, newer_than, key, id } = args;
        Self { reason, status, id, key, older_than, newer_than }
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    pub(super) origin: Origin,
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// Maximum number of letters, oldest first
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub(super) limit: u32,
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ShowArgs {
    /// The downstream, as in the configuration; left out with --unroutable
    #[arg(required_unless_present = "unroutable", value_name = "DOWNSTREAM")]
    first: Option<String>,
    /// The id of the job [default: the oldest one that matches]
    #[arg(value_name = "ID")]
    second: Option<String>,
    /// Uses the messages that reached no downstream's queue, not dead letters
    #[arg(long)]
    unroutable: bool,
    #[command(flatten)]
    filter: FilterArgs,
    /// Maximum number of letters, oldest first
    #[arg(long, default_value_t = 1, value_name = "N")]
    limit: u32,
}

impl ShowArgs {
    /// The queue, the letters, and how many at most.
    pub(super) fn resolve(self) -> Result<(Origin, Filter, u32), Exit> {
        let Self { first, second, unroutable, filter, limit } = self;
        let (downstream, id, none) = if unroutable { (None, first, second) } else { (first, second, None) };
        let mut filter = Filter::from(filter);
        if none.is_some() || (id.is_some() && filter.id.is_some()) {
            let problem =
                "too many names; write `paced dead show DOWNSTREAM ID` or `paced dead show --unroutable ID`";
            return Err(out::fail(Exit::Usage, problem));
        }
        filter.id = filter.id.or(id);
        Ok((Origin { downstream, unroutable }, filter, limit))
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ReplayArgs {
    #[command(flatten)]
    pub(super) origin: Origin,
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// Maximum number of letters, oldest first [default: all that are there now]
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<u32>,
    /// The highest rate, such as 20/s [default: as fast as the broker takes the jobs]
    #[arg(long)]
    pub(super) rate: Option<Rate>,
    /// Publishes the jobs for this downstream: unroutable messages, with any routing key, and letters of a downstream that
    /// is not in the configuration any more
    #[arg(long, value_name = "DOWNSTREAM")]
    pub(super) to: Option<String>,
    /// Repairs each job: sets a header, such as paced-path=orders/1
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    pub(super) set_header: Vec<(String, String)>,
    /// Repairs each job: removes a header
    #[arg(long, value_name = "NAME")]
    pub(super) unset_header: Vec<String>,
    /// Repairs each job: removes its id, so that it counts as a new job
    #[arg(long)]
    pub(super) new_id: bool,
}

impl ReplayArgs {
    /// Refuses `--to` for dead letters that go back to their own downstream, and requires it where nobody serves that.
    pub(super) fn check(&self, settings: &Settings) -> Result<(), Exit> {
        self.to.iter().try_for_each(|to| parts::downstream(settings, to).map(drop))?;
        let Some(name) = &self.origin.downstream else { return Ok(()) };
        let own = settings.downstreams.contains_key(name);
        if own && self.to.is_some() {
            let problem = "--to is for unroutable messages, and for letters of a downstream that is not in the \
                           configuration any more; write `paced dead replay --unroutable --to DOWNSTREAM`";
            return Err(out::fail(Exit::Usage, problem));
        }
        if !own && self.to.is_none() {
            parts::downstream(settings, name).inspect_err(|_| {
                out::say("paced: --to DOWNSTREAM sends the letters of a removed downstream to another one");
            })?;
        }
        Ok(())
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct PurgeArgs {
    #[command(flatten)]
    pub(super) origin: Origin,
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// Maximum number of letters, oldest first [default: all that are there now]
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<u32>,
    /// Does not ask for a confirmation
    #[arg(long)]
    pub(super) yes: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, _)) if name.len() > 255 => {
            Err("its name is longer than 255 bytes; shorten it".to_owned())
        }
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("no header; write NAME=VALUE".to_owned()),
    }
}
