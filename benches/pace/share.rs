//! Four replicas share one pace: near the store, one of them farther away, and one of them stopped.

use std::time::Duration;

use crate::figures::{Bound, Figure, Section, Unit};
use crate::fleet::{self, shares};
use crate::loops::Loop;
use crate::stage::{Kind, Site, Stage};
use crate::support::api::{Api, Arrival};
use crate::support::count::{busiest, effective_rate, variation};
use crate::support::proxy::Proxy;
use crate::support::publish::{Job, publish};
use crate::support::site::compare;

pub const NAME: &str = "share";

const JOBS: usize = 2000;
const REPLICAS: usize = 4;
const RATE: u32 = 200;
/// The time-out: any run that loses no jobs is shorter.
const PATIENCE: Duration = Duration::from_secs(40);
/// The additional latency of the distant replica's calls to Redis.
const FAR: Duration = Duration::from_millis(2);
const STOP: Duration = Duration::from_secs(5);

const LOST: Figure = Figure::highest("jobs lost", Unit::Count);
const DOUBLED: Figure = Figure::highest("jobs doubled", Unit::Count);
const CV: Figure = Figure::median("variation of the spacing (CV)", Unit::Plain(3));
const SECOND: Figure = Figure::median("busiest 1 s", Unit::Count);
const TENTH: Figure = Figure::median("busiest 100 ms", Unit::Count);
const COMPLETION: Figure = Figure::median("completion, against the ideal", Unit::Percent(2));
const CALLS: Figure = Figure::median("script calls per job", Unit::Plain(3));
const LEAST: Figure = Figure::median("smallest share of a replica, first half", Unit::Percent(1));
const MOST: Figure = Figure::median("largest share of a replica, first half", Unit::Percent(1));
const LEAST_ALL: Figure = Figure::median("smallest share of a replica, whole run", Unit::Percent(1));
const MOST_ALL: Figure = Figure::median("largest share of a replica, whole run", Unit::Percent(1));

/// The scenario of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Near,
    Far,
    Stopped,
    /// Not paced: four loops with one script call per job.
    Loops,
}

impl Variant {
    const ALL: [Self; 4] = [Self::Near, Self::Far, Self::Stopped, Self::Loops];

    const fn column(self) -> &'static str {
        match self {
            Self::Near => "paced",
            Self::Far => "paced, one replica 2 ms farther from Redis",
            Self::Stopped => "paced, one replica stopped for 5 s",
            Self::Loops => "20-line loop",
        }
    }
}

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "Four replicas, one pace",
        "4 processes, 200/s, 2 000 jobs that are published when all are ready. Everything is counted at \
         the API: the coefficient of variation of the intervals (0 is a metronome, 1 is Poisson), the most \
         requests in any window, and the time from the first to the last request against 1 999 intervals. \
         RabbitMQ gives each consumer a quarter of these jobs at once, so over the whole run each must end \
         near 25 %. The first half, when all still have jobs, shows who is faster. The far replica reaches \
         Redis through a proxy that makes its round trips 2 ms longer. The stopped one gets SIGSTOP after \
         500 jobs and SIGCONT 5 s later. The 20-line loop makes one script call per job (a leaky bucket in \
         Lua), sleeps on tokio's timer and sends.",
    );
    for run in 1..=stage.runs {
        for variant in Variant::ALL {
            eprintln!("  share, run {run}: {}", variant.column());
            measure(stage, variant, &mut section).await?;
        }
        section.runs = run;
    }
    Ok(section)
}

async fn measure(stage: &Stage, variant: Variant, section: &mut Section) -> Result<(), String> {
    let api = Api::try_start(0).map_err(|error| format!("no API: {error}"))?;
    let site = stage.site(NAME);
    let calls = if variant == Variant::Loops {
        loops(stage, &site, &api).await?
    } else {
        replicas(stage, &site, &api, variant).await?
    };
    note(section, variant, &api.arrivals(), calls);
    Ok(())
}

