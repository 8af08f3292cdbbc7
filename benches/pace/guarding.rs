//! The cost of the guard before lapin's parser: in comparison with a build without it, and alone.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_io::AsyncRead;
use rustix::time::{ClockId, clock_gettime};

use crate::api::LeanApi;
use crate::figures::{Bound, Figure, Section, Unit, median};
use crate::process;
use crate::stage::{Kind, Stage, stop};
use crate::support::blocking;
use crate::support::count::effective_rate;
use crate::support::daemon::{Paced, binary};

// The module itself, which is private in the library.
#[path = "../../src/amqp/guard/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the bench uses a part of it, and the library tests it")]
mod guard;

pub const NAME: &str = "guard";

const SIZE: usize = 256;
const JOBS: usize = 30_000;
/// The number of measurements with each of the two builds, alternating, in each run.
const PAIRS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(60);

const SPEED: Figure = Figure::median("jobs per second", Unit::PerSecond);
const CPU: Figure = Figure::median("processor time per job", Unit::Micros);
const RATIO: Figure = Figure::median("jobs per second, with / without (median of 10 pairs)", Unit::Plain(3));
const ALONE: Figure = Figure::median("processor time of the guard per message", Unit::Nanos);

const WITH: &str = "with the guard";
const WITHOUT: &str = "without";

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "The guard before the AMQP parser",
        "30 000 jobs of 256 B wait in a quorum queue. paced takes them with 64 requests in flight and a \
         limit that does not bind, with the guard and in a build without it (PACED_BENCH_UNGUARDED at \
         compile time). The two take turns ten times in each run. Alone: 20 000 messages of 256 B with an \
         id, a type and two headers are read through the guard, 64 KiB at a time, and without it. The \
         figure is the processor time of the thread, less that of the reads alone.",
    );
    for _ in 0..stage.runs {
        section.judge(WITH, ALONE, blocking(alone).await?, Bound::AtMost(500.0));
    }
    let without = unguarded()?;
    let guarded = binary();
    for run in 1..=stage.runs {
        let ratio = take_turns(stage, &mut section, run, [(WITH, &guarded), (WITHOUT, &without)]).await?;
        section.judge(WITH, RATIO, ratio, Bound::AtLeast(0.95));
    }
    Ok(section)
}

/// Measures two builds in turn, and returns the median of the pairs' ratios of their speeds.
pub async fn take_turns(
    stage: &Stage,
    section: &mut Section,
    run: usize,
    builds: [(&'static str, &Path); 2],
) -> Result<Option<f64>, String> {
    let mut ratios = Vec::new();
    for pair in 0..PAIRS {
        eprintln!("  {}, run {run}, pair {}", section.name, pair + 1);
        let mut order = [0, 1];
        if pair % 2 == 1 {
            order.reverse();
        }
        let mut speeds = [0.0; 2];
        for which in order {
            let (column, binary) = builds[which];
            let (speed, cpu) = measure(stage, binary).await?;
            section.note(column, SPEED, speed);
            section.note(column, CPU, cpu);
            speeds[which] = speed;
        }
        ratios.push(speeds[0] / speeds[1]);
    }
    section.runs = run;
    Ok(median(&ratios))
}

/// Builds paced without the guard beside the one with it, which is then built again.
fn unguarded() -> Result<PathBuf, String> {
    let without = binary().with_file_name("paced-unguarded");
    let Some(cargo) = std::env::var_os("CARGO") else { return Ok(without) };
    let build = |unguarded: bool| {
        let mut command = Command::new(&cargo);
        command.args(["build", "--release", "--locked", "--quiet", "--features", "daemon", "--bin", "paced"]);
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("PACED_BENCH_UNGUARDED");
        if unguarded {
            command.env("PACED_BENCH_UNGUARDED", "1");
        }
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("cargo build ended with {status}")),
            Err(error) => Err(format!("cargo cannot be run: {error}")),
        }
    };
    eprintln!("  guard: building paced without it");
    build(true)?;
    let copied = std::fs::copy(binary(), &without);
    build(false)?;
    copied.map_err(|error| format!("{}: {error}", without.display()))?;
    Ok(without)
}

