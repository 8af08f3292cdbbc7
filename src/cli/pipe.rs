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
use paced::job::{JobLanes, METHODS, ReplyRules, Rules};
use paced::pipe::{self, BadInput, Format, PipeOptions, Progress, Totals};
use paced::sink::http::{HttpOptions, HttpSink};
use paced::sink::{AnswerPolicy, Statuses};
use paced::store::Store;
use paced::{Limit, LimitSet, MemoryStore, Rate};
use tokio_util::sync::CancellationToken;

use super::exit::Exit;
use super::template::{HeaderArg, TableArgs, check_headers, header};
use super::{Global, out, parts};
use crate::daemon::{self, Signals};
use crate::telemetry;
use bar::Bar;
use files::{Files, Total};
use reports::{Closing, Wanted};
use shared::Shared;

mod bar;
mod files;
mod reports;
mod shared;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The highest rate of releases, such as 20/s or 100/5min
    #[arg(long, required_unless_present = "downstream")]
    rate: Option<Rate>,
    /// Uses this downstream of the configuration (-c): its API, its limits, and the store in which daemons share them. Jobs
    /// in its queue are not taken
    #[arg(long, value_name = "NAME", conflicts_with_all = ["rate", "to", "on_limit", "encoded_slash", "max_cost", "concurrency", "timeout", "max_attempts"])]
    downstream: Option<String>,
    /// Puts the limits of the configuration in force for all daemons, if others are. They stay in force after the command.
    /// Without it the command ends then
    #[arg(long, requires = "downstream")]
    force_limits: bool,
    /// What happens to a job that the rate does not allow at once
    #[arg(long, default_value = "wait", value_name = "wait|reject", value_parser = on_limit)]
    on_limit: OnLimit,
    /// URL of the API. A job without a path goes to it; a path is appended behind one slash, and its query after the URL's
    #[arg(long, value_name = "URL", required_unless_present = "downstream")]
    to: Option<String>,
    /// Jobs, one JSON object per line; `-` is stdin
    #[arg(default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    table: TableArgs,
    /// Appends outcomes to this file, not to stdout, and skips the jobs that the file names as delivered
    #[arg(long, value_name = "OUT")]
    resume: Option<PathBuf>,
    /// Adds the body of the answer to each outcome, up to 64 KiB: `body`, or `body_base64` if it is no text
    #[arg(long)]
    with_body: bool,
    /// Header of every request; repeat the option for several headers. With --csv the value may have cells in it:
    /// 'x-tenant:{tenant}'
    #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
    header: Vec<HeaderArg>,
    /// Allows an encoded slash (%2F) in a job's path
    #[arg(long)]
    encoded_slash: bool,
    /// The highest cost of one job [default: the units that the rate releases in a minute]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_cost: Option<u32>,
    /// Maximum number of requests at once
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Maximum time for one request, in seconds
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u16).range(1..))]
    timeout: u16,
    /// Maximum number of attempts per job, including the first
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: u32,
}

/// The name of the downstream in the store of this process.
const DOWNSTREAM: &str = "pipe";

const HORIZON: Duration = Duration::from_millis(100);
/// The longest body in bytes, which is bounded by the longest line.
const MAX_BODY: usize = pipe::MAX_LINE;
const DRAIN: Duration = Duration::from_secs(25);
/// How long an immediate end waits for outcomes that are not written yet.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// The time between two checks whether the entries have been counted.
const LOOK: Duration = Duration::from_millis(5);

/// How long the end waits for the number of entries of the input.
const LAST_COUNT: Duration = Duration::from_secs(1);

