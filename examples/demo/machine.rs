//! What the machine itself adds between a daemon that sends and an API that stamps. The kernel
//! counts how long each thread was ready to run and had to wait for a processor; watched all
//! along, that distinguishes a crowded machine from a daemon that is too fast.

use std::fs;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::support::api::stamp;

const EVERY: Duration = Duration::from_millis(10);
/// A request's way, from the daemon's last look at the clock to the API's stamp, fits in here: ns.
const WAY: u64 = 50_000_000;

/// Watches the threads of some processes, and its own.
pub struct Machine {
    task: JoinHandle<()>,
    samples: tokio::sync::mpsc::UnboundedReceiver<Sample>,
}

#[derive(Debug)]
struct Sample {
    at: u64,
    /// How much later than it should the watch itself woke up: ns.
    late: u64,
    /// What the threads of each process have waited so far: ns.
    waited: Vec<u64>,
}

/// What was seen.
#[derive(Debug)]
pub struct Delays(Vec<Sample>);

impl Machine {
    /// Begins to watch.
    pub fn watch(pids: Vec<u32>) -> Self {
        let (sender, samples) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let pids: Vec<u32> = pids.into_iter().chain([std::process::id()]).collect();
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                let due = ticks.tick().await;
                let late = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let waited = pids.iter().map(|&pid| waited(pid)).collect();
                if sender.send(Sample { at: stamp(), late, waited }).is_err() {
                    return;
                }
            }
        });
        Self { task, samples }
    }

    /// Ends it.
    pub fn end(mut self) -> Delays {
        self.task.abort();
        let mut samples = Vec::new();
        while let Ok(sample) = self.samples.try_recv() {
            samples.push(sample);
        }
        Delays(samples)
    }
}

impl Delays {
    /// The longest that one request's way was made between these stamps, in whole milliseconds.
    pub fn between(&self, first: u64, last: u64) -> Duration {
        let near = |sample: &&Sample| sample.at + WAY >= first && sample.at <= last + WAY;
        let near: Vec<&Sample> = self.0.iter().filter(near).collect();
        let mut most = 0;
        for (index, sample) in near.iter().enumerate() {
            let start = near[..index].iter().rfind(|earlier| earlier.at + WAY <= sample.at);
            let start = start.or(near.first()).map_or(&sample.waited, |start| &start.waited);
            let waits = sample.waited.iter().zip(start).map(|(now, before)| now.saturating_sub(*before));
            // The sender, and the API in this process; one sender at a time.
            let mut waits: Vec<u64> = waits.collect();
            let own = waits.pop().unwrap_or(0);
            let sender = waits.into_iter().max().unwrap_or(0);
            most = most.max(own + sender + sample.late);
        }
        Duration::from_millis(most / 1_000_000)
    }
}

/// Nanoseconds that a process's threads were ready and did not run; 0 where the kernel does not say.
fn waited(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let wait = |thread: fs::DirEntry| {
        let line = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(wait).sum()
}
