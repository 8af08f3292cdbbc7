//! `paced pipe`: the daemon's pipeline on embedded parts alone.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use paced::dispatch::{
    Dispatcher, Drained, OnLimit, OnUnavailable, Options, Precision, RetryPolicy, max_cost,
};
use paced::job::{METHODS, ReplyRules, Rules};
use paced::pipe::{self, PipeOptions, Progress, Totals};
use paced::sink::http::{HttpOptions, HttpSink};
use paced::sink::{AnswerPolicy, Statuses};
use paced::{Limit, LimitSet, MemoryStore, Rate};
use tokio_util::sync::CancellationToken;

use super::exit::Exit;
use super::{Global, out};
use crate::daemon::{self, Signals};
use crate::telemetry;
use bar::Bar;
use files::{Files, Total};
use reports::{Closing, Wanted};

mod bar;
mod files;
mod reports;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Releases so many jobs at most, such as 20/s or 100/5min
    #[arg(long)]
    rate: Rate,
    /// What becomes of a job that the rate does not allow at once
    #[arg(long, default_value = "wait", value_name = "wait|reject", value_parser = on_limit)]
    on_limit: OnLimit,
    /// Where jobs go: one without a path to this URL; a path is appended behind one slash, and its query after the URL's
    #[arg(long, value_name = "URL")]
    to: String,
    /// Jobs, one JSON object per line; `-` is stdin
    #[arg(default_value = "-")]
    file: PathBuf,
    /// FILE is CSV: a row of names (id, body, lane, plan, method, path, cost, priority, not_before, deadline,
    /// header:NAME), and one row per job
    #[arg(long)]
    csv: bool,
    /// Adds outcomes to this file instead of writing them to stdout, and skips the jobs that it says were delivered
    #[arg(long, value_name = "OUT")]
    resume: Option<PathBuf>,
    /// Outcomes have the body of the answer, up to 64 KiB: `body`, or `body_base64` if it is no text
    #[arg(long)]
    with_body: bool,
    /// Header of every request; repeat it for several
    #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Lets a job's path have an encoded slash (%2F)
    #[arg(long)]
    encoded_slash: bool,
    /// The highest cost of one job [default: what the rate releases in a minute]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_cost: Option<u32>,
    /// Requests at once
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Seconds for one request
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u16).range(1..))]
    timeout: u16,
    /// Attempts per job, the first included
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: u32,
}

const HORIZON: Duration = Duration::from_millis(100);
/// The longest body in bytes, which is bounded by the longest line.
const MAX_BODY: usize = pipe::MAX_LINE;
const DRAIN: Duration = Duration::from_secs(25);
/// How long the end waits for outcomes that are not written yet, when it is to come at once.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// The time between two checks whether the entries have been counted.
const LOOK: Duration = Duration::from_millis(5);

/// How long the end waits for the number of entries of the input.
const LAST_COUNT: Duration = Duration::from_secs(1);

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_lowercase(), value.trim().to_owned())),
        _ => Err("no header; write NAME:VALUE".to_owned()),
    }
}

fn on_limit(text: &str) -> Result<OnLimit, String> {
    match text {
        "wait" => Ok(OnLimit::Wait),
        "reject" => Ok(OnLimit::Reject),
        _ => Err("use wait or reject".to_owned()),
    }
}

pub(super) async fn run(global: &Global, args: Args) -> Result<(), Exit> {
    let signals = Signals::with_hangup().map_err(out::failed)?;
    let dispatcher = dispatcher(&args)?;
    let wanted = match (global.quiet, global.verbose) {
        (0, 0) => Wanted::Some,
        (0, _) => Wanted::All,
        _ => Wanted::Nothing,
    };
    let Files { records, outcomes, output, total } = files::open(&args, wanted == Wanted::Nothing).await?;
    let mut bar = Bar::new(args.rate, args.resume.is_none());
    let options = PipeOptions { with_body: args.with_body, outcomes };
    let notify = reports::reporter(bar.messages(), wanted);
    let (source, outcomes) = pipe::open(records, output, options, notify);
    let progress = outcomes.progress();
    let stop = CancellationToken::new();
    let working =
        std::pin::pin!(async { tokio::join!(dispatcher.run(source, stop.clone()), outcomes.run()) });
    let end = follow(working, signals, &stop, |totals| bar.draw(totals, total.get()), &progress).await;
    bar.clear();
    let (cut_off, totals, ended) = match end {
        End::Ended(drained, totals) => {
            let totals = totals.map_err(|error| unwritten(&error))?;
            let ended = match (drained.unfinished, totals.is_clean()) {
                _ if totals.mismatched => Err(Exit::Usage),
                (0, true) => Ok(()),
                (0, false) => Err(Exit::Failed),
                _ => Err(Exit::Undrained),
            };
            (drained.unfinished as u64, totals, ended)
        }
        End::Stopped { cut_off } => (cut_off, progress.totals(), Err(Exit::Undrained)),
    };
    if wanted != Wanted::Nothing {
        let total = known(&total, &progress).await;
        telemetry::note(format_args!("paced: {}", Closing { totals, total, cut_off }));
    }
    ended
}

