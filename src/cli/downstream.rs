//! `paced downstream`: what a downstream that no replica serves any more has left in the broker is moved, and deleted.

use std::time::Duration;

use paced::amqp::{DeadLetters, Leftover, Leftovers, Options, Replay, Scan, Tally};
use paced::config::Settings;
use paced::store::{Served, Unserved};
use paced::time::Micros;
use paced::{FileStore, Rate, RedisStore, Store, failpoint};
use serde_json::json;

use super::dead::{Letters, ended, shaper};
use super::exit::Exit;
use super::{Global, Output, confirm, out, parts};
use crate::daemon::MEMORY;
use crate::status::UNSERVED;

/// How long the store may take to be connected to, or to answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Moves the jobs of a downstream that no replica serves any more to another downstream
    Drain(DrainArgs),
    /// Deletes the queues of a downstream that no replica serves any more, if they are empty
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct DrainArgs {
    /// The downstream, which is not in the configuration any more
    downstream: String,
    /// The downstream that gets the jobs [default: only shows what is in the queues]
    #[arg(long, value_name = "DOWNSTREAM")]
    to: Option<String>,
    /// The highest rate, such as 20/s [default: as fast as the broker takes the jobs]
    #[arg(long, requires = "to")]
    rate: Option<Rate>,
}

#[derive(Debug, clap::Args)]
pub(super) struct DeleteArgs {
    /// The downstream, which is not in the configuration any more
    downstream: String,
    /// Does not ask for a confirmation
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(global: &Global, command: Command) -> Result<(), Exit> {
    match command {
        Command::Drain(args) => drain(global, args).await,
        Command::Delete(args) => delete(global, args).await,
    }
}

/// A downstream that no replica serves any more.
struct Orphan<'a> {
    name: &'a str,
    settings: &'a Settings,
    options: Options,
    queues: Leftovers,
    /// The store that replicas share, if they share one.
    store: Option<Box<dyn Store>>,
}

impl<'a> Orphan<'a> {
    async fn open(settings: &'a Settings, name: &'a str) -> Result<Self, Exit> {
        if settings.downstreams.contains_key(name) {
            let problem = format_args!(
                "`{name}` is in the configuration; remove it from the file of each replica, and restart the replicas, \
                 before you move or delete its jobs"
            );
            return Err(out::fail(Exit::Usage, problem));
        }
        let (store, options) = (shared_store(settings)?, parts::amqp(settings)?);
        let queues = Leftovers::open(&options, name).await.map_err(out::failed)?;
        Ok(Self { name, settings, options, queues, store })
    }

    /// The queues that there are: those that hold jobs, and then that of the dead letters.
    async fn left(&self) -> Result<(Vec<Leftover>, Option<Leftover>), Exit> {
        let jobs = self.queues.jobs().await.map_err(out::failed)?;
        Ok((jobs, self.queues.dead().await.map_err(out::failed)?))
    }

    /// Fails where a replica serves the downstream, as far as the store knows. Afterwards the store knows its name.
    async fn check_unserved(&self) -> Result<(), Exit> {
        let recalled = [Unserved { name: self.name.to_owned(), served_at: Micros(0) }];
        if self.store.is_none() || self.is_listed(&recalled).await? {
            return Ok(());
        }
        let (name, seconds) = (self.name, UNSERVED.as_secs());
        let problem = format_args!(
            "a replica has served `{name}` in the last {seconds} s; remove it from its file, restart it, and try again"
        );
        Err(out::fail(Exit::Failed, problem))
    }

    /// Whether the store lists it among those that nobody serves; it adds those that are `recalled` before.
    async fn is_listed(&self, recalled: &[Unserved]) -> Result<bool, Exit> {
        let Some(store) = &self.store else { return Ok(false) };
        let unserved_for = failpoint::interval(UNSERVED);
        let call = Served { prefix: &self.options.prefix, recalled, unserved_for, ..Served::default() };
        let reply = store.served(call).await.map_err(out::failed)?;
        Ok(reply.unserved.iter().any(|unserved| unserved.name == self.name))
    }

