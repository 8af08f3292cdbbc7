mod acquire;
pub(super) mod bench;
#[cfg(feature = "daemon")]
mod log;
mod pauses;
mod runtimes;
pub(super) mod sets;
mod shared;
mod waits;
mod yields;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::*;
use crate::limit::{Limit, LimitError};
use crate::pace::release::clock::Precision;
use crate::terms::RATE_LIMIT;
use bench::Bench;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn builder(rate: &str, bench: &Arc<Bench>) -> ShaperBuilder {
    Shaper::builder("billing", rate.parse().unwrap())
        .precision(Precision::Coarse)
        .runtime(Handle::current())
        .store(Arc::clone(bench))
}

fn retry_after(outcome: Result<Reservation, ReserveError>) -> Duration {
    match outcome {
        Err(ReserveError::QueueFull { retry_after, limit }) => {
            assert_eq!(limit, RATE_LIMIT);
            retry_after
        }
        other => panic!("the queue should be full: {other:?}"),
    }
}

/// Lets every task that can run do so.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn work_runs_at_its_slots() {
    let shaper = Shaper::builder("billing", "50/s".parse().unwrap())
        .precision(Precision::Coarse)
        .runtime(Handle::current())
        .build()
        .unwrap();
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for index in 0..50_u64 {
        let shaper = shaper.clone();
        tasks.spawn(async move {
            let ran = shaper.schedule("any", async { Instant::now() }).await.unwrap();
            (index, ran)
        });
    }
    while let Some(done) = tasks.join_next().await {
        let (index, ran) = done.unwrap();
        assert_eq!(ran - start, ms(20 * index), "job {index}");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_share_calls() {
    let bench = Bench::new();
    bench.delay(ms(5), ms(5));
    let shaper = builder("1000/s", &bench).build().unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..3000 {
        let shaper = shaper.clone();
        tasks.spawn(async move { shaper.reserve("any").await.unwrap().keep().0 });
    }
    let mut slots = BTreeSet::new();
    while let Some(slot) = tasks.join_next().await {
        assert!(slots.insert(slot.unwrap()), "no slot twice");
    }
    let (first, last) = (slots.first().unwrap(), slots.last().unwrap());
    assert_eq!((slots.len(), last - first), (3000, 2_999_000), "without a gap");
    // The first request may be sent alone; the others need three more calls of 1024.
    assert!(bench.count() <= 4, "{} calls", bench.count());
}

#[tokio::test(start_paused = true)]
async fn a_lone_caller_waits_for_nobody() {
    let bench = Bench::new();
    let shaper = builder("1000/s", &bench).build().unwrap();
    for _ in 0..3 {
        shaper.reserve("any").await.unwrap().wait().await;
    }
    assert_eq!(bench.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_takes_nothing() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).max_wait(ms(150)).build().unwrap();
    let first = shaper.reserve("any").await.unwrap();
    let second = shaper.reserve("any").await.unwrap();
    for _ in 0..20 {
        assert_eq!(retry_after(shaper.reserve("any").await), ms(50));
    }
    tokio::time::advance(ms(49)).await;
    assert_eq!(retry_after(shaper.reserve("any").await), ms(1));
    tokio::time::advance(ms(1)).await;
    let third = shaper.reserve("any").await.unwrap();
    assert_eq!(second.slot().since(first.slot()), ms(100));
    assert_eq!(third.slot().since(second.slot()), ms(100), "the refused ones took nothing");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_leader_stalls_nobody_and_its_slot_is_given_back() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).build().unwrap();
    let first = shaper.reserve("any").await.unwrap();
    bench.arrival().await;
    bench.close();
    let spawn = || {
        tokio::spawn({
            let shaper = shaper.clone();
            async move { shaper.reserve("any").await.unwrap().keep() }
        })
    };
    let leader = spawn();
    bench.arrival().await;
    let follower = spawn();
    settle().await;
    leader.abort();
    assert!(leader.await.unwrap_err().is_cancelled());
    bench.open(2);
    assert_eq!(follower.await.unwrap().since(first.slot()), ms(100), "the leader's slot");
    assert_eq!((bench.count(), bench.counts.cancelled.load(Ordering::SeqCst)), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn those_who_left_before_the_call_take_no_slot() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).build().unwrap();
    bench.close();
    let mut tasks = vec![];
    for _ in 0..5 {
        let shaper = shaper.clone();
        tasks.push(tokio::spawn(async move { shaper.reserve("any").await.unwrap().keep() }));
        settle().await;
    }
    bench.arrival().await;
    // Request 0 is in flight; 1 to 4 wait for the next call.
    for gone in [1, 3] {
        tasks[gone].abort();
    }
    settle().await;
    bench.open(2);
    let first = tasks.remove(0).await.unwrap();
    let third = tasks.remove(1).await.unwrap();
    let last = tasks.pop().unwrap().await.unwrap();
    assert_eq!((third.since(first), last.since(first)), (ms(100), ms(200)));
    assert_eq!(bench.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_whole_tail_of_those_who_left_is_given_back() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).burst(3).build().unwrap();
    let first = shaper.reserve("any").await.unwrap();
    bench.arrival().await;
    let _ = (shaper.reserve("any").await.unwrap(), shaper.reserve("any").await.unwrap());
    bench.arrival().await;
    bench.arrival().await;
    bench.close();
    let leader = tokio::spawn({
        let shaper = shaper.clone();
        async move { shaper.reserve("any").await.unwrap().keep() }
    });
    bench.arrival().await;
    let mut tail = JoinSet::new();
    for _ in 0..4 {
        let shaper = shaper.clone();
        tail.spawn(async move { shaper.reserve("any").await.map(drop) });
    }
    settle().await;
    bench.open(1);
    let slot = leader.await.unwrap();
    bench.arrival().await;
    tail.abort_all();
    settle().await;
    bench.open(2);
    assert_eq!(slot.since(first.slot()), ms(100));
    // The last requests were in the call already; all four slots are given back, the last one first.
    let next = shaper.reserve("any").await.unwrap();
    assert_eq!(next.slot().since(slot), ms(100));
    assert_eq!(bench.counts.cancelled.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn work_that_is_dropped_while_it_waits_gives_its_slot_back() {
    let bench = Bench::new();
    let shaper = builder("1/s", &bench).build().unwrap();
    let first = shaper.reserve("any").await.unwrap();
    let waiting = shaper.schedule("any", async { unreachable!("it is dropped before its slot") });
    assert!(tokio::time::timeout(ms(500), waiting).await.is_err());
    settle().await;
    assert_eq!(shaper.reserve("any").await.unwrap().keep().since(first.slot()), ms(1000));
}

#[tokio::test(start_paused = true)]
async fn only_an_unreached_tail_slot_is_cancelled() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).build().unwrap();
    let due = shaper.reserve("any").await.unwrap();
    let middle = shaper.reserve("any").await.unwrap();
    let tail = shaper.reserve("any").await.unwrap();
    let slot = tail.slot();
    assert!(!due.cancel().await.unwrap());
    assert!(!middle.cancel().await.unwrap());
    assert!(tail.cancel().await.unwrap());
    assert_eq!(shaper.reserve("any").await.unwrap().keep(), slot);
}