/// Jobs per second, and µs of processor time per job.
async fn measure(stage: &Stage, binary: &Path) -> Result<(f64, f64), String> {
    let api = LeanApi::start(Duration::ZERO)?;
    api.expect(JOBS);
    let site = stage.site(NAME);
    let queue = format!("{}.bench", site.prefix);
    stage.declare(vec![queue.clone()], Kind::Quorum).await?;
    stage.fill(&queue, JOBS, SIZE).await;
    let config = site.config(&format!(
        "[downstreams.bench]\nrate = '1000000/s'\nconcurrency = 64\nqueue.name = '{queue}'\nhttp.base_url = '{}'\n",
        api.url()
    ));
    let paced = Paced::try_start_binary(binary, &config, &[], &[]).await?;
    paced.try_ready().await?;
    api.first(PATIENCE).await?;
    let before = process::cpu(paced.pid())?;
    api.all(PATIENCE).await?;
    let spent = process::cpu(paced.pid())?.saturating_sub(before);
    stop(paced).await?;
    stage.delete(vec![queue]).await?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let jobs = (JOBS - 1) as f64;
    Ok((effective_rate(&api.stamps()), spent.as_secs_f64() * 1e6 / jobs))
}

/// The number of messages that [`alone`] reads.
const MESSAGES: usize = 20_000;
const ROUNDS: usize = 21;

/// The processor time of the guard per message in ns: the median of the rounds.
fn alone() -> Result<f64, String> {
    let traffic = message().repeat(MESSAGES);
    let mut buf = vec![0; 4 << 20];
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let bare = read_all(Traffic(&traffic), &mut buf)?;
        let stream = guard::GuardedStream::new(Traffic(&traffic), guard::FrameMax::default());
        let guarded = read_all(stream, &mut buf)?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        rounds.push((guarded.as_nanos() as f64 - bare.as_nanos() as f64) / MESSAGES as f64);
    }
    median(&rounds).ok_or_else(|| "no rounds".to_owned())
}

/// The processor time of reading everything.
fn read_all(mut stream: impl AsyncRead + Unpin, buf: &mut [u8]) -> Result<Duration, String> {
    let mut cx = Context::from_waker(Waker::noop());
    let before = thread_time()?;
    loop {
        match Pin::new(&mut stream).poll_read(&mut cx, buf) {
            Poll::Ready(Ok(0)) => break,
            Poll::Ready(Ok(count)) => drop(std::hint::black_box(&buf[..count])),
            Poll::Ready(Err(error)) => return Err(error.to_string()),
            Poll::Pending => return Err("the guard waits for nothing".to_owned()),
        }
    }
    Ok(thread_time()?.saturating_sub(before))
}

fn thread_time() -> Result<Duration, String> {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).map_err(|error| format!("the thread's clock: {error}"))
}

/// Bytes as a socket delivers them, 64 KiB at a time.
struct Traffic<'a>(&'a [u8]);

impl AsyncRead for Traffic<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        let (now, later) = self.0.split_at(self.0.len().min(buf.len()).min(64 * 1024));
        buf[..now.len()].copy_from_slice(now);
        self.0 = later;
        Poll::Ready(Ok(now.len()))
    }
}

/// The frames of one message.
fn message() -> Vec<u8> {
    let short = |text: &[u8]| [&[u8::try_from(text.len()).unwrap_or(0)], text].concat();
    let long = |text: &[u8]| [&u32::try_from(text.len()).unwrap_or(0).to_be_bytes()[..], text].concat();
    let frame = |kind: u8, payload: &[u8]| [&[kind, 0, 1][..], &long(payload), &[0xce]].concat();
    let header = |name: &[u8], value: &[u8]| [short(name), vec![b'S'], long(value)].concat();
    let headers = [header(b"paced-lane", b"tenant-0042"), header(b"paced-path", b"orders/12345")].concat();
    let deliver = [
        &[0, 60, 0, 60][..],
        &short(b"amq.ctag-Zt4c0m8PjA1VvA9Dk2oC1w"),
        &7_u64.to_be_bytes(),
        &[0],
        &short(b"paced.jobs"),
        &short(b"billing"),
    ]
    .concat();
    let properties = [short(b"application/json"), long(&headers), vec![2]].concat();
    let id = short(b"0196f2f6-8a57-7d3c-b6bc-c1e8b5a0c1de");
    // The flags of content_type, headers, delivery_mode and message_id.
    let flags = (1_u16 << 15 | 1 << 13 | 1 << 12 | 1 << 7).to_be_bytes();
    let size = (SIZE as u64).to_be_bytes();
    let content = [&[0, 60, 0, 0][..], &size, &flags, &properties, &id].concat();
    [frame(1, &deliver), frame(2, &content), frame(3, &[b'x'; SIZE])].concat()
}
