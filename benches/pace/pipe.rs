//! `paced pipe`: beside a daemon on one Redis, and its memory with large inputs.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::api::LeanApi;
use crate::figures::{Bound, Figure, Section, Unit};
use crate::fleet::{self, shares};
use crate::process;
use crate::stage::{Stage, stop};
use crate::support::api::Api;
use crate::support::count::{busiest, effective_rate};
use crate::support::daemon::{binary, run_cli, scratch};
use crate::support::publish::{Job, publish};
use crate::support::site::compare;
use crate::support::{apart, blocking, poll, real_now};

pub const NAME: &str = "pipe";

const DOWNSTREAM: &str = "bench";
const RATE: u32 = 200;
/// As many jobs for the daemon, and lines for the pipe.
const JOBS: usize = 1000;
/// Longer than any run takes, unless jobs are lost.
const PATIENCE: Duration = Duration::from_secs(300);

/// The column of the daemon and the pipe.
const BESIDE: &str = "beside a daemon";

const LOST: Figure = Figure::highest("jobs lost", Unit::Count);
const DOUBLED: Figure = Figure::highest("jobs doubled", Unit::Count);
const SECOND: Figure = Figure::median("busiest 1 s", Unit::Count);
const TENTH: Figure = Figure::median("busiest 100 ms", Unit::Count);
const LEAST: Figure = Figure::median("smaller share of the two, first half", Unit::Percent(1));
const COMPLETION: Figure = Figure::median("completion, against the ideal", Unit::Percent(2));
const PEAK: Figure = Figure::highest("peak of resident memory", Unit::MiB);
const SPEED: Figure = Figure::median("lines per second", Unit::PerSecond);

/// A large input.
struct Input {
    column: &'static str,
    lines: usize,
    /// The length of a body, in bytes.
    size: usize,
    /// The time that the API takes to answer.
    delay: Duration,
}

const INPUTS: [Input; 2] = [
    // The API is slower than the disk, so that as much is read ahead as may be.
    Input { column: "300 lines of 4 MiB", lines: 300, size: 4 << 20, delay: Duration::from_millis(100) },
    Input { column: "1 000 000 lines of 1 KiB", lines: 1_000_000, size: 1 << 10, delay: Duration::ZERO },
];

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "paced pipe",
        "A daemon with 1 000 jobs in its queue, and `paced pipe --downstream` with 1 000 lines, share 200/s on one \
         Redis. Both are counted together at the API. Then `paced pipe --rate 1000000/s` reads a file of large lines, \
         whose API takes 100 ms for an answer, and a file of many lines, whose API answers at once. The memory is the \
         peak (VmHWM) over the whole run.",
    );
    for run in 1..=stage.runs {
        eprintln!("  pipe, run {run}: {BESIDE}");
        beside(stage, &mut section).await?;
        for input in &INPUTS {
            eprintln!("  pipe, run {run}: {}", input.column);
            measure(input, &mut section).await?;
        }
        section.runs = run;
    }
    Ok(section)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
async fn beside(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let api = Api::try_start(0).map_err(|error| format!("no API: {error}"))?;
    let (site, folder) = (stage.site(NAME), folder()?);
    let table = |replica| fleet::table(DOWNSTREAM, RATE, &api.url(), replica);
    let (config, lines) = (folder.path().join("paced.toml"), folder.path().join("jobs.ndjson"));
    std::fs::write(&config, site.config(&table(2))).map_err(unwritten)?;
    write(&lines, JOBS, 0).map_err(unwritten)?;
    let daemon = site.replica(&table(1)).await?;
    publish(&site.amqp, &site.prefix, DOWNSTREAM, Job::many("job", JOBS)).await;
    let (config, lines) = (config.to_string_lossy(), lines.to_string_lossy());
    let done = run_cli(&["-c", &config, "pipe", "--downstream", DOWNSTREAM, &lines], b"").await;
    api.reaches(2 * JOBS, Duration::from_secs(20)).await;
    stop(daemon).await?;
    if done.code != 0 {
        return Err(format!("paced pipe ended with {}: {}", done.code, done.stderr));
    }

    let arrivals = api.arrivals();
    let stamps = api.stamps();
    let tallies = [compare("job", JOBS, &arrivals), compare("line", JOBS, &arrivals)];
    let lost: usize = tallies.iter().map(|tally| tally.lost.len()).sum();
    // Those of the one are strange to the other, and the ids of both are unique.
    let doubled = arrivals.len() + lost - 2 * JOBS;
    let busy = |millis| busiest(&stamps, Duration::from_millis(millis)) as f64;
    section.judge(BESIDE, LOST, lost as f64, Bound::AtMost(0.0));
    section.judge(BESIDE, DOUBLED, doubled as f64, Bound::AtMost(0.0));
    section.judge(BESIDE, SECOND, busy(1000), Bound::AtMost(201.0));
    section.judge(BESIDE, TENTH, busy(100), Bound::AtMost(21.0));
    section.note(BESIDE, LEAST, shares(&arrivals[..arrivals.len() / 2], 2).0);
    let completion = 100.0 * (f64::from(RATE) / effective_rate(&stamps) - 1.0);
    section.note(BESIDE, COMPLETION, completion);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
async fn measure(input: &Input, section: &mut Section) -> Result<(), String> {
    let &Input { column, lines, size, delay } = input;
    let (api, folder) = (LeanApi::start(delay)?, folder()?);
    api.expect(lines);
    let file = folder.path().join("jobs.ndjson");
    let written = file.clone();
    blocking(move || write(&written, lines, size)).await.map_err(unwritten)?;
    let begun = real_now();
    let mut pipe = Pipe::start(&api.url(), &file).await?;
    let mut peak = 0.0_f64;
    let ended = poll(PATIENCE, || {
        // A process that has ended has no memory.
        peak = peak.max(process::peak_memory(pipe.0.id()).unwrap_or(0.0));
        std::future::ready(pipe.0.try_wait().transpose())
    });
    let status = ended.await.ok_or("paced pipe did not end")?.map_err(|error| error.to_string())?;
    let took = begun.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("paced pipe ended with {status}"));
    }
    section.judge(column, LOST, lines as f64 - api.count() as f64, Bound::AtMost(0.0));
    section.judge(column, PEAK, peak, Bound::AtMost(160.0));
    section.note(column, SPEED, lines as f64 / took);
    Ok(())
}

/// A pipe, which is killed when dropped, and when this process dies.
struct Pipe(Child);

impl Pipe {
    async fn start(url: &str, file: &Path) -> Result<Self, String> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(binary());
        command.args(["pipe", "--quiet", "--rate", "1000000/s", "--to", url]).arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // The signal comes when the spawning *thread* ends: this one never does.
        let child = apart(async move { command.spawn() }).await;
        child.map(Self).map_err(|error| format!("cannot start paced pipe: {error}"))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn folder() -> Result<TempDir, String> {
    TempDir::new_in(scratch()?).map_err(unwritten)
}

/// Writes jobs with the ids `line-0` and on, and bodies of this size.
fn write(file: &Path, lines: usize, size: usize) -> std::io::Result<()> {
    let (mut file, body) = (BufWriter::new(File::create(file)?), "x".repeat(size));
    for line in 0..lines {
        writeln!(file, "{{\"id\": \"line-{line}\", \"body\": \"{body}\"}}")?;
    }
    file.flush()
}

fn unwritten(error: std::io::Error) -> String {
    format!("cannot write a file: {error}")
}
