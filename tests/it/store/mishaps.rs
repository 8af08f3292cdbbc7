//! Four workers share a pace through Redis while its clock steps and its state is lost: no more slots than the stated
//! bounds allow, and no stall. Time is virtual, so a seed determines everything.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Observed, RedisStore, Reserve, Scope, SlotClock, Store};
use paced::time::{ManualClock, Micros};
use tokio::time::Instant;

use super::patient;
use crate::support::servers::Redis;

/// As many jobs as 3 s of slots at 200/s.
const JOBS: usize = 600;
const TODAY: Micros = Micros(1_760_000_000_000_000);
/// The length of a step of the clock, either way, and the offset of a server that takes over.
const STEP: i64 = 2_000_000;
const HORIZON: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_millis(5);
/// How many slots a forward step, or a new worker that calls first after a loss, may release beyond the pace, once: H/T
/// + 1.
const TWICE: usize = 21;
/// The slots that a copy may lack without a trace: those of 25 ms.
const TICK_SLOTS: usize = 5;
/// How late a job may be before its slot is given up.
const TOLERANCE: Duration = Duration::from_millis(5);

/// An event of the server.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    /// Its clock steps by this many µs.
    Step(i64),
    /// Its state is lost, by FLUSHALL or a restart without data.
    Flush,
    /// Its state is lost, and a worker that was not there before calls first.
    FlushAndJoin,
    /// A copy of this age takes over, whose clock is off by this many µs.
    Failover(Duration, i64),
}

impl Mishap {
    fn any(rng: &mut fastrand::Rng) -> Self {
        let step = STEP * i64::from(rng.i8(-1..=1));
        match rng.u8(..6) {
            0 | 1 => Self::Step(if rng.bool() { STEP } else { -STEP }),
            2 | 3 => Self::Flush,
            _ => Self::Failover(Duration::from_micros(rng.u64(..300_000)), step),
        }
    }

    /// How many slots beyond the pace it may release.
    const fn extra(self) -> usize {
        match self {
            Self::Step(1..) | Self::FlushAndJoin => TWICE,
            // The latest writes may be missing without a trace, and the clock may have gone forward.
            Self::Failover(age, skew) if age.as_micros() < 25_000 => {
                TICK_SLOTS + if skew > 0 { TWICE } else { 0 }
            }
            _ => 0,
        }
    }
}

/// One server on a virtual clock, and the workers that share a downstream on it.
struct World<'a> {
    redis: &'a Redis,
    clock: Arc<ManualClock>,
    scope: Scope<'a>,
    limits: &'a LimitSet,
    rng: fastrand::Rng,
    /// The origin of local instants.
    start: Instant,
    /// How far the server's clock is ahead.
    ahead: i64,
    workers: Vec<Worker>,
    /// When jobs were released.
    released: Vec<Duration>,
}

/// A replica like the dispatcher's: it asks half a horizon before the next free slot.
struct Worker {
    store: Arc<RedisStore>,
    clock: SlotClock,
    /// The latency of each way to the server.
    distance: Duration,
    ask_at: Duration,
    held: Vec<Duration>,
}

