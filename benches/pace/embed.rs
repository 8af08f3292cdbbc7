//! Daemons and programs that embed paced share one pace.

pub mod child;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::figures::{Bound, Figure, Section, Unit};
use crate::fleet::{self, shares};
use crate::stage::Stage;
use crate::support::api::{Api, Arrival, stamp};
use crate::support::count::{busiest, effective_rate, gaps, variation};
use crate::support::daemon::scratch;
use crate::support::publish::{Job, publish};
use crate::support::site::compare;
use crate::support::{apart, blocking};

pub const NAME: &str = "embed";

/// The first argument that makes this program one that embeds paced.
pub const WORD: &str = "embedding";

const DOWNSTREAM: &str = "bench";
const RATE: u32 = 200;
/// Jobs for the daemons together, and calls of each program.
const JOBS: usize = 1000;
const CALLS: usize = 500;
/// As many wait in the program that is killed.
const CROWD: usize = 3000;
/// Longer than any run takes, unless jobs are lost.
const PATIENCE: Duration = Duration::from_secs(40);
const STOP: Duration = Duration::from_millis(2500);

const LOST: Figure = Figure::highest("jobs and calls lost", Unit::Count);
const SECOND: Figure = Figure::median("busiest 1 s", Unit::Count);
const TENTH: Figure = Figure::median("busiest 100 ms", Unit::Count);
const CV: Figure = Figure::median("variation of the spacing (CV)", Unit::Plain(3));
const COMPLETION: Figure = Figure::median("completion, against the ideal", Unit::Percent(2));
const LEAST: Figure = Figure::median("smallest share of a process, first half", Unit::Percent(1));
const MOST: Figure = Figure::median("largest share of a process, first half", Unit::Percent(1));
const LONGEST_GAP: Figure = Figure::median("longest time between two calls", Unit::Millis);
const CALLS_PER_JOB: Figure = Figure::median("script calls per job", Unit::Plain(3));
const GAP: Figure = Figure::median("longest time without a call after the kill", Unit::Millis);

/// What happens to the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Undisturbed,
    Stopped,
}

impl Variant {
    const fn column(self) -> &'static str {
        match self {
            Self::Undisturbed => "2 daemons, 2 programs",
            Self::Stopped => "one program stopped for 2.5 s",
        }
    }
}

const KILLED: &str = "a program with 3 000 waiters killed";

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "Daemons and programs that embed paced, one pace",
        "2 daemons with 1 000 jobs and 2 programs that make 500 calls each, by `Shaper::from_config` and \
         `acquire`, run at 200/s together. Everything is counted at the API. The stopped program gets \
         SIGSTOP after 500 calls of all and SIGCONT 2.5 s later. The last column is one daemon with 600 \
         jobs beside a program with 3 000 calls that wait for their slots, until the program gets SIGKILL.",
    );
    for run in 1..=stage.runs {
        for variant in [Variant::Undisturbed, Variant::Stopped] {
            eprintln!("  embed, run {run}: {}", variant.column());
            measure(stage, variant, &mut section).await?;
        }
        eprintln!("  embed, run {run}: {KILLED}");
        measure_kill(stage, &mut section).await?;
        section.runs = run;
    }
    Ok(section)
}