#[tokio::test(start_paused = true)]
async fn keys_share_the_pace_unless_it_is_their_own() {
    let slots = async |shaper: Shaper| {
        let first = shaper.reserve("a").await.unwrap().keep();
        let second = shaper.reserve("b").await.unwrap().keep();
        shaper.reset("a").await.unwrap();
        let third = shaper.reserve("b").await.unwrap().keep();
        (second.since(first), third.since(first))
    };
    let shared = builder("10/s", &Bench::new()).build().unwrap();
    assert_eq!(slots(shared).await, (ms(100), ms(0)), "one pace, one reset");
    let own = builder("10/s", &Bench::new()).per_key().build().unwrap();
    assert_eq!(slots(own).await, (ms(0), ms(100)), "a pace each, a reset each");
}

#[tokio::test(start_paused = true)]
async fn all_limits_agree_and_costs_are_charged_behind() {
    let bench = Bench::new();
    let slow = Limit::leaky_bucket("per-second", "1/s".parse().unwrap(), 3).unwrap();
    let shaper = builder("10/s", &bench).limit(slow).build().unwrap();
    let first = shaper.reserve_cost("any", 2).await.unwrap();
    let mut since = vec![];
    for _ in 0..3 {
        since.push(shaper.reserve("any").await.unwrap().keep().since(first.slot()));
    }
    assert_eq!(since, [ms(200), ms(1000), ms(2000)]);
    let outcome = shaper.reserve_cost("any", 0).await;
    assert!(matches!(outcome, Err(ReserveError::Store(StoreError::Invalid(_)))));

    let daily = builder("1/d", &bench).build().unwrap();
    let highest = daily.limits().max_cost();
    let outcome = daily.reserve_cost("any", highest + 1).await;
    assert!(
        matches!(outcome, Err(ReserveError::CostTooLarge { highest: reported, .. }) if reported == highest)
    );
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_fails_those_who_wait_and_no_more() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).build().unwrap();
    bench.fail(Some(StoreError::Unreachable { address: "a:1".into(), detail: "refused".into() }));
    let (one, two) = tokio::join!(shaper.reserve("any"), shaper.reserve("any"));
    for outcome in [one, two] {
        assert!(matches!(outcome, Err(ReserveError::Store(StoreError::Unreachable { .. }))), "{outcome:?}");
    }
    bench.fail(None);
    assert!(shaper.reserve("any").await.is_ok());

    bench.faults.panics.store(1, Ordering::SeqCst);
    assert!(shaper.reserve("any").await.is_ok(), "another task asks");
    bench.faults.panics.store(3, Ordering::SeqCst);
    assert!(matches!(shaper.reserve("any").await, Err(ReserveError::Stopped)));
    assert!(shaper.reserve("any").await.is_ok(), "the key is not stuck");
}