impl Args {
    /// The form of the input.
    fn format(&self) -> Format {
        self.table.format(&self.header).0
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
    let mut signals = Signals::with_hangup().map_err(out::failed)?;
    let is_shared = args.downstream.is_some();
    let Way { dispatcher, rules, charged, shared } = Way::of(global, &args)?;
    let is_a_jobs = |header: &HeaderArg| is_shared || (args.table.is_csv() && header.has_brace());
    check_headers(&args.header, |header| !is_a_jobs(header), |name| rules.allows_header(name))?;
    let wanted = match (global.quiet, global.verbose) {
        (0, 0) => Wanted::Some,
        (0, _) => Wanted::All,
        _ => Wanted::Nothing,
    };
    let opening = async {
        let files = files::open(&args, wanted == Wanted::Nothing).await?;
        // This is done last, so that no limits come into force for jobs that cannot be read.
        shared::agree(shared.as_ref()).await?;
        Ok::<_, Exit>(files)
    };
    let opened = tokio::select! {
        opened = opening => opened,
        // No line of stdin has come yet.
        _ = signals.next() => Err(out::fail(Exit::Failed, "stopped before anything was sent")),
    };
    let Files { records, mut outcomes, output, total } = opened?;
    let releases = outcomes.take_releases();
    let (limits, store) = charged;
    if let Some(store) = store {
        releases.charge(&store, DOWNSTREAM, &limits);
    }
    let mut bar = Bar::new(limits.rate(), args.resume.is_none());
    // Without a downstream they are those of the sink, since they may be credentials.
    let headers = if is_shared { args.table.format(&args.header).1 } else { Vec::new() };
    let options = PipeOptions { with_body: args.with_body, headers, rules: Some(rules), outcomes };
    let notify = reports::reporter(bar.messages(), wanted);
    let (source, outcomes) = pipe::open(records, output, options, notify);
    let progress = outcomes.progress();
    let stop = CancellationToken::new();
    let working =
        std::pin::pin!(async { tokio::join!(dispatcher.run(source, stop.clone()), outcomes.run()) });
    let end = follow(working, signals, &stop, |totals| bar.draw(totals, total.get()), &progress).await;
    bar.clear();
    let (cut_off, totals, ended) = match end {
        End::Ended(_, Err(error)) => {
            shared::finish(shared).await;
            return Err(unwritten(&error));
        }
        End::Ended(drained, Ok(totals)) => {
            // What was not read, or waits for its time, was not sent.
            let is_left = progress.waiting() > 0 || (stop.is_cancelled() && progress.entries().is_none());
            (drained.unfinished as u64, totals, exit(drained, &totals, is_left))
        }
        End::Stopped { cut_off } => (cut_off, progress.totals(), Err(Exit::Undrained)),
    };
    if wanted != Wanted::Nothing {
        let totals = Totals { returned: totals.returned + progress.waiting(), ..totals };
        let total = known(&total, &progress).await;
        telemetry::note(format_args!("paced: {}", Closing { totals, total, cut_off }));
    }
    shared::finish(shared).await;
    ended
}

/// The exit of work that ended in order.
const fn exit(drained: Drained, totals: &Totals, is_left: bool) -> Result<(), Exit> {
    match drained.unfinished {
        _ if matches!(totals.bad_input, Some(BadInput::Mismatched)) => Err(Exit::Usage),
        0 if totals.is_clean() && !is_left => Ok(()),
        0 => Err(Exit::Failed),
        _ => Err(Exit::Undrained),
    }
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
                tracing::warn!(signal, "stopping: requests in flight may end; a second signal stops at once");
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

/// The number of entries of the input, if it is known soon.
async fn known(total: &Total, progress: &Progress) -> Option<u64> {
    let counted = || progress.entries().or_else(|| total.get());
    // If the number is known, it is returned without any wait: with a patience of zero, the time-out may come before
    // the first tick of the timer.
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

/// The parts through which the jobs go.
struct Way {
    dispatcher: Dispatcher,
    /// The rules that the dispatcher has for jobs.
    rules: Rules,
    /// The limits, and their store if it belongs to this command alone.
    charged: (LimitSet, Option<Arc<MemoryStore>>),
    /// What is shared with the daemons, if the store of the settings has the pace.
    shared: Option<Shared>,
}

impl Way {
    /// To a URL at a rate, or to a downstream of the configuration.
    fn of(global: &Global, args: &Args) -> Result<Self, Exit> {
        if let Some(name) = &args.downstream {
            return Self::to_downstream(global, name, args.force_limits);
        }
        // Both are required without a downstream.
        let (Some(rate), Some(url)) = (args.rate, &args.to) else { return Err(Exit::Usage) };
        let limits = limits(rate)?;
        let store = Arc::new(MemoryStore::new());
        let rules = rules(args, &limits);
        let dispatcher = dispatcher(args, url, &rules, &limits, &store)?;
        Ok(Self { dispatcher, rules, charged: (limits, Some(store)), shared: None })
    }

    fn to_downstream(global: &Global, name: &str, force: bool) -> Result<Self, Exit> {
        let mut settings = parts::load(global)?.settings;
        // The reply of a job is its outcome, and goes to no queue.
        settings.reply.allow = vec![String::new()];
        let downstream = parts::downstream(&settings, name)?;
        if settings.store.url.expose() == daemon::MEMORY {
            let problem = "store.url is memory:, so that no pace can be shared; set redis://HOST or file:PATH, or use --rate and --to";
            return Err(out::fail(Exit::Usage, problem));
        }
        let (store, _) = daemon::store(&settings, true).map_err(out::failed)?;
        let (dispatcher, own) =
            daemon::single(&settings, name, downstream, Arc::clone(&store)).map_err(out::failed)?;
        let rules = daemon::rules(&settings, downstream);
        let shared = Shared { store, downstream: name.to_owned(), own, force };
        Ok(Self { dispatcher, rules, charged: (downstream.limits.clone(), None), shared: Some(shared) })
    }
}

fn limits(rate: Rate) -> Result<LimitSet, Exit> {
    let limit = Limit::leaky_bucket("rate", rate, 1).and_then(|limit| LimitSet::new(vec![limit]));
    limit.map_err(|error| out::fail(Exit::Usage, error))
}

fn rules(args: &Args, limits: &LimitSet) -> Rules {
    Rules {
        max_body: MAX_BODY,
        // The caller of the command chooses the jobs, so all headers are allowed.
        allow_headers: vec![Rules::ANY_HEADER.to_owned()],
        methods: METHODS.map(str::to_owned).to_vec(),
        encoded_slash: args.encoded_slash,
        max_cost: max_cost(limits, args.max_cost),
        costs: Vec::new(),
        plans: Vec::new(),
        lanes: JobLanes::default(),
        // A line cannot ask for a reply; the source does, where the body of the answer is wanted.
        reply: ReplyRules::default(),
    }
}

fn dispatcher(
    args: &Args,
    url: &str,
    rules: &Rules,
    limits: &LimitSet,
    store: &Arc<MemoryStore>,
) -> Result<Dispatcher, Exit> {
    let usage = |error: &dyn std::error::Error| out::fail(Exit::Usage, error);
    let timeout = Duration::from_secs(args.timeout.into());
    let headers = args.table.format(&args.header).1;
    if let Some(problem) = paced::config::sent_in_clear(url, headers.iter().map(|(name, _)| name.as_str())) {
        out::say(format_args!("paced: warning: {problem}"));
    }
    let sink = HttpOptions { timeout, headers, ..HttpOptions::new(url) };
    let sink = HttpSink::new(sink).map_err(|error| usage(&error))?;
    let options = Options {
        downstream: DOWNSTREAM.to_owned(),
        rules: rules.clone(),
        limits: limits.clone(),
        plans: Vec::new(),
        lanes: None,
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
        // Lines cannot be parked.
        hold_max: Duration::MAX,
        // The store is in this process, so it is never away.
        on_unavailable: OnUnavailable::Hold,
        revision: None,
        proposes_limits: true,
        prefetch: u16::MAX,
        // Nobody else waits for its slots, and a second signal is to find nothing but requests in flight.
        linger: Duration::ZERO,
        drain_timeout: DRAIN,
    };
    Ok(Dispatcher::new(
        options,
        Arc::clone(store) as Arc<dyn Store>,
        Arc::new(sink),
        daemon::clock(Precision::default()),
    ))
}
