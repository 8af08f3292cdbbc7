//! Throttling as APIs do it: for a while, for ever for one job, and without a word on how long.

use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::dispatch::Drained;
use crate::sink::Outcome;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// An answer that throttles, and asks for this wait if any.
fn throttled(after: Option<Duration>) -> Outcome {
    let detail = "throttled".to_owned();
    Outcome::Throttled { detail, status: 429, after, is_final: false, response: None }
}

/// Replicas of one store, each with this many jobs, whose API answers by a rule.
struct Fleet {
    replicas: Vec<(Bench, AbortOnDropHandle<Drained>)>,
}

impl Fleet {
    fn start(
        rate: &str,
        replicas: usize,
        jobs: usize,
        rule: impl Fn(&str) -> Option<Outcome> + Send + Clone + 'static,
    ) -> Self {
        let store = Arc::new(MemoryStore::new());
        let replicas = (0..replicas).map(|n| {
            let mut bench = Bench::new(rate, QUICK);
            bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(200)));
            bench.sink.answer_by(rule.clone());
            bench.publish_many(n * jobs..(n + 1) * jobs);
            let running = bench.start();
            (bench, running)
        });
        Self { replicas: replicas.collect() }
    }

    /// The instants of all requests, in order.
    fn sent(&self) -> Vec<Instant> {
        let all = self.replicas.iter().flat_map(|(bench, _)| bench.sink.sent.lock().unwrap().clone());
        let mut all: Vec<Instant> = all.map(|sent| sent.at).collect();
        all.sort_unstable();
        all
    }

    /// Waits until each replica has settled this many jobs: for an hour of paused time at most, so that a job which
    /// is never sent fails a test and does not hang it.
    async fn delivered(&self, jobs: usize) {
        for (bench, _) in &self.replicas {
            let settled = tokio::time::timeout(3600 * S, bench.ledger.count(jobs)).await;
            assert!(
                settled.is_ok(),
                "{} of {jobs} jobs were settled within an hour",
                bench.ledger.all().len()
            );
        }
    }

    fn dead(&self) -> usize {
        let dead = |bench: &Bench| {
            let settled = bench.ledger.all();
            settled.iter().filter(|(_, settled)| matches!(settled, Settled::Dead(..))).count()
        };
        self.replicas.iter().map(|(bench, _)| dead(bench)).sum()
    }
}

/// Waits until this many jobs are settled: for an hour of paused time at most, so that a job which is never sent fails a
/// test and does not hang it.
async fn settled(bench: &Bench, jobs: usize) {
    let settled = tokio::time::timeout(3600 * S, bench.ledger.count(jobs)).await;
    assert!(settled.is_ok(), "{} of {jobs} jobs were settled within an hour", bench.ledger.all().len());
}

/// One probe at a time, at most one a second, and at the end all continue.
#[tokio::test(start_paused = true)]
async fn a_window_of_bare_refusals_meets_one_probe_at_a_time() {
    let start = Instant::now();
    let open = start + 60 * S;
    let fleet = Fleet::start("50/s", 2, 200, move |_| (Instant::now() < open).then(|| throttled(None)));
    fleet.delivered(200).await;
    let sent = fleet.sent();
    let meanwhile: Vec<Duration> =
        sent.iter().map(|at| *at - start).filter(|at| *at > 200 * MS && *at < open - start).collect();
    assert!((5..=8).contains(&meanwhile.len()), "after 1, 2, 4, 8, 16 and 30 s: {meanwhile:?}");
    assert!(meanwhile.windows(2).all(|pair| pair[1] - pair[0] >= S), "{meanwhile:?}");
    let last = *sent.last().unwrap() - open;
    assert!(last <= 30 * S + 9 * S, "400 jobs at 50/s, after the last probe: {last:?}");
    assert_eq!(fleet.dead(), 0);
}

/// The replica that probes is killed while its probe is under way.
#[tokio::test(start_paused = true)]
async fn a_replica_that_dies_while_it_probes_holds_up_the_others_for_a_lease() {
    let start = Instant::now();
    let mut fleet =
        Fleet::start("50/s", 2, 50, move |_| (Instant::now() < start + 10 * S).then(|| throttled(None)));
    tokio::time::sleep(900 * MS).await;
    let before = fleet.sent().len();
    // The first probe goes at 1 s, and never ends.
    let probed = async {
        while fleet.sent().len() == before {
            tokio::time::sleep(MS / 2).await;
        }
    };
    tokio::time::timeout(60 * S, probed).await.expect("a probe goes");
    let prober =
        fleet.replicas.iter().position(|(bench, _)| bench.sink.flying.load(Ordering::SeqCst) > 0).unwrap();
    let (_killed, running) = fleet.replicas.remove(prober);
    let died = Instant::now();
    drop(running);
    fleet.delivered(50).await;
    let gap = fleet.sent().into_iter().find(|at| *at > died).unwrap() - died;
    assert!(gap <= 5 * S + 500 * MS, "{gap:?}");
    let sent = fleet.sent();
    let meanwhile: Vec<&Instant> = sent.iter().filter(|at| **at > died && **at < start + 10 * S).collect();
    assert!(meanwhile.windows(2).all(|pair| *pair[1] - *pair[0] >= S), "{meanwhile:?}");
}

