//! The command line: data to stdout, messages and progress to stderr.

mod ask;
mod bounded;
mod cancel;
mod check;
mod config;
mod confirm;
mod dead;
mod downstream;
mod exit;
mod explain;
mod explain_answer;
mod facts;
mod forecast;
mod history;
mod init;
mod input;
mod interrupt;
mod lane;
mod manual;
mod out;
mod parts;
mod pause;
mod pipe;
mod publish;
mod rate;
mod reset;
mod run;
mod status;
mod template;
mod terms;
mod top;
mod unpark;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use hyper::header::HeaderValue;
use tracing_subscriber::filter::LevelFilter;

use paced::dispatch::JOB_LOG;

use crate::admin::AUDIT_LOG;
use crate::telemetry::{self, Color, LogFormat};
use exit::Exit;

/// Releases RabbitMQ jobs to rate-limited APIs at an exact pace that all replicas share.
#[derive(Debug, Parser)]
#[command(name = "paced", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 ok, 1 something failed or was not delivered, 2 usage, 69 broker, store \
                        or daemon unreachable, 75 drain timed out, 77 not authorized, 78 configuration."
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// The heading of what every command understands, below the options of its own.
const GLOBAL: &str = "Options of every command";

/// What every command understands.
#[derive(Debug, Args)]
struct Global {
    /// Configuration file; repeat the option to merge several files [default: $PACED_CONFIG, ./paced.toml,
    /// /etc/paced/paced.toml]
    #[arg(short, long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Overrides one key, such as downstreams.billing.rate=20/s
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Address of the daemon's admin API, such as https://paced.internal:9750 [default: admin.listen]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "URL")]
    admin: Option<String>,
    /// Your name, for the audit log of the daemon, if several people use one token; nothing proves it
    #[arg(long = "as", global = true, help_heading = GLOBAL, value_name = "NAME", value_parser = claimed)]
    claimed: Option<HeaderValue>,
    /// The authorities that may have signed the daemon's certificate, for https, in PEM format
    /// [default: $PACED_CA_FILE, or the system's]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The client certificate, for a daemon that requires one [default: $PACED_CERT_FILE]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    cert_file: Option<PathBuf>,
    /// The private key of the client certificate [default: $PACED_KEY_FILE]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Form of the output on stdout
    #[arg(short, long, global = true, help_heading = GLOBAL, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
    /// When to colour messages
    #[arg(long, global = true, help_heading = GLOBAL, value_enum, default_value_t, value_name = "WHEN")]
    color: Color,
    /// Logs more; twice: everything
    #[arg(short, long, global = true, help_heading = GLOBAL, action = ArgAction::Count)]
    verbose: u8,
    /// Logs less; twice: only errors. A daemon still logs each change by its admin API
    #[arg(short, long, global = true, help_heading = GLOBAL, action = ArgAction::Count, conflicts_with = "verbose")]
    quiet: u8,
    /// Form of the log on stderr
    #[arg(long, global = true, help_heading = GLOBAL, value_enum, default_value_t, value_name = "FORM")]
    log_format: LogFormat,
}

/// A name that is claimed.
fn claimed(text: &str) -> Result<HeaderValue, String> {
    let fits = (1..=100).contains(&text.len()) && text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    let value = HeaderValue::from_str(text).ok().filter(|_| fits);
    value.ok_or_else(|| "no name; use 1 to 100 characters of ASCII on one line".to_owned())
}

