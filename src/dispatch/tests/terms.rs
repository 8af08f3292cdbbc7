//! Limits that change while jobs are in progress, and the agreement on those in force.

use super::*;
use crate::dispatch::OnLimit;
use crate::rate::Amount;
use crate::store::{Change, RecordState};
use crate::terms::{Override, Terms};

const SECOND: Duration = Duration::from_secs(1);

/// Replicas of unequal distance to one store, with this many jobs each.
fn replicas(rate: &str, jobs: usize) -> [Bench; 4] {
    let store = Arc::new(MemoryStore::new());
    [200, 400, 1000, 3000].map(|micros| {
        let mut bench = Bench::new(rate, QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(micros)));
        bench.publish_many(0..jobs);
        bench
    })
}

fn limits(rate: &str) -> LimitSet {
    LimitSet::new(vec![Limit::leaky_bucket("leaky-bucket-0", rate.parse().unwrap(), 1).unwrap()]).unwrap()
}

/// Sets another rate on the dispatcher of this bench, as a reload does.
fn reload(bench: &Bench, rate: &str, revision: Option<u64>) {
    let mut options = bench.options.clone();
    options.limits = limits(rate);
    options.revision = revision;
    bench.control().reload(options);
}

async fn look(bench: &Bench) -> RecordState {
    bench.store.inner().read_record("billing").await.unwrap()
}

async fn in_force(bench: &Bench) -> Terms {
    Terms::parse(&look(bench).await.terms.expect("terms")).unwrap()
}

