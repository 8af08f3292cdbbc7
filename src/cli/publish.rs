//! `paced publish`: jobs into a downstream's queue, each confirmed by the broker.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use indicatif::ProgressBar;
use paced::amqp::{self, Amqp, PublishError, Publisher};
use paced::failpoint;
use paced::job::{Message, Rules, Value, decode, ndjson};
use paced::pipe::{Line, Lines, MAX_LINE, Notice, SkipError};
use tokio::io::AsyncBufRead;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::exit::Exit;
use super::input;
use super::{Global, Output, out, parts};
use crate::daemon;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream, as in the configuration
    downstream: String,
    /// Jobs, one JSON object per line; `-` is stdin [default: stdin, unless --count or --body is
    /// given]
    file: Option<PathBuf>,
    /// Publishes so many equal jobs [default: 1, with --body]
    #[arg(long, conflicts_with = "file", value_name = "N")]
    count: Option<u64>,
    /// Body of each job
    #[arg(long, conflicts_with = "file", value_name = "TEXT")]
    body: Option<String>,
    /// Lane of each job that names none (no effect yet)
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
}

/// The most confirms that are awaited at once.
const IN_FLIGHT: usize = 1000;
/// The attempts to publish a job before it counts as failed, and the wait after each.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(250);

/// A job is not published again after this time: a broker that restarts is back by then.
const MAX_RETRY_TIME: Duration = Duration::from_secs(30);
const CLOSING: Duration = Duration::from_secs(5);

/// The results of publishing.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    published: u64,
    failed: u64,
    bad_lines: u64,
    /// Whether the broker was lost for good, so that not all of the input was read.
    stopped: bool,
}

/// The id of a job that failed, and the error; `None` where it was in flight when the broker was lost.
type Failure = (String, Option<PublishError>);

pub(super) async fn run(global: &Global, args: Args) -> Result<(), Exit> {
    let settings = parts::load(global)?.settings;
    let downstream = parts::downstream(&settings, &args.downstream)?;
    let no_input = args.file.is_none() && args.count.is_none() && args.body.is_none();
    if no_input && std::io::stdin().is_terminal() {
        return Err(out::fail(Exit::Usage, "nothing to publish; give a FILE, --body TEXT or --count N"));
    }
    let rules = daemon::rules(&settings, downstream);
    let mut options = parts::amqp(&settings)?;
    options.downstreams.retain(|downstream| downstream.name == args.downstream);
    let lines = if args.count.is_some() || args.body.is_some() {
        None
    } else {
        Some(input::open(args.file.as_deref()).await?)
    };
    let amqp = Amqp::publishing(options.clone()).await.map_err(out::failed)?;
    let (exchange, key) = options.target(&args.downstream).map_err(|error| out::fail(Exit::Failed, error))?;
    let target = Target { publisher: amqp.publisher(), exchange, key };
    let bar = bar(args.count);
    if args.lane.is_some() {
        out::say("paced: --lane has no effect yet: one tenant's backlog stands before the jobs of others");
    }
    let tally = match lines {
        Some(lines) => target.publish_lines(lines, &args, &rules, &bar).await,
        None => target.publish_equal(&args, &rules, &bar).await?,
    };
    bar.finish_and_clear();
    amqp.shutdown(CLOSING).await;
    report(global.output, &args.downstream, tally)?;
    match tally {
        Tally { stopped: true, .. } => Err(Exit::Unavailable),
        Tally { failed: 0, bad_lines: 0, .. } => Ok(()),
        _ => Err(Exit::Failed),
    }
}

struct Target {
    publisher: Publisher,
    exchange: String,
    key: String,
}

impl Target {
    /// Publishes each line that is a job, and reports each that is none.
    async fn publish_lines(
        &self,
        lines: Box<dyn AsyncBufRead + Send + Unpin>,
        args: &Args,
        rules: &Rules,
        bar: &ProgressBar,
    ) -> Tally {
        let mut bad_lines = 0;
        let lines = stream::unfold(Some((Lines::new(lines, MAX_LINE), 0_u64)), async |state| {
            let (mut lines, number) = state?;
            match lines.next().await {
                Ok(line) => Some((Ok((number + 1, line?)), Some((lines, number + 1)))),
                Err(error) => Some((Err(Notice::Unreadable { line: number, error }), None)),
            }
        });
        let messages = lines.filter_map(|line| {
            let message = match line {
                Ok((number, Line::Whole(text))) => match text.trim_ascii_end() {
                    [] => return std::future::ready(None),
                    text => message(text, args, rules).map_err(|wrong| format!("line {number}: {wrong}")),
                },
                Ok((number, Line::TooLong)) => Err(format!("line {number}: {}", SkipError::TooLong)),
                Err(unreadable) => Err(unreadable.to_string()),
            };
            let message = message.map_err(|wrong| {
                bar.suspend(|| out::say(format_args!("paced: {wrong}")));
                bad_lines += 1;
            });
            std::future::ready(message.ok())
        });
        let tally = self.publish_all(messages, bar).await;
        Tally { bad_lines, ..tally }
    }

