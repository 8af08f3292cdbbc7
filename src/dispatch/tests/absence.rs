//! The policies for jobs while the store is away, and the return to the shared pace.

use super::*;
use crate::dispatch::{OnLimit, OnUnavailable};
use crate::store::Change;
use crate::terms::Override;

mod limits;

const SECOND: Duration = Duration::from_secs(1);

/// Replicas of unequal distance to one store, with this many jobs each.
fn replicas(limit: &Limit, on_unavailable: OnUnavailable, jobs: usize) -> [Bench; 4] {
    replicas_of(limit, on_unavailable, jobs, QUICK)
}

/// The same, of a downstream that takes this long for each job.
fn replicas_of(limit: &Limit, on_unavailable: OnUnavailable, jobs: usize, takes: Duration) -> [Bench; 4] {
    let store = Arc::new(MemoryStore::new());
    [200, 400, 1000, 3000].map(|micros| {
        let mut bench = Bench::new("1/s", takes);
        bench.options.limits = LimitSet::new(vec![limit.clone()]).unwrap();
        bench.options.on_unavailable = on_unavailable;
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(micros)));
        bench.publish_many(0..jobs);
        bench
    })
}

fn leaky(rate: &str, burst: u32) -> Limit {
    Limit::leaky_bucket("leaky-bucket-0", rate.parse().unwrap(), burst).unwrap()
}

fn away(benches: &[Bench], away: bool) {
    benches.iter().for_each(|bench| bench.store.away.store(away, Ordering::SeqCst));
}

/// The instants of all hand-overs, in ms from `start`, in order.
fn all_millis(benches: &[Bench], start: Instant) -> Vec<u128> {
    let mut all: Vec<u128> = benches.iter().flat_map(|bench| bench.sink.millis(start)).collect();
    all.sort_unstable();
    all
}

fn between(millis: &[u128], from: u128, until: u128) -> usize {
    millis.iter().filter(|at| (from..until).contains(*at)).count()
}

/// The most hand-overs in any window of this many ms.
fn densest(millis: &[u128], window: u128) -> usize {
    let upto = |from: u128| millis.partition_point(|at| *at < from + window);
    millis.iter().enumerate().map(|(place, at)| upto(*at) - place).max().unwrap_or(0)
}

fn calls(benches: &[Bench]) -> usize {
    benches.iter().map(|bench| bench.store.calls.load(Ordering::SeqCst)).sum()
}

#[tokio::test(start_paused = true)]
async fn local_keeps_the_pace_of_all_and_returns_without_a_burst() {
    for burst in [1, 10] {
        let limit = Limit::gcra("gcra-0", "200/s".parse().unwrap(), burst).unwrap();
        let mut benches = replicas(&limit, OnUnavailable::Local, 1000);
        let start = Instant::now();
        let _running = benches.each_mut().map(Bench::start);
        tokio::time::sleep(2 * SECOND).await;
        away(&benches, true);
        tokio::time::sleep(5 * SECOND).await;
        away(&benches, false);
        tokio::time::sleep(5 * SECOND).await;
        let all = all_millis(&benches, start);
        let within = densest(&all, 1000);
        // A burst of 10 at the start comes on top.
        assert!(within <= 210 + burst as usize, "burst {burst}: {within} in a second");
        let alone = between(&all, 2500, 7000);
        assert!((855..=945).contains(&alone), "{alone} in 4.5 s, 900 at the limit");
        let shared = between(&all, 9000, 11_000);
        assert!((398..=402).contains(&shared), "{shared} in 2 s of the shared pace");
        let seam: Vec<u128> = all.iter().copied().filter(|at| (7000..9000).contains(at)).collect();
        assert!(densest(&seam, 100) <= 25, "{}", densest(&seam, 100));
        let gap = all.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(gap <= Some(300), "a stall of {gap:?}");
    }
}

/// Each replica knows the number of all. So idle ones need no lease, and a busy one takes its share of all.
#[tokio::test(start_paused = true)]
async fn local_takes_a_share_of_all_replicas_that_tell_of_themselves_and_idle_ones_make_no_calls() {
    let mut benches = replicas(&leaky("200/s", 1), OnUnavailable::Local, 0);
    let _running = benches.each_mut().map(Bench::start);
    benches.iter().for_each(|bench| bench.tell_peers(4));
    tokio::time::sleep(SECOND).await;
    let before = calls(&benches);
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(calls(&benches), before, "in ten minutes");
    benches[0].publish_many(0..2000);
    let start = Instant::now();
    tokio::time::sleep(2 * SECOND).await;
    away(&benches, true);
    tokio::time::sleep(3 * SECOND).await;
    let all = all_millis(&benches, start);
    let (shared, alone) = (between(&all, 500, 1500), between(&all, 3000, 5000));
    assert!((199..=201).contains(&shared), "{shared} in 1 s: the others have no jobs");
    assert!((99..=101).contains(&alone), "{alone} in 2 s, of 50/s");
}

