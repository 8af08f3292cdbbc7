//! `paced dead`: dead letters and unroutable messages, listed without harm, replayed and removed.

use indicatif::ProgressBar;
use paced::amqp::{DeadLetters, Edits, Error, Letter, Replay, Scan, Tally};
use paced::config::{Downstream, Settings};
use paced::time::wall_now;
use paced::{Precision, Rate, Shaper};

use super::exit::Exit;
use super::interrupt::interruptible;
use super::{Global, Output, confirm, out, parts};
pub(super) use args::Command;
use args::{ListArgs, Origin, PurgeArgs, ReplayArgs, ShowArgs};

mod args;
mod list;
mod show;

pub(super) async fn run(global: &Global, command: Command) -> Result<(), Exit> {
    match command {
        Command::List(args) => list(global, args).await,
        Command::Show(args) => show(global, args).await,
        Command::Replay(args) => replay(global, args).await,
        Command::Purge(args) => purge(global, args).await,
    }
}

/// The letters of one queue, and their names in messages.
pub(super) struct Letters {
    pub(super) queue: DeadLetters,
    /// What one of them is.
    pub(super) noun: &'static str,
    /// The downstream that they belong to; `None` for unroutable messages.
    pub(super) downstream: Option<String>,
}

impl Letters {
    /// Opens the letters, with their bodies if these are wanted.
    async fn open(settings: &Settings, origin: Origin, with_bodies: bool) -> Result<Self, Exit> {
        let downstream = origin.downstream();
        let mut options = parts::amqp(settings)?;
        // One that is not served any more may have left letters.
        let orphan = downstream.as_deref().filter(|name| !settings.downstreams.contains_key(*name));
        options.downstreams.extend(orphan.map(parts::orphan));
        let noun = if downstream.is_some() { "dead letter" } else { "unroutable message" };
        let queue = match &downstream {
            name if !with_bodies => DeadLetters::open_heads(&options, name.as_deref()).await,
            Some(downstream) => DeadLetters::open(&options, downstream).await,
            None => DeadLetters::open_unroutable(&options).await,
        };
        let queue = queue.map_err(out::failed)?;
        if let Some(orphan) = orphan
            && matches!(queue.count().await, Err(Error::NotFound { .. }))
        {
            parts::downstream(settings, orphan)?;
        }
        // A queue that paced declared has a limit that nobody reaches, but another program may have declared it.
        if let Some(limit) = queue.low_delivery_limit().await {
            out::say(format_args!(
                "paced: RabbitMQ drops {noun}s here that are listed more than {limit} times, unless a policy says \
                 otherwise; docs/operations.md says how to raise that"
            ));
        }
        Ok(Self { queue, noun, downstream })
    }

    /// Returns the name of this number of them, such as `dead letters of billing`.
    fn title(&self, count: u32) -> String {
        let whose = self.downstream.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
        format!("{}{}{whose}", self.noun, if count == 1 { "" } else { "s" })
    }

    /// Prints each letter that matches as it comes, by `print`, so that one at a time is in memory. What cannot be printed
    /// ends the list.
    async fn list(
        &self,
        scan: &Scan,
        done: &str,
        mut print: impl FnMut(&Letter, u64) -> Result<(), Exit>,
    ) -> Result<Tally, Exit> {
        let (bar, mut printed) = (bar(), Ok(()));
        let each = |letter: Letter, bytes| {
            if printed.is_ok() {
                printed = bar.suspend(|| print(&letter, bytes));
            }
            if printed.is_err() {
                scan.stop.cancel();
            }
        };
        let listing = self.queue.list_as(scan, each, |tally| draw(&bar, tally, done));
        let listed = interruptible(&scan.stop, listing).await;
        bar.finish_and_clear();
        let (_, tally) = listed?.map_err(out::failed)?;
        printed.map(|()| tally)
    }

