//! Pauses that the downstream asks for, and an operator's.

use super::steps::SteppingClock;
use super::*;
use crate::dispatch::OnLimit;
use crate::sink::Outcome;
use crate::store::{Change, Status};

const SECOND: Duration = Duration::from_secs(1);

/// The downstream asks for a pause of this length.
fn asks(status: u16, seconds: u64) -> Outcome {
    let after = Some(Duration::from_secs(seconds));
    let detail = format!("status {status}");
    match status {
        429 | 503 => Outcome::Throttled { detail, status, after, is_final: false, response: None },
        _ => Outcome::Retry { reason: "status", detail, status: Some(status), after, response: None },
    }
}

/// Replicas of unequal distance to one store, with this many jobs each.
pub(super) fn replicas(rate: &str, burst: u32, jobs: usize) -> [Bench; 4] {
    let store = Arc::new(MemoryStore::new());
    [200, 400, 1000, 3000].map(|micros| {
        let mut bench = Bench::new(rate, QUICK);
        let limit = Limit::gcra("gcra-0", rate.parse().unwrap(), burst).unwrap();
        bench.options.limits = LimitSet::new(vec![limit]).unwrap();
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(micros)));
        bench.publish_many(0..jobs);
        bench
    })
}

/// The instants of all hand-overs, in ms from `start`, in order.
pub(super) fn all_millis(benches: &[Bench], start: Instant) -> Vec<u128> {
    let mut all: Vec<u128> = benches.iter().flat_map(|bench| bench.sink.millis(start)).collect();
    all.sort_unstable();
    all
}

/// The most hand-overs in any window of this many ms.
pub(super) fn densest(millis: &[u128], window: u128) -> usize {
    let upto = |from: u128| millis.partition_point(|at| *at < from + window);
    millis.iter().enumerate().map(|(place, at)| upto(*at) - place).max().unwrap_or(0)
}