    /// Has the store forget the name. Returns how many of its jobs are parked, about.
    async fn forget(&self) -> Result<i64, Exit> {
        let Some(store) = &self.store else { return Ok(0) };
        let call = Served { prefix: &self.options.prefix, forgotten: Some(self.name), ..Served::default() };
        store.served(call).await.map_err(out::failed)?;
        let parked = store.note_parked(self.name, 0).await.map_err(out::failed)?;
        // No other call follows, so the store can be closed.
        match tokio::time::timeout(PATIENCE, store.finish()).await {
            Ok(finished) => finished.map_err(out::failed)?,
            Err(_) => {
                let problem = "the store was not closed in time, so it may still have the name of the downstream; check its \
                               disk, and try again";
                return Err(out::fail(Exit::Unavailable, problem));
            }
        }
        Ok(parked)
    }

    /// The error for a name that is known nowhere.
    fn unknown(&self) -> Exit {
        let name = self.name;
        let exit = parts::downstream(self.settings, name).map(drop).err().unwrap_or(Exit::Usage);
        out::say(format_args!("paced: the broker has no queue of this name either"));
        exit
    }
}

/// The store that the settings name; `None` for one in the memory of each replica.
fn shared_store(settings: &Settings) -> Result<Option<Box<dyn Store>>, Exit> {
    let url = settings.store.url.expose();
    if url == MEMORY {
        return Ok(None);
    }
    if let Some(file) = &settings.store.file {
        let store = FileStore::open(file).map_err(out::failed)?;
        return Ok(Some(Box::new(store)));
    }
    let options = settings.store.redis_options().map_err(out::failed)?.with_timeouts(PATIENCE, PATIENCE);
    let store = RedisStore::open(url, options).map_err(out::failed)?;
    Ok(Some(Box::new(store)))
}

/// Fails where somebody consumes one of these queues, or holds messages of it.
fn check_unheld(queues: &[Leftover]) -> Result<(), Exit> {
    match queues.iter().find(|queue| queue.holders > 0) {
        None => Ok(()),
        Some(Leftover { queue, holders, .. }) => {
            let problem = format_args!(
                "queue {queue} is in use: {holders} consumer(s), or others who hold messages of it; stop these first"
            );
            Err(out::fail(Exit::Failed, problem))
        }
    }
}

async fn drain(global: &Global, DrainArgs { downstream, to, rate }: DrainArgs) -> Result<(), Exit> {
    let settings = parts::load(global)?.settings;
    to.iter().try_for_each(|to| parts::downstream(&settings, to).map(drop))?;
    let pace = rate.map(shaper).transpose()?;
    let orphan = Orphan::open(&settings, &downstream).await?;
    let (jobs, dead) = orphan.left().await?;
    if jobs.is_empty() && dead.is_none() {
        return Err(orphan.unknown());
    }
    let Some(to) = to else { return show(global.output, &downstream, &jobs, dead.as_ref()) };
    orphan.check_unserved().await?;
    check_unheld(&jobs)?;
    orphan.queues.unbind().await.map_err(out::failed)?;
    let replay = Replay { to: Some(to.clone()), pace, ..Replay::default() };
    let mut total = Tally::default();
    // A queue that did not answer in time was shown as empty, and some may have come before it was unbound.
    for queue in jobs {
        let tally = move_jobs(&orphan, queue.queue, &replay).await?;
        total.found += tally.found;
        total.seen += tally.seen;
        total.done += tally.done;
        total.failed += tally.failed;
        total.error = total.error.take().or(tally.error);
        total.stopped = tally.stopped;
        if total.stopped {
            break;
        }
    }
    orphan.queues.close().await;
    let Tally { done, failed, .. } = total;
    match global.output {
        Output::Json => {
            out::json(&json!({ "downstream": downstream, "to": to, "moved": done, "failed": failed }))?;
        }
        Output::Human => out::line(format_args!("moved {done} job(s) of {downstream} to {to}"))?,
    }
    if let Some(letters) = dead.filter(|dead| dead.ready > 0) {
        let letters = letters.ready;
        out::say(format_args!(
            "paced: {letters} dead letter(s) stay: `paced dead list {downstream}` shows them, and `paced dead replay \
             {downstream} --to {to}` sends them there"
        ));
    }
    if let Some(error) = &total.error {
        let why = format_args!("{failed} could not be published and stay: {error}");
        return Err(out::fail(Exit::Failed, why));
    }
    ended(&total)
}

