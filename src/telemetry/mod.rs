//! Logs to stderr, as text or JSON, without ever waiting for it. Metrics go through the `metrics` facade where they
//! arise, and out through [`Exporter`].

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

mod exporter;
mod lossy;

pub(crate) use exporter::Exporter;
use lossy::LossyWriter;

/// How long the end of the process waits for a stderr that is slow or blocked.
const FLUSH: Duration = Duration::from_secs(1);

/// The log of this process.
static LOG: OnceLock<LossyWriter> = OnceLock::new();

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    /// Where it is a terminal that is written to, and `NO_COLOR` is not set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Whether to colour stderr.
    pub(crate) fn on(self) -> bool {
        self.on_stream(std::io::stderr().is_terminal())
    }

    /// Whether to colour a stream, given whether it is a terminal.
    pub(crate) fn on_stream(self, is_terminal: bool) -> bool {
        match self {
            Self::Auto => std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && is_terminal,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Crates whose events are suppressed: the supervisor reports lost connections better than lapin, and lapin's other
/// events contain bodies of messages.
const SUPPRESSED: [Suppressed; 4] =
    [("lapin", "off"), ("amq_protocol", "off"), ("async_rs", "off"), ("hyper", "warn")];

/// A crate or module, and the level of the events of which it has none below.
pub(crate) type Suppressed = (&'static str, &'static str);

/// When dropped at the end of the process, it waits up to [`FLUSH`] until all log lines are written.
#[derive(Debug)]
pub(crate) struct FlushOnDrop;

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        if let Some(log) = LOG.get() {
            log.flush(FLUSH);
        }
    }
}

/// Starts logging, without the events of `suppressed`. `RUST_LOG` beats `level`, and what it names is not suppressed.
///
/// A stderr that is full, closed or not read costs log lines, and nothing else: no line is waited for, and
/// panics are logged as well, since the standard library's own message would wait.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn init(
    level: LevelFilter,
    format: LogFormat,
    color: Color,
    suppressed: &[Suppressed],
) -> io::Result<FlushOnDrop> {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let filter = EnvFilter::try_new(directives(level, &wanted, suppressed))
        .unwrap_or_else(|_| EnvFilter::new(directives(level, "", suppressed)));
    let color = format == LogFormat::Text && color.on();
    let log = LossyWriter::start(stderr(), format, color)?;
    let log = LOG.get_or_init(|| log);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Internal errors would go to stderr directly, and a failed write would panic.
        .log_internal_errors(false)
        .with_ansi(color)
        .with_writer(log.clone());
    // Each event says by itself which downstream it is of. The span that says so too is for the subscribers of programs
    // that embed the library.
    let events = || filter_fn(|metadata| metadata.is_event());
    let result = match format {
        LogFormat::Text => builder.with_target(false).finish().with(events()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(events()).try_init(),
    };
    // Another subscriber is installed already and receives the logs, which is fine.
    drop(result);
    panic::set_hook(Box::new(log_panic));
    Ok(FlushOnDrop)
}

/// A file handle of its own: the lock of the standard library's handle would be held during a write that blocks.
fn stderr() -> Box<dyn Write + Send> {
    match io::stderr().as_fd().try_clone_to_owned() {
        Ok(own) => Box::new(File::from(own)),
        Err(_) => Box::new(io::stderr()),
    }
}

/// Waits until the log lines so far are written, for at most [`FLUSH`]. Cancel safe.
pub(crate) async fn flush() {
    if let Some(log) = LOG.get() {
        // It waits on a thread: the runtime has other work. Only a runtime that shuts down does not run it.
        let _ = tokio::task::spawn_blocking(|| log.flush(FLUSH)).await;
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let message = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
    // The backtrace is captured only where RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(thread, location, %backtrace, "panicked: {message}");
    } else {
        tracing::error!(thread, location, "panicked: {message}");
    }
}

/// Writes a message for people as a line among those of the log, without waiting for stderr, for commands whose work
/// must not wait for it.
pub(crate) fn note(message: impl Display) {
    if let Some(log) = LOG.get() {
        log.push_message(&message.to_string());
    }
}

/// The number of log lines dropped since the start.
fn dropped() -> u64 {
    LOG.get().map_or(0, LossyWriter::dropped)
}

/// The filter: `wanted`, or else `level`; other crates are quiet unless `wanted` names them.
fn directives(level: LevelFilter, wanted: &str, suppressed: &[Suppressed]) -> String {
    let wanted = wanted.trim();
    let mut all = if wanted.is_empty() { level.to_string() } else { wanted.to_owned() };
    let named = |name: &str| wanted.split(',').any(|directive| directive.trim().starts_with(name));
    for (name, at_most) in SUPPRESSED.iter().chain(suppressed) {
        if !named(name) {
            all += &format!(",{name}={at_most}");
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_crates_are_quiet_unless_named() {
        let rest = "lapin=off,amq_protocol=off,async_rs=off,hyper=warn";
        assert_eq!(directives(LevelFilter::INFO, "", &[]), format!("info,{rest}"));
        assert_eq!(directives(LevelFilter::INFO, " ", &[]), format!("info,{rest}"), "empty is unset");
        assert_eq!(directives(LevelFilter::INFO, "debug", &[]), format!("debug,{rest}"));
        let module = [("paced::dispatch", "error")];
        assert_eq!(directives(LevelFilter::WARN, "", &module), format!("warn,{rest},paced::dispatch=error"));
        assert_eq!(
            directives(LevelFilter::WARN, "paced::dispatch=info", &module),
            format!("paced::dispatch=info,{rest}")
        );
        assert_eq!(
            directives(LevelFilter::INFO, "warn, lapin::channel=trace,hyper=debug", &[]),
            "warn, lapin::channel=trace,hyper=debug,amq_protocol=off,async_rs=off"
        );
    }
}