impl World<'_> {
    fn join(&mut self, store: Arc<RedisStore>, distance: Duration, now: Duration) {
        let clock = SlotClock::new();
        self.workers.push(Worker { store, clock, distance, ask_at: now, held: Vec::new() });
    }

    /// The instant at which the next call reaches the server, and its worker.
    fn next(&self) -> (Duration, usize) {
        let calls = self.workers.iter().enumerate().map(|(n, worker)| (worker.ask_at + worker.distance, n));
        calls.min().unwrap()
    }

    /// Makes one call of one worker, and takes in the answer.
    async fn call(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        let (sent, decided) = (worker.ask_at, worker.ask_at + worker.distance);
        let received = decided + worker.distance;
        self.clock.set(Micros(TODAY.plus(decided).0 + self.ahead));
        // The call asks for as many slots as half a horizon releases, divided by four.
        let call = Reserve::new(self.scope, self.limits, Costs::Each(&[1; 3]), HORIZON);
        let reply = worker.store.reserve(call).await.unwrap();
        let at = |since: Duration| self.start + since;
        let observed = worker.clock.observe(at(sent), reply.stamp.now, reply.stamp.epoch, at(received));
        self.released.extend(worker.held.extract_if(.., |due| *due <= received));
        if observed == Observed::Stepped {
            worker.held.clear();
        }
        let due = reply.slots.iter().map(|slot| worker.clock.deadline(*slot).unwrap() - self.start);
        for due in due.filter(|due| *due + TOLERANCE >= received) {
            worker.held.push(due.max(received));
        }
        let early = reply.next.minus(HORIZON / 2);
        let jitter = Duration::from_micros(self.rng.u64(..=25_000));
        worker.ask_at =
            if early <= reply.stamp.now { received } else { sent + early.since(reply.stamp.now) + jitter };
        worker.ask_at = worker.ask_at.max(received);
    }

    /// Makes all calls that reach the server before `end`.
    async fn go_on_until(&mut self, end: Duration) {
        while self.next().0 < end {
            self.call(self.next().1).await;
        }
    }

    /// Saves the present state, for a later failover.
    async fn copy(&self) {
        const SCRIPT: &str = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do \
            redis.call('SET', 'copy:' .. key, redis.call('DUMP', key)) end return 1";
        let keys = format!("paced:{{{}}}:*", self.scope.downstream);
        self.redis.command(&["EVAL", SCRIPT, "0", &keys]).await.unwrap();
    }

    async fn suffer(&mut self, mishap: Mishap) {
        // The third number of the record is the server's run. The copy has that of the server it was made from.
        const SCRIPT: &str = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end \
            for _, key in ipairs(redis.call('KEYS', 'copy:*')) do \
            redis.call('RESTORE', key:sub(6), 0, redis.call('GET', key)) end \
            local record = redis.call('GET', ARGV[2]) \
            redis.call('SET', ARGV[2], record:sub(1, 16) .. struct.pack('<d', 1) .. record:sub(25)) return 1";
        match mishap {
            Mishap::Step(by) => self.ahead += by,
            Mishap::Flush | Mishap::FlushAndJoin => {
                self.redis.command(&["FLUSHALL"]).await.unwrap();
            }
            Mishap::Failover(_, skew) => {
                let keys = format!("paced:{{{}}}:*", self.scope.downstream);
                let record = format!("paced:{{{}}}:record", self.scope.downstream);
                self.redis.command(&["EVAL", SCRIPT, "0", &keys, &record]).await.unwrap();
                self.ahead += skew;
            }
        }
    }
}

/// The results of a run, which are printed if they are wrong.
#[derive(Debug)]
struct Run {
    seed: u64,
    burst: u32,
    mishaps: Vec<(Duration, Mishap)>,
    released: Vec<Duration>,
}

