//! What faults cost: slots that were due and not used while jobs waited, and how long nobody released any.
//!
//! docs/failure-modes.md has the table that these tests print with `--nocapture`.

use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::dispatch::Drained;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// The rates, and the distance between their slots.
const RATES: [(&str, Duration); 5] = [
    ("5/s", Duration::from_millis(200)),
    ("1/s", S),
    ("30/m", Duration::from_secs(2)),
    ("6/m", Duration::from_secs(10)),
    ("1/m", Duration::from_secs(60)),
];

/// Replicas with more jobs than they release.
struct Fleet {
    rate: &'static str,
    apart: Duration,
    store: Arc<MemoryStore>,
    replicas: Vec<(Bench, Option<AbortOnDropHandle<Drained>>)>,
    /// Those that are gone.
    gone: Vec<Bench>,
}

impl Fleet {
    /// Starts this many, and lets them go round three times.
    async fn start((rate, apart): (&'static str, Duration), replicas: usize) -> Self {
        let mut fleet =
            Self { rate, apart, store: Arc::new(MemoryStore::new()), replicas: vec![], gone: vec![] };
        for _ in 0..replicas {
            fleet.add();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..300))).await;
        }
        let round = apart * u32::try_from(replicas).unwrap();
        tokio::time::sleep(3 * S + 3 * round + round.mul_f64(fastrand::f64())).await;
        fleet
    }

    /// Adds a replica, at some 0.3 ms from the store.
    fn add(&mut self) {
        let mut bench = Bench::new(self.rate, QUICK);
        let way = Duration::from_micros(150 + fastrand::u64(..30));
        bench.tickets.may_be_given_back = false;
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&self.store), way));
        // More than it releases.
        bench.publish_many(0..if self.apart < 50 * MS { 6000 } else { 600 });
        let running = bench.start();
        self.replicas.push((bench, Some(running)));
    }

    /// Kills the first replica.
    fn kill(&mut self) {
        let (bench, running) = self.replicas.remove(0);
        drop(running);
        self.gone.push(bench);
    }

    /// Stops the first replica in order.
    async fn stop(&mut self) {
        let (bench, running) = self.replicas.remove(0);
        bench.stop.cancel();
        running.unwrap().await.unwrap();
        self.gone.push(bench);
    }

    /// The instants of the releases in this span, in order.
    fn released(&self, from: Instant, to: Instant) -> Vec<Instant> {
        let benches = self.replicas.iter().map(|(bench, _)| bench).chain(&self.gone);
        let all = benches.flat_map(|bench| bench.sink.sent.lock().unwrap().clone());
        let mut all: Vec<Instant> = all.map(|sent| sent.at).filter(|at| (from..to).contains(at)).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] + QUICK >= self.apart), "{all:?}");
        all
    }

    /// Runs on behind a fault that began at `begun`. Returns how many slots were not used since, other than in the time
    /// `down`, and by how much the longest wait for a release exceeded the distance between slots.
    async fn cost(&self, begun: Instant, down: Duration) -> (f64, Duration) {
        let round = self.apart * u32::try_from(self.replicas.len()).unwrap();
        tokio::time::sleep((20 * S).max(3 * round)).await;
        let end = Instant::now();
        let released = self.released(begun, end);
        let slots = ((end - begun - down).as_secs_f64() / self.apart.as_secs_f64()).floor();
        let instants = [begun].into_iter().chain(released.iter().copied()).chain([end]);
        let gap = instants.clone().zip(instants.skip(1)).map(|(one, next)| next - one).max().unwrap();
        ((slots - released.len() as f64).max(0.0), gap.saturating_sub(self.apart))
    }
}

/// A fault that is over when the future ends; it returns the time in which nobody could release anything.
trait Fault: AsyncFn(&mut Fleet) -> Duration {}
impl<F: AsyncFn(&mut Fleet) -> Duration> Fault for F {}