/// Moves the jobs that are in this queue.
async fn move_jobs(orphan: &Orphan<'_>, queue: String, replay: &Replay) -> Result<Tally, Exit> {
    let queue = DeadLetters::open_jobs(&orphan.options, queue).await.map_err(out::failed)?;
    let letters = Letters { queue, noun: "job", downstream: Some(orphan.name.to_owned()) };
    let scan = Scan::default();
    let work = async |progress: &mut dyn FnMut(&Tally)| letters.queue.replay(&scan, replay, progress).await;
    let tally = letters.follow(&scan, "moved", work).await?;
    letters.queue.close().await;
    Ok(tally)
}

/// Shows what a downstream has left.
fn show(output: Output, name: &str, jobs: &[Leftover], dead: Option<&Leftover>) -> Result<(), Exit> {
    let all = jobs.iter().chain(dead);
    if output == Output::Json {
        let queue =
            |left: &Leftover| json!({ "queue": left.queue, "ready": left.ready, "holders": left.holders });
        return out::json(&json!({ "downstream": name, "queues": all.map(queue).collect::<Vec<_>>() }));
    }
    let row = |left: &Leftover| [left.queue.clone(), left.ready.to_string(), left.holders.to_string()];
    out::table(["QUEUE", "READY", "HOLDERS"], &(1..3), &all.map(row).collect::<Vec<_>>())?;
    out::say(format_args!("paced: `paced downstream drain {name} --to DOWNSTREAM` moves the jobs"));
    Ok(())
}

async fn delete(global: &Global, DeleteArgs { downstream, yes }: DeleteArgs) -> Result<(), Exit> {
    if !yes && !confirm::is_possible() {
        return Err(out::fail(Exit::Usage, "this deletes queues for good; add --yes to confirm it"));
    }
    let settings = parts::load(global)?.settings;
    let orphan = Orphan::open(&settings, &downstream).await?;
    let (mut left, dead) = orphan.left().await?;
    left.extend(dead);
    if left.is_empty() && !orphan.is_listed(&[]).await? {
        return Err(orphan.unknown());
    }
    if !left.is_empty() {
        orphan.check_unserved().await?;
        // Nothing is unbound if a queue holds messages or is in use already.
        check_empty(&left)?;
    }
    let names: Vec<&str> = left.iter().map(|left| left.queue.as_str()).collect();
    if !yes && !names.is_empty() {
        confirm::confirm(format_args!("Delete {}?", names.join(", ")))?;
        // The user may have answered late, so all is checked again.
        let (mut left, dead) = orphan.left().await?;
        left.extend(dead);
        orphan.check_unserved().await?;
        check_empty(&left)?;
    }
    orphan.queues.unbind().await.map_err(out::failed)?;
    let kept = orphan.queues.delete().await.map_err(out::failed)?;
    if let Err(exit) = check_empty(&kept) {
        let prefix = &orphan.options.prefix;
        out::say(format_args!("paced: its bindings are removed: jobs for it go to {prefix}.unroutable"));
        return Err(exit);
    }
    let parked = orphan.forget().await?;
    match global.output {
        Output::Json => out::json(&json!({ "downstream": downstream, "deleted": names }))?,
        Output::Human if names.is_empty() => {
            out::line(format_args!("{downstream}: it has no queue, and its name is removed"))?;
        }
        Output::Human => out::line(format_args!("{downstream}: deleted {}", names.join(", ")))?,
    }
    if parked > 0 {
        let prefix = &orphan.options.prefix;
        out::say(format_args!(
            "paced: about {parked} job(s) of it are parked, and come to {prefix}.unroutable when their time is over"
        ));
    }
    orphan.queues.close().await;
    Ok(())
}

/// Fails where something is in one of these queues, or may come back to it.
fn check_empty(queues: &[Leftover]) -> Result<(), Exit> {
    check_unheld(queues)?;
    let full: Vec<String> = queues
        .iter()
        .filter(|left| left.ready > 0)
        .map(|left| format!("{} message(s) in {}", left.ready, left.queue))
        .collect();
    if full.is_empty() {
        return Ok(());
    }
    let problem = format_args!(
        "nothing is deleted, since there are {}; `paced downstream drain` moves jobs, and `paced dead` replays or purges \
         dead letters",
        full.join(" and ")
    );
    Err(out::fail(Exit::Failed, problem))
}
