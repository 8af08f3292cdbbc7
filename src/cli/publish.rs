//! `paced publish`: jobs into a downstream's queue, each confirmed by the broker.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use indicatif::ProgressBar;
use paced::amqp::{self, Amqp, PublishError, Publisher};
use paced::failpoint;
use paced::job::{LanePart, Message, Rules, Value, decode, ndjson};
use paced::pipe::{self, Format, Line, Lines, MAX_LINE, Notice, Records, SkipError};
use tokio::io::AsyncBufRead;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::bounded::Bounded;
use super::exit::Exit;
use super::input;
use super::template::{HeaderArg, TableArgs, add_headers, check_headers, header, say_taken};
use super::{Global, Output, out, parts};
use crate::daemon;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The downstream, as in the configuration
    downstream: String,
    /// Jobs, one JSON object per line, or with --csv one row; `-` is stdin [default: stdin, unless --count or --body is
    /// given]
    file: Option<PathBuf>,
    /// The number of equal jobs [default: 1, with --body]
    #[arg(long, conflicts_with = "file", value_name = "N")]
    count: Option<u64>,
    /// Body of each job
    #[arg(long, conflicts_with = "file", value_name = "TEXT")]
    body: Option<String>,
    #[command(flatten)]
    table: TableArgs,
    /// Header of every job that has no header of this name, which http.allow_headers must allow; repeat the option for several
    /// headers. With --csv the value may have cells in it: 'x-tenant:{tenant}'
    #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
    header: Vec<HeaderArg>,
    /// Lane (paced-lane) of each job that names no lane, if lanes.by reads it
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
}

/// The most confirms that are awaited at once.
const IN_FLIGHT: usize = 1000;
/// The attempts to publish a job before it counts as failed.
const ATTEMPTS: u32 = 6;
/// Half of the wait after the first attempt. Each further wait is twice as long.
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
    if args.table.is_csv() && (args.count.is_some() || args.body.is_some()) {
        let problem = "--csv makes jobs of the rows of FILE or stdin; leave it out, or --count and --body";
        return Err(out::fail(Exit::Usage, problem));
    }
    let rules = daemon::rules(&settings, downstream);
    check_headers(&args.header, |_| false, |name| rules.allows_header(name))?;
    let mut options = parts::amqp(&settings)?;
    options.downstreams.retain(|downstream| downstream.name == args.downstream);
    let jobs = match args.count.is_some() || args.body.is_some() {
        true => None,
        false => Some(Jobs::open(&args).await?),
    };
    let amqp = Amqp::publishing(options.clone()).await.map_err(out::failed)?;
    let (exchange, key) = options.target(&args.downstream).map_err(|error| out::fail(Exit::Failed, error))?;
    let target = Target { publisher: amqp.publisher(), exchange, key, is_verbose: global.verbose > 0 };
    let bar = bar(args.count);
    if args.lane.is_some() && !rules.lanes.parts.contains(&LanePart::Lane) {
        out::say("paced: --lane has no effect, since no part of lanes.by is header:paced-lane");
    }
    let tally = match jobs {
        Some(jobs) => target.publish_lines(jobs, &args, &rules, &bar).await,
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
    /// Whether each failure is reported, and not only the first ones.
    is_verbose: bool,
}

impl Target {
    /// Publishes each line that is a job, and reports the others.
    async fn publish_lines(&self, jobs: Jobs, args: &Args, rules: &Rules, bar: &ProgressBar) -> Tally {
        let mut bad_lines = Bounded::new("bad lines", self.is_verbose);
        let found = stream::unfold(Some(jobs), async |state| {
            let mut jobs = state?;
            match jobs.next(args).await {
                Ok(job) => Some((Ok(job?), Some(jobs))),
                Err(error) => Some((Err(Notice::Unreadable { line: jobs.line, error }), None)),
            }
        });
        let plain = args.table.format(&args.header).1;
        let messages = found.filter_map(|job| {
            let message = match job {
                Ok((number, job)) => job
                    .and_then(|message| checked(message, &plain, args, rules))
                    .map_err(|wrong| format!("line {number}: {wrong}")),
                Err(unreadable) => Err(unreadable.to_string()),
            };
            let message = message.map_err(|wrong| {
                if let Some(line) = bad_lines.next(wrong) {
                    bar.suspend(|| out::say(format_args!("paced: {line}")));
                }
            });
            std::future::ready(message.ok())
        });
        let tally = self.publish_all(messages, bar).await;
        Tally { bad_lines: bad_lines.count(), ..tally }
    }

