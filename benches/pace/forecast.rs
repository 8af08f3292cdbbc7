//! Ten real runs, each compared with what `paced forecast` says about the same jobs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use paced::time::{Micros, wall_now};
use serde_json::Value;
use tempfile::TempDir;

use crate::figures::{Bound, Figure, Section, Unit};
use crate::stage::{Stage, stop};
use crate::support::api::{Api, Arrival};
use crate::support::daemon::{Output, run_cli, scratch};

pub const NAME: &str = "forecast";

/// Longer than any run takes, unless jobs are lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// The limits of the only plan, which all downstreams have.
const PLAN: &str = "[plans.free]\nlimits = [{ rate = '8/s' }]\n";
/// Jobs for later go this long after their file was written.
const LATER: Duration = Duration::from_secs(8);

const MISSING: Figure = Figure::highest("jobs that did not come", Unit::Count);
const FORECAST: Figure = Figure::median("forecast, in seconds", Unit::Plain(3));
const REAL: Figure = Figure::median("measured, in seconds", Unit::Plain(3));
const ERROR: Figure = Figure::median("measured, against the forecast", Unit::Percent(2));

/// A downstream, and its jobs.
struct Trial {
    column: &'static str,
    limits: &'static str,
    jobs: usize,
    /// The line of a job by its number; its file is written at this instant.
    line: fn(usize, Micros) -> String,
}

const TRIALS: [Trial; 10] = [
    trial("25/s, every fifth job for later", "rate = '25/s'", 200, later),
    trial(
        "20/s with a burst of 40",
        "limits = [{ algorithm = 'gcra', rate = '20/s', burst = 40 }]",
        200,
        plain,
    ),
    trial(
        "a token bucket, costs of 1 to 4",
        "limits = [{ algorithm = 'token-bucket', rate = '40/s', capacity = 80 }]",
        160,
        costs,
    ),
    trial(
        "50/s, and 40 in windows of 2 s",
        "rate = '50/s'\nlimits = [{ algorithm = 'fixed-window', rate = '40/2s' }]",
        180,
        plain,
    ),
    trial(
        "20 in any second, with a margin",
        "rate = '100/s'\nlimits = [{ algorithm = 'sliding-log', rate = '20/s', margin = '50ms' }]",
        160,
        plain,
    ),
    trial(
        "60 in about any 3 s",
        "limits = [{ algorithm = 'sliding-window', rate = '60/3s', buckets = 6 }]",
        220,
        plain,
    ),
    trial(
        "40/s, and a quota of 50 in 3 s",
        "rate = '40/s'\nlimits = [{ algorithm = 'quota', rate = '50/3s' }]",
        170,
        plain,
    ),
    trial(
        "50/s, and a rolling quota of 60 in 4 s",
        "rate = '50/s'\nlimits = [{ algorithm = 'quota', rate = '60/4s', reset = 'rolling' }]",
        160,
        plain,
    ),
    trial(
        "20 requests/s, and 600 tokens/s",
        "limits = [{ rate = '20/s', name = 'requests', cost = 1 }, \
         { rate = '600/s', name = 'tokens', cost = 'header:tokens', default_cost = 10 }]",
        100,
        tokens,
    ),
    trial("30/s, and a plan of 8/s for every third job", "rate = '30/s'", 180, plans),
];

const fn trial(
    column: &'static str,
    limits: &'static str,
    jobs: usize,
    line: fn(usize, Micros) -> String,
) -> Trial {
    Trial { column, limits, jobs, line }
}

fn plain(_: usize, _: Micros) -> String {
    "{}".to_owned()
}

fn later(n: usize, written: Micros) -> String {
    let at = written.plus(LATER).0 / 1000;
    if n.is_multiple_of(5) { format!("{{\"not_before\": {at}}}") } else { "{}".to_owned() }
}

fn costs(n: usize, _: Micros) -> String {
    format!("{{\"cost\": {}}}", 1 + n % 4)
}

fn tokens(n: usize, _: Micros) -> String {
    match n % 10 {
        0 => "{}".to_owned(),
        _ => format!("{{\"costs\": {{\"tokens\": {}}}}}", 20 + n * 37 % 61),
    }
}