/// The store answers nothing for long: it is asked less often, and all are back soon after it.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_long_is_probed_at_lengthening_intervals() {
    let mut benches = replicas(&leaky("20/s", 1), OnUnavailable::Local, 3000);
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(2 * SECOND).await;
    away(&benches, true);
    tokio::time::sleep(10 * SECOND).await;
    let before = calls(&benches);
    tokio::time::sleep(60 * SECOND).await;
    let made = calls(&benches) - before;
    assert!((4 * 150..=4 * 300).contains(&made), "{made} calls of four in a minute, every 0.2 to 0.4 s");
    away(&benches, false);
    tokio::time::sleep(4 * SECOND).await;
    let from = (start.elapsed() - SECOND).as_millis();
    let all = all_millis(&benches, start);
    let gap = all.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(gap <= Some(500), "a stall of {gap:?}");
    assert!(densest(&all, 1000) <= 23, "{} in a second", densest(&all, 1000));
    assert!((19..=21).contains(&between(&all, from, from + 1000)), "the shared pace again");
}

/// A replica far from the store holds slots far ahead: those that pace alone begin behind them.
#[tokio::test(start_paused = true)]
async fn local_begins_behind_the_slots_of_a_far_replica() {
    for _ in 0..5 {
        let mut benches = replicas(&leaky("200/s", 1), OnUnavailable::Local, 2000);
        let store = benches[0].store.inner();
        benches[3].store = Arc::new(FlakyStore::new(store, Duration::from_millis(200)));
        let start = Instant::now();
        let _running = benches.each_mut().map(Bench::start);
        tokio::time::sleep(5 * SECOND + Duration::from_millis(fastrand::u64(..300))).await;
        away(&benches, true);
        tokio::time::sleep(3 * SECOND).await;
        // The far one takes its slots for as much later as the way to the store takes.
        let mut all = all_millis(&benches[..3], start);
        all.extend(benches[3].sink.millis(start).into_iter().map(|at| at.saturating_sub(200)));
        all.sort_unstable();
        let within = [1000, 100].map(|window| densest(&all, window));
        println!("{within:?} in 1 s and 100 ms");
        assert!(within[0] <= 205 && within[1] <= 24, "{within:?} in 1 s and 100 ms");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_away_alone_finds_back_to_the_others() {
    let mut benches = replicas(&leaky("200/s", 1), OnUnavailable::Local, 1000);
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(2 * SECOND).await;
    away(&benches[3..], true);
    tokio::time::sleep(3 * SECOND).await;
    away(&benches[3..], false);
    tokio::time::sleep(4 * SECOND).await;
    let all = all_millis(&benches, start);
    // The others cannot know what it releases: a share of the limit more.
    assert!(densest(&all, 1000) <= 255, "{}", densest(&all, 1000));
    // It calls the store at the latest 0.4 s after the store is back, and 0.3 s later it knows that the others are
    // at work.
    let after = between(&all, 5900, 7900);
    assert!((395..=405).contains(&after), "{after} in 2 s of the shared pace: nobody paused for it");
}

#[tokio::test(start_paused = true)]
async fn open_releases_all_and_returns_to_the_pace() {
    let takes = Duration::from_millis(20);
    let mut benches = replicas_of(&leaky("20/s", 1), OnUnavailable::Open, 3000, takes);
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(SECOND).await;
    away(&benches, true);
    // Each notices with its next call.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let released = between(&all_millis(&benches, start), 1400, 1500);
    assert!(released > 1000, "{released} in 100 ms: as fast as the downstream takes them");
    assert!(benches.iter().all(|bench| bench.sink.most.load(Ordering::SeqCst) == 64), "no more at once");
    away(&benches, false);
    tokio::time::sleep(10 * SECOND).await;
    let all = all_millis(&benches, start);
    // Each calls the store at the latest 0.4 s after the store is back.
    let from = all.partition_point(|at| *at < 1950);
    let later = &all[from..];
    assert!(densest(later, 1000) <= 21, "{}", densest(later, 1000));
    assert!(between(later, 3500, 11_000) >= 148, "{}", between(later, 3500, 11_000));
    let gap = all.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(gap <= Some(400), "a stall of {gap:?}");
}

#[tokio::test(start_paused = true)]
async fn open_needs_no_store_at_all() {
    let mut bench = Bench::new("1/h", QUICK);
    bench.options.on_unavailable = OnUnavailable::Open;
    bench.store.away.store(true, Ordering::SeqCst);
    bench.publish_many(0..100);
    let done = bench.start();
    bench.end();
    tokio::time::timeout(5 * SECOND, done).await.unwrap().unwrap();
    assert_eq!(bench.sink.ids(), (0..100).map(|id| id.to_string()).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn local_holds_where_nothing_is_known_of_the_others() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.on_unavailable = OnUnavailable::Local;
    bench.store.away.store(true, Ordering::SeqCst);
    bench.publish_many(0..10);
    let _running = bench.start();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(bench.sink.count(), 0);
    bench.store.away.store(false, Ordering::SeqCst);
    bench.sink.arrived(10).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_is_not_away() {
    for on_unavailable in [OnUnavailable::Local, OnUnavailable::Open] {
        let mut bench = Bench::new("10/s", QUICK);
        bench.options.on_unavailable = on_unavailable;
        bench.publish_many(0..100);
        let _running = bench.start();
        bench.sink.arrived(5).await;
        bench.store.faults.refuses.store(true, Ordering::SeqCst);
        tokio::time::sleep(10 * SECOND).await;
        assert!(bench.sink.count() <= 7, "{:?}", bench.sink.ids());
        bench.store.faults.refuses.store(false, Ordering::SeqCst);
        bench.sink.arrived(20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn all_return_at_once_to_a_store_that_has_lost_its_state() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let mut benches = replicas(&leaky("200/s", 1), OnUnavailable::Local, 600);
        let start = Instant::now();
        let _running = benches.each_mut().map(Bench::start);
        tokio::time::sleep(2 * SECOND).await;
        away(&benches, true);
        tokio::time::sleep(2 * SECOND).await;
        let empty = Arc::new(MemoryStore::new());
        benches.iter().for_each(|bench| bench.store.swap(&empty));
        // The replicas find the store one after the other.
        for bench in &benches {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..150))).await;
            bench.store.away.store(false, Ordering::SeqCst);
        }
        tokio::time::sleep(4 * SECOND).await;
        let all = all_millis(&benches, start);
        let within = densest(&all, 1000);
        assert!(within <= 202, "seed {seed}: {within} in a second");
        let shared = between(&all, 6500, 8000);
        assert!((298..=302).contains(&shared), "seed {seed}: {shared} in 1.5 s of the shared pace");
        let gap = all.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(gap <= Some(400), "seed {seed}: a stall of {gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_refuses_after_an_absence_is_held_for() {
    let mut bench = Bench::new("20/s", QUICK);
    bench.options.on_unavailable = OnUnavailable::Local;
    bench.publish_many(0..1000);
    let _running = bench.start();
    bench.sink.arrived(5).await;
    away(std::slice::from_ref(&bench), true);
    bench.sink.arrived(50).await;
    bench.store.faults.refuses.store(true, Ordering::SeqCst);
    away(std::slice::from_ref(&bench), false);
    tokio::time::sleep(SECOND).await;
    let sent = bench.sink.count();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(bench.sink.count(), sent);
}

/// Otherwise each would take the whole pace for its own.
#[tokio::test(start_paused = true)]
async fn who_was_idle_counts_when_jobs_come_while_the_store_is_away() {
    let mut benches = replicas(&leaky("200/s", 1), OnUnavailable::Local, 1);
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(30 * SECOND).await;
    away(&benches, true);
    benches.iter().for_each(|bench| bench.publish_many(1..400));
    tokio::time::sleep(3 * SECOND).await;
    let all = all_millis(&benches, start);
    let alone = between(&all, 30_500, 32_500);
    assert!((380..=420).contains(&alone), "{alone} in 2 s, 400 at the limit");
}

/// A single failed call is no reason to make all others wait.
#[tokio::test(start_paused = true)]
async fn who_was_away_for_a_moment_pauses_nobody() {
    let mut benches = replicas(&leaky("200/s", 1), OnUnavailable::Local, 2000);
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(2 * SECOND).await;
    for _ in 0..5 {
        away(&benches[..1], true);
        tokio::time::sleep(Duration::from_millis(120)).await;
        away(&benches[..1], false);
        tokio::time::sleep(Duration::from_millis(480)).await;
    }
    let all = all_millis(&benches, start);
    let meanwhile = between(&all, 2000, 5000);
    assert!(meanwhile >= 590, "{meanwhile} in 3 s at 200/s");
}
