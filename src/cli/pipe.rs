//! `paced pipe`: the daemon's pipeline on embedded parts alone.

use std::io::{ErrorKind, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use paced::dispatch::{
    Delivery, Dispatcher, OnLimit, OnUnavailable, Options, Precision, RefusalStatuses, RetryPolicy, Source,
    max_cost,
};
use paced::job::{Message, ReplyRules, Rules, Value};
use paced::pipe::{self, Notify, Totals};
use paced::sink::http::{HttpOptions, HttpSink};
use paced::{Limit, LimitSet, MemoryStore, Rate};
use tokio_util::sync::CancellationToken;

use super::exit::Exit;
use super::signals::Signals;
use super::{Global, input, out, parts};
use crate::telemetry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Releases so many jobs at most, such as 20/s or 100/5min
    #[arg(long)]
    rate: Rate,
    /// What becomes of a job that the rate does not allow at once
    #[arg(long, default_value = "wait", value_name = "wait|reject", value_parser = on_limit)]
    on_limit: OnLimit,
    /// Where to: the base URL that each job's path is appended to
    #[arg(long, value_name = "URL")]
    to: String,
    /// Jobs, one JSON object per line; `-` is stdin
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Header of every request; repeat it for several
    #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
    header: Vec<(String, String)>,
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

pub(super) async fn run(global: &Global, args: Args) -> Exit {
    match pump(global, args).await {
        Ok(exit) | Err(exit) => exit,
    }
}

async fn pump(global: &Global, args: Args) -> Result<Exit, Exit> {
    let mut signals = Signals::new()?;
    let (base, last) = split(&args.to);
    let dispatcher = dispatcher(&args, base)?;
    let reader = input::open(Some(&args.file)).await?;
    // On a terminal, the outcomes themselves show the progress.
    let bar = if std::io::stdout().is_terminal() { ProgressBar::hidden() } else { bar() };
    let quiet = global.quiet > 0;
    let notes = bar.clone();
    let notify = Notify::new(move |notice| {
        if !quiet {
            print_message(&notes, &format!("paced: {notice}"));
        }
    });
    let (source, outcomes) = pipe::open(reader, tokio::io::stdout(), notify);
    let progress = outcomes.progress();
    let stop = CancellationToken::new();
    let mut working = std::pin::pin!(async {
        let source = Below { source, last };
        tokio::join!(dispatcher.run(source, stop.clone()), outcomes.run())
    });
    let mut look = tokio::time::interval(Duration::from_millis(100));
    let (drained, totals) = loop {
        tokio::select! {
            ended = &mut working => break ended,
            _ = look.tick() => bar.set_position(progress.totals().settled()),
            signal = signals.next() => {
                if stop.is_cancelled() {
                    return Err(Exit::Undrained);
                }
                tracing::warn!(signal, "stopping: requests in flight may end; once more stops at once");
                stop.cancel();
            }
        }
    };
    bar.finish_and_clear();
    let totals = totals.map_err(|error| {
        // A reader that closes stdout wants no more output, so there is no error message.
        if error.kind() == ErrorKind::BrokenPipe {
            return Exit::Failed;
        }
        out::say(format_args!("paced: cannot write the outcomes: {error}"));
        Exit::Failed
    })?;
    report(totals, quiet);
    Ok(match (drained.unfinished, totals.is_clean()) {
        (0, true) => Exit::Ok,
        (0, false) => Exit::Failed,
        _ => Exit::Undrained,
    })
}

fn dispatcher(args: &Args, base_url: String) -> Result<Dispatcher, Exit> {
    let usage = |error: &dyn std::error::Error| {
        out::say(format_args!("paced: {error}"));
        Exit::Usage
    };
    let limit = Limit::leaky_bucket("rate", args.rate, 1).map_err(|error| usage(&error))?;
    let limits = LimitSet::new(vec![limit]).map_err(|error| usage(&error))?;
    let timeout = Duration::from_secs(args.timeout.into());
    let sink = HttpOptions { timeout, headers: args.header.clone(), ..HttpOptions::new(base_url) };
    let sink = HttpSink::new(sink).map_err(|error| usage(&error))?;
    let options = Options {
        downstream: "pipe".to_owned(),
        rules: Rules {
            max_body: MAX_BODY,
            // The caller of the command chooses the jobs, so all headers are allowed.
            allow_headers: vec![Rules::ANY_HEADER.to_owned()],
            max_cost: max_cost(&limits, args.max_cost),
            plans: Vec::new(),
            default_plan: None,
            // A line cannot ask for a reply.
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
            on_unauthorized: RefusalStatuses::NONE,
            ..RetryPolicy::default()
        },
        max_pause: Duration::from_secs(300),
        max_wait: None,
        // Its lines wait nowhere else.
        hold_max: Duration::MAX,
        // The store is in this process, so it is never away.
        on_unavailable: OnUnavailable::Hold,
        revision: None,
        prefetch: u16::MAX,
        drain_timeout: DRAIN,
    };
    Ok(Dispatcher::new(
        options,
        Arc::new(MemoryStore::new()),
        Arc::new(sink),
        parts::clock(Precision::default()),
    ))
}

/// Splits a URL into a base that ends in `/`, and the part after its last `/`.
fn split(url: &str) -> (String, String) {
    let path = url.find("://").map_or(0, |at| at + 3);
    match url[path..].rfind('/') {
        Some(at) => (url[..=path + at].to_owned(), url[path + at + 1..].to_owned()),
        None => (format!("{url}/"), String::new()),
    }
}

/// A source whose jobs go to `last` below the base, or to paths below that.
struct Below<S> {
    source: S,
    last: String,
}

impl<S: Source> Source for Below<S> {
    async fn next(&mut self) -> Option<Delivery> {
        let mut delivery = self.source.next().await?;
        if !self.last.is_empty() {
            below(&self.last, &mut delivery.message);
        }
        Some(delivery)
    }

    async fn close(&mut self) {
        self.source.close().await;
    }
}

fn below(last: &str, message: &mut Message) {
    const PATH: &str = "paced-path";
    let path = message.headers.iter_mut().find(|(name, _)| name == PATH);
    match path {
        Some((_, Value::Text(path))) => {
            let separator: &[u8] = if path.starts_with(b"/") || path.starts_with(b"?") { b"" } else { b"/" };
            *path = [last.as_bytes(), separator, path].concat().into();
        }
        // A path of another type is left as it is, and refused later.
        Some(_) => {}
        None => message.headers.push((PATH.to_owned(), Value::Text(last.to_owned().into()))),
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    // An invalid template shows the default bar.
    match ProgressStyle::with_template("{spinner} {pos} settled, {per_sec}, {elapsed}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Prints a message while jobs are released: on a terminal above the bar; elsewhere without waiting, since a pipe that
/// nobody reads must not stop the jobs.
fn print_message(bar: &ProgressBar, message: &str) {
    if std::io::stderr().is_terminal() {
        bar.suspend(|| out::say(message));
    } else {
        telemetry::note(message);
    }
}

fn report(totals: Totals, quiet: bool) {
    if quiet {
        return;
    }
    let Totals { delivered, dead, rejected, skipped, returned, .. } = totals;
    telemetry::note(format_args!(
        "paced: delivered {delivered}, dead {dead}, rejected {rejected}, bad lines {skipped}, not sent {returned}"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_final_slash_is_where_the_jobs_go() {
        for (url, base, last) in [
            ("http://host", "http://host/", ""),
            ("http://host/", "http://host/", ""),
            ("http://host/hook", "http://host/", "hook"),
            ("http://host/v1/hook", "http://host/v1/", "hook"),
            ("http://host/v1/", "http://host/v1/", ""),
        ] {
            assert_eq!(split(url), (base.to_owned(), last.to_owned()), "{url}");
        }
    }

    #[test]
    fn paths_go_below_it() {
        for (path, expected) in [(None, "hook"), (Some("a/b"), "hook/a/b"), (Some("?q=1"), "hook?q=1")] {
            let mut message = Message::default();
            if let Some(path) = path {
                message.headers.push(("paced-path".to_owned(), Value::Text(path.into())));
            }
            below("hook", &mut message);
            let text = Value::Text(expected.to_owned().into());
            assert_eq!(message.headers, [("paced-path".to_owned(), text)]);
        }
    }
}
