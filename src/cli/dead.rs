//! `paced dead`: dead letters, listed without harm and replayed.

use paced::amqp::{DeadLetters, Edits, Error, Filter, Letter, Replay};

use super::exit::Exit;
use super::{Global, Output, out, parts};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Lists dead letters; all stay where they are
    List(ListArgs),
    /// Publishes dead letters as jobs again, and removes each once its copy is confirmed
    Replay(ReplayArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// The downstream, as in the configuration
    downstream: String,
    /// At most so many, oldest first
    #[arg(long, default_value_t = 100, value_name = "N")]
    limit: u32,
}

#[derive(Debug, clap::Args)]
pub(super) struct ReplayArgs {
    /// The downstream, as in the configuration
    downstream: String,
    /// Only those with this reason, such as status
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only the job with this id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// At most so many, oldest first [default: all that lie there now]
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Repairs each job: sets a header, such as paced-path=orders/1
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    set_header: Vec<(String, String)>,
    /// Repairs each job: takes a header away
    #[arg(long, value_name = "NAME")]
    unset_header: Vec<String>,
    /// Repairs each job: drops its id, so that it counts as a new one
    #[arg(long)]
    new_id: bool,
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

pub(super) async fn run(global: &Global, command: Command) -> Exit {
    let outcome = match command {
        Command::List(args) => list(global, &args).await,
        Command::Replay(args) => replay(global, args).await,
    };
    match outcome {
        Ok(exit) | Err(exit) => exit,
    }
}

async fn open(global: &Global, downstream: &str) -> Result<DeadLetters, Exit> {
    let settings = parts::load(global)?.settings;
    parts::downstream(&settings, downstream)?;
    DeadLetters::open(&parts::amqp(&settings)?, downstream).await.map_err(failed)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: Error) -> Exit {
    out::say(format_args!("paced: {error}"));
    Exit::from(&error)
}

async fn list(global: &Global, args: &ListArgs) -> Result<Exit, Exit> {
    let dead = open(global, &args.downstream).await?;
    let count = dead.count().await.map_err(failed)?;
    let letters = dead.list(args.limit).await.map_err(failed)?;
    dead.close().await;
    match global.output {
        Output::Json => letters.iter().try_for_each(|letter| out::json(&json(letter)))?,
        Output::Human => table(&args.downstream, count, &letters)?,
    }
    Ok(Exit::Ok)
}

fn json(letter: &Letter) -> serde_json::Value {
    let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<i64>().ok());
    serde_json::json!({
        "id": letter.message.message_id,
        "reason": letter.reason,
        "detail": letter.detail,
        "status": number(&letter.status),
        "attempts": number(&letter.attempts),
        "routing_key": letter.routing_key,
        "dead_at": number(&letter.dead_at),
        "bytes": letter.message.body.len(),
    })
}

fn table(downstream: &str, count: u32, letters: &[Letter]) -> Result<(), Exit> {
    if letters.is_empty() {
        return out::line(format_args!("no dead letters of {downstream}"));
    }
    out::line(format_args!(
        "{:<20}  {:<18}  {:<36}  {:>8}  DETAIL",
        "DEAD AT (UTC)", "REASON", "ID", "ATTEMPTS"
    ))?;
    for letter in letters {
        let text = |field: &Option<String>| out::printable(field.as_deref().unwrap_or("-"));
        out::line(format_args!(
            "{:<20}  {:<18}  {:<36}  {:>8}  {}",
            when(letter.dead_at.as_deref()),
            text(&letter.reason),
            text(&letter.message.message_id),
            text(&letter.attempts),
            text(&letter.detail),
        ))?;
    }
    if letters.len() < count as usize {
        out::line(format_args!("{} of {count}; --limit shows more", letters.len()))?;
    }
    Ok(())
}

fn when(millis: Option<&str>) -> String {
    millis.and_then(|text| text.parse().ok()).map_or_else(|| "-".to_owned(), out::instant)
}

async fn replay(global: &Global, args: ReplayArgs) -> Result<Exit, Exit> {
    let dead = open(global, &args.downstream).await?;
    let filter = Filter { reason: args.reason, id: args.id };
    let edits = Edits { set: args.set_header, unset: args.unset_header, new_id: args.new_id };
    let bar = indicatif::ProgressBar::new(0);
    let outcome = dead
        .replay(&filter, args.limit, &edits, |so_far| {
            bar.set_length(so_far.found.into());
            bar.set_position(so_far.seen.into());
        })
        .await;
    bar.finish_and_clear();
    dead.close().await;
    let replay = outcome.map_err(self::failed)?;
    let Replay { found, replayed, kept, failed, .. } = replay;
    let report = serde_json::json!({ "found": found, "replayed": replayed, "kept": kept, "failed": failed });
    match global.output {
        Output::Json => out::json(&report)?,
        Output::Human => out::line(format_args!("replayed {replayed} of {found} dead letter(s)"))?,
    }
    if let Some(error) = replay.error {
        out::say(format_args!("paced: {} could not be published and stay: {error}", failed));
        return Err(Exit::Failed);
    }
    Ok(Exit::Ok)
}
