//! Replicas far from the store, and the calls of more replicas near it.

use std::time::Duration;

use crate::figures::{Bound, Figure, Section, Unit};
use crate::fleet::{self, shares};
use crate::stage::Stage;
use crate::support::api::{Api, Arrival};
use crate::support::count::{busiest, effective_rate};
use crate::support::proxy::Proxy;
use crate::support::publish::{Job, publish};
use crate::support::site::compare;

pub const NAME: &str = "far";

const JOBS: usize = 2000;
const RATE: u32 = 200;
/// The number of first arrivals that do not count for the rate.
const START: usize = 200;
/// The time-out: any run that reaches a tenth of the rate is shorter.
const PATIENCE: Duration = Duration::from_secs(120);

const LOST: Figure = Figure::highest("jobs lost", Unit::Count);
const DOUBLED: Figure = Figure::highest("jobs doubled", Unit::Count);
const REACHED: Figure = Figure::median("rate reached, of the limit", Unit::Percent(1));
const SECOND: Figure = Figure::median("busiest 1 s", Unit::Count);
const TENTH: Figure = Figure::median("busiest 100 ms", Unit::Count);
const CALLS: Figure = Figure::median("script calls per job", Unit::Plain(3));
const LEAST: Figure = Figure::median("smallest share of a replica, first half", Unit::Percent(1));
const MOST: Figure = Figure::median("largest share of a replica, first half", Unit::Percent(1));

/// One line of the table: how many replicas share the pace, how far they are, and the bounds that they must keep.
#[derive(Clone, Copy, Debug)]
struct Variant {
    column: &'static str,
    replicas: usize,
    /// The number of replicas that are far from Redis; these are the last ones.
    far: usize,
    /// The additional round trip of their calls to Redis.
    away: Duration,
    /// The bound of the rate that is reached, in percent.
    reached: Option<f64>,
    /// The most script calls per job.
    calls: Option<f64>,
    /// Whether the shares are judged. The windows are not then: a distant replica releases its jobs later by the way
    /// back from Redis, among those of the others.
    shared: bool,
}

impl Variant {
    const fn far(column: &'static str, replicas: usize, millis: u64, reached: f64) -> Self {
        let away = Duration::from_millis(millis);
        Self { column, replicas, far: replicas, away, reached: Some(reached), calls: None, shared: false }
    }

    const ALL: [Self; 6] = [
        Self::far("1 replica, 80 ms away", 1, 80, 99.0),
        Self::far("3 replicas, 80 ms away", 3, 80, 99.0),
        Self::far("1 replica, 200 ms away", 1, 200, 97.0),
        Self::far("3 replicas, 200 ms away", 3, 200, 97.0),
        Self {
            column: "4 replicas, one of them 80 ms away",
            replicas: 4,
            far: 1,
            away: Duration::from_millis(80),
            reached: None,
            calls: None,
            shared: true,
        },
        Self {
            column: "8 replicas, near",
            replicas: 8,
            far: 0,
            away: Duration::ZERO,
            reached: None,
            calls: Some(0.2),
            shared: false,
        },
    ];
}

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "Far from the store",
        "200/s, 2 000 jobs that are published when all replicas are ready. Far replicas reach Redis \
         through a proxy that makes each round trip longer by the given time; all others are near. \
         Everything is counted at the API. The rate is from the first to the last of the requests after \
         the first 200. The windows are the most requests in any second and in any 100 ms of the whole \
         run. RabbitMQ gives each consumer the same part of the jobs at once. So the first half, when all \
         still have jobs, shows who is faster.",
    );
    section.lines = true;
    for run in 1..=stage.runs {
        for variant in &Variant::ALL {
            eprintln!("  far, run {run}: {}", variant.column);
            measure(stage, variant, &mut section).await?;
        }
        section.runs = run;
    }
    Ok(section)
}

async fn measure(stage: &Stage, variant: &Variant, section: &mut Section) -> Result<(), String> {
    let api = Api::try_start(0).map_err(|error| format!("no API: {error}"))?;
    let site = stage.site(NAME);
    let proxy =
        Proxy::start(stage.redis.port(), variant.away).map_err(|error| format!("no proxy: {error}"))?;
    let far = format!("redis://127.0.0.1:{}", proxy.port());
    let mut stores = vec![site.store.clone(); variant.replicas - variant.far];
    stores.resize(variant.replicas, far);
    let tables = |replica| fleet::table("bench", RATE, &api.url(), replica);
    let paced = fleet::start(&site, &stores, tables).await?;
    let before = stage.script_calls().await?;
    publish(&site.amqp, &site.prefix, "bench", Job::many("job", JOBS)).await;
    api.reaches(JOBS, PATIENCE).await;
    let calls = stage.script_calls().await? - before;
    fleet::end(paced).await?;
    note(section, variant, &api.arrivals(), calls);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn note(section: &mut Section, variant: &Variant, arrivals: &[Arrival], calls: f64) {
    let &Variant { column, replicas, reached, calls: most_calls, shared, .. } = variant;
    let tally = compare("job", JOBS, arrivals);
    let stamps: Vec<u64> = arrivals.iter().map(|arrival| arrival.at).collect();
    let rate = 100.0 * effective_rate(stamps.get(START..).unwrap_or_default()) / f64::from(RATE);
    let busy = |millis| busiest(&stamps, Duration::from_millis(millis)) as f64;
    let calls = calls / arrivals.len().max(1) as f64;
    let (least, most) = shares(&arrivals[..arrivals.len() / 2], replicas);
    let (windows, shared) = (|bound| (!shared).then_some(bound), |bound| shared.then_some(bound));
    for (figure, value, bound) in [
        (LOST, tally.lost.len() as f64, Some(Bound::AtMost(0.0))),
        (DOUBLED, tally.doubled.len() as f64, Some(Bound::AtMost(0.0))),
        (REACHED, rate, reached.map(Bound::AtLeast)),
        (SECOND, busy(1000), windows(Bound::AtMost(202.0))),
        (TENTH, busy(100), windows(Bound::AtMost(22.0))),
        (CALLS, calls, most_calls.map(Bound::AtMost)),
        (LEAST, least, shared(Bound::AtLeast(15.0))),
        (MOST, most, shared(Bound::AtMost(35.0))),
    ] {
        match bound {
            Some(bound) => section.judge(column, figure, value, bound),
            None => section.note(column, figure, value),
        }
    }
}