    /// Waits for a scan that removes letters. An error is printed together with how many were removed before it.
    pub(super) async fn follow(
        &self,
        scan: &Scan,
        done: &str,
        work: impl AsyncFnOnce(&mut dyn FnMut(&Tally)) -> Result<Tally, Error>,
    ) -> Result<Tally, Exit> {
        let (bar, mut removed) = (bar(), 0);
        let mut progress = |tally: &Tally| {
            draw(&bar, tally, done);
            removed = tally.done;
        };
        let outcome = interruptible(&scan.stop, work(&mut progress)).await;
        bar.finish_and_clear();
        let failed = match outcome {
            Ok(Ok(tally)) => return Ok(tally),
            Ok(Err(error)) => out::failed(error),
            Err(exit) => exit,
        };
        if removed > 0 {
            let noun = self.noun;
            out::say(format_args!("paced: stopped after {removed} {noun}(s); the others stay"));
        }
        Err(failed)
    }
}

/// A bar on stderr, which is hidden where that is no terminal.
fn bar() -> ProgressBar {
    ProgressBar::new(0).with_style(out::bar_style("{bar:40} {pos}/{len} examined, {msg}"))
}

fn draw(bar: &ProgressBar, tally: &Tally, done: &str) {
    bar.set_length(tally.found.into());
    bar.set_position(tally.seen.into());
    bar.set_message(format!("{} {done}", tally.done));
}

/// The end of a scan: that of the queue, unless it was stopped before.
pub(super) fn ended(&Tally { stopped, seen, found, .. }: &Tally) -> Result<(), Exit> {
    if !stopped {
        return Ok(());
    }
    Err(out::fail(Exit::Failed, format_args!("stopped; {seen} of {found} examined")))
}

async fn list(global: &Global, ListArgs { origin, filter, limit }: ListArgs) -> Result<(), Exit> {
    let letters = Letters::open(&parts::load(global)?.settings, origin, false).await?;
    let scan = Scan { filter: filter.into(), limit: Some(limit), ..Scan::default() };
    let mut table = list::Table::new(letters.downstream.is_none());
    let print = |letter: &Letter, bytes| match global.output {
        Output::Json => out::json(&list::json(letter, bytes)),
        Output::Human => table.row(letter, bytes),
    };
    let tally = letters.list(&scan, "listed", print).await?;
    match global.output {
        Output::Json => {}
        Output::Human if tally.done == 0 => {
            let matching = if scan.filter.is_empty() { "" } else { " match" };
            out::line(format_args!("no {}{matching}", letters.title(0)))?;
        }
        Output::Human => list::rest(&tally)?,
    }
    letters.queue.close().await;
    ended(&tally)
}

async fn show(global: &Global, args: ShowArgs) -> Result<(), Exit> {
    let (origin, filter, limit) = args.resolve()?;
    let settings = parts::load(global)?.settings;
    let letters = Letters::open(&settings, origin, true).await?;
    let scan = Scan { filter, limit: Some(limit), ..Scan::default() };
    let known = letters.downstream.as_ref().and_then(|name| settings.downstreams.get(name));
    let costs = known.map(Downstream::cost_rules).unwrap_or_default();
    let print = |letter: &Letter, _| match global.output {
        Output::Json => out::json(&show::json(letter, letters.downstream.as_deref(), &costs)),
        Output::Human => out::line(show::text(letter)),
    };
    let tally = letters.list(&scan, "found", print).await?;
    let title = letters.title(tally.found);
    letters.queue.close().await;
    if tally.done == 0 && !tally.stopped {
        let found = tally.found;
        return Err(out::fail(Exit::Failed, format_args!("none of {found} {title} matches")));
    }
    ended(&tally)
}

