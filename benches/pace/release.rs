//! One replica at a high rate: how late jobs are released, and whether the rate is exact.

use std::time::Duration;

use crate::api::LeanApi;
use crate::figures::{Bound, Figure, Section, Unit};
use crate::metronome::Metronome;
use crate::process;
use crate::stage::{Kind, Stage, stop};
use crate::support::count::effective_rate;
use crate::support::prometheus::{Histogram, Scrape};

pub const NAME: &str = "release";

const LATENESS: &str = "paced_release_lateness_seconds";
const RELEASED: &str = "paced_jobs_released_total";

const RATE: Figure = Figure::median("average rate, against the limit", Unit::Percent(4));
const CALLS: Figure = Figure::median("script calls per job", Unit::Plain(4));
const P50: Figure = Figure::median("release lateness, p50", Unit::Micros);
const P99: Figure = Figure::median("release lateness, p99", Unit::Micros);
const BARE_P50: Figure = Figure::median("a bare precise thread meanwhile, p50", Unit::Micros);
const BARE_P99: Figure = Figure::median("a bare precise thread meanwhile, p99", Unit::Micros);
const RATIO: Figure = Figure::median("p99 of paced / p99 of the bare thread", Unit::Plain(2));
const COUNTED: Figure = Figure::highest("released by /metrics, less those at the API", Unit::Count);
const CPU: Figure = Figure::median("processor time of paced per job", Unit::Micros);

/// A rate, and its duration.
struct Stretch {
    column: &'static str,
    rate: u32,
    seconds: u32,
    /// Whether its lateness is judged: 5 000/s is judged by its calls and its average alone.
    judged: bool,
    /// The bound of the average's error, in percent.
    exact: f64,
}

const STRETCHES: [Stretch; 2] = [
    Stretch { column: "1 000/s for 60 s", rate: 1000, seconds: 60, judged: true, exact: 0.01 },
    // The lateness of jobs at both ends is a part of the average: the 5 ms that a release may be late by contract count
    // as exact.
    Stretch { column: "5 000/s for 10 s", rate: 5000, seconds: 10, judged: false, exact: 0.05 },
];

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "One replica, released exactly",
        "One replica has all jobs waiting in its queue. The average rate is that of the arrivals at the \
         API, from the first to the last. The lateness (release - slot) is from the daemon's own \
         histogram, without the first moments. A bare thread that sleeps to absolute deadlines at the same \
         rate (std's park_timeout, timer slack 1 ns, no spinning) runs in the bench at the same time. Its \
         samples go through the same buckets and the same interpolation. At 5 000/s an average within 5 ms \
         in 10 s counts as exact, because one release may be late by that time.",
    );
    for run in 1..=stage.runs {
        for stretch in &STRETCHES {
            eprintln!("  release, run {run}: {}", stretch.column);
            measure(stage, stretch, &mut section).await?;
        }
        section.runs = run;
    }
    Ok(section)
}

async fn measure(stage: &Stage, stretch: &Stretch, section: &mut Section) -> Result<(), String> {
    let &Stretch { column, rate, seconds, judged, exact } = stretch;
    let jobs = (rate * seconds) as usize;
    let api = LeanApi::start(Duration::ZERO)?;
    api.expect(jobs);
    let site = stage.site_with_metrics(NAME);
    let queue = format!("{}.bench", site.prefix);
    stage.declare(vec![queue.clone()], Kind::Quorum).await?;
    stage.fill(&queue, jobs, 0).await;
    let calls = stage.script_calls().await?;
    let downstream = format!(
        "[downstreams.bench]\nrate = '{rate}/s'\nqueue.name = '{queue}'\nhttp.base_url = '{}'\n",
        api.url()
    );
    let paced = site.replica(&downstream).await?;
    api.first(Duration::from_secs(10)).await?;
    let before = site.scrape().await?;
    let cpu = process::cpu(paced.pid())?;
    let metronome = Metronome::start(Duration::from_secs(1) / rate)?;
    let within = Duration::from_secs(u64::from(seconds) + 20);
    api.all(within).await?;
    let bare = metronome.end();
    let after = site.scrape().await?;
    let cpu = process::cpu(paced.pid())?.saturating_sub(cpu);
    let calls = stage.script_calls().await? - calls;
    stop(paced).await?;

    let released = f64::from(rate * seconds);
    let deviation = 100.0 * (effective_rate(&api.stamps()) / f64::from(rate) - 1.0);
    section.judge(column, RATE, deviation, Bound::Within(exact));
    if judged {
        section.note(column, CALLS, calls / released);
    } else {
        section.judge(column, CALLS, calls / released, Bound::AtMost(0.05));
    }
    note_lateness(section, stretch, before.as_ref(), after.as_ref(), &bare);
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let surplus = after.and_then(|scrape| scrape.sum(RELEASED)).map(|sum| (sum - api.count() as f64).abs());
    section.judge(column, COUNTED, surplus, Bound::AtMost(0.0));
    section.note(column, CPU, cpu.as_secs_f64() * 1e6 / released);
    stage.delete(vec![queue]).await
}

/// The daemon's histogram since the first scrape, and the bare thread's samples in its buckets.
fn note_lateness(
    section: &mut Section,
    stretch: &Stretch,
    before: Option<&Scrape>,
    after: Option<&Scrape>,
    bare: &[f64],
) {
    let histogram = |scrape: Option<&Scrape>| scrape.and_then(|scrape| scrape.histogram(LATENESS));
    let own = histogram(after).map(|after| after.since(&histogram(before).unwrap_or_default()));
    let bare = own.as_ref().map(|own| own.refilled(bare));
    let micros = |histogram: &Option<Histogram>, share| {
        histogram.as_ref().and_then(|histogram| histogram.quantile(share)).map(|seconds| seconds * 1e6)
    };
    let (own_p50, own_p99) = (micros(&own, 0.50), micros(&own, 0.99));
    let (bare_p50, bare_p99) = (micros(&bare, 0.50), micros(&bare, 0.99));
    let ratio = own_p99.zip(bare_p99).map(|(own, bare)| own / bare);
    let column = stretch.column;
    if stretch.judged {
        section.judge(column, P50, own_p50, Bound::AtMost(100.0));
    } else {
        section.note(column, P50, own_p50);
    }
    section.note(column, P99, own_p99);
    section.note(column, BARE_P50, bare_p50);
    section.note(column, BARE_P99, bare_p99);
    if stretch.judged {
        section.judge(column, RATIO, ratio, Bound::AtMost(1.5));
    } else {
        section.note(column, RATIO, ratio);
    }
}
