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
/// The jobs that come home: many, and others that are long.
const HOME: usize = 10_000;
const LONG: (usize, usize) = (1000, 1 << 20);
/// The pace of a second downstream meanwhile, and how many jobs it has at least.
const OTHER: (u32, usize) = (200, 20_000);

/// The columns.
const FLEET: &str = "paced, four replicas";
const ONE: &str = "paced, one replica";

const SPEED: Figure = Figure::median("jobs parked per second", Unit::PerSecond);
const FULL_PACE: Figure = Figure::median("until the jobs for now are at their full pace", Unit::Plain(1));
const BEHIND_LATER: Figure =
    Figure::highest("20 jobs at 10/s behind 700 for tomorrow are out after", Unit::Plain(2));
const BEHIND_PLAN: Figure =
    Figure::highest("20 jobs at 10/s behind 700 of a used-up plan are out after", Unit::Plain(2));
const HOME_AFTER: Figure =
    Figure::highest("10 000 parked jobs of a plan are home after it is raised, seconds", Unit::Plain(2));
const GONE_AFTER: Figure = Figure::highest("they are out after, seconds", Unit::Plain(2));
const LONG_AFTER: Figure = Figure::highest("1 000 of 1 MiB are home after, seconds", Unit::Plain(2));
const OTHERS_PACE: Figure =
    Figure::median("the pace of another downstream meanwhile, as a part of its rate", Unit::Plain(3));
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
         lines with 20 jobs are separate scenes with one replica, in seconds from when it is ready; 20 \
         jobs need 1.9 s at 10/s. In two more scenes the jobs of a used-up plan are parked, and a reload \
         of the file raises the limit of the plan. The time is counted from the reload until none of them \
         waits in the broker, and until the last one has gone. While jobs of 1 MiB come home, another \
         downstream of the same connection sends 200/s.",
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
    let many = raised(stage, (HOME, SIZE)).await?;
    section.judge(ONE, HOME_AFTER, many.home, Bound::AtMost(5.0));
    section.note(ONE, GONE_AFTER, many.gone);
    let long = raised(stage, LONG).await?;
    section.note(ONE, LONG_AFTER, long.home);
    section.judge(ONE, OTHERS_PACE, long.others, Bound::AtLeast(0.95));
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

/// What happened after the limit of a plan was raised.
struct Raised {
    /// After how many seconds no job of it was parked any more.
    home: f64,
    /// After how many seconds all of them had gone.
    gone: f64,
    /// The pace of another downstream by then, as a part of its rate.
    others: f64,
}

/// Parks this many jobs of this size, whose plan is used up, and raises its limit.
async fn raised(stage: &Stage, (count, size): (usize, usize)) -> Result<Raised, String> {
    let (api, second, site) =
        (LeanApi::start(Duration::ZERO)?, LeanApi::start(Duration::ZERO)?, stage.site(NAME));
    api.expect(count + QUOTA);
    let queues = ["raised", "other"].map(|name| format!("{}.{name}", site.prefix));
    stage.declare(queues.to_vec(), Kind::Quorum).await?;
    let [queue, other] = &queues;
    for part in Job::many("free", count + QUOTA).chunks(500) {
        let jobs = part.iter().map(|job| job.clone().header("paced-plan", "free").body(vec![b'x'; size]));
        publish_to(&site.amqp, "", queue, jobs.collect()).await;
    }
    let (rate, jobs) = OTHER;
    stage.fill(other, jobs, SIZE).await;
    let config = |quota: usize| {
        format!(
            "[downstreams.raised]\nrate = '1000000/s'\nconcurrency = 64\nqueue.name = '{queue}'\n\
             http.base_url = '{}'\n[downstreams.other]\nrate = '{rate}/s'\nqueue.name = '{other}'\n\
             http.base_url = '{}'\n[plans.free]\n\
             limits = [{{ algorithm = 'fixed-window', rate = '{quota}/30d' }}]\n",
            api.url(),
            second.url()
        )
    };
    let replica = site.replica(&config(QUOTA)).await?;
    let waits = [4, 16, 64, 256, 1024, 4096].map(|seconds| format!("{}.wait.raised.{seconds}s", site.prefix));
    let waiting = || async {
        let mut waiting = 0;
        for queue in &waits {
            waiting += depth(&site.amqp, queue).await.unwrap_or(0) as usize;
        }
        waiting
    };
    let all_parked = || async { (waiting().await >= count).then_some(()) };
    poll(PATIENCE, all_parked).await.ok_or("not all jobs of the plan were parked")?;
    std::fs::write(replica.config_file(), site.config(&config(1_000_000)))
        .map_err(|error| error.to_string())?;
    let (start, before) = (real_now(), second.count());
    replica.hangup();
    let all_home = || async { (waiting().await == 0).then(|| start.elapsed().as_secs_f64()) };
    let (home, all) = tokio::join!(poll(PATIENCE, all_home), api.all(PATIENCE));
    let (gone, sent) = (start.elapsed().as_secs_f64(), second.count() - before);
    all?;
    stop(replica).await?;
    stage.delete(queues.to_vec()).await?;
    stage.delete(waits.to_vec()).await?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let others = sent as f64 / gone / f64::from(rate);
    Ok(Raised { home: home.ok_or("not all jobs came home")?, gone, others })
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