async fn measure(stage: &Stage, variant: Variant, section: &mut Section) -> Result<(), String> {
    let api = Api::try_start(0).map_err(|error| format!("no API: {error}"))?;
    let site = stage.site(NAME);
    let tables = |replica| fleet::table(DOWNSTREAM, RATE, &api.url(), replica);
    let daemons = fleet::start(&site, &vec![site.store.clone(); 2], tables).await?;
    let mut programs = Vec::new();
    for name in ["3", "4"] {
        programs.push(Program::start(&site.config(&tables(0)), &api.url(), name, CALLS).await?);
    }
    let before = stage.script_calls().await?;
    publish(&site.amqp, &site.prefix, DOWNSTREAM, Job::many("job", JOBS)).await;
    programs.iter_mut().try_for_each(Program::begin)?;
    let all = JOBS + 2 * CALLS;
    if variant == Variant::Stopped {
        api.reaches(all / 4, PATIENCE).await;
        programs[0].signal(rustix::process::Signal::STOP);
        tokio::time::sleep(STOP).await;
        programs[0].signal(rustix::process::Signal::CONT);
    }
    api.reaches(all, PATIENCE).await;
    let calls = stage.script_calls().await? - before;
    fleet::end(daemons).await?;
    note(section, variant, &api.arrivals(), calls);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn note(section: &mut Section, variant: Variant, arrivals: &[Arrival], calls: f64) {
    let column = variant.column();
    let lost = compare("job", JOBS, arrivals).lost.len()
        + compare("call-3", CALLS, arrivals).lost.len()
        + compare("call-4", CALLS, arrivals).lost.len();
    let stamps: Vec<u64> = arrivals.iter().map(|arrival| arrival.at).collect();
    let busy = |millis| busiest(&stamps, Duration::from_millis(millis)) as f64;
    section.judge(column, LOST, lost as f64, Bound::AtMost(0.0));
    section.judge(column, SECOND, busy(1000), Bound::AtMost(202.0));
    section.judge(column, TENTH, busy(100), Bound::AtMost(22.0));
    if variant == Variant::Undisturbed {
        let (least, most) = shares(&arrivals[..arrivals.len() / 2], 4);
        section.judge(column, LEAST, least, Bound::AtLeast(15.0));
        section.judge(column, MOST, most, Bound::AtMost(35.0));
        section.judge(column, CALLS_PER_JOB, calls / arrivals.len().max(1) as f64, Bound::AtMost(0.2));
        section.note(column, CV, variation(&stamps));
        let gap = gaps(&stamps).into_iter().max().unwrap_or_default();
        section.note(column, LONGEST_GAP, gap as f64 / 1e6);
        let completion = 100.0 * (f64::from(RATE) / effective_rate(&stamps) - 1.0);
        section.judge(column, COMPLETION, completion, Bound::Within(0.3));
    }
}

/// A program in which many calls wait is killed beside a daemon.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
async fn measure_kill(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let api = Api::try_start(0).map_err(|error| format!("no API: {error}"))?;
    let site = stage.site(NAME);
    let table = fleet::table(DOWNSTREAM, RATE, &api.url(), 1);
    let daemon = site.replica(&table).await?;
    let mut program = Program::start(&site.config(&table), &api.url(), "2", CROWD).await?;
    let jobs = 600;
    publish(&site.amqp, &site.prefix, DOWNSTREAM, Job::many("job", jobs)).await;
    program.begin()?;
    api.reaches(200, PATIENCE).await;
    program.signal(rustix::process::Signal::KILL);
    let killed = stamp();
    drop(program);
    let done = || compare("job", jobs, &api.arrivals()).lost.is_empty();
    let all = crate::support::poll(PATIENCE, async || done().then_some(())).await;
    fleet::end(vec![daemon]).await?;
    let stamps: Vec<u64> = api.arrivals().iter().map(|arrival| arrival.at).collect();
    // The time from the kill to the first call after it counts.
    let after = stamps.iter().copied().filter(|at| *at > killed);
    let after: Vec<u64> = std::iter::once(killed).chain(after).collect();
    let gap = gaps(&after).into_iter().max().unwrap_or(u64::MAX);
    section.judge(KILLED, LOST, if all.is_some() { 0.0 } else { 1.0 }, Bound::AtMost(0.0));
    section.judge(KILLED, SECOND, busiest(&stamps, Duration::from_secs(1)) as f64, Bound::AtMost(202.0));
    section.judge(KILLED, TENTH, busiest(&stamps, Duration::from_millis(100)) as f64, Bound::AtMost(22.0));
    // Two horizons of 100 ms.
    section.judge(KILLED, GAP, gap as f64 / 1e6, Bound::AtMost(200.0));
    Ok(())
}

/// A program that embeds paced, killed when dropped, and when this process dies.
struct Program {
    child: Child,
    input: ChildStdin,
    _folder: TempDir,
}

impl Program {
    /// Starts one that will make this many calls, and waits until it is ready.
    async fn start(config: &str, url: &str, name: &str, calls: usize) -> Result<Self, String> {
        let text = |error: std::io::Error| format!("cannot start a program that embeds paced: {error}");
        let folder = TempDir::new_in(scratch()?).map_err(text)?;
        let file = folder.path().join("paced.toml");
        std::fs::write(&file, config).map_err(text)?;
        let own = std::env::current_exe().map_err(text)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(own).arg(WORD);
        command.arg("--config").arg(&file).args(["--downstream", DOWNSTREAM, "--url", url, "--name", name]);
        command.args(["--calls", &calls.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        // The signal comes when the spawning *thread* ends: this one never does.
        let mut child = apart(async move { command.spawn() }).await.map_err(text)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).ok_or("a program without input and output")?;
        let started = Self { child, input, _folder: folder };
        let first_line = blocking(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).map(|_| line)
        });
        match first_line.await {
            Ok(line) if line == "ready\n" => Ok(started),
            _ => Err("a program ended before it was ready; what it wrote is above".to_owned()),
        }
    }

    /// Has it make its calls.
    fn begin(&mut self) -> Result<(), String> {
        self.input.write_all(b"begin\n").map_err(|error| format!("a program has ended: {error}"))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            // One that has ended already is found out by what it did not do.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
