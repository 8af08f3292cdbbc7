//! Many downstreams: those that four replicas share, and those that mostly have no jobs.

use std::time::Duration;

use tokio::time::sleep;

use crate::crowd::{Jobs, Replica, Stamps, Task};
use crate::figures::{Bound, Figure, Section, Unit};
use crate::fleet::{self, shares};
use crate::idle;
use crate::process;
use crate::spread::Spread;
use crate::stage::Stage;
use crate::support::api::{Api, stamp};
use crate::support::publish::{Job, publish_to};
use crate::support::site::compare;

pub const NAME: &str = "many";

const REPLICAS: usize = 4;

/// The numbers for daemons: downstreams, the rate and the jobs of each.
const DOWNSTREAMS: usize = 40;
const RATE: u32 = 5;
const EACH: usize = 100;
/// The time-out: any run that loses no jobs is shorter.
const PATIENCE: Duration = Duration::from_secs(60);

/// The numbers for dispatchers in the bench: the rate of each downstream, and the jobs that each replica holds of it.
const INSIDE_RATE: u32 = 10;
const WINDOW: u16 = 32;
/// The time from the start of all replicas until the count begins.
const BEGIN: Duration = Duration::from_secs(3);
/// The duration of the count: a slot that is missed in it is 0.8 % of a downstream's rate.
const COUNTED: Duration = Duration::from_secs(12);

const LOST: Figure = Figure::highest("jobs lost", Unit::Count);
const DOUBLED: Figure = Figure::highest("jobs doubled", Unit::Count);
const CALLS: Figure = Figure::median("script calls per job", Unit::Plain(3));
const LEAST: Figure = Figure::median("smallest share of a replica, first half", Unit::Percent(1));
const MOST: Figure = Figure::median("largest share of a replica, first half", Unit::Percent(1));
const CPU: Figure = Figure::median("processor time of the replicas per job", Unit::Micros);
const CORES: Figure = Figure::median("processors that the replicas keep busy", Unit::Plain(2));
const REDIS: Figure = Figure::median("processors that Redis keeps busy", Unit::Plain(2));

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let about = format!(
        "First there are 4 processes with 40 downstreams at 5/s each. 100 jobs of each are published when \
         all are ready. The shares are those of all downstreams together, in the first half of the \
         requests, when all replicas still have jobs. Then there are 250 and 1 000 downstreams at 10/s \
         each, for 4 sets of dispatchers in the bench. Each set has its own runtime and its own connection \
         to Redis, on sources that never run out and sinks that only count. There is no broker and no \
         HTTP. After 3 s, 12 s are counted. Redis shares the machine with the replicas. {}",
        idle::ABOUT
    );
    let mut section = Section::new(NAME, "Many downstreams", &about);
    section.lines = true;
    for run in 1..=stage.runs {
        eprintln!("  many, run {run}: {DOWNSTREAMS} downstreams, daemons");
        daemons(stage, &mut section).await?;
        for (downstreams, column, judged) in [
            (250, "250 downstreams at 10/s, in the bench", true),
            (1000, "1 000 downstreams at 10/s, in the bench", false),
        ] {
            eprintln!("  many, run {run}: {column}");
            inside(stage, downstreams, column, judged, &mut section).await?;
        }
        section.runs = run;
    }
    idle::run(stage, &mut section).await?;
    Ok(section)
}

async fn daemons(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let api = Api::try_start(0).map_err(|error| format!("no API: {error}"))?;
    let site = stage.site(NAME);
    let url = api.url();
    let tables = |replica| -> String {
        (0..DOWNSTREAMS).map(|n| fleet::table(&format!("d{n}"), RATE, &url, replica)).collect()
    };
    let paced = fleet::start(&site, &vec![site.store.clone(); REPLICAS], tables).await?;
    let before = stage.script_calls().await?;
    let jobs = DOWNSTREAMS * EACH;
    let published = (0..jobs).map(|job| {
        // Jobs go to the default exchange with the queue's name in two parts, over one connection for all of them.
        let suffix = format!("d{}", job % DOWNSTREAMS);
        Job { key_suffix: Some(suffix), ..Job::new(format!("job-{job}")) }
    });
    publish_to(&site.amqp, "", &format!("{}.jobs", site.prefix), published.collect()).await;
    api.reaches(jobs, PATIENCE).await;
    let calls = stage.script_calls().await? - before;
    fleet::end(paced).await?;

    let (column, arrivals) = ("40 downstreams at 5/s, daemons", api.arrivals());
    let tally = compare("job", jobs, &arrivals);
    let (least, most) = shares(&arrivals[..arrivals.len() / 2], REPLICAS);
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let (lost, doubled, arrived) =
        (tally.lost.len() as f64, tally.doubled.len() as f64, arrivals.len().max(1) as f64);
    section.judge(column, LOST, lost, Bound::AtMost(0.0));
    section.judge(column, DOUBLED, doubled, Bound::AtMost(0.0));
    section.judge(column, CALLS, calls / arrived, Bound::AtMost(1.2));
    section.note(column, LEAST, least);
    section.note(column, MOST, most);
    Ok(())
}

async fn inside(
    stage: &Stage,
    downstreams: usize,
    column: &str,
    judged: bool,
    section: &mut Section,
) -> Result<(), String> {
    let site = stage.site(NAME);
    let released: Vec<Stamps> = (0..downstreams).map(|_| Stamps::new()).collect();
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        let tasks = released.iter().enumerate().map(|(n, released)| Task {
            downstream: format!("d{n}"),
            rate: INSIDE_RATE,
            window: WINDOW,
            jobs: Jobs::Endless,
            released: released.clone(),
        });
        replicas.push(Replica::start(&site.store, &site.prefix, tasks.collect()).await?);
    }
    sleep(BEGIN).await;
    let own = std::process::id();
    let (first, cpu, redis) = (stamp(), process::cpu(own)?, redis_cpu(stage).await?);
    let calls = stage.script_calls().await?;
    sleep(COUNTED).await;
    let (last, cpu_after, redis_after) = (stamp(), process::cpu(own)?, redis_cpu(stage).await?);
    let calls = stage.script_calls().await? - calls;
    let stamps: Vec<Vec<u64>> = released.iter().map(Stamps::all).collect();
    for replica in replicas {
        replica.end().await?;
    }

    let spread = Spread::of(&stamps, INSIDE_RATE, first, last);
    let Spread { total, seconds, .. } = spread;
    let cpu = (cpu_after - cpu).as_secs_f64();
    spread.put(section, column, judged);
    section.note(column, CALLS, calls / total);
    section.note(column, CPU, cpu * 1e6 / total);
    section.note(column, CORES, cpu / seconds);
    section.note(column, REDIS, (redis_after - redis) / seconds);
    Ok(())
}

/// The processor time of Redis so far, in seconds.
async fn redis_cpu(stage: &Stage) -> Result<f64, String> {
    let info = stage.redis.command(&["INFO", "cpu"]).await;
    let info = info.map_err(|error| format!("no INFO from Redis: {error}"))?;
    let used = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    let both = used("used_cpu_user:").zip(used("used_cpu_sys:"));
    both.map(|(user, system)| user + system).ok_or_else(|| "INFO cpu of Redis is not as expected".to_owned())
}