async fn replay(global: &Global, args: ReplayArgs) -> Result<(), Exit> {
    let settings = parts::load(global)?.settings;
    args.check(&settings)?;
    let pace = args.rate.map(shaper).transpose()?;
    let letters = Letters::open(&settings, args.origin, true).await?;
    let scan = Scan { filter: args.filter.into(), limit: args.limit, ..Scan::default() };
    let edits = Edits { set: args.set_header, unset: args.unset_header, new_id: args.new_id };
    let is_addressed = args.to.is_some();
    let replay = Replay { edits, to: args.to, pace };
    let work = async |progress: &mut dyn FnMut(&Tally)| letters.queue.replay(&scan, &replay, progress).await;
    let tally = letters.follow(&scan, "replayed", work).await?;
    letters.queue.close().await;
    let Tally { found, done, kept, failed, .. } = tally;
    match global.output {
        Output::Json => out::json(&serde_json::json!({
            "found": found, "replayed": done, "kept": kept, "failed": failed
        }))?,
        Output::Human => out::line(format_args!("replayed {done} of {found} {}(s)", letters.noun))?,
    }
    if let Some(error) = &tally.error {
        let hint = match letters.downstream {
            None if !is_addressed => "; --to DOWNSTREAM sends them to an existing downstream",
            _ => "",
        };
        let why = format_args!("{failed} could not be published and stay: {error}{hint}");
        return Err(out::fail(Exit::Failed, why));
    }
    ended(&tally)
}

/// The pace of a replay, for this process alone.
pub(super) fn shaper(rate: Rate) -> Result<Shaper, Exit> {
    // A slow rate's next slot may lie far ahead.
    const YEAR: std::time::Duration = std::time::Duration::from_secs(366 * 86_400);
    let shaper = Shaper::builder("replay", rate).max_wait(YEAR).precision(Precision::Coarse).build();
    shaper.map_err(|error| out::fail(Exit::Usage, format_args!("--rate: {error}")))
}

async fn purge(global: &Global, args: PurgeArgs) -> Result<(), Exit> {
    if !args.yes && !confirm::is_possible() {
        return Err(out::fail(Exit::Usage, "a purge removes letters for good; add --yes to confirm it"));
    }
    let letters = Letters::open(&parts::load(global)?.settings, args.origin, false).await?;
    let mut scan = Scan { filter: args.filter.into(), limit: args.limit, ..Scan::default() };
    if !args.yes && !agreed(&letters, &mut scan).await? {
        letters.queue.close().await;
        return Ok(());
    }
    let work = async |progress: &mut dyn FnMut(&Tally)| letters.queue.purge(&scan, progress).await;
    let tally = letters.follow(&scan, "purged", work).await?;
    let Tally { found, done, kept, .. } = tally;
    match global.output {
        Output::Json => out::json(&serde_json::json!({ "found": found, "purged": done, "kept": kept }))?,
        Output::Human => out::line(format_args!("purged {done} of {found} {}(s)", letters.noun))?,
    }
    letters.queue.close().await;
    ended(&tally)
}

/// Asks whether to remove the letters that match, and bounds the scan to these; false where none match.
async fn agreed(letters: &Letters, scan: &mut Scan) -> Result<bool, Exit> {
    let counted_at = wall_now();
    let (found, matching) = if scan.filter.is_empty() {
        let found = letters.queue.count().await.map_err(out::failed)?;
        (found, found.min(scan.limit.unwrap_or(found)))
    } else {
        let bar = bar();
        let tally = letters.queue.count_matching(scan, |tally| draw(&bar, tally, "match")).await;
        bar.finish_and_clear();
        let tally = tally.map_err(out::failed)?;
        (tally.found, tally.done)
    };
    if matching == 0 {
        let matching = if scan.filter.is_empty() { "" } else { " that match" };
        out::say(format_args!("paced: there are no {}{matching} to purge", letters.title(0)));
        return Ok(false);
    }
    let of_all = if matching == found { String::new() } else { format!(" of {found}") };
    confirm::confirm(format_args!("Purge {matching}{of_all} {}?", letters.title(found)))?;
    (scan.first, scan.limit, scan.died_until) = (Some(found), Some(matching), Some(counted_at));
    Ok(true)
}
