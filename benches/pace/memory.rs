//! The memory of a daemon: at the start, with its window full, and with a thousand downstreams.

use std::fmt::Write as _;
use std::time::Duration;

use crate::api::LeanApi;
use crate::figures::{Bound, Figure, Section, Unit};
use crate::process;
use crate::spread::Spread;
use crate::stage::{Kind, Site, Stage, stop};
use crate::support::api::stamp;
use crate::support::daemon::Paced;
use crate::support::publish::{Job, depth, publish_to};
use crate::support::{poll, real_now};

pub const NAME: &str = "memory";

const START: Figure = Figure::median("resident memory when ready", Unit::MiB);
const HELD: Figure = Figure::median("resident memory, window full", Unit::MiB);
const FILLING: Figure = Figure::median("resident memory when ready, its queues full", Unit::MiB);
const JOBS: Figure = Figure::median("jobs held", Unit::Count);
const EACH: Figure = Figure::median("memory per held job", Unit::KiB);

/// The number of jobs held. At this rate a minute releases a little more than that, which is the highest window.
const HELD_JOBS: u32 = 10_000;
const HELD_RATE: u32 = 170;
const HELD_SIZE: usize = 1024;

const CALLS: Figure = Figure::median("script calls", Unit::PerSecond);
const CPU: Figure = Figure::median("processor time of paced per job", Unit::Micros);
const CORES: Figure = Figure::median("processors that paced keeps busy", Unit::Plain(2));

const DOWNSTREAMS: usize = 1000;
/// The rate of each downstream.
const RATE: u32 = 10;
/// The duration of the count, once all have begun: a slot that is missed in it is 0.7 % of a downstream's rate.
const COUNTED: Duration = Duration::from_secs(15);
/// The time from when all downstreams consume until the count begins.
const BEGIN: Duration = Duration::from_secs(2);
/// The waiting jobs of each downstream: for the count, and for the start of all.
const WAITING: usize = 400;
/// The number of parts in which they are published.
const TURNS: usize = 10;

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "Memory, and a thousand downstreams",
        "Resident memory (VmRSS) of a daemon with one downstream, a second after it is ready, and with a \
         window of 10 000 jobs of 1 KiB, all of them delivered and unacked, at 170/s. Then one daemon has \
         1 000 downstreams at 10/s each. Their jobs wait in classic queues that exist already, with \
         `declare = false` (2 000 quorum queues would be a test of the broker). Each downstream's rate is \
         counted at the API over 15 s in which all of them have jobs. The API, the broker and Redis share \
         the machine with the daemon.",
    );
    for run in 1..=stage.runs {
        eprintln!("  memory, run {run}: one downstream");
        one(stage, &mut section).await?;
        for memory in [false, true] {
            eprintln!("  memory, run {run}: {DOWNSTREAMS} downstreams, {}", store_name(memory));
            if let Err(error) = many(stage, memory, &mut section).await {
                eprintln!("    {error}");
                Spread::put_none(&mut section, &many_column(memory));
            }
        }
        section.runs = run;
    }
    Ok(section)
}

const fn store_name(memory: bool) -> &'static str {
    if memory { "memory store" } else { "Redis" }
}

fn many_column(memory: bool) -> String {
    format!("1 000 downstreams, {}", store_name(memory))
}

