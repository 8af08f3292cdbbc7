//! Thousands of downstreams of which a hundred have jobs: what it costs to start them, and to have them while nothing happens.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::sleep;

use crate::api::{Arrival, LeanApi};
use crate::figures::{Bound, Figure, Section, Unit};
use crate::process;
use crate::stage::{Kind, Site, Stage};
use crate::support::api::stamp;
use crate::support::daemon::Paced;
use crate::support::publish::{Job, publish_all};

/// The numbers of downstreams.
const FEW: usize = 1_000;
const MANY: usize = 10_000;

/// How many of them have jobs, and how many jobs each has.
const BUSY: usize = 100;
const EACH: usize = 5;
const RATE: u32 = 10;

/// How long all jobs may take to arrive, and the time from then until the idle time begins.
const PATIENCE: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_secs(15);
/// The duration of the idle time.
const IDLE: Duration = Duration::from_secs(20);

/// The queues where jobs are parked, as powers of two.
const RUNGS: u32 = 23;

const FIRST: Figure = Figure::median("seconds until each of the 100 has sent a job", Unit::Plain(1));
const FIRST_RATIO: Figure = Figure::median("that / the same of 1 000", Unit::Plain(1));
const START: Figure = Figure::median("seconds until all are consumed", Unit::Plain(1));
const START_RATIO: Figure = Figure::median("all consumed / the same of 1 000", Unit::Plain(1));
const LOST: Figure = Figure::highest("jobs lost", Unit::Count);
const MEMORY: Figure = Figure::median("resident memory while idle", Unit::MiB);
const PEAK: Figure = Figure::median("peak of resident memory", Unit::MiB);
const CORE: Figure = Figure::median("share of a core while idle", Unit::Percent(1));
const CALLS: Figure = Figure::highest("store calls for downstreams while idle", Unit::Count);
const REPORTS: Figure = Figure::median("other store calls while idle", Unit::Plain(1));

/// For readers of the report.
pub const ABOUT: &str = "Then, once, a daemon has 1 000 downstreams, and another one 10 000, with `declare = false` on classic \
     queues that exist already (three for each; as many quorum queues would be a test of the broker). 100 of them have 5 jobs \
     each, which go first. 15 s after these have arrived, 20 s are counted in which nothing happens: processor time from /proc, and by Redis's \
     statistics the calls that read the state of a downstream, and all other scripts a second (the replica's report of itself).";

/// Measures both numbers of downstreams, once.
pub async fn run(stage: &Stage, section: &mut Section) -> Result<(), String> {
    let mut starts = Vec::new();
    for downstreams in [FEW, MANY] {
        eprintln!("  many: {downstreams} downstreams, idle");
        let site = Site { declare: false, ..stage.site("idle") };
        let queues = queues(&site.prefix, downstreams);
        stage.declare(queues.clone(), Kind::Classic).await?;
        stage.declare_exchanges(exchanges(&site.prefix)).await?;
        let start = measure(stage, &site, downstreams, section).await;
        // The next measurement must not have them beside it, also if this one has failed.
        stage.delete(queues).await?;
        starts.push(start?);
    }
    if let [few, many] = &starts[..] {
        section.judge(column(MANY), FIRST_RATIO, many.first / few.first, Bound::AtMost(3.0));
        // Each consumer costs the broker the same time, so that this cannot be far below the ratio of their numbers.
        section.note(column(MANY), START_RATIO, many.all / few.all);
    }
    Ok(())
}

const fn column(downstreams: usize) -> &'static str {
    if downstreams == FEW { "1 000 downstreams, 100 have jobs" } else { "10 000 downstreams, 100 have jobs" }
}

/// How many seconds the start took.
struct Start {
    /// Until the last of those with jobs has sent its first one.
    first: f64,
    /// Until all are consumed.
    all: f64,
}