    /// Publishes `--count` jobs with one `--body`.
    async fn publish_equal(&self, args: &Args, rules: &Rules, bar: &ProgressBar) -> Result<Tally, Exit> {
        let body = args.body.clone().unwrap_or_default();
        let job = with_lane(Message { content: bytes::Bytes::from(body).into(), ..Message::default() }, args);
        decode(&job, rules).map_err(|rejection| out::fail(Exit::Usage, rejection))?;
        let jobs = stream::iter(0..args.count.unwrap_or(1)).map(|_| with_id(job.clone()));
        Ok(self.publish_all(jobs, bar).await)
    }

    /// Publishes until the end, or until the broker is lost for good.
    async fn publish_all(&self, jobs: impl stream::Stream<Item = Message>, bar: &ProgressBar) -> Tally {
        let lost = CancellationToken::new();
        let jobs = jobs.take_until(lost.clone().cancelled_owned());
        let outcomes = jobs.map(|job| self.publish(job, &lost)).buffer_unordered(IN_FLIGHT);
        let mut outcomes = std::pin::pin!(outcomes);
        let mut tally = Tally::default();
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                Ok(()) => tally.published += 1,
                Err((id, error)) => {
                    tally.failed += 1;
                    match error {
                        Some(error) if is_lost(&error) => {
                            if !std::mem::replace(&mut tally.stopped, true) {
                                bar.suspend(|| {
                                    out::say(format_args!("paced: {error}; gave up on job {id} and the rest"))
                                });
                            }
                            lost.cancel();
                        }
                        Some(error) => bar.suspend(|| out::say(format_args!("paced: job {id}: {error}"))),
                        None => {}
                    }
                }
            }
            bar.inc(1);
        }
        tally
    }

    /// Publishes a job until it is confirmed, or the broker is lost.
    async fn publish(&self, job: Message, lost: &CancellationToken) -> Result<(), Failure> {
        let id = job.message_id.clone().unwrap_or_default();
        match lost.run_until_cancelled(self.attempts(job)).await {
            Some(outcome) => outcome.map_err(|error| (id, Some(error))),
            None => Err((id, None)),
        }
    }

    /// Publishes a job until it is confirmed. Where a confirm was lost there may be two copies; both have the same id.
    async fn attempts(&self, job: Message) -> Result<(), PublishError> {
        let (properties, body) = (amqp::properties(&job), job.content.body);
        let begun = Instant::now();
        let mut attempt = 1;
        loop {
            let outcome = self.publisher.publish(&self.exchange, &self.key, properties.clone(), &body).await;
            match outcome {
                Err(error)
                    if error.is_retryable()
                        && attempt < ATTEMPTS
                        && begun.elapsed() < failpoint::limit(MAX_RETRY_TIME) =>
                {
                    tokio::time::sleep(PAUSE * 2_u32.pow(attempt)).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }
}

/// True where each further job would only wait as long in vain.
const fn is_lost(error: &PublishError) -> bool {
    matches!(error, PublishError::Unavailable | PublishError::TimedOut { .. } | PublishError::Lost(_))
}

/// The job on a line. Jobs that the daemon would refuse are refused here already.
fn message(line: &[u8], args: &Args, rules: &Rules) -> Result<Message, String> {
    let line = ndjson::parse(line).map_err(|error| error.to_string())?;
    if let Some(other) = line.downstream.filter(|name| *name != args.downstream) {
        return Err(format!("is for `{other}`; publish it there: paced publish {other}"));
    }
    let message = with_id(with_lane(line.message, args));
    decode(&message, rules).map_err(|rejection| rejection.to_string())?;
    Ok(message)
}

fn with_lane(mut message: Message, args: &Args) -> Message {
    const LANE: &str = "paced-lane";
    if let Some(lane) = &args.lane
        && !message.headers.iter().any(|(name, _)| name == LANE)
    {
        message.headers.push((LANE.to_owned(), Value::Text(lane.clone().into())));
    }
    message
}

/// Adds an id that survives redelivery, so that the API can detect copies.
fn with_id(message: Message) -> Message {
    let id = message.message_id.unwrap_or_else(|| Uuid::now_v7().to_string());
    Message { message_id: Some(id), ..message }
}

fn bar(count: Option<u64>) -> ProgressBar {
    let (bar, template) = match count {
        Some(count) => (ProgressBar::new(count), "{bar:40} {pos}/{len} published, {per_sec}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {pos} published, {per_sec}"),
    };
    bar.with_style(out::bar_style(template))
}

fn report(output: Output, downstream: &str, tally: Tally) -> Result<(), Exit> {
    let Tally { published, failed, bad_lines, .. } = tally;
    match output {
        Output::Json => out::json(&serde_json::json!({
            "downstream": downstream, "published": published, "failed": failed, "bad_lines": bad_lines
        })),
        Output::Human => {
            if failed + bad_lines > 0 {
                out::say(format_args!(
                    "paced: not confirmed: {failed} job(s); skipped: {bad_lines} bad line(s)"
                ));
            }
            out::line(format_args!("published {published} job(s) to {downstream}"))
        }
    }
}
