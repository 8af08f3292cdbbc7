//! `make bench`: what paced reaches on this machine, next to loops without it.
//!
//! Starts a private Redis and a private RabbitMQ, measures the release binary in turn with what it is
//! compared with, and prints a table for each scenario. A run of all scenarios writes
//! docs/benchmarks.md. Exits with 1 when a figure misses its bound, or could not be measured.

mod api;
mod crowd;
mod embed;
mod far;
mod figures;
mod fleet;
mod forecast;
mod guarding;
mod idle;
mod lasting;
mod limits;
mod loops;
mod machine;
mod many;
mod margin;
mod memory;
mod metronome;
mod newcomer;
mod other;
mod park;
mod pipe;
mod process;
mod release;
mod report;
mod share;
mod spread;
mod stage;
#[path = "../../tests/support/mod.rs"]
mod support;
mod throughput;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, ValueEnum};

use figures::Section;
use stage::Stage;

/// Measures paced on private servers.
#[derive(Debug, Parser)]
#[command(name = "pace", max_term_width = 100)]
struct Options {
    /// What to measure; all when none is named
    scenarios: Vec<Scenario>,
    /// How often; figures are medians
    #[arg(long, default_value_t = FULL, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// The program of another build of paced, which `other` measures beside this one
    #[arg(long, value_name = "PATH")]
    other: Option<PathBuf>,
    /// Put the result on docs/benchmarks.md, also that of some scenarios or of fewer runs
    #[arg(long)]
    write: bool,
    /// As cargo bench calls it
    #[arg(long, hide = true)]
    bench: bool,
}

/// The number of runs of a full measurement.
const FULL: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Four replicas share 200/s
    Share,
    /// Two daemons and two programs that embed paced share 200/s
    Embed,
    /// Replicas far from Redis, and eight near it
    Far,
    /// A job in a ninth replica, where eight have a backlog
    Newcomer,
    /// One replica at 1 000/s and at 5 000/s: lateness
    Release,
    /// A limit that does not bind, against loops without one
    Throughput,
    /// Resident memory, and 1 000 downstreams
    Memory,
    /// 40 to 1 000 downstreams that four replicas share, and 10 000 of which a hundred have jobs
    Many,
    /// One replica at 5 000/s with its pace in a file, beside one with it in memory
    Lasting,
    /// One decision, in memory and in Redis, beside others
    Limits,
    /// Jobs for tomorrow in front of jobs for now
    Park,
    /// An API that counts in any second, with and without a margin
    Margin,
    /// Ten runs, against the forecast
    Forecast,
    /// `paced pipe` beside a daemon, and its memory
    Pipe,
    /// The guard before the AMQP parser, beside a build without it
    Guard,
    /// Another build of paced beside this one, named by --other; not among all
    Other,
}

impl Scenario {
    const ALL: [Self; 15] = [
        Self::Share,
        Self::Embed,
        Self::Far,
        Self::Newcomer,
        Self::Release,
        Self::Throughput,
        Self::Memory,
        Self::Many,
        Self::Lasting,
        Self::Limits,
        Self::Park,
        Self::Margin,
        Self::Forecast,
        Self::Pipe,
        Self::Guard,
    ];
    const NAMES: [&str; 15] = [
        share::NAME,
        embed::NAME,
        far::NAME,
        newcomer::NAME,
        release::NAME,
        throughput::NAME,
        memory::NAME,
        many::NAME,
        lasting::NAME,
        limits::NAME,
        park::NAME,
        margin::NAME,
        forecast::NAME,
        pipe::NAME,
        guarding::NAME,
    ];

    async fn run(self, stage: &Stage, other: Option<&Path>) -> Result<Section, String> {
        match self {
            Self::Share => share::run(stage).await,
            Self::Embed => embed::run(stage).await,
            Self::Far => far::run(stage).await,
            Self::Newcomer => newcomer::run(stage).await,
            Self::Release => release::run(stage).await,
            Self::Throughput => throughput::run(stage).await,
            Self::Memory => memory::run(stage).await,
            Self::Many => many::run(stage).await,
            Self::Lasting => lasting::run(stage).await,
            Self::Limits => limits::run(stage).await,
            Self::Park => park::run(stage).await,
            Self::Margin => margin::run(stage).await,
            Self::Forecast => forecast::run(stage).await,
            Self::Pipe => pipe::run(stage).await,
            Self::Guard => guarding::run(stage).await,
            Self::Other => other::run(stage, other).await,
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == loops::WORD) {
        return loops::child::main(&Parser::parse_from(&args[1..]));
    }
    if args.get(1).is_some_and(|arg| arg == embed::WORD) {
        return embed::child::main(&Parser::parse_from(&args[1..]));
    }
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let measured = runtime
        .map_err(|error| format!("cannot start: {error}"))
        .and_then(|runtime| runtime.block_on(measure(&options)));
    match measured {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every bound was measured and is kept.
async fn measure(options: &Options) -> Result<bool, String> {
    build()?;
    let all = options.scenarios.is_empty();
    let scenarios = if all { &Scenario::ALL[..] } else { &options.scenarios[..] };
    let stage = Stage::build(usize::from(options.runs)).await?;
    let (mut sections, mut failed) = (Vec::new(), false);
    for scenario in scenarios {
        match scenario.run(&stage, options.other.as_deref()).await {
            Ok(section) => {
                println!("{}", report::table(&section));
                sections.push(section);
            }
            Err(error) => {
                println!("{scenario:?} failed: {error}");
                failed = true;
            }
        }
    }
    if options.write || (all && options.runs >= FULL) {
        let machine = machine::describe(&stage).await?;
        let run = machine::run(command());
        report::write(&sections, &machine, &run, &Scenario::NAMES)?;
        println!("written: {}", report::file().display());
    }
    let missed: Vec<String> = sections.iter().flat_map(Section::missed).collect();
    for missed in &missed {
        println!("missed: {missed}");
    }
    let unmeasured: Vec<String> = sections.iter().flat_map(Section::unmeasured).collect();
    for unmeasured in &unmeasured {
        println!("not measured: {unmeasured}");
    }
    Ok(!failed && missed.is_empty() && unmeasured.is_empty())
}

/// Builds the binary as users do: cargo has built one for this bench too, but with the features that tests want of its
/// dependencies.
fn build() -> Result<(), String> {
    let Some(cargo) = std::env::var_os("CARGO") else { return Ok(()) };
    let args = ["build", "--release", "--locked", "--quiet", "--features", "daemon", "--bin", "paced"];
    let built = Command::new(cargo).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).status();
    match built {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`cargo {}` ended with {status}", args.join(" "))),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

/// The command that repeats this run.
fn command() -> String {
    let args: Vec<String> =
        std::env::args().skip(1).filter(|arg| arg != "--bench" && arg != "--write").collect();
    if args.is_empty() { "make bench".to_owned() } else { format!("make bench ARGS=\"{}\"", args.join(" ")) }
}
