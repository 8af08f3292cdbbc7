//! The store's clock steps during a run: no more slots than a forward step may cost, and no stall.

use std::sync::atomic::AtomicI64;

use super::*;
use crate::time::{Clock, Micros};

const SEEDS: std::ops::Range<u64> = 0..60;
/// As many jobs as 3 s of slots at 200/s.
const JOBS: usize = 600;
/// The length of a step of the clock, either way.
const STEP: i64 = 2_000_000;
/// The horizon H and the emission interval T.
const HORIZON: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_millis(5);
/// How many slots a forward step may release beyond the pace, once: H/T + 1.
const TWICE: usize = 21;
/// The longest stall that a step back may cause.
const STALL: Duration = HORIZON;

/// The runtime's paused time, plus the steps.
#[derive(Debug)]
pub(super) struct SteppingClock {
    start: Instant,
    ahead: AtomicI64,
}

impl SteppingClock {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), ahead: AtomicI64::new(0) }
    }

    pub(super) fn step(&self, micros: i64) {
        self.ahead.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for SteppingClock {
    fn now(&self) -> Micros {
        let today = Micros(1_760_000_000_000_000).plus(self.start.elapsed());
        Micros(today.0 + self.ahead.load(Ordering::SeqCst))
    }
}

/// The instants, from the start, at which four replicas released jobs and at which the clock stepped forward.
struct Run {
    released: Vec<Duration>,
    forward: Vec<Duration>,
}

/// Four replicas, each with another distance to the store, work off a backlog while the clock steps.
async fn run(burst: u32, steps: &[i64]) -> Run {
    let clock = Arc::new(SteppingClock::new());
    let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
    let mut benches = [100..200, 200..400, 400..1000, 1000..2000].map(|micros| {
        let mut bench = Bench::new("200/s", QUICK);
        let limit = Limit::leaky_bucket("l", "200/s".parse().unwrap(), burst).unwrap();
        bench.options.limits = LimitSet::new(vec![limit]).unwrap();
        let distance = Duration::from_micros(fastrand::u64(micros));
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), distance));
        // Twice its part, so that no replica ever runs out of them.
        bench.publish_many(0..JOBS / 2);
        bench
    });
    let start = Instant::now();
    let running = benches.each_mut().map(Bench::start);
    let sent = || benches.iter().map(|bench| bench.sink.sent.lock().unwrap().len()).sum::<usize>();
    let mut forward = Vec::new();
    for (number, &step) in (0..).zip(steps) {
        // Each step is in a second of its own, and not near its edges.
        let within = Duration::from_micros(fastrand::u64(200_000..800_000));
        tokio::time::sleep_until(start + Duration::from_secs(number) + within).await;
        clock.step(step);
        if step > 0 {
            forward.push(start.elapsed());
        }
    }
    while sent() < JOBS {
        tokio::time::sleep(HORIZON).await;
        assert!(start.elapsed() < Duration::from_secs(10), "{} jobs only", sent());
    }
    let all = benches.iter().flat_map(|bench| bench.sink.sent.lock().unwrap().clone());
    let mut released: Vec<Duration> = all.map(|sent| sent.at - start).collect();
    released.sort_unstable();
    for (bench, running) in benches.iter().zip(running) {
        bench.stop.cancel();
        running.await.unwrap();
    }
    Run { released, forward }
}

/// Panics where a window holds more than its slots and a burst, or a gap is longer than a step can cause.
fn judge(burst: usize, Run { released, forward }: &Run) {
    for millis in [20, 100, 1000] {
        let window = Duration::from_millis(millis);
        // One more is allowed: replicas know the store's time only to within a call, so each is late by another part of
        // an interval.
        let most = (window.as_micros() / INTERVAL.as_micros()) as usize + burst - 1 + 1;
        for (first, &at) in released.iter().enumerate() {
            let held = released[first..].partition_point(|later| *later < at + window);
            let last = released[first + held - 1];
            let met = forward.iter().filter(|step| at <= **step + HORIZON && **step <= last).count();
            let most = most + met * TWICE;
            assert!(
                held <= most,
                "{held} in {window:?} from {at:?} on, at most {most}; forward at {forward:?}"
            );
        }
    }
    for pair in released.windows(2) {
        let gap = pair[1] - pair[0];
        assert!(gap <= STALL, "nothing for {gap:?} after {:?}, at most {STALL:?}", pair[0]);
    }
}

/// Prints the parameters of the run that failed.
struct Which(u64, u32, [i64; 2]);

impl Drop for Which {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(seed, burst, steps) = self;
            println!("seed {seed}, burst {burst}, the clock stepped by {steps:?} µs");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_pace_survives_steps_of_the_stores_clock() {
    println!("seeds {SEEDS:?}");
    for burst in [1, 10] {
        for seed in SEEDS {
            fastrand::seed(seed);
            let steps = [(); 2].map(|()| if fastrand::bool() { STEP } else { -STEP });
            let _which = Which(seed, burst, steps);
            judge(burst as usize, &run(burst, &steps).await);
        }
    }
}
