//! Jobs that cannot go in front of jobs for now: how fast the first are parked, and when the others go.

use std::time::Duration;

use lapin::types::AMQPValue;
use paced::time::wall_now;

use crate::api::LeanApi;
use crate::figures::{Bound, Figure, Section, Unit};
use crate::process;
use crate::stage::{Kind, Site, Stage, stop};
use crate::support::daemon::Paced;
use crate::support::publish::{Job, depth, publish_to};
use crate::support::{poll, real_now};

pub const NAME: &str = "park";

const REPLICAS: usize = 4;
/// The jobs for tomorrow, which lie in front: first few, then many.
const LATER: [u32; 2] = [20_000, 100_000];
const DAY: Duration = Duration::from_secs(86_400);
/// The rung on which they wait.
const RUNG: &str = "park.65536s";
/// The jobs for now, and their pace.
const NOW: u32 = 1000;
const RATE: u32 = 500;
const SIZE: usize = 256;
/// The jobs that are published at a time, so that never all are in memory here.
const PART: u32 = 10_000;
const PATIENCE: Duration = Duration::from_secs(120);
/// The small scenes: the jobs in front, those behind them, and what the daily quota of the plan allows.
const IN_FRONT: usize = 700;
const BEHIND: usize = 20;
const QUOTA: usize = 3;

/// The columns.
const FLEET: &str = "paced, four replicas";
const ONE: &str = "paced, one replica";

const SPEED: Figure = Figure::median("jobs parked per second", Unit::PerSecond);
const FULL_PACE: Figure = Figure::median("until the jobs for now are at their full pace", Unit::Plain(1));
const BEHIND_LATER: Figure =
    Figure::highest("20 jobs at 10/s behind 700 for tomorrow are out after", Unit::Plain(2));
const BEHIND_PLAN: Figure =
    Figure::highest("20 jobs at 10/s behind 700 of a used-up plan are out after", Unit::Plain(2));
const LOST: Figure = Figure::highest("jobs that are neither parked nor sent", Unit::Count);
const BEFORE: Figure = Figure::median("resident memory of a replica when ready", Unit::MiB);
const AFTER: Figure = Figure::median("resident memory of a replica at the end", Unit::MiB);
const PEAK_OF_FEW: Figure = Figure::median("its peak, with 20 000 jobs for tomorrow", Unit::MiB);
const PEAK: Figure = Figure::median("its peak, with 100 000 jobs for tomorrow", Unit::MiB);
const GROWTH: Figure =
    Figure::median("the peak with the many, as a part of that with the few", Unit::Plain(2));

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "Jobs for tomorrow in front of jobs for now",
        "100 000 jobs of 256 B with a `paced-not-before` of tomorrow are in a quorum queue, and 1 000 for \
         now behind them, at 500/s. Then four replicas start. The time is counted from when all are ready. \
         The first figure ends when all jobs for tomorrow are parked. The second ends when the last job \
         for now has gone, less the 2 s that these need at their pace. The broker is the bottleneck: it \
         stores each copy in another quorum queue and takes the ack. Jobs that the first replicas park \
         before the last one is ready are counted too, so the speed is a little too high. Memory is VmRSS, \
         and its peak (VmHWM) from the start of the process, of the replica that has the most. The peak is \
         also measured with 20 000 jobs for tomorrow, since it must not grow with the waiting jobs. The \
         last two lines are separate scenes with one replica, in seconds from when it is ready; 20 jobs \
         need 1.9 s at 10/s.",
    );
    for run in 1..=stage.runs {
        eprintln!("  park, run {run}");
        let [few, many] = LATER;
        let peak_of_few = measure(stage, few, None).await?;
        let peak = measure(stage, many, Some(&mut section)).await?;
        section.note(FLEET, PEAK_OF_FEW, peak_of_few);
        section.note(FLEET, PEAK, peak);
        section.judge(FLEET, GROWTH, peak / peak_of_few, Bound::AtMost(1.25));
        scenes(stage, &mut section).await?;
        section.runs = run;
    }
    Ok(section)
}