/// How the work ended.
enum End {
    /// By itself, or in order after a signal.
    Ended(Drained, io::Result<Totals>),
    /// At once, by a second signal.
    Stopped {
        /// Jobs whose requests were cut off.
        cut_off: u64,
    },
}

/// Waits for the end of `working`, which the first signal has end in order, and the second one at once.
async fn follow(
    mut working: Pin<&mut impl Future<Output = (Drained, io::Result<Totals>)>>,
    mut signals: Signals,
    stop: &CancellationToken,
    mut draw: impl FnMut(Totals),
    progress: &Progress,
) -> End {
    let mut look = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            (drained, totals) = &mut working => return End::Ended(drained, totals),
            _ = look.tick() => draw(progress.totals()),
            signal = signals.next() => {
                if stop.is_cancelled() {
                    break;
                }
                tracing::warn!(signal, "stopping: requests in flight may end; once more stops at once");
                stop.cancel();
            }
        }
    }
    // A job that was delivered is not to be sent again only because its outcome was not written yet.
    let written = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while !progress.is_written() {
            look.tick().await;
        }
    };
    tokio::select! {
        _ = &mut working => {}
        _ = tokio::time::timeout(LAST_WRITE, written) => {}
    }
    End::Stopped { cut_off: progress.open() }
}

/// The number of entries of the input, if it can be told soon.
async fn known(total: &Total, progress: &Progress) -> Option<u64> {
    let counted = || progress.entries().or_else(|| total.get());
    // Without a wait where it is there: even the first tick of a timer may come later than the end of no patience.
    if counted().is_some() || !total.is_expected() {
        return counted();
    }
    let come = async {
        while counted().is_none() {
            tokio::time::sleep(LOOK).await;
        }
    };
    // What has not come by then stays unknown.
    let _ = tokio::time::timeout(LAST_COUNT, come).await;
    counted()
}

/// The exit if outcomes cannot be written.
fn unwritten(error: &io::Error) -> Exit {
    // A reader that closes stdout wants no more output, so there is no error message.
    if error.kind() != ErrorKind::BrokenPipe {
        out::say(format_args!("paced: cannot write the outcomes: {error}"));
    }
    Exit::Failed
}

fn dispatcher(args: &Args) -> Result<Dispatcher, Exit> {
    let usage = |error: &dyn std::error::Error| out::fail(Exit::Usage, error);
    let limit = Limit::leaky_bucket("rate", args.rate, 1).map_err(|error| usage(&error))?;
    let limits = LimitSet::new(vec![limit]).map_err(|error| usage(&error))?;
    let timeout = Duration::from_secs(args.timeout.into());
    let sink = HttpOptions { timeout, headers: args.header.clone(), ..HttpOptions::new(&args.to) };
    let sink = HttpSink::new(sink).map_err(|error| usage(&error))?;
    let options = Options {
        downstream: "pipe".to_owned(),
        rules: Rules {
            max_body: MAX_BODY,
            // The caller of the command chooses the jobs, so all headers are allowed.
            allow_headers: vec![Rules::ANY_HEADER.to_owned()],
            methods: METHODS.map(str::to_owned).to_vec(),
            encoded_slash: args.encoded_slash,
            max_cost: max_cost(&limits, args.max_cost),
            costs: Vec::new(),
            plans: Vec::new(),
            default_plan: None,
            // A line cannot ask for a reply; the source does, where the body of the answer is wanted.
            reply: ReplyRules::default(),
        },
        limits,
        plans: Vec::new(),
        on_limit: args.on_limit,
        horizon: HORIZON,
        concurrency: args.concurrency.into(),
        retry: RetryPolicy {
            max_attempts: args.max_attempts,
            // People wait for the outcome, and a mistyped URL is the most likely error.
            outlast: false,
            answers: AnswerPolicy { on_unauthorized: Statuses::NONE, ..AnswerPolicy::default() },
            ..RetryPolicy::default()
        },
        max_wait: None,
        // Its lines wait nowhere else.
        hold_max: Duration::MAX,
        // The store is in this process, so it is never away.
        on_unavailable: OnUnavailable::Hold,
        revision: None,
        prefetch: u16::MAX,
        // Nobody else waits for its slots, and a second signal is to find nothing but requests in flight.
        linger: Duration::ZERO,
        drain_timeout: DRAIN,
    };
    Ok(Dispatcher::new(
        options,
        Arc::new(MemoryStore::new()),
        Arc::new(sink),
        daemon::clock(Precision::default()),
    ))
}