fn plans(n: usize, _: Micros) -> String {
    if n.is_multiple_of(3) { "{\"plan\": \"free\"}".to_owned() } else { "{}".to_owned() }
}

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "A forecast, and what happens",
        "One daemon has ten downstreams, each with limits of its own on Redis. `paced publish` sends each of them a \
         file of jobs; they all run at the same time. The time is counted at the API, from the first request of a \
         downstream to its last. `paced forecast` then says for the same file, from the instant of the first request \
         on, when the jobs are through. 1 % of these times is 70 ms to 110 ms.",
    );
    section.lines = true;
    for run in 1..=stage.runs {
        eprintln!("  forecast, run {run}");
        measure(stage, &mut section).await?;
        section.runs = run;
    }
    Ok(section)
}

async fn measure(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let text = |error: std::io::Error| format!("cannot write a file of jobs: {error}");
    let api = Api::try_start(0).map_err(|error| format!("no API: {error}"))?;
    let site = stage.site(NAME);
    let config = site.config(&downstreams(&api));
    let folder = TempDir::new_in(scratch()?).map_err(text)?;
    std::fs::write(folder.path().join("paced.toml"), &config).map_err(text)?;
    let daemon = site.replica(&downstreams(&api)).await?;
    for (number, trial) in TRIALS.iter().enumerate() {
        let written = wall_now();
        let lines: String = (0..trial.jobs).map(|n| (trial.line)(n, written) + "\n").collect();
        std::fs::write(folder.path().join(name(number)), lines).map_err(text)?;
        let file = path(&folder, &name(number));
        command(&folder, &["publish", &name(number), &file]).await?;
    }
    api.reaches(TRIALS.iter().map(|trial| trial.jobs).sum(), PATIENCE).await;
    stop(daemon).await?;
    let arrivals = api.arrivals();
    for (number, trial) in TRIALS.iter().enumerate() {
        let own = format!("/{}/", name(number));
        let arrivals: Vec<&Arrival> = arrivals.iter().filter(|arrival| arrival.path == own).collect();
        judge(section, trial, &arrivals, &folder, &name(number)).await?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
async fn judge(
    section: &mut Section,
    trial: &Trial,
    arrivals: &[&Arrival],
    folder: &TempDir,
    name: &str,
) -> Result<(), String> {
    let column = trial.column;
    section.judge(column, MISSING, trial.jobs as f64 - arrivals.len() as f64, Bound::AtMost(0.0));
    let (first, last) = arrivals.first().zip(arrivals.last()).ok_or("no request came")?;
    let at = jiff::Timestamp::from_microsecond(first.wall.0).map_err(|error| error.to_string())?.to_string();
    let file = path(folder, name);
    let done = command(folder, &["-o", "json", "forecast", "-D", name, "--at", &at, &file]).await?;
    let found: Value = serde_json::from_str(&done.stdout).map_err(|error| error.to_string())?;
    let millis = |key: &str| found[key].as_f64().ok_or_else(|| format!("no `{key}` in {}", done.stdout));
    let forecast = (millis("through_at")? - millis("start")?) / 1e3;
    let real = (last.at - first.at) as f64 / 1e9;
    section.note(column, FORECAST, forecast);
    section.note(column, REAL, real);
    section.judge(column, ERROR, 100.0 * (real / forecast - 1.0), Bound::Within(1.0));
    Ok(())
}

/// Runs a command with the configuration in this folder.
async fn command(folder: &TempDir, args: &[&str]) -> Result<Output, String> {
    let done = run_cli(&[&["-c", &path(folder, "paced.toml")], args].concat(), b"").await;
    if done.code == 0 { Ok(done) } else { Err(format!("`paced {}`: {}", args.join(" "), done.stderr)) }
}

fn downstreams(api: &Api) -> String {
    let mut text = String::new();
    for (number, Trial { limits, .. }) in TRIALS.iter().enumerate() {
        let (name, url) = (name(number), api.url());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "[downstreams.{name}]\n{limits}\nhttp.base_url = '{url}{name}/'");
    }
    text + PLAN
}

/// The name of a downstream, which is that of its file of jobs.
fn name(number: usize) -> String {
    format!("d{number}")
}

fn path(folder: &TempDir, name: &str) -> String {
    Path::join(folder.path(), name).to_string_lossy().into_owned()
}