pub(super) async fn update_record(bench: &Bench, change: Change<'_>) -> Status {
    bench.store.inner().update_record("billing", change).await.unwrap().status
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_one_is_asked_for_stops_all_and_ends_without_a_burst() {
    for burst in [1, 10] {
        let mut benches = replicas("200/s", burst, 400);
        benches[2].sink.answer("30", asks(429, 3));
        let start = Instant::now();
        let _running = benches.each_mut().map(Bench::start);
        benches[2].sink.arrived(31).await;
        let asked = (Instant::now() - start).as_millis();
        for bench in &benches {
            bench.ledger.count(400).await;
        }
        let all = all_millis(&benches, start);
        assert_eq!(all.len(), 1601, "each once, and the one that was refused once more");
        // The pause lasts 3 s from its answer, which is 1 ms after the hand-over.
        let (over, early) = (asked + 3001, asked + 100);
        let meanwhile: Vec<_> = all.iter().filter(|at| (early..over).contains(*at)).collect();
        assert!(meanwhile.is_empty(), "burst {burst}: {meanwhile:?} in a pause from {asked} to {over}");
        let after: Vec<u128> = all.iter().copied().filter(|at| *at >= over).collect();
        assert!(after[0] <= over + 20, "{} after {over}", after[0]);
        assert!(densest(&after[..after.len().min(200)], 100) <= 21, "burst {burst}: {after:?}");
        for bench in &benches {
            let mut ids = bench.sink.ids();
            ids.retain(|id| id != "30");
            assert!(ids.is_sorted_by_key(|id| id.parse::<u32>().unwrap()), "each keeps its place: {ids:?}");
        }
    }
}

/// The requested pause is a span of real time, also if the store's clock steps meanwhile.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_stores_clock_makes_no_pause_shorter() {
    // No call was made in between, so the store cannot distinguish a step back from time that passed.
    for (step, longer) in [(2_000_000, 0), (-2_000_000, 2000), (3_600_000_000, 0)] {
        let clock = Arc::new(SteppingClock::new());
        let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
        let mut benches = replicas("200/s", 1, 100);
        for bench in &mut benches {
            bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_millis(1)));
        }
        benches[2].sink.answer("3", asks(429, 3));
        let start = Instant::now();
        let _running = benches.each_mut().map(Bench::start);
        benches[2].sink.arrived(4).await;
        let asked = (Instant::now() - start).as_millis();
        tokio::time::sleep(SECOND).await;
        clock.step(step);
        for bench in &benches {
            bench.ledger.count(100).await;
        }
        let all = all_millis(&benches, start);
        let early = all.iter().filter(|at| (asked + 100..asked + 3000).contains(*at)).count();
        assert_eq!(early, 0, "a step of {step} µs: {all:?}");
        let first = all.iter().find(|at| **at >= asked + 3000).unwrap();
        assert!(*first <= asked + 3200 + longer, "a step of {step} µs: {first} after {asked}");
        assert!(densest(&all, 1000) <= 201);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_reply_under_way_grants_before_the_end_is_given_up() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), Duration::from_millis(40)));
    bench.publish_many(0..50);
    bench.sink.answer("3", asks(503, 2));
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert_eq!(released.len(), 51);
    let asked = released[3] + 1;
    assert!(released[4] >= asked + 2000, "{released:?}");
    assert!(released[4] <= asked + 2130, "known after 40 ms, and mapped within 80: {released:?}");
    assert!(released[4..].windows(2).all(|pair| pair[1] - pair[0] >= 10), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn of_several_pauses_the_latest_end_counts() {
    let mut bench = Bench::new("100/s", Duration::from_millis(15));
    bench.publish_many(0..20);
    bench.sink.answer("3", asks(429, 5));
    bench.sink.answer("4", asks(429, 2));
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    // The second job is in flight when the first is answered, at 45 ms.
    assert_eq!(released[..5], [0, 10, 20, 30, 40]);
    assert_eq!(released[5], 5045, "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn no_pause_is_longer_than_configured_nor_is_a_jobs_own() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.retry.max_pause = 2 * SECOND;
    bench.publish_many(0..3);
    bench.sink.answer("0", asks(429, 86_400));
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert_eq!(released, [0, 2001, 2011, 2021], "the job itself too");
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_no_pause() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish_many(0..20);
    bench.sink.answer("0", retry(500));
    bench.sink.answer("1", retry(429));
    bench.sink.answer("2", asks(500, 4));
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(20).await;
    let record_calls = bench.store.record_calls.load(Ordering::SeqCst);
    bench.end();
    done.await.unwrap();
    let expected: Vec<u128> = (0..20).map(|slot| slot * 10).collect();
    assert_eq!(bench.sink.millis(start)[..20], expected);
    assert_eq!(
        bench.store.record_calls.load(Ordering::SeqCst),
        record_calls + 1,
        "it looks after 2 s while one job waits"
    );
}

#[tokio::test(start_paused = true)]
async fn an_operator_pauses_and_resumes() {
    let mut benches = replicas("200/s", 1, 300);
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(SECOND).await;
    update_record(&benches[0], Change::Pause { span: None, note: "" }).await;
    tokio::time::sleep(5 * SECOND).await;
    update_record(&benches[0], Change::Resume).await;
    for bench in &benches {
        bench.ledger.count(300).await;
    }
    let all = all_millis(&benches, start);
    let meanwhile: Vec<_> = all.iter().filter(|at| (1020..6000).contains(*at)).collect();
    assert!(meanwhile.is_empty(), "{meanwhile:?}");
    let after: Vec<u128> = all.iter().copied().filter(|at| *at >= 6000).collect();
    assert!(after[0] <= 6020, "{after:?}");
    assert!(densest(&after, 100) <= 21, "{after:?}");
    assert!(all.last().unwrap() < &11_200, "no slot is lost behind it: {:?}", all.last());
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_by_itself_and_a_resume_ends_both() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish_many(0..1000);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(10).await;
    let paused = (Instant::now() - start).as_millis();
    let status = update_record(&bench, Change::Pause { span: Some(3 * SECOND), note: "" }).await;
    assert!(!status.is_stopped());
    bench.sink.arrived(11).await;
    assert_eq!(bench.sink.millis(start)[10], paused + 3000);
    bench.sink.answer("20", asks(429, 100));
    bench.sink.arrived(21).await;
    tokio::time::sleep(SECOND).await;
    update_record(&bench, Change::Pause { span: Some(50 * SECOND), note: "" }).await;
    tokio::time::sleep(SECOND).await;
    let resumed = (Instant::now() - start).as_millis();
    update_record(&bench, Change::Resume).await;
    bench.sink.arrived(50).await;
    let released = bench.sink.millis(start);
    assert!(released[21] >= resumed && released[21] <= resumed + 10, "{released:?}");
    assert!(released[21..].windows(2).all(|pair| pair[1] - pair[0] >= 10), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_was_missed_is_made_up_for() {
    // With slots this far apart, its next call would come only after a minute.
    let mut bench = Bench::new("1/m", QUICK);
    bench.store.faults.deaf.store(true, Ordering::SeqCst);
    bench.publish_many(0..3);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    bench.sink.arrived(1).await;
    tokio::time::sleep(58 * SECOND).await;
    update_record(&bench, Change::Pause { span: None, note: "" }).await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(bench.sink.count(), 1);
    update_record(&bench, Change::Resume).await;
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert!((68_000..=70_100).contains(&released[1]), "{released:?}");
    assert_eq!(released[2], released[1] + 60_000, "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_counts_while_the_store_is_away_and_is_stored_when_it_is_back() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [1, 1].map(|millis| {
        let mut bench = Bench::new("100/s", QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_millis(millis)));
        bench
    });
    benches[0].publish_many(0..100);
    benches[0].sink.answer("20", asks(429, 20));
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    benches[0].sink.arrived(20).await;
    benches[0].store.away.store(true, Ordering::SeqCst);
    benches[0].sink.arrived(21).await;
    let asked = (Instant::now() - start).as_millis();
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(benches[0].sink.count(), 21, "held slots too");
    benches[0].store.away.store(false, Ordering::SeqCst);
    tokio::time::sleep(3 * SECOND).await;
    // The other one is notified of it.
    benches[1].publish_many(0..1);
    benches[1].sink.arrived(1).await;
    let other = benches[1].sink.millis(start)[0];
    // The first one may take a turn of four slots before it.
    assert!(other >= asked + 20_000 && other <= asked + 20_050, "{other} after {asked}");
}

#[tokio::test(start_paused = true)]
async fn an_operators_pause_survives_the_loss_of_the_record() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish_many(0..100);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(10).await;
    update_record(&bench, Change::Pause { span: None, note: "" }).await;
    tokio::time::sleep(SECOND).await;
    let sent = bench.sink.count();
    bench.store.forget();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(bench.sink.count(), sent, "paused all the time");
    assert!(bench.store.inner().read_record("billing").await.unwrap().status.is_stopped());
    bench.store.inner().update_record("billing", Change::Resume).await.unwrap();
    bench.sink.arrived(sent + 20).await;
    let released = bench.sink.millis(start);
    assert!(released[sent..].windows(2).all(|pair| pair[1] - pair[0] >= 10), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_opens_in_a_pause_is_not_used() {
    let mut bench = Bench::new("1/s", Duration::from_millis(1100));
    // The second job waits for its connection while the first is answered.
    *bench.sink.connections.connects.lock().unwrap() = vec![Duration::from_millis(400), Duration::ZERO];
    bench.publish_many(0..3);
    bench.options.retry.max_pause = Duration::from_millis(50);
    bench.sink.answer("0", asks(429, 1));
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(3).await;
    // At 1400 the pause is over, but the slot of 1000 lay before its end: it is given back, and the next one is at once.
    assert_eq!(bench.sink.millis(start), [0, 1400, 2400]);
}

#[tokio::test(start_paused = true)]
async fn what_polices_waits_for_the_end_of_a_pause_and_rejects_nothing() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.on_limit = OnLimit::Reject;
    let limit = Limit::gcra("gcra-0", "1000/s".parse().unwrap(), 20).unwrap();
    bench.options.limits = LimitSet::new(vec![limit]).unwrap();
    update_record(&bench, Change::Pause { span: Some(3 * SECOND), note: "" }).await;
    bench.publish_many(0..1);
    let start = Instant::now();
    let done = bench.start();
    tokio::time::sleep(SECOND).await;
    assert_eq!((bench.sink.count(), bench.ledger.all().len()), (0, 0));
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.millis(start), [3000]);
}

#[tokio::test(start_paused = true)]
async fn looks_after_changes_are_apart_however_many_there_are() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish_many(0..1000);
    let _running = bench.start();
    bench.sink.arrived(10).await;
    let before = bench.store.record_calls.load(Ordering::SeqCst);
    for _ in 0..100 {
        bench.store.inner().update_record("billing", Change::Resume).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let looks = bench.store.record_calls.load(Ordering::SeqCst) - before;
    assert!((8..=11).contains(&looks), "{looks} looks in half a second");
}

/// Eight replicas work on a downstream, whose record is changed once.
#[tokio::test(start_paused = true)]
async fn replicas_look_after_a_change_not_all_at_one_instant() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [0; 8].map(|_| {
        let mut bench = Bench::new("200/s", QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
        bench.publish_many(0..400);
        bench
    });
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(3 * SECOND).await;
    let looks = |benches: &[Bench]| -> Vec<usize> {
        benches.iter().map(|bench| bench.store.record_calls.load(Ordering::SeqCst)).collect()
    };
    let before = looks(&benches);
    store.update_record("billing", Change::Resume).await.unwrap();
    // How many have read the record after each step.
    let mut looked = vec![];
    for _ in 0..20 {
        tokio::time::sleep(QUICK).await;
        looked.push(looks(&benches).iter().zip(&before).filter(|(now, before)| now > before).count());
    }
    assert_eq!(looked.last(), Some(&8), "each looks soon: {looked:?}");
    let most = looked.iter().zip([0].iter().chain(&looked)).map(|(now, before)| now - before).max();
    assert!(most <= Some(6), "nearly all of them look within one millisecond: {looked:?}");
}