/// Sets a rate, or unsets it, as an operator does.
async fn set(bench: &Bench, rate: Option<&str>, lasts: Option<Duration>) {
    let RecordState { now, status, .. } = look(bench).await;
    let mut terms = in_force(bench).await;
    match rate {
        Some(rate) => {
            let until = lasts.map(|lasts| now.plus(lasts));
            let rate: Amount = rate.parse().unwrap();
            terms.set_rate(None, Override { rate, until, reason: None, by: None, set_at: now }).unwrap();
        }
        None => drop(terms.unset_rate(None).unwrap()),
    }
    let change = Change::Terms { of: status.generation, text: &terms.to_text() };
    bench.store.inner().update_record("billing", change).await.unwrap();
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

#[tokio::test(start_paused = true)]
async fn a_reload_at_one_replica_changes_the_pace_of_all() {
    let mut benches = replicas("20/s", 700);
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(2 * SECOND).await;
    reload(&benches[3], "200/s", None);
    tokio::time::sleep(3 * SECOND).await;
    reload(&benches[0], "20/s", None);
    tokio::time::sleep(2 * SECOND).await;
    let all = all_millis(&benches, start);
    assert_eq!(between(&all, 0, 2000), 40);
    let fast = between(&all, 2300, 4300);
    assert!((398..=402).contains(&fast), "{fast} in 2 s of 200/s: {all:?}");
    let slow = between(&all, 5300, 6800);
    assert!((29..=31).contains(&slow), "{slow} in 1.5 s of 20/s: {all:?}");
    assert!(densest(&all, 1000) <= 202, "{}", densest(&all, 1000));
    let gap = all.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(gap <= Some(100), "a stall of {gap:?}");
    for bench in &benches[1..] {
        let sent = bench.sink.millis(start);
        assert!(between(&sent, 2300, 4300) > 50, "each has its share of the new pace: {sent:?}");
    }
}

/// As one does that sends the jobs of a file, which may be an old one.
#[tokio::test(start_paused = true)]
async fn a_dispatcher_that_does_not_propose_its_limits_follows_those_in_force() {
    let [mut replica, mut other, ..] = replicas("20/s", 200);
    let start = Instant::now();
    let _first = replica.start();
    tokio::time::sleep(SECOND).await;
    let generation = look(&replica).await.status.generation;
    (other.options.limits, other.options.proposes_limits) = (limits("200/s"), false);
    let _second = other.start();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(look(&replica).await.status.generation, generation, "it writes no limits");
    assert_eq!(in_force(&replica).await.limits(), &limits("20/s"));
    assert!(between(&other.sink.millis(start), 1000, 3000) > 5, "it has its share of the pace");
    let all = all_millis(&[replica, other], start);
    assert!(between(&all, 0, 3000) <= 61, "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn limits_that_are_not_proposed_count_where_there_are_no_others() {
    let mut alone = Bench::new("20/s", QUICK);
    alone.options.proposes_limits = false;
    alone.publish_many(0..100);
    let start = Instant::now();
    let _running = alone.start();
    tokio::time::sleep(SECOND).await;
    assert_eq!(in_force(&alone).await.limits(), &limits("20/s"));
    let sent = alone.sink.millis(start).len();
    assert!((19..=21).contains(&sent), "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_dispatcher_that_sleeps_for_a_minute_wakes_to_a_higher_rate() {
    let mut benches = replicas("1/m", 10);
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(all_millis(&benches, start).len(), 1);
    set(&benches[0], Some("10/s"), None).await;
    tokio::time::sleep(2 * SECOND).await;
    let all = all_millis(&benches, start);
    assert!(all[1] <= 5300, "{all:?}");
    let gaps: Vec<_> = all[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() >= 16 && gaps.iter().all(|gap| (95..=105).contains(gap)), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_is_set_for_a_while_ends_by_itself() {
    let mut benches = replicas("20/s", 500);
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(SECOND).await;
    set(&benches[0], Some("100/s"), Some(3 * SECOND)).await;
    tokio::time::sleep(6 * SECOND).await;
    let all = all_millis(&benches, start);
    let (fast, slow) = (between(&all, 1300, 3800), between(&all, 4300, 6800));
    assert!((248..=252).contains(&fast), "{fast} in 2.5 s of 100/s");
    assert!((49..=51).contains(&slow), "{slow} in 2.5 s of 20/s");
    assert!(in_force(&benches[0]).await.overrides().is_empty(), "all learn that it is over");
    assert_eq!(look(&benches[0]).await.status.generation, 3, "once");
    // The second override is unset before its end.
    set(&benches[0], Some("100/s"), Some(60 * SECOND)).await;
    tokio::time::sleep(SECOND).await;
    set(&benches[0], None, None).await;
    tokio::time::sleep(SECOND).await;
    let slow = between(&all_millis(&benches, start), 8300, 8900);
    assert!((11..=13).contains(&slow), "{slow} in 0.6 s of 20/s");
}

#[tokio::test(start_paused = true)]
async fn the_last_start_wins_and_the_others_follow() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = ["20/s", "100/s"].map(|rate| {
        let mut bench = Bench::new(rate, QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
        bench.publish_many(0..300);
        bench
    });
    let start = Instant::now();
    let _old = benches[0].start();
    tokio::time::sleep(2 * SECOND).await;
    let _new = benches[1].start();
    tokio::time::sleep(2 * SECOND).await;
    let all = all_millis(&benches, start);
    assert_eq!(between(&all, 0, 2000), 40);
    let fast = between(&all, 2300, 3800);
    assert!((149..=151).contains(&fast), "{fast} in 1.5 s of 100/s");
    assert_eq!(in_force(&benches[0]).await.limits(), &limits("100/s"));
    assert_eq!(look(&benches[0]).await.status.generation, 2, "nobody fights");
}

#[tokio::test(start_paused = true)]
async fn a_lower_revision_does_not_replace_a_higher_one() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [("20/s", 7), ("100/s", 6)].map(|(rate, revision)| {
        let mut bench = Bench::new(rate, QUICK);
        bench.options.revision = Some(revision);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
        bench.publish_many(0..100);
        bench
    });
    let start = Instant::now();
    let _old = benches[0].start();
    tokio::time::sleep(SECOND).await;
    let _new = benches[1].start();
    tokio::time::sleep(SECOND).await;
    assert_eq!(between(&all_millis(&benches, start), 0, 2000), 40, "its own limits are not asked for");
    assert_eq!(look(&benches[0]).await.status.generation, 1);
    reload(&benches[1], "100/s", Some(8));
    tokio::time::sleep(SECOND).await;
    let fast = between(&all_millis(&benches, start), 2300, 2800);
    assert!((49..=51).contains(&fast), "{fast} in 0.5 s of 100/s");
}

#[tokio::test(start_paused = true)]
async fn a_change_while_a_call_is_under_way_costs_no_job_its_place() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), Duration::from_millis(20)));
    bench.publish_many(0..100);
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(20).await;
    for rate in ["200/s", "50/s", "400/s"] {
        set(&bench, Some(rate), None).await;
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    bench.end();
    done.await.unwrap();
    let ids: Vec<String> = (0..100).map(|id| id.to_string()).collect();
    assert_eq!(bench.sink.ids(), ids);
    let released = bench.sink.millis(start);
    assert!(released[99] - released[60] <= 200, "400/s: {released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_lost_is_recalled() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish_many(0..400);
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(20).await;
    set(&bench, Some("50/s"), None).await;
    set(&bench, Some("20/s"), None).await;
    tokio::time::sleep(SECOND).await;
    let generation = look(&bench).await.status.generation;
    assert_eq!(generation, 3);
    bench.store.forget();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(look(&bench).await.status.generation, generation);
    let rate: Amount = "20/s".parse().unwrap();
    assert_eq!(in_force(&bench).await.overrides()["leaky-bucket-0"].rate, rate);
    let all = bench.sink.millis(start);
    assert!((36..=38).contains(&between(&all, 1300, 3150)), "{all:?}");
    // A replica that starts before any other has recalled the terms gives way.
    bench.store.forget();
    let text = bench.options.terms().to_text();
    bench.store.inner().update_record("billing", Change::Terms { of: 0, text: &text }).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert_eq!(look(&bench).await.status.generation, generation);
    assert!(!done.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_lost_and_started_again_by_others_is_used() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish_many(0..400);
    let start = Instant::now();
    let _running = bench.start();
    bench.sink.arrived(20).await;
    bench.store.forget();
    // The terms have the same generation, but differ.
    let mut options = bench.options.clone();
    options.limits = limits("20/s");
    let text = options.terms().to_text();
    bench.store.inner().update_record("billing", Change::Terms { of: 0, text: &text }).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    let all = bench.sink.millis(start);
    let sent = between(&all, 1000, 2000);
    assert!((19..=21).contains(&sent), "{sent}: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn terms_that_cannot_be_read_hold_all_until_there_are_others() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish_many(0..100);
    let _running = bench.start();
    bench.sink.arrived(10).await;
    let generation = look(&bench).await.status.generation;
    let own = look(&bench).await.terms.unwrap();
    let newer = own.replacen("\"version\":2", "\"version\":99", 1);
    assert_ne!(own, newer, "{own}");
    bench
        .store
        .inner()
        .update_record("billing", Change::Terms { of: generation, text: &newer })
        .await
        .unwrap();
    tokio::time::sleep(10 * SECOND).await;
    let sent = bench.sink.count();
    assert!(sent <= 21, "{sent}: only what had a slot");
    bench
        .store
        .inner()
        .update_record("billing", Change::Terms { of: generation + 1, text: &own })
        .await
        .unwrap();
    bench.sink.arrived(100).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_before_the_terms_are_known() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.store.away.store(true, Ordering::SeqCst);
    bench.publish_many(0..10);
    let _running = bench.start();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!((bench.store.calls.load(Ordering::SeqCst), bench.sink.count()), (0, 0));
    bench.store.away.store(false, Ordering::SeqCst);
    let back = Instant::now();
    bench.sink.arrived(1).await;
    assert!(back.elapsed() <= SECOND, "{:?}", back.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_new_limits_never_hold_is_dead_lettered() {
    let limit = |burst| {
        let limit = Limit::gcra("gcra-0", "10/s".parse().unwrap(), burst).unwrap();
        LimitSet::new(vec![limit]).unwrap()
    };
    for on_limit in [OnLimit::Wait, OnLimit::Reject] {
        let mut bench = Bench::new("10/s", QUICK);
        bench.options.limits = limit(50);
        bench.options.on_limit = on_limit;
        let cost = |cost: i128| vec![("paced-cost".to_owned(), Value::Integer(cost))];
        bench.store.inner().update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
        bench.publish(Message { headers: cost(20), ..message("twenty") });
        bench.publish(Message { headers: cost(2), ..message("two") });
        let _running = bench.start();
        tokio::time::sleep(SECOND).await;
        let mut options = bench.options.clone();
        options.limits = limit(10);
        bench.control().reload(options);
        tokio::time::sleep(SECOND).await;
        bench.store.inner().update_record("billing", Change::Resume).await.unwrap();
        bench.ledger.count(2).await;
        assert_eq!(bench.ledger.letter("twenty").reason, Reason::CostTooLarge);
        assert_eq!(bench.sink.ids(), ["two"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_policer_uses_new_terms_too() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.on_limit = OnLimit::Reject;
    bench.options.limits = LimitSet::new(vec![Limit::fixed_window("w", 5, 3600 * SECOND).unwrap()]).unwrap();
    bench.publish_many(0..6);
    let done = bench.start();
    bench.ledger.count(6).await;
    assert_eq!(bench.ledger.letter("5").reason, Reason::Rejected);
    set(&bench, Some("8/h"), None).await;
    bench.publish_many(6..10);
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.count(), 8, "3 of 4 more");
}

#[tokio::test(start_paused = true)]
async fn the_source_knows_how_many_messages_are_held_at_most() {
    let mut bench = Bench::new("10/s", QUICK);
    let _running = bench.start();
    tokio::time::sleep(SECOND).await;
    assert!(bench.source.windows.lock().unwrap().is_empty(), "as it was made");
    set(&bench, Some("1/s"), None).await;
    tokio::time::sleep(SECOND).await;
    set(&bench, Some("1000/s"), None).await;
    tokio::time::sleep(SECOND).await;
    set(&bench, Some("500/s"), None).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(*bench.source.windows.lock().unwrap(), [60, 1000]);
}
