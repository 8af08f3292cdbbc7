//! A limit far too high to bind: the cost of paced compared with a loop without a limit.

use std::time::Duration;

use crate::api::LeanApi;
use crate::figures::{Bound, Figure, Section, Unit, median};
use crate::loops::Loop;
use crate::process;
use crate::stage::{Kind, Site, Stage, stop};
use crate::support::count::effective_rate;
use crate::support::daemon::Paced;

pub const NAME: &str = "throughput";

const SIZE: usize = 256;
const PATIENCE: Duration = Duration::from_secs(60);

const SPEED: Figure = Figure::median("jobs per second", Unit::PerSecond);
const CPU: Figure = Figure::median("processor time per job", Unit::Micros);
const MEMORY: Figure = Figure::median("resident memory at the end", Unit::MiB);
const SPEED_RATIO: Figure = Figure::median("jobs per second / those of the bare loop", Unit::Plain(2));
const CPU_RATIO: Figure = Figure::median("processor time per job / that of the bare loop", Unit::Plain(2));

/// The kind of consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kin {
    Bare,
    Lines,
    Paced,
}

impl Kin {
    const ALL: [Self; 3] = [Self::Bare, Self::Lines, Self::Paced];

    const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare loop",
            Self::Lines => "20-line loop",
            Self::Paced => "paced",
        }
    }
}

/// The number of concurrent requests, and the delay of the API.
#[derive(Clone, Copy, Debug)]
struct Load {
    in_flight: usize,
    delay: Duration,
    /// The number of jobs, which is enough for some seconds.
    jobs: usize,
    /// How often in a run the consumers take turns. On two cores that servers and the API share with it, one and the
    /// same loop has half or twice the speed from one start to the next.
    rounds: usize,
}

const LOADS: [Load; 3] = [
    Load { in_flight: 64, delay: Duration::ZERO, jobs: 60_000, rounds: 6 },
    Load { in_flight: 256, delay: Duration::ZERO, jobs: 60_000, rounds: 6 },
    Load { in_flight: 64, delay: Duration::from_millis(5), jobs: 30_000, rounds: 1 },
];

impl Load {
    fn column(self, kin: Kin) -> String {
        let Self { in_flight, delay, .. } = self;
        let api = if delay.is_zero() { String::new() } else { format!(", API takes {delay:?}") };
        format!("{}, {in_flight} in flight{api}", kin.name())
    }
}

/// The results of one consumer in one run.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    speed: f64,
    /// The processor time per job, in µs.
    cpu: f64,
    memory: f64,
}

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "A limit far too high to bind",
        "60 000 jobs of 256 B (30 000 if the API takes its time) wait in a quorum queue. Then the consumer \
         starts, and the API counts from the first request to the last. Processor time is that of the \
         consumer alone, user and system, over the same time; the servers and the API share the machine \
         with it. The bare loop has paced's crates, prefetch 1000, the same requests, acks that nothing \
         waits for, and no limit. The 20-line loop also makes one script call per job. paced has a limit \
         of 1 000 000/s on Redis. They take turns, six times in a run (once if the API takes its time). \
         Another one begins each time, and every second time they go in the opposite order. A figure of a \
         run is the median of its turns, a ratio the median of the rounds' ratios.",
    );
    section.lines = true;
    for run in 1..=stage.runs {
        for load in LOADS {
            let mut rounds = Vec::new();
            for round in 0..load.rounds {
                rounds.push(take_turns(stage, load, run, round).await?);
            }
            for kin in Kin::ALL {
                note(&mut section, load, kin, &rounds);
            }
        }
        section.runs = run;
    }
    Ok(section)
}

/// The results of the consumers in one round, in the order of [`Kin::ALL`].
type Round = [Pace; Kin::ALL.len()];

/// Measures one consumer after the other.
async fn take_turns(stage: &Stage, load: Load, run: usize, round: usize) -> Result<Round, String> {
    let mut paces = [Pace::default(); Kin::ALL.len()];
    for turn in 0..Kin::ALL.len() {
        let turn = if round.is_multiple_of(2) { turn } else { Kin::ALL.len() - turn };
        let which = (turn + run + round / 2) % Kin::ALL.len();
        let kin = Kin::ALL[which];
        eprintln!("  throughput, run {run}, round {}: {}", round + 1, load.column(kin));
        paces[which] = measure(stage, kin, load).await?;
    }
    Ok(paces)
}

fn note(section: &mut Section, load: Load, kin: Kin, rounds: &[Round]) {
    let column = load.column(kin);
    let of = |value: fn(Pace, Pace) -> f64| {
        let values: Vec<f64> =
            rounds.iter().map(|round| value(round[kin as usize], round[Kin::Bare as usize])).collect();
        median(&values)
    };
    section.note(&column, SPEED, of(|own, _| own.speed));
    section.note(&column, CPU, of(|own, _| own.cpu));
    section.note(&column, MEMORY, of(|own, _| own.memory));
    let speed = of(|own, bare| own.speed / bare.speed);
    let cpu = of(|own, bare| own.cpu / bare.cpu);
    if kin == Kin::Paced && load.delay.is_zero() {
        section.judge(&column, SPEED_RATIO, speed, Bound::AtLeast(0.8));
        section.judge(&column, CPU_RATIO, cpu, Bound::AtMost(1.25));
    } else {
        section.note(&column, SPEED_RATIO, speed);
        section.note(&column, CPU_RATIO, cpu);
    }
}

async fn measure(stage: &Stage, kin: Kin, load: Load) -> Result<Pace, String> {
    let api = LeanApi::start(load.delay)?;
    api.expect(load.jobs);
    let site = stage.site(NAME);
    let queue = format!("{}.bench", site.prefix);
    stage.declare(vec![queue.clone()], Kind::Quorum).await?;
    stage.fill(&queue, load.jobs, SIZE).await;
    let consumer = Consumer::start(kin, load, &site, &queue, &api).await?;
    api.first(PATIENCE).await?;
    let before = process::cpu(consumer.pid())?;
    api.all(PATIENCE).await?;
    let spent = process::cpu(consumer.pid())?.saturating_sub(before);
    let memory = process::memory(consumer.pid())?;
    consumer.end().await?;
    stage.delete(vec![queue]).await?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let jobs = (load.jobs - 1) as f64;
    Ok(Pace { speed: effective_rate(&api.stamps()), cpu: spent.as_secs_f64() * 1e6 / jobs, memory })
}

/// A process that consumes the jobs.
enum Consumer {
    Loop(Loop),
    Paced(Paced),
}

impl Consumer {
    async fn start(kin: Kin, load: Load, site: &Site, queue: &str, api: &LeanApi) -> Result<Self, String> {
        let in_flight = load.in_flight;
        let limit = match kin {
            Kin::Bare => None,
            Kin::Lines => Some((site.store.as_str(), Duration::from_micros(1))),
            Kin::Paced => {
                let downstream = format!(
                    "[downstreams.bench]\nrate = '1000000/s'\nconcurrency = {in_flight}\n\
                     queue.name = '{queue}'\nhttp.base_url = '{}'\n",
                    api.url()
                );
                return site.replica(&downstream).await.map(Self::Paced);
            }
        };
        Loop::start(&site.amqp, queue, &api.url(), in_flight, limit).await.map(Self::Loop)
    }

    fn pid(&self) -> u32 {
        match self {
            Self::Loop(started) => started.pid(),
            Self::Paced(paced) => paced.pid(),
        }
    }

    async fn end(self) -> Result<(), String> {
        match self {
            Self::Loop(_) => Ok(()),
            Self::Paced(paced) => stop(paced).await,
        }
    }
}