/// The form of the data on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    #[default]
    Human,
    /// JSON, one object per line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Releases the jobs of every configured downstream until it is stopped
    Run(run::Args),
    /// Writes a first configuration, from options or from answers to a few questions
    Init(init::Args),
    /// Checks the configuration; with --online also the broker and the store
    Check(check::Args),
    /// Publishes jobs to a downstream's queue, and waits for the confirms
    Publish(publish::Args),
    /// Releases jobs from a file or stdin at a pace, without any server
    Pipe(pipe::Args),
    /// Says when jobs would be released, which limit binds when, and which jobs would become dead letters
    Forecast(forecast::Args),
    /// Shows what every downstream is doing, over all replicas, and what holds its jobs back
    Status(status::Args),
    /// Shows the state of every downstream live, on the whole terminal
    Top(top::Args),
    /// Shows the last changes by operators, made through any replica: who changed what, when and why
    History(history::Args),
    /// Lists, shows, replays and removes dead letters
    #[command(subcommand)]
    Dead(dead::Command),
    /// Moves the jobs and deletes the queues of a downstream that no replica serves any more
    #[command(subcommand)]
    Downstream(downstream::Command),
    /// Cancels jobs: no replica sends them, also those that are parked or wait for a retry
    Cancel(cancel::Args),
    /// Stops the releases of a downstream, in every replica
    Pause(pause::PauseArgs),
    /// Ends the pauses of a downstream: that of `paced pause`, and that which the downstream asked for
    Resume(pause::ResumeArgs),
    /// Resets a downstream's used quota to 0, in every replica
    Reset(reset::Args),
    /// Brings jobs back early that are parked for a limit of a downstream
    Unpark(unpark::Args),
    /// Shows and sets the rates of a running downstream
    #[command(subcommand)]
    Rate(rate::Command),
    /// Shows and sets the weights and pauses of single tenants of a running downstream with lanes
    #[command(subcommand)]
    Lane(lane::Command),
    /// Shows the limits in force as the store has them, and rolls them back
    #[command(subcommand)]
    Terms(terms::Command),
    /// Says where a job is, what it waits for, and about when it goes
    Explain(explain::Args),
    /// Says what an answer of a downstream's API would mean, and which rule says so
    ExplainAnswer(explain_answer::Args),
    /// Shows the configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Prints the completions of a shell
    Completions(manual::CompletionsArgs),
    /// Writes the manual pages, one for each command
    Man(manual::ManArgs),
}

/// Runs the command that the arguments name.
pub(crate) fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    let level = match (global.verbose, global.quiet) {
        (0, 0) => default_level(&command),
        (1, _) => LevelFilter::DEBUG,
        (0, 1) => LevelFilter::WARN,
        (0, _) => LevelFilter::ERROR,
        (_, _) => LevelFilter::TRACE,
    };
    let logs_jobs = global.verbose >= 2 || matches!(command, Command::Run(run::Args { log_jobs: true }));
    let mut suppressed = suppressed(&command).to_vec();
    suppressed.push((JOB_LOG, if logs_jobs { "info" } else { "off" }));
    suppressed.push((AUDIT_LOG, "info"));
    let log = telemetry::init(level, global.log_format, global.color, &suppressed);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let (runtime, _log) = match (runtime, log) {
        (Ok(runtime), Ok(log)) => (runtime, log),
        (Err(error), _) | (_, Err(error)) => {
            return out::fail(Exit::Failed, format_args!("cannot start: {error}")).into();
        }
    };
    let ended = runtime.block_on(async {
        match command {
            Command::Run(_) => run::run(&global).await,
            Command::Init(args) => init::run(&global, &args),
            Command::Check(args) => check::run(&global, &args).await,
            Command::Publish(args) => publish::run(&global, args).await,
            Command::Pipe(args) => pipe::run(&global, args).await,
            Command::Forecast(args) => forecast::run(&global, &args).await,
            Command::Status(args) => status::run(&global, &args).await,
            Command::Top(args) => top::run(&global, &args).await,
            Command::Dead(command) => dead::run(&global, command).await,
            Command::Downstream(command) => downstream::run(&global, command).await,
            Command::Cancel(args) => cancel::run(&global, args).await,
            Command::Pause(args) => pause::pause(&global, args).await,
            Command::Resume(args) => pause::resume(&global, args).await,
            Command::Reset(args) => reset::run(&global, args).await,
            Command::Unpark(args) => unpark::run(&global, args).await,
            Command::History(args) => history::run(&global, args).await,
            Command::Terms(command) => terms::run(&global, command).await,
            Command::Rate(command) => rate::run(&global, command).await,
            Command::Lane(command) => lane::run(&global, command).await,
            Command::Explain(args) => explain::run(&global, &args).await,
            Command::ExplainAnswer(args) => explain_answer::run(&global, &args),
            Command::Config(command) => config::run(&global, &command),
            Command::Completions(args) => manual::completions(&args),
            Command::Man(args) => manual::pages(&global, &args),
        }
    });
    // A pending read of stdin must not keep the process alive.
    runtime.shutdown_background();
    ended.map_or_else(Into::into, |()| ExitCode::SUCCESS)
}

/// The events that a command does not log, since it reports them itself.
fn suppressed(command: &Command) -> &'static [telemetry::Suppressed] {
    match command {
        Command::Pipe(_) => &[("paced::dispatch::flight::letter", "error")],
        Command::Check(_) => &[("paced::store::redis::link", "error")],
        // Nothing but itself may write to the terminal.
        Command::Top(_) => &[("paced::tls", "off")],
        _ => &[],
    }
}

/// The daemon logs what it does; the tools log only errors.
fn default_level(command: &Command) -> LevelFilter {
    match command {
        Command::Run(_) => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    }
}