#[tokio::test(start_paused = true)]
async fn slots_that_many_left_are_no_round_trip_each_for_who_waits() {
    let bench = Bench::new();
    let shaper = builder("1000/s", &bench).build().unwrap();
    bench.close();
    let mut gone = JoinSet::new();
    for _ in 0..1000 {
        let shaper = shaper.clone();
        gone.spawn(async move { shaper.reserve("any").await.map(drop) });
    }
    bench.arrival().await;
    // They are in this call already when they are dropped, and another request arrives.
    gone.abort_all();
    let last = tokio::spawn({
        let shaper = shaper.clone();
        async move { shaper.reserve("any").await.unwrap().keep() }
    });
    settle().await;
    bench.delay(ms(5), ms(5));
    let start = Instant::now();
    bench.open(10);
    last.await.unwrap();
    assert_eq!(bench.counts.cancelled.load(Ordering::SeqCst), 32);
    assert_eq!(
        start.elapsed(),
        ms(30),
        "a round trip for the first call, one for all that goes back, and one for the last"
    );
}

#[tokio::test]
async fn numbers_and_names_that_cannot_be_are_refused() {
    let build = |name: &str, burst| Shaper::builder(name, "1/s".parse().unwrap()).burst(burst).build();
    assert!(matches!(build("billing", 0), Err(BuildError::Limit(LimitError::NoBurst))));
    assert!(matches!(build("", 1), Err(BuildError::Name(StoreError::Invalid(_)))));
    assert!(matches!(build("a{b", 1), Err(BuildError::Name(StoreError::Invalid(_)))));
    let twice = Limit::leaky_bucket(RATE_LIMIT, "2/s".parse().unwrap(), 1).unwrap();
    let outcome = Shaper::builder("billing", "1/s".parse().unwrap()).limit(twice).build();
    assert!(matches!(outcome, Err(BuildError::Limit(LimitError::SameName(_)))));
}