/// A job that is always throttled waits alone: the others are sent beside it.
#[tokio::test(start_paused = true)]
async fn one_job_that_is_always_throttled_holds_up_no_other() {
    for after in [Some(8 * S), None] {
        let rule = move |id: &str| (id == "7").then(|| throttled(after));
        let fleet = Fleet::start("100/s", 2, 1500, rule);
        tokio::time::sleep(40 * S).await;
        let delivered: usize = fleet.replicas.iter().map(|(bench, _)| bench.ledger.all().len()).sum();
        assert!(delivered >= 2700, "{after:?}: {delivered} of 3000 in 40 s");
        assert_eq!(fleet.dead(), 0);
        let (first, _) = &fleet.replicas[0];
        let times = first.sink.ids().iter().filter(|id| *id == "7").count();
        assert!((2..=20).contains(&times), "{after:?}: it was tried {times} times");
    }
}

/// While others succeed, only the first refusal of a job is about all of them, as far as anybody can know.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_refused_again_and_again_pauses_the_others_once() {
    for after in [Some(2 * S), None] {
        let mut bench = Bench::new("100/s", QUICK);
        bench.sink.answer_by(move |id| (id == "7").then(|| throttled(after)));
        let start = Instant::now();
        let _running = bench.start();
        for id in 0..2400 {
            bench.publish(message(&id.to_string()));
            tokio::time::sleep(S / 80).await;
        }
        settled(&bench, 2399).await;
        let tried = bench.sink.ids().iter().filter(|id| *id == "7").count();
        assert!(tried >= 3, "{after:?}: it was tried {tried} times");
        let sent = bench.sink.millis(start);
        let pauses = sent.windows(2).filter(|pair| pair[1] - pair[0] > 500).count();
        assert!(pauses <= 1, "{after:?}: {pauses} pauses for all");
    }
}

/// No request goes in a pause that was asked for, and all jobs are delivered soon after the last one.
#[tokio::test(start_paused = true)]
async fn jobs_that_are_throttled_for_long_go_soon_after() {
    let start = Instant::now();
    let open = start + 90 * S;
    let fleet = Fleet::start("10/s", 1, 60, move |_| (Instant::now() < open).then(|| throttled(Some(3 * S))));
    fleet.delivered(60).await;
    let sent = fleet.sent();
    let took = *sent.last().unwrap() - open;
    assert!(took <= 10 * S, "{took:?}");
    let meanwhile: Vec<&Instant> = sent.iter().filter(|at| **at < open).collect();
    assert!(meanwhile.windows(2).all(|pair| *pair[1] - *pair[0] >= 3 * S), "{meanwhile:?}");
}

/// A probe that is answered in any other way ends the cool-down; one that is not answered is followed by another.
#[tokio::test(start_paused = true)]
async fn a_probe_without_an_answer_does_not_end_the_cool_down() {
    let start = Instant::now();
    let bench = Fleet::start("50/s", 1, 20, move |_| match Instant::now() - start {
        at if at < 500 * MS => Some(throttled(None)),
        at if at < 3500 * MS => Some(timeout()),
        _ => None,
    });
    bench.delivered(20).await;
    let sent: Vec<Duration> = bench.sent().iter().map(|at| *at - start).collect();
    let probes: Vec<&Duration> = sent.iter().filter(|at| **at > 500 * MS && **at < 3500 * MS).collect();
    assert!((2..=3).contains(&probes.len()), "one a second: {probes:?}");
}

/// An attempt that was not answered may be under way: the answer that says so is no refusal.
fn timeout() -> Outcome {
    let detail = "no answer".to_owned();
    Outcome::Retry { reason: "timeout", detail, status: None, after: None, response: None }
}

/// A job that stands before all others and is always refused is not the only one that is tried.
#[tokio::test(start_paused = true)]
async fn an_urgent_job_that_is_always_refused_lets_another_one_be_the_probe() {
    let mut bench = Bench::new("50/s", QUICK);
    bench.sink.answer_by(|id| (id == "urgent").then(|| throttled(None)));
    bench.publish(Message { priority: Some(9), ..message("urgent") });
    bench.publish_many(0..20);
    let start = Instant::now();
    let _running = bench.start();
    settled(&bench, 20).await;
    assert!(start.elapsed() <= 5 * S, "{:?}", start.elapsed());
}

/// A probe whose connection takes so long that its slot is missed is sent at the next slot.
#[tokio::test(start_paused = true)]
async fn a_probe_that_misses_its_slot_while_it_connects_goes_at_the_next() {
    let mut bench = Bench::new("50/s", QUICK);
    let start = Instant::now();
    bench.sink.answer_by(move |_| (Instant::now() - start < 500 * MS).then(|| throttled(None)));
    bench.publish_many(0..20);
    *bench.sink.connections.connects.lock().unwrap() = vec![150 * MS, Duration::ZERO];
    let _running = bench.start();
    settled(&bench, 20).await;
    let sent = bench.sink.millis(start);
    assert!(sent[1] >= 1150 && sent[1] <= 1300, "{sent:?}");
}
