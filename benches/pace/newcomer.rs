//! The wait of a job in a replica that starts when others have had the pace to themselves.

use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::time::sleep;

use crate::crowd::{Jobs, Replica, Stamps, Task};
use crate::figures::{Bound, Figure, Section, Unit, median};
use crate::stage::{Site, Stage};
use crate::support::api::stamp;
use crate::support::count::effective_rate;

pub const NAME: &str = "newcomer";

const RATE: u32 = 50;
/// The number of other replicas, which always have jobs.
const REPLICAS: usize = 8;
/// The jobs that each of them holds.
const WINDOW: u16 = 250;
/// The number of waits that are measured.
const TIMES: usize = 20;
/// The time from the start of the others to the first wait.
const BEGIN: Duration = Duration::from_secs(3);
/// The shortest time between two waits, and the longest random addition to it.
const BETWEEN: Duration = Duration::from_millis(500);
const MORE_MILLIS: u64 = 2000;
/// The time-out: any wait is shorter, unless the job is lost.
const PATIENCE: Duration = Duration::from_secs(30);

const LONGEST: Figure = Figure::highest("longest wait for the release", Unit::Millis);
const MIDDLE: Figure = Figure::median("median wait for the release", Unit::Millis);
const REACHED: Figure = Figure::median("rate of all nine meanwhile, of the limit", Unit::Percent(1));

/// The kind of the ninth replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ninth {
    /// The replica runs all the time, and has a job now and then.
    Idle,
    /// The replica is started with one job, anew each time.
    Started,
}

impl Ninth {
    const ALL: [Self; 2] = [Self::Idle, Self::Started];

    const fn column(self) -> &'static str {
        match self {
            Self::Idle => "a ninth replica that was idle",
            Self::Started => "a ninth replica that has just started",
        }
    }
}

/// A job of the ninth replica.
#[derive(Clone, Copy, Debug)]
struct Waited {
    /// The instant at which its source handed it out.
    handed: u64,
    /// The instant at which its sink was called.
    released: u64,
}

impl Waited {
    fn millis(&self) -> f64 {
        Duration::from_nanos(self.released - self.handed).as_secs_f64() * 1e3
    }
}

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "A newcomer among those with a backlog",
        "50/s. Eight replicas have 250 jobs each, and never run out. A ninth gets one job at a random \
         instant, 20 times, 0.5 s to 2.5 s apart. The figure is the time from when its source hands the \
         job out to when its sink is called. All replicas are dispatchers in the bench, each with its own \
         runtime and its own connection to Redis, on scripted sources. There is no broker and no HTTP.",
    );
    for run in 1..=stage.runs {
        for ninth in Ninth::ALL {
            eprintln!("  newcomer, run {run}: {}", ninth.column());
            measure(stage, ninth, &mut section).await?;
        }
        section.runs = run;
    }
    Ok(section)
}

async fn measure(stage: &Stage, ninth: Ninth, section: &mut Section) -> Result<(), String> {
    let (site, all) = (stage.site(NAME), Stamps::new());
    let mut others = Vec::new();
    for _ in 0..REPLICAS {
        let task = task(Jobs::Endless, &all);
        others.push(Replica::start(&site.store, &site.prefix, vec![task]).await?);
    }
    sleep(BEGIN).await;
    let begun = stamp();
    let jobs = match ninth {
        Ninth::Idle => idle(&site).await?,
        Ninth::Started => started(&site).await?,
    };
    let mut stamps: Vec<u64> = all.all().into_iter().filter(|at| *at >= begun).collect();
    for other in others {
        other.end().await?;
    }
    stamps.extend(jobs.iter().map(|job| job.released));
    stamps.sort_unstable();
    let waits: Vec<f64> = jobs.iter().map(Waited::millis).collect();
    let column = ninth.column();
    section.judge(column, LONGEST, waits.iter().copied().reduce(f64::max), Bound::AtMost(300.0));
    section.note(column, MIDDLE, median(&waits));
    section.note(column, REACHED, 100.0 * effective_rate(&stamps) / f64::from(RATE));
    Ok(())
}

/// The jobs of a replica that runs all the time.
async fn idle(site: &Site) -> Result<Vec<Waited>, String> {
    let ((sender, signals), handed, released) = (unbounded_channel(), Stamps::new(), Stamps::new());
    let task = task(Jobs::Signalled(signals, handed.clone()), &released);
    let replica = Replica::start(&site.store, &site.prefix, vec![task]).await?;
    let mut jobs = Vec::new();
    for time in 0..TIMES {
        sleep(between()).await;
        sender.send(()).map_err(|error| error.to_string())?;
        jobs.push(wait(&handed, &released, time).await?);
    }
    replica.end().await?;
    Ok(jobs)
}

/// The jobs of replicas that have just started.
async fn started(site: &Site) -> Result<Vec<Waited>, String> {
    let mut jobs = Vec::new();
    for _ in 0..TIMES {
        sleep(between()).await;
        let ((sender, signals), handed, released) = (unbounded_channel(), Stamps::new(), Stamps::new());
        sender.send(()).map_err(|error| error.to_string())?;
        let task = task(Jobs::Signalled(signals, handed.clone()), &released);
        let replica = Replica::start(&site.store, &site.prefix, vec![task]).await?;
        jobs.push(wait(&handed, &released, 0).await?);
        replica.end().await?;
    }
    Ok(jobs)
}

/// Waits until the job of this number was released.
async fn wait(handed: &Stamps, released: &Stamps, number: usize) -> Result<Waited, String> {
    let handed = handed.nth(number, PATIENCE).await.map_err(|error| format!("no job: {error}"))?;
    let released = released.nth(number, PATIENCE).await.map_err(|error| format!("no release: {error}"))?;
    Ok(Waited { handed, released })
}

fn task(jobs: Jobs, released: &Stamps) -> Task {
    let (downstream, released) = ("bench".to_owned(), released.clone());
    Task { downstream, rate: RATE, window: WINDOW, jobs, released }
}

/// A random time between two waits.
fn between() -> Duration {
    BETWEEN + Duration::from_millis(fastrand::u64(0..=MORE_MILLIS))
}