/// Runs the replicas; returns the number of script calls.
async fn replicas(stage: &Stage, site: &Site, api: &Api, variant: Variant) -> Result<f64, String> {
    let proxy = Proxy::start(stage.redis.port(), FAR).map_err(|error| format!("no proxy: {error}"))?;
    let mut stores = vec![site.store.clone(); REPLICAS];
    if variant == Variant::Far {
        stores[REPLICAS - 1] = format!("redis://127.0.0.1:{}", proxy.port());
    }
    let tables = |replica| fleet::table("bench", RATE, &api.url(), replica);
    let paced = fleet::start(site, &stores, tables).await?;
    let before = stage.script_calls().await?;
    publish(&site.amqp, &site.prefix, "bench", Job::many("job", JOBS)).await;
    if variant == Variant::Stopped {
        api.reaches(JOBS / 4, PATIENCE).await;
        paced[0].freeze();
        tokio::time::sleep(STOP).await;
        paced[0].thaw();
    }
    api.reaches(JOBS, PATIENCE).await;
    let calls = stage.script_calls().await? - before;
    fleet::end(paced).await?;
    Ok(calls)
}

async fn loops(stage: &Stage, site: &Site, api: &Api) -> Result<f64, String> {
    let queue = site.prefix.clone();
    stage.declare(vec![queue.clone()], Kind::Quorum).await?;
    let interval = Duration::from_secs(1) / RATE;
    let mut loops = Vec::new();
    for _ in 0..REPLICAS {
        let limit = Some((site.store.as_str(), interval));
        loops.push(Loop::start(&site.amqp, &queue, &api.url(), 64, limit).await?);
    }
    let before = stage.script_calls().await?;
    stage.fill(&queue, JOBS, 0).await;
    api.reaches(JOBS, PATIENCE).await;
    let calls = stage.script_calls().await? - before;
    drop(loops);
    stage.delete(vec![queue]).await?;
    Ok(calls)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn note(section: &mut Section, variant: Variant, arrivals: &[Arrival], calls: f64) {
    let column = variant.column();
    let tally = compare("job", JOBS, arrivals);
    let stamps: Vec<u64> = arrivals.iter().map(|arrival| arrival.at).collect();
    let ideal = f64::from(RATE);
    // The time taken over the ideal time, for as many as arrived.
    let completion = 100.0 * (ideal / effective_rate(&stamps) - 1.0);
    let busy = |millis| busiest(&stamps, Duration::from_millis(millis)) as f64;
    let figures = [
        (LOST, tally.lost.len() as f64, Bound::AtMost(0.0)),
        (DOUBLED, tally.doubled.len() as f64, Bound::AtMost(0.0)),
        (SECOND, busy(1000), Bound::AtMost(202.0)),
        (TENTH, busy(100), Bound::AtMost(22.0)),
    ];
    for (figure, value, bound) in figures {
        match variant {
            Variant::Loops => section.note(column, figure, value),
            _ => section.judge(column, figure, value, bound),
        }
    }
    let calls = calls / arrivals.len().max(1) as f64;
    for (figure, value, bound) in [
        (CV, variation(&stamps), Bound::AtMost(0.10)),
        (COMPLETION, completion, Bound::Within(0.3)),
        (CALLS, calls, Bound::AtMost(0.2)),
    ] {
        match variant {
            Variant::Near => section.judge(column, figure, value, bound),
            // Both are longer by design: the stopped replica's jobs come when it continues.
            Variant::Stopped if figure.name != CALLS.name => {}
            _ => section.note(column, figure, value),
        }
    }
    if matches!(variant, Variant::Near | Variant::Far) {
        let (least, most) = shares(&arrivals[..arrivals.len() / 2], REPLICAS);
        let (least_all, most_all) = shares(arrivals, REPLICAS);
        for (figure, value) in [(LEAST, least), (LEAST_ALL, least_all)] {
            section.judge(column, figure, value, Bound::AtLeast(15.0));
        }
        for (figure, value) in [(MOST, most), (MOST_ALL, most_all)] {
            section.judge(column, figure, value, Bound::AtMost(35.0));
        }
    }
}