async fn one(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let api = LeanApi::start(Duration::ZERO)?;
    let site = stage.site(NAME);
    let queue = format!("{}.bench", site.prefix);
    stage.declare(vec![queue.clone()], Kind::Quorum).await?;
    let downstream = format!(
        "[downstreams.bench]\nrate = '{HELD_RATE}/s'\nqueue.name = '{queue}'\nqueue.prefetch = {HELD_JOBS}\n\
         http.base_url = '{}'\n",
        api.url()
    );
    let paced = site.replica(&downstream).await?;
    let start = most_memory(&paced).await?;
    section.judge("one downstream", START, start, Bound::AtMost(40.0));

    // There are 1 000 more, so that the window stays full during the measurement.
    let (window, more) = (HELD_JOBS as usize, 1000);
    stage.fill(&queue, window + more, HELD_SIZE).await;
    let full = poll(Duration::from_secs(20), || async {
        let waiting = depth(&site.amqp, &queue).await? as usize;
        (waiting <= more).then_some(())
    });
    full.await.ok_or("the window did not fill")?;
    let held = most_memory(&paced).await?;
    let waiting = depth(&site.amqp, &queue).await.unwrap_or(0) as usize;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let jobs = (window + more - waiting - api.count()) as f64;
    section.judge("one downstream", HELD, held, Bound::AtMost(80.0));
    section.note("one downstream", JOBS, jobs);
    section.note("one downstream", EACH, (held - start) * 1024.0 / jobs);
    stop(paced).await?;
    stage.delete(vec![queue]).await
}

/// The highest memory within a second.
async fn most_memory(paced: &Paced) -> Result<f64, String> {
    let (start, mut most) = (real_now(), 0.0);
    while start.elapsed() < Duration::from_secs(1) {
        most = process::memory(paced.pid())?.max(most);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(most)
}

async fn many(stage: &Stage, memory: bool, section: &mut Section) -> Result<(), String> {
    let column = many_column(memory);
    let api = LeanApi::start(Duration::ZERO)?;
    let mut site = stage.site(NAME);
    site.declare = false;
    if memory {
        "memory:".clone_into(&mut site.store);
    }
    let queues = queues(&site);
    stage.declare(queues.clone(), Kind::Classic).await?;
    for turn in 0..TURNS {
        let jobs = (0..DOWNSTREAMS * WAITING / TURNS).map(|job| {
            let number = (job % DOWNSTREAMS).to_string();
            Job { key_suffix: Some(number), ..Job::new(format!("job-{turn}-{job}")) }
        });
        // One connection publishes all jobs, which are never all in memory.
        publish_to(&site.amqp, "", &site.prefix, jobs.collect()).await;
    }
    let paced = site.replica(&downstreams(&site, &api)).await?;
    section.note(&column, FILLING, process::memory(paced.pid())?);
    tokio::time::sleep(BEGIN).await;
    let (first, cpu, calls) = (stamp(), process::cpu(paced.pid())?, stage.script_calls().await?);
    tokio::time::sleep(COUNTED).await;
    let (last, cpu_after, calls_after) = (stamp(), process::cpu(paced.pid())?, stage.script_calls().await?);
    let held = process::memory(paced.pid())?;
    let mut stamps = vec![Vec::new(); DOWNSTREAMS];
    api.arrivals().iter().for_each(|arrival| stamps[arrival.number].push(arrival.at));
    let spread = Spread::of(&stamps, RATE, first, last);
    let Spread { total, seconds, .. } = spread;
    let cpu = (cpu_after - cpu).as_secs_f64();

    spread.put(section, &column, true);
    section.note(&column, CALLS, (calls_after - calls) / seconds);
    section.note(&column, CPU, cpu * 1e6 / total);
    section.note(&column, CORES, cpu / seconds);
    section.note(&column, HELD, held);
    stop(paced).await?;
    stage.delete(queues).await
}

/// The queues of the jobs and of the dead letters: with `declare = false`, paced uses both as they are.
fn queues(site: &Site) -> Vec<String> {
    let jobs = (0..DOWNSTREAMS).map(|n| format!("{}.{n}", site.prefix));
    jobs.chain((0..DOWNSTREAMS).map(|n| format!("{}.dead.d{n}", site.prefix))).collect()
}

fn downstreams(site: &Site, api: &LeanApi) -> String {
    let mut text = String::new();
    for n in 0..DOWNSTREAMS {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "[downstreams.d{n}]\nrate = '{RATE}/s'\nqueue.name = '{}.{n}'\nhttp.base_url = '{}{n}/'\n",
            site.prefix,
            api.url()
        );
    }
    text
}
