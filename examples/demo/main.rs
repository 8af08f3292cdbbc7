//! `make demo`: paced at work, in a minute and without any setup.
//!
//! Starts a private Redis, a private RabbitMQ and an API that keeps a log, lets replicas of the
//! real daemon release jobs to it, and shows what arrived when. Exits with 1 if a job was lost or
//! doubled or the limit was exceeded. Leaves nothing behind, on Ctrl-C either.

mod machine;
mod plot;
mod report;
mod screen;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use paced::Rate;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use machine::Machine;
use report::Report;
use screen::{Screen, grouped};
use support::api::{Api, Arrival};
use support::daemon::{self, Paced, run_cli};
use support::publish;
use support::servers::{Rabbit, Redis};

/// Shows paced release jobs to an API, through private servers that are gone afterwards.
#[derive(Clone, Debug, Parser)]
#[command(name = "paced-demo", max_term_width = 100)]
struct Options {
    /// How many jobs are released
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100_000))]
    jobs: u32,
    /// What the API allows
    #[arg(long, default_value = "100/s", value_name = "RATE")]
    rate: Rate,
    /// How many daemons share the work
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    replicas: u32,
}

/// How long jobs may take beyond what the rate needs before they count as lost.
const PATIENCE: Duration = Duration::from_secs(30);
const REDRAW: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let screen = Screen::new();
    let stopped = async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt()).ok()?, signal(SignalKind::terminate()).ok()?);
        Some(tokio::select! {
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
        })
    };
    // The first to end drops the other, and with it the replicas and the servers.
    tokio::select! {
        shown = show(&options, &screen) => match shown {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                screen.fail(&error);
                ExitCode::FAILURE
            }
        },
        Some(code) = stopped => {
            screen.note("stopped; the servers and their files are removed");
            ExitCode::from(code)
        }
    }
}

/// Everything around the daemons.
struct Stage {
    redis: Redis,
    rabbit: Rabbit,
    api: Api,
}

/// Whether all went as promised.
async fn show(options: &Options, screen: &Screen) -> Result<bool, String> {
    let Options { jobs, rate, replicas } = options;
    screen.title(&format!(
        "{} jobs for an API that allows {rate}, released by {replicas} replica{}",
        grouped(u64::from(*jobs)),
        if *replicas == 1 { "" } else { "s" },
    ));
    if !daemon::binary().exists() {
        return Err(format!(
            "there is no {}; build it first: cargo build --features daemon --bin paced (`make demo` does)",
            daemon::binary().display()
        ));
    }
    let stage = build(screen).await?;
    let daemons = spawn(options, &stage, screen).await?;
    let machine = Machine::watch(daemons.iter().map(Paced::pid).collect());
    publish_jobs(options, &stage, screen).await?;
    watch(options, &stage.api, screen).await;
    let delays = machine.end();
    let left = finish(daemons, &stage, screen).await?;
    let report = Report::new(*rate, *jobs as usize, &stage.api.arrivals(), left, &delays);
    screen.lines(&report.render(screen));
    Ok(report.is_good())
}

async fn build(screen: &Screen) -> Result<Stage, String> {
    let step = screen.step("starting a private Redis");
    let redis = Redis::try_dedicated().await?;
    step.done(&format!("Redis on 127.0.0.1:{}, for the state of the limit", redis.port()));
    let step = screen.step("starting a private RabbitMQ (about 10 s)");
    let rabbit = Rabbit::try_dedicated().await?;
    step.done(&format!("RabbitMQ on 127.0.0.1:{}, for the jobs", rabbit.port()));
    let step = screen.step("starting an API");
    let api = Api::try_start(0).map_err(|error| format!("no API: {error}"))?;
    step.done(&format!("an API on 127.0.0.1:{} that logs when each request arrives", api.port()));
    Ok(Stage { redis, rabbit, api })
}

