//! One replica whose pace is kept in a file, beside one that keeps it in memory.

use std::time::Duration;

use crate::api::LeanApi;
use crate::figures::{Bound, Figure, Section, Unit};
use crate::process;
use crate::stage::{Kind, Stage, stop};
use crate::support::count::effective_rate;
use crate::support::daemon::scratch;

pub const NAME: &str = "lasting";

const SPEED: Figure = Figure::median("jobs per second", Unit::PerSecond);
const CPU: Figure = Figure::median("processor time per job", Unit::Micros);
const RATIO: Figure = Figure::median("jobs per second / those in memory", Unit::Plain(3));
const LENGTH: Figure = Figure::highest("length of the file at the end", Unit::KiB);

const RATE: u32 = 5000;
const SECONDS: u32 = 10;
const MEMORY: &str = "memory:";
const FILE: &str = "file:";

/// The results of one store in one run.
#[derive(Clone, Copy, Debug)]
struct Pace {
    speed: f64,
    /// The processor time per job, in µs.
    cpu: f64,
}

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "A store in a file",
        "One replica at 5 000/s for 10 s, with all jobs waiting in its queue: once with its pace in memory, once in a file on \
         the disk of the machine's temporary folder. The API counts from the first request to the last.",
    );
    for run in 1..=stage.runs {
        eprintln!("  lasting, run {run}: {MEMORY}");
        let memory = measure(stage, MEMORY).await?;
        eprintln!("  lasting, run {run}: {FILE}");
        let folder = tempfile::TempDir::new_in(scratch()?).map_err(|error| error.to_string())?;
        let path = folder.path().join("pace");
        let file = measure(stage, &format!("{FILE}{}", path.display())).await?;
        for (column, pace) in [(MEMORY, memory), (FILE, file)] {
            section.note(column, SPEED, pace.speed);
            section.note(column, CPU, pace.cpu);
        }
        section.judge(FILE, RATIO, file.speed / memory.speed, Bound::AtLeast(0.9));
        let length = std::fs::metadata(&path).map_err(|error| error.to_string())?.len();
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let length = length as f64 / 1024.0;
        section.note(FILE, LENGTH, length);
        section.runs = run;
    }
    Ok(section)
}

async fn measure(stage: &Stage, store: &str) -> Result<Pace, String> {
    let jobs = (RATE * SECONDS) as usize;
    let api = LeanApi::start(Duration::ZERO)?;
    api.expect(jobs);
    let mut site = stage.site(NAME);
    store.clone_into(&mut site.store);
    let queue = format!("{}.bench", site.prefix);
    stage.declare(vec![queue.clone()], Kind::Quorum).await?;
    stage.fill(&queue, jobs, 0).await;
    let downstream = format!(
        "[downstreams.bench]\nrate = '{RATE}/s'\nqueue.name = '{queue}'\nhttp.base_url = '{}'\n",
        api.url()
    );
    let paced = site.replica(&downstream).await?;
    api.first(Duration::from_secs(10)).await?;
    let before = process::cpu(paced.pid())?;
    api.all(Duration::from_secs(u64::from(SECONDS) + 20)).await?;
    let spent = process::cpu(paced.pid())?.saturating_sub(before);
    stop(paced).await?;
    stage.delete(vec![queue]).await?;
    let cpu = spent.as_secs_f64() * 1e6 / f64::from(RATE * SECONDS);
    Ok(Pace { speed: effective_rate(&api.stamps()), cpu })
}