    /// Publishes `--count` jobs with one `--body`.
    async fn publish_equal(&self, args: &Args, rules: &Rules, bar: &ProgressBar) -> Result<Tally, Exit> {
        let body = args.body.clone().unwrap_or_default();
        let job = Message { content: bytes::Bytes::from(body).into(), ..Message::default() };
        let plain = args.table.format(&args.header).1;
        let job = checked(job, &plain, args, rules).map_err(|wrong| out::fail(Exit::Usage, wrong))?;
        let job = Message { message_id: None, ..job };
        let jobs = stream::iter(0..args.count.unwrap_or(1)).map(|_| with_id(job.clone()));
        Ok(self.publish_all(jobs, bar).await)
    }

    /// Publishes until the end, or until the broker is lost for good.
    async fn publish_all(&self, jobs: impl stream::Stream<Item = Message>, bar: &ProgressBar) -> Tally {
        let lost = CancellationToken::new();
        let jobs = jobs.take_until(lost.clone().cancelled_owned());
        let outcomes = jobs.map(|job| self.publish(job, &lost)).buffer_unordered(IN_FLIGHT);
        let mut outcomes = std::pin::pin!(outcomes);
        let (mut tally, mut failures) = (Tally::default(), Bounded::new("failures", self.is_verbose));
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
                        Some(error) => {
                            if let Some(line) = failures.next(format_args!("job {id}: {error}")) {
                                bar.suspend(|| out::say(format_args!("paced: {line}")));
                            }
                        }
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

/// True if each further job would only wait as long, and fail too.
const fn is_lost(error: &PublishError) -> bool {
    matches!(error, PublishError::Unavailable | PublishError::TimedOut { .. } | PublishError::Lost(_))
}

type Input = Box<dyn AsyncBufRead + Send + Unpin>;

/// The jobs of an input.
struct Jobs {
    form: Form,
    /// The line at which the last one began.
    line: u64,
}

enum Form {
    Lines(Lines<Input>),
    Table(Records<Input>),
}

impl Jobs {
    /// Opens the input; errors are printed to stderr.
    async fn open(args: &Args) -> Result<Self, Exit> {
        let name = args.file.as_deref().map_or("stdin".into(), Path::to_string_lossy);
        let usage = |error: &dyn std::error::Error| out::fail(Exit::Usage, format_args!("{name}: {error}"));
        let (format, _) = args.table.format(&args.header);
        let reader = input::open(args.file.as_deref()).await?;
        let whole = pipe::recognise(reader, &format).await.map_err(|error| usage(&error))?;
        let reader: Input = Box::new(whole.map_err(|wrong| usage(&wrong))?);
        let form = match format {
            Format::Ndjson => Form::Lines(Lines::new(reader, MAX_LINE)),
            Format::Csv(_) => {
                let records = Records::open(reader, &format).await.map_err(|error| usage(&error))?;
                say_taken(&name, &records);
                Form::Table(records)
            }
        };
        Ok(Self { form, line: 0 })
    }

    /// The next job, or what is wrong with it, and its line; `None` at the end.
    async fn next(&mut self, args: &Args) -> io::Result<Option<(u64, Result<Message, String>)>> {
        match &mut self.form {
            Form::Lines(lines) => {
                while let Some(line) = lines.next().await? {
                    self.line += 1;
                    let job = match &line {
                        Line::TooLong => Err(SkipError::TooLong.to_string()),
                        Line::Whole(text) => match text.trim_ascii_end() {
                            [] => continue,
                            text => message(text, args),
                        },
                    };
                    return Ok(Some((self.line, job)));
                }
                Ok(None)
            }
            Form::Table(records) => {
                let Some((line, job)) = records.job().await? else { return Ok(None) };
                self.line = line;
                Ok(Some((line, job.map_err(|error| error.to_string()))))
            }
        }
    }
}

/// The job on a line of JSON.
fn message(line: &[u8], args: &Args) -> Result<Message, String> {
    let line = ndjson::parse(line).map_err(|error| error.to_string())?;
    if let Some(other) = line.downstream.filter(|name| *name != args.downstream) {
        return Err(format!("is for `{other}`; publish it there: paced publish {other}"));
    }
    Ok(line.message)
}

/// The job with its id, lane and headers. Jobs that the daemon would refuse are refused here already.
fn checked(
    mut message: Message,
    headers: &[(String, String)],
    args: &Args,
    rules: &Rules,
) -> Result<Message, String> {
    add_headers(&mut message, headers);
    message.content.name_json();
    let message = with_id(with_lane(message, args));
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