/// Workers of unequal distance work off a backlog, with one mishap in each second but the last.
async fn run(redis: &Redis, stores: &Stores, seed: u64, burst: u32, joins: bool) -> Run {
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = format!("d{seed}-{burst}-{joins}");
    let limit = Limit::leaky_bucket("l", "200/s".parse().unwrap(), burst).unwrap();
    let limits = LimitSet::new(vec![limit]).unwrap();
    let scope = Scope { downstream: &name, key: "" };
    let mut world = World {
        redis,
        clock: Arc::clone(&stores.clock),
        scope,
        limits: &limits,
        rng: rng.fork(),
        start: Instant::now(),
        ahead: 0,
        workers: Vec::new(),
        released: Vec::new(),
    };
    for (store, micros) in stores.all[..4].iter().zip([50..150, 150..300, 300..700, 700..1500]) {
        world.join(Arc::clone(store), Duration::from_micros(rng.u64(micros)), Duration::ZERO);
    }
    let mut mishaps = Vec::new();
    for second in 0..2 {
        let within = Duration::from_micros(rng.u64(350_000..800_000));
        let mishap = match (joins, second) {
            (false, _) => Mishap::any(&mut rng),
            (true, 0) => Mishap::FlushAndJoin,
            (true, _) => break,
        };
        mishaps.push((Duration::from_secs(second) + within, mishap));
    }
    for &(at, mishap) in &mishaps {
        if let Mishap::Failover(age, _) = mishap {
            world.go_on_until(at - age).await;
            world.copy().await;
        }
        world.go_on_until(at).await;
        world.suffer(mishap).await;
        if joins {
            world.join(Arc::clone(&stores.all[4]), Duration::ZERO, at);
        }
    }
    while world.released.len() < JOBS {
        world.call(world.next().1).await;
        assert!(world.next().0 < Duration::from_secs(10), "seed {seed}: {} jobs only", world.released.len());
    }
    redis.command(&["FLUSHALL"]).await.unwrap();
    world.released.sort_unstable();
    Run { seed, burst, mishaps, released: world.released }
}

/// The stores that all runs share, with downstreams of their own.
struct Stores {
    clock: Arc<ManualClock>,
    all: Vec<Arc<RedisStore>>,
}

impl Stores {
    async fn connect(redis: &Redis) -> Self {
        let (clock, mut all) = (Arc::new(ManualClock::default()), Vec::new());
        for _ in 0..5 {
            let store = RedisStore::connect(&redis.url(), patient()).await.unwrap();
            all.push(Arc::new(store.with_test_clock(Arc::clone(&clock) as _)));
        }
        Self { clock, all }
    }
}

impl Run {
    /// Panics if a window holds more than its slots, a burst and the extra slots of a mishap, or if a gap is longer
    /// than a mishap causes.
    fn judge(&self) {
        let burst = self.burst as usize;
        for millis in [20, 100, 1000] {
            let window = Duration::from_millis(millis);
            // One more is allowed: each worker is late by another part of an interval, its distance to the server.
            let most = (window.as_micros() / INTERVAL.as_micros()) as usize + burst - 1 + 1;
            for (first, &from) in self.released.iter().enumerate() {
                let held = self.released[first..].partition_point(|later| *later < from + window);
                let to = self.released[first + held - 1];
                let met = self.mishaps.iter().filter(|(at, _)| from <= *at + HORIZON && *at <= to);
                let most = most + met.map(|(_, mishap)| mishap.extra()).sum::<usize>();
                assert!(held <= most, "{held} in {window:?} from {from:?} on, at most {most}");
            }
        }
        // After a loss nothing is released before the fence, and then each worker asks at its own time. A step back
        // takes less.
        let longest = HORIZON + INTERVAL * (self.burst + 1) + HORIZON / 4;
        for pair in self.released.windows(2) {
            let gap = pair[1] - pair[0];
            assert!(gap <= longest, "nothing for {gap:?} after {:?}, at most {longest:?}", pair[0]);
        }
    }
}

/// Prints the parameters of the run that failed.
impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}, burst {}: {:?}", self.seed, self.burst, self.mishaps);
        }
    }
}

async fn judge_all(seeds: std::ops::Range<u64>, joins: bool) {
    println!("seeds {seeds:?}");
    let redis = Redis::dedicated().await;
    let stores = Stores::connect(&redis).await;
    for burst in [1, 10] {
        for seed in seeds.clone() {
            run(&redis, &stores, seed, burst, joins).await.judge();
        }
    }
}

#[tokio::test]
async fn the_pace_survives_steps_flushes_and_failovers() {
    judge_all(0..60, false).await;
}

#[tokio::test]
async fn a_new_worker_that_is_first_after_a_flush_costs_a_horizon_of_slots_at_most() {
    judge_all(0..20, true).await;
}