async fn measure(
    stage: &Stage,
    site: &Site,
    downstreams: usize,
    section: &mut Section,
) -> Result<Start, String> {
    let (column, api) = (column(downstreams), LeanApi::start(Duration::ZERO)?);
    api.expect(BUSY * EACH);
    let busy = (0..downstreams).step_by(downstreams / BUSY);
    let jobs = busy.flat_map(|n| {
        let queue = format!("{}.{n}", site.prefix);
        (0..EACH).map(move |job| (queue.clone(), Job::new(format!("job-{n}-{job}"))))
    });
    publish_all(&site.amqp, "", jobs.collect()).await;

    let begun = stamp();
    let paced = site.replica(&tables(&site.prefix, downstreams, &api)).await?;
    let all = seconds(begun, stamp());
    section.note(column, START, all);
    let arrived = api.all(PATIENCE).await;
    let arrivals = api.arrivals();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let lost = (BUSY * EACH).saturating_sub(arrivals.len()) as f64;
    section.judge(column, LOST, lost, Bound::AtMost(0.0));
    arrived?;
    let first = seconds(begun, last_first(&arrivals));
    section.note(column, FIRST, first);

    sleep(REST).await;
    idle(stage, &paced, downstreams, section).await?;
    // Thousands of consumers would end one by one, and no job waits for that.
    paced.kill9();
    Ok(Start { first, all })
}

async fn idle(stage: &Stage, paced: &Paced, downstreams: usize, section: &mut Section) -> Result<(), String> {
    let (column, pid, is_judged) = (column(downstreams), paced.pid(), downstreams == MANY);
    let before = (stamp(), process::cpu(pid)?, store_calls(stage).await?);
    sleep(IDLE).await;
    let after = (stamp(), process::cpu(pid)?, store_calls(stage).await?);
    let idle = seconds(before.0, after.0);
    let share = 100.0 * (after.1 - before.1).as_secs_f64() / idle;
    let [of_downstreams, scripts] = [after.2[0] - before.2[0], after.2[1] - before.2[1]];
    let memory = process::memory(pid)?;
    for (figure, value, most) in [(CORE, share, 3.0), (MEMORY, memory, 300.0)] {
        if is_judged {
            section.judge(column, figure, value, Bound::AtMost(most));
        } else {
            section.note(column, figure, value);
        }
    }
    section.note(column, PEAK, process::peak_memory(pid)?);
    section.judge(column, CALLS, of_downstreams, Bound::AtMost(0.0));
    section.note(column, REPORTS, (scripts - of_downstreams) / idle);
    Ok(())
}

/// The calls so far that read the state of a downstream, and all scripts. Each call about a downstream reads one key or more as a
/// whole; the reports of replicas never do.
async fn store_calls(stage: &Stage) -> Result<[f64; 2], String> {
    Ok([stage.calls(&["get", "mget"]).await?, stage.script_calls().await?])
}

/// When the last of the downstreams sent its first job.
fn last_first(arrivals: &[Arrival]) -> u64 {
    let mut firsts: BTreeMap<usize, u64> = BTreeMap::new();
    for Arrival { at, number } in arrivals {
        let first = firsts.entry(*number).or_insert(*at);
        *first = (*first).min(*at);
    }
    firsts.into_values().max().unwrap_or_default()
}

fn seconds(from: u64, to: u64) -> f64 {
    Duration::from_nanos(to.saturating_sub(from)).as_secs_f64()
}

/// All queues that a daemon with `declare = false` looks for.
fn queues(prefix: &str, downstreams: usize) -> Vec<String> {
    let each = (0..downstreams).flat_map(|n| {
        [format!("{prefix}.{n}"), format!("{prefix}.dead.d{n}"), format!("{prefix}.home.d{n}")]
    });
    let unroutable = format!("{prefix}.unroutable");
    each.chain(rungs(prefix)).chain([unroutable]).collect()
}

fn exchanges(prefix: &str) -> Vec<String> {
    rungs(prefix).chain([format!("{prefix}.home"), format!("{prefix}.unroutable")]).collect()
}

fn rungs(prefix: &str) -> impl Iterator<Item = String> {
    (0..RUNGS).map(move |power| format!("{prefix}.park.{}s", 1_u32 << power))
}

fn tables(prefix: &str, downstreams: usize, api: &LeanApi) -> String {
    let (mut text, url) = (String::new(), api.url());
    for n in 0..downstreams {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "[downstreams.d{n}]\nrate = '{RATE}/s'\nqueue.name = '{prefix}.{n}'\nhttp.base_url = '{url}{n}/'\n"
        );
    }
    text
}