/// The configuration of one replica: only its name, sent along with each request, is its own.
fn config(options: &Options, stage: &Stage, replica: u32) -> String {
    format!(
        "[amqp]\n\
         url = \"{}\"\n\
         [store]\n\
         url = \"{}\"\n\
         [downstreams.demo]\n\
         rate = \"{}\"\n\
         http.base_url = \"{}\"\n\
         http.headers = {{ {} = \"{replica}\" }}\n",
        stage.rabbit.url(),
        stage.redis.url(),
        options.rate,
        stage.api.url(),
        report::REPLICA,
    )
}

async fn spawn(options: &Options, stage: &Stage, screen: &Screen) -> Result<Vec<Paced>, String> {
    let step = screen.step("starting `paced run`");
    let mut daemons = Vec::new();
    for replica in 1..=options.replicas {
        daemons.push(Paced::try_start(&config(options, stage, replica), &[], &[]).await?);
    }
    for daemon in &daemons {
        daemon.try_ready().await?;
    }
    let pids: Vec<String> = daemons.iter().map(|daemon| daemon.pid().to_string()).collect();
    step.done(&format!("{} x `paced run`, ready (pid {})", daemons.len(), pids.join(", ")));
    Ok(daemons)
}

async fn publish_jobs(options: &Options, stage: &Stage, screen: &Screen) -> Result<(), String> {
    let command = format!("paced publish demo --count {}", options.jobs);
    let step = screen.step(&format!("running `{command}`"));
    let folder = tempfile::TempDir::new_in(daemon::scratch()?).map_err(|error| error.to_string())?;
    let file = folder.path().join("paced.toml");
    std::fs::write(&file, config(options, stage, 0)).map_err(|error| error.to_string())?;
    let count = options.jobs.to_string();
    let args = ["-c", &file.to_string_lossy(), "publish", "demo", "--count", &count, "--body", "{}"];
    let done = run_cli(&args, b"").await;
    if done.code != 0 {
        return Err(format!("`{command}` ended with {}:\n{}", done.code, done.stderr));
    }
    step.done(&format!("`{command}`, each confirmed by the broker"));
    Ok(())
}

/// Shows the jobs arrive, until all have or none come any more.
async fn watch(options: &Options, api: &Api, screen: &Screen) {
    let jobs = options.jobs as usize;
    let mut progress = screen.progress(jobs, options.rate);
    let start = Instant::now();
    let least = options.rate.interval() * options.jobs;
    let mut ticks = interval(if screen.is_terminal() { REDRAW } else { Duration::from_secs(1) });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        // Ends the wait at once when the last one arrives.
        let all = timeout(ticks.period(), api.reaches(jobs, PATIENCE)).await;
        if all == Ok(true) && distinct(&api.arrivals()) >= jobs {
            break;
        }
        ticks.tick().await;
        progress.draw(&api.stamps());
        if start.elapsed() > least + PATIENCE {
            break;
        }
    }
    progress.draw(&api.stamps());
    progress.end();
}

fn distinct(arrivals: &[Arrival]) -> usize {
    arrivals.iter().map(Arrival::id).collect::<HashSet<_>>().len()
}

/// Ends the daemons as a deployment would; how many jobs the broker still has.
async fn finish(daemons: Vec<Paced>, stage: &Stage, screen: &Screen) -> Result<u32, String> {
    let step = screen.step("stopping the replicas with SIGTERM");
    for daemon in &daemons {
        daemon.term();
    }
    let mut wrong = String::new();
    for daemon in &daemons {
        let code = daemon.wait_exit(Duration::from_secs(40)).await;
        if code != 0 {
            let _ = writeln!(wrong, "a replica ended with {code}; its log:\n{}", daemon.log().join("\n"));
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut left = 0;
    for queue in ["paced.jobs.demo", "paced.dead.demo"] {
        left += publish::depth(&stage.rabbit.url(), queue).await.unwrap_or(0);
    }
    step.done(&format!("replicas stopped cleanly; {left} jobs are left in the queues"));
    Ok(left)
}