/// Runs a fault at each rate, with this many replicas, several times. Returns per rate the mean number of slots that are
/// lost, the most, and the longest gap.
async fn costs(name: &str, replicas: usize, fault: impl Fault) -> Vec<(&'static str, f64, f64, Duration)> {
    let mut all = vec![];
    for (rate, apart) in RATES {
        let mut runs = vec![];
        // Slow limits leave little to chance, and take long.
        for _ in 0..if apart > S { 1 } else { 4 } {
            let mut fleet = Fleet::start((rate, apart), replicas).await;
            let begun = Instant::now();
            let down = fault(&mut fleet).await;
            runs.push(fleet.cost(begun, down).await);
        }
        let mean = runs.iter().map(|(lost, _)| lost).sum::<f64>() / runs.len() as f64;
        let most = runs.iter().map(|(lost, _)| *lost).fold(0.0, f64::max);
        let gap = runs.iter().map(|(_, gap)| *gap).max().unwrap();
        println!("| {name} | {rate} | {replicas} | {mean:.1} | {most:.1} | {:.1} s |", gap.as_secs_f64());
        all.push((rate, mean, most, gap));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn one_that_is_killed_costs_one_slot() {
    let all = costs("one of eight killed", 8, async |fleet: &mut Fleet| {
        fleet.kill();
        Duration::ZERO
    });
    for (rate, _, most, gap) in all.await {
        assert!(most <= 1.0 && gap <= 1100 * MS, "{rate}: {most}, {gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_stands_still_costs_its_turns_of_that_time() {
    let all = costs("one of eight stands still for 3 s", 8, async |fleet: &mut Fleet| {
        fleet.replicas[0].0.stand_still(true);
        tokio::time::sleep(3 * S).await;
        fleet.replicas[0].0.stand_still(false);
        Duration::ZERO
    });
    for (rate, _, most, gap) in all.await {
        assert!(most <= 3.0 && gap <= 1100 * MS, "{rate}: {most}, {gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_all_are_killed_the_first_release_is_soon() {
    let all = costs("all eight killed, up again 1 s later", 8, async |fleet: &mut Fleet| {
        (0..8).for_each(|_| fleet.kill());
        tokio::time::sleep(S).await;
        for _ in 0..8 {
            fleet.add();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..40))).await;
        }
        S
    });
    for (rate, _, most, gap) in all.await {
        assert!(most <= 1.0 && gap <= 1300 * MS, "{rate}: {most}, {gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn three_quarters_that_are_killed_for_good_cost_few_slots() {
    let all = costs("six of eight killed for good", 8, async |fleet: &mut Fleet| {
        (0..6).for_each(|_| fleet.kill());
        Duration::ZERO
    });
    for (rate, _, most, gap) in all.await {
        // Each held a slot or a turn. The others check after ten seconds at the latest.
        assert!(most <= 7.0 && gap <= 11 * S, "{rate}: {most}, {gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rolling_restart_costs_two_slots() {
    let all = costs("eight restarted in turn, 3 s apart", 8, async |fleet: &mut Fleet| {
        for _ in 0..8 {
            fleet.stop().await;
            tokio::time::sleep(Duration::from_millis(600)).await;
            fleet.add();
            tokio::time::sleep(Duration::from_millis(2400)).await;
        }
        Duration::ZERO
    });
    for (rate, mean, most, gap) in all.await {
        assert!(mean <= 1.0 && most <= 2.0 && gap <= S, "{rate}: {mean}, {most}, {gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_of_the_same_limits_costs_nothing() {
    let all = costs("SIGHUP of the same file each 1.5 s", 8, async |fleet: &mut Fleet| {
        for _ in 0..12 {
            for (bench, _) in &fleet.replicas {
                bench.control().reload(bench.options.clone());
            }
            tokio::time::sleep(Duration::from_millis(1500)).await;
        }
        Duration::ZERO
    });
    for (rate, _, most, gap) in all.await {
        assert!(most < 1.0 && gap <= 10 * MS, "{rate}: {most}, {gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_fail_now_and_then_cost_little() {
    let all = costs("the next call of each fails each 1.5 s", 8, async |fleet: &mut Fleet| {
        for _ in 0..12 {
            for (bench, _) in &fleet.replicas {
                bench.store.faults.fails_next.store(true, Ordering::SeqCst);
            }
            tokio::time::sleep(Duration::from_millis(1500)).await;
        }
        Duration::ZERO
    });
    for (rate, _, most, gap) in all.await {
        // At 5/s some calls fail at their turns, and are made again some 100 ms later.
        assert!(most <= 5.0 && gap <= S, "{rate}: {most}, {gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_crashes_again_and_again_costs_the_others_little() {
    let all = costs("one crashes each 3 s", 8, async |fleet: &mut Fleet| {
        for _ in 0..8 {
            fleet.replicas.rotate_right(1);
            fleet.kill();
            tokio::time::sleep(Duration::from_millis(500)).await;
            fleet.add();
            tokio::time::sleep(Duration::from_millis(2500)).await;
        }
        Duration::ZERO
    });
    for (rate, _, most, gap) in all.await {
        // It is killed eight times.
        assert!(most <= 9.0 && gap <= 5 * S, "{rate}: {most}, {gap:?}");
    }
}

/// A slot at which the API cannot be reached is not used up: the job goes soon after the API is back.
#[tokio::test(start_paused = true)]
async fn an_api_that_is_away_at_a_slot_costs_no_interval() {
    for (rate, apart) in RATES.into_iter().skip(3).chain([("1/h", 3600 * S)]) {
        for replicas in [1, 3] {
            let fleet = Fleet::start((rate, apart), replicas).await;
            let last = fleet.released(Instant::now() - 2 * apart, Instant::now()).pop().unwrap();
            let set = |fleet: &Fleet, is_there: bool| {
                for (bench, _) in &fleet.replicas {
                    bench.sink.connections.reachable.store(is_there, Ordering::SeqCst);
                }
            };
            let slot = (1..).map(|n| last + apart * n).find(|slot| *slot > Instant::now() + 2 * S).unwrap();
            tokio::time::sleep_until(slot - S).await;
            set(&fleet, false);
            tokio::time::sleep_until(slot + 2 * S).await;
            set(&fleet, true);
            let back = Instant::now();
            tokio::time::sleep(4 * S).await;
            let gone = fleet.released(slot, Instant::now());
            let after = gone.first().map(|at| *at - back);
            println!("{rate} x {replicas}: {after:?} after the API is back");
            assert!(gone.len() == 1 && after <= Some(3 * S), "{rate} x {replicas}: {after:?}");
            // The next slot is an interval behind it.
            tokio::time::sleep(apart).await;
            fleet.released(slot, Instant::now());
        }
    }
}

/// Where attempts count although nothing was sent, they keep the pace.
#[tokio::test(start_paused = true)]
async fn attempts_that_count_keep_the_pace_while_the_api_is_away() {
    let mut bench = Bench::new("1/s", QUICK);
    bench.options.retry.outlast = false;
    bench.sink.connections.reachable.store(false, Ordering::SeqCst);
    bench.publish_many(0..100);
    let _done = bench.start();
    tokio::time::sleep(10 * S + 100 * MS).await;
    let attempts = bench.sink.connections.unreached.load(Ordering::SeqCst);
    assert!((10..=11).contains(&attempts), "{attempts} in 10 s");
}

/// A replica that stops sends the jobs whose slots come soon, and gives its turn and later slots back.
#[tokio::test(start_paused = true)]
async fn an_orderly_stop_costs_a_slot_at_most() {
    for (rate, millis) in [("20/s", 50), ("50/s", 20), ("100/s", 10), ("200/s", 5)] {
        for _ in 0..4 {
            let mut fleet = Fleet::start((rate, millis * MS), 2).await;
            let begun = Instant::now();
            fleet.stop().await;
            let (lost, _) = fleet.cost(begun, Duration::ZERO).await;
            assert!(lost <= 1.0, "{rate}: {lost} slots");
        }
    }
}