/// Has this many jobs parked in front of those for now; returns the peak of the memory of a replica.
async fn measure(stage: &Stage, later: u32, section: Option<&mut Section>) -> Result<f64, String> {
    let (api, site) = (LeanApi::start(Duration::ZERO)?, stage.site(NAME));
    api.expect(NOW as usize);
    let queue = format!("{}.bench", site.prefix);
    stage.declare(vec![queue.clone()], Kind::Quorum).await?;
    publish(&site, &queue, later).await;
    let downstream = format!(
        "[downstreams.bench]\nrate = '{RATE}/s'\nqueue.name = '{queue}'\nhttp.base_url = '{}'\n",
        api.url()
    );
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(site.replica(&downstream).await?);
    }
    let start = real_now();
    let before = most(&replicas, process::memory)?;
    let rung = format!("{}.{RUNG}", site.prefix);
    let all_parked = || async { (depth(&site.amqp, &rung).await? >= later).then(|| start.elapsed()) };
    let (parked, sent) = tokio::join!(poll(PATIENCE, all_parked), api.all(PATIENCE));
    sent?;
    let took = start.elapsed().as_secs_f64() - f64::from(NOW) / f64::from(RATE);
    let parked = parked.ok_or("not all jobs were parked")?;
    let (after, peak) = (most(&replicas, process::memory)?, most(&replicas, process::peak_memory)?);
    for replica in replicas {
        stop(replica).await?;
    }
    let waiting = depth(&site.amqp, &rung).await.unwrap_or(0) + depth(&site.amqp, &queue).await.unwrap_or(0);
    if let Some(section) = section {
        section.judge(FLEET, SPEED, f64::from(later) / parked.as_secs_f64(), Bound::AtLeast(3000.0));
        section.judge(FLEET, FULL_PACE, took, Bound::AtMost(40.0));
        section.judge(FLEET, LOST, f64::from(later) - f64::from(waiting), Bound::AtMost(0.0));
        section.note(FLEET, BEFORE, before);
        section.judge(FLEET, AFTER, after, Bound::AtMost(80.0));
    }
    stage.delete(vec![queue, rung]).await?;
    Ok(peak)
}

/// Few jobs for now behind many that cannot go: those of tomorrow, and those of a plan that is used up.
async fn scenes(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let at = AMQPValue::LongLongInt(wall_now().plus(DAY).0 / 1000);
    let later = Job::many("later", IN_FRONT).into_iter();
    let later = later.map(|job| job.header_value("paced-not-before", at.clone())).collect();
    let took = behind(stage, later, (0, "")).await?;
    section.judge(ONE, BEHIND_LATER, took, Bound::AtMost(6.0));
    let plan = format!("[plans.free]\nlimits = [{{ algorithm = 'fixed-window', rate = '{QUOTA}/d' }}]\n");
    let free = Job::many("free", IN_FRONT + QUOTA).into_iter();
    let free = free.map(|job| job.header("paced-plan", "free")).collect();
    let took = behind(stage, free, (QUOTA, &plan)).await?;
    section.judge(ONE, BEHIND_PLAN, took, Bound::AtMost(6.0));
    Ok(())
}

/// Returns after how many seconds the jobs behind these are out, and those of these that a plan allows.
async fn behind(stage: &Stage, front: Vec<Job>, (allowed, plan): (usize, &str)) -> Result<f64, String> {
    let (api, site) = (LeanApi::start(Duration::ZERO)?, stage.site(NAME));
    api.expect(BEHIND + allowed);
    let queue = format!("{}.behind", site.prefix);
    stage.declare(vec![queue.clone()], Kind::Quorum).await?;
    publish_to(&site.amqp, "", &queue, front).await;
    publish_to(&site.amqp, "", &queue, Job::many("now", BEHIND)).await;
    let downstream = format!(
        "[downstreams.behind]\nrate = '10/s'\nqueue.name = '{queue}'\nhttp.base_url = '{}'\n{plan}",
        api.url()
    );
    let replica = site.replica(&downstream).await?;
    let start = real_now();
    api.all(PATIENCE).await?;
    let took = start.elapsed().as_secs_f64();
    stop(replica).await?;
    stage.delete(vec![queue]).await?;
    Ok(took)
}

async fn publish(site: &Site, queue: &str, later: u32) {
    let at = AMQPValue::LongLongInt(wall_now().plus(DAY).0 / 1000);
    for part in 0..later / PART {
        let ids = part * PART..(part + 1) * PART;
        let jobs = ids.map(|id| {
            let job = Job::new(format!("later-{id}")).body(vec![b'x'; SIZE]);
            job.header_value("paced-not-before", at.clone())
        });
        publish_to(&site.amqp, "", queue, jobs.collect()).await;
    }
    let now = Job::many("now", NOW as usize).into_iter().map(|job| job.body(vec![b'x'; SIZE]));
    publish_to(&site.amqp, "", queue, now.collect()).await;
}

/// The memory of the replica that has the most, measured so.
fn most(replicas: &[Paced], memory: fn(u32) -> Result<f64, String>) -> Result<f64, String> {
    replicas.iter().try_fold(0.0_f64, |most, replica| Ok(memory(replica.pid())?.max(most)))
}
