//! The dispatcher's rules, under paused time: every wait is exact, none is slept.

mod absence;
mod cancel;
mod cooling;
mod costly;
mod costs;
mod drain;
mod faults;
mod find;
mod halt;
mod lanes;
mod outdated;
mod parking;
pub(super) mod parts;
mod pauses;
mod plans;
mod police;
mod pressure;
mod redelivery;
mod reload;
mod resets;
mod settle;
mod share;
mod steps;
mod terms;
mod turns;
mod view;
mod waits;
mod windows;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::job::{Content, Message, Reason, Value};
use crate::limit::{Limit, LimitSet};
use crate::store::{Change, MemoryStore, Reserve, Scope, Store};
use crate::time::{suspend, wall_now};
use parts::{
    Bench, FlakyStore, LATER, LateOnce, NOWHERE, Settled, dead, message, retry, throttled, unreachable,
};

const QUICK: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn each_job_is_released_at_its_slot() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.publish_many(0..200);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    assert_eq!(done.await.unwrap().unfinished, 0);
    let expected: Vec<u128> = (0..200).map(|slot| slot * 10).collect();
    assert_eq!(bench.sink.millis(start), expected);
    let ids: Vec<String> = (0..200).map(|id| id.to_string()).collect();
    assert_eq!(bench.sink.ids(), ids, "first in, first out");
    assert_eq!(bench.ledger.all().len(), 200);
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls < 60, "{calls} calls for 200 jobs");
}

#[tokio::test(start_paused = true)]
async fn a_slow_limit_needs_nothing_special() {
    let mut bench = Bench::new("1/h", QUICK);
    bench.publish_many(0..4);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.millis(start), [0, 3_600_000, 7_200_000, 10_800_000]);
    assert!(bench.store.calls.load(Ordering::SeqCst) <= 8);
}

#[tokio::test(start_paused = true)]
async fn no_more_are_sent_at_once_than_allowed_and_no_slot_is_wasted_on_the_rest() {
    let mut bench = Bench::new("1000/s", Duration::from_millis(100));
    bench.options.concurrency = 10;
    bench.publish_many(0..200);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.most.load(Ordering::SeqCst), 10);
    assert_eq!(bench.ledger.all().len(), 200);
    // With 10 at once for 100 ms each there are 20 rounds. Batching and slots cost a little more.
    assert!(start.elapsed() < Duration::from_millis(2700), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_goes_first() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.options.horizon = Duration::from_millis(10);
    bench.publish_many(0..5);
    let done = bench.start();
    bench.sink.arrived(1).await;
    bench.publish(Message { priority: Some(9), ..message("urgent") });
    bench.publish(Message { priority: Some(200), ..message("as-urgent") });
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0", "urgent", "as-urgent", "1", "2", "3", "4"]);
}

#[tokio::test(start_paused = true)]
async fn a_missed_slot_is_given_up_and_reserved_again() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.clock = Arc::new(LateOnce(Mutex::new(Some(Duration::from_millis(300)))));
    bench.publish_many(0..50);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert_eq!(bench.ledger.all().len(), 50);
    // The dispatcher wakes at 30 ms; the tolerance is 9.5 ms.
    assert_eq!(released[..4], [0, 30, 40, 50], "those at 10 and 20 were missed, not caught up");
    assert!(released.windows(2).all(|pair| pair[1] - pair[0] >= 10), "never in a burst: {released:?}");
    let mut ids = bench.sink.ids();
    ids.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(ids, (0..50).map(|id| id.to_string()).collect::<Vec<_>>(), "each once");
}

#[tokio::test(start_paused = true)]
async fn slots_slept_through_are_given_up_and_reserved_again() {
    const MINUTES: Duration = Duration::from_secs(5 * 60);
    let mut bench = Bench::new("100/s", QUICK);
    bench.options.horizon = Duration::from_secs(1);
    bench.publish_many(0..30);
    let start = Instant::now();
    let done = bench.start();
    bench.sink.arrived(3).await;
    let limits = bench.options.limits.clone();
    let scope = Scope { downstream: "billing", key: "" };
    let call = Reserve::new(scope, &limits, crate::limit::Costs::Each(&[1]), Duration::ZERO);
    let next = bench.store.inner().reserve(call).await.unwrap();
    assert_eq!(next.next, next.stamp.now.plus(Duration::from_millis(280)), "all 30 hold a slot");
    suspend(MINUTES);
    let awake = bench.store.inner().ping().await.unwrap();
    assert_eq!(awake.since(next.stamp.now), MINUTES);
    bench.end();
    done.await.unwrap();
    let ids: Vec<String> = (0..30).map(|id| id.to_string()).collect();
    assert_eq!(bench.sink.ids(), ids, "each kept its place");
    // Tokio's time stands still in a suspend: there are 5 more minutes between the third and the fourth.
    let released = &bench.sink.millis(start)[3..];
    assert!(released.windows(2).all(|pair| pair[1] - pair[0] >= 10), "never in a burst: {released:?}");
    for id in &ids[3..] {
        let [Settled::Acked(report)] = &bench.ledger.of(id)[..] else { panic!("{id}: {:?}", bench.ledger) };
        assert!(report.released_at >= Some(awake), "{id} was sent at a slot that was slept through");
    }
}

#[tokio::test(start_paused = true)]
async fn the_sink_gets_ready_while_the_store_is_asked() {
    let mut bench = Bench::new("100/s", QUICK);
    bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), Duration::from_millis(5)));
    let done = bench.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(*bench.sink.connections.warmed.lock().unwrap(), [], "nothing for an idle dispatcher");
    bench.publish_many(0..1);
    bench.end();
    let start = Instant::now();
    done.await.unwrap();
    assert_eq!(
        *bench.sink.connections.warmed.lock().unwrap(),
        [(start, 1); 2],
        "before the call, and with it"
    );
    assert_eq!(bench.sink.millis(start), [10], "after the round trip");
}

/// At a fast rate the first slots are requested once there are connections: none is missed, and no job gathers behind them.
#[tokio::test(start_paused = true)]
async fn a_fast_limit_at_rest_asks_for_slots_once_connections_are_open() {
    for (opens_in, from) in [(30, 30), (5000, 1000)] {
        let mut bench = Bench::new("100/s", QUICK);
        *bench.sink.connections.opens_in.lock().unwrap() = Duration::from_millis(opens_in);
        bench.publish_many(0..20);
        let start = Instant::now();
        let _done = bench.start();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let expected: Vec<u128> = (0..20).map(|job| from + 10 * job).collect();
        assert_eq!(bench.sink.millis(start), expected, "for a second at most");
        // A moment later they are taken to be open.
        bench.publish_many(20..21);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(bench.sink.count(), 21);
        tokio::time::sleep(Duration::from_secs(9)).await;
        bench.publish_many(21..22);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(bench.sink.count(), 21, "after a rest they are opened again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_limit_waits_for_its_connection() {
    let mut bench = Bench::new("1/s", QUICK);
    *bench.sink.connections.connects.lock().unwrap() = vec![Duration::from_millis(300); 3];
    bench.publish_many(0..3);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.millis(start), [300, 1300, 2300]);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_passes_while_there_is_no_connection_is_given_up() {
    let mut bench = Bench::new("100/s", QUICK);
    // The first connection takes longer than the tolerance of 9.5 ms.
    *bench.sink.connections.connects.lock().unwrap() = vec![Duration::from_millis(300)];
    bench.publish_many(0..20);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert_eq!((released.len(), bench.ledger.all().len()), (20, 20));
    assert!(released.windows(2).all(|pair| pair[1] - pair[0] >= 10), "each at a slot: {released:?}");
    let [Settled::Acked(report)] = &bench.ledger.of("0")[..] else { panic!("{:?}", bench.ledger) };
    assert_eq!(report.attempts, 1, "nothing was sent the first time");
}

#[tokio::test(start_paused = true)]
async fn copies_of_a_lost_connection_are_never_released() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.publish_many(0..20);
    let done = bench.start();
    bench.sink.arrived(3).await;
    bench.tickets.live.store(false, Ordering::SeqCst);
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.count(), 3);
    assert!(bench.ledger.all().len() <= 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_while_the_store_is_away() {
    let mut bench = Bench::new("10/s", QUICK);
    bench.store.away.store(true, Ordering::SeqCst);
    bench.publish_many(0..5);
    let done = bench.start();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::task::yield_now().await;
    assert!(bench.sink.ids().is_empty());
    bench.store.away.store(false, Ordering::SeqCst);
    let start = Instant::now();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.ids(), ["0", "1", "2", "3", "4"]);
    assert!(start.elapsed() < Duration::from_millis(2500), "asked again soon: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_cost_is_charged_behind() {
    let mut bench = Bench::new("100/s", QUICK);
    let cost = |cost: i128| vec![("paced-cost".to_owned(), Value::Integer(cost))];
    bench.publish(Message { headers: cost(5), ..message("costly") });
    bench.publish(message("next"));
    bench.publish(Message { headers: cost(1001), ..message("too-costly") });
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    assert_eq!(bench.sink.millis(start), [0, 50]);
    let [Settled::Dead(letter)] = &bench.ledger.of("too-costly")[..] else { panic!("{:?}", bench.ledger) };
    assert_eq!(letter.reason, Reason::CostTooLarge);
}

#[tokio::test(start_paused = true)]
async fn an_idle_dispatcher_makes_no_calls() {
    let mut bench = Bench::new("100/s", QUICK);
    let done = bench.start();
    bench.publish_many(0..1);
    bench.ledger.count(1).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.store.calls.load(Ordering::SeqCst), 1);
    bench.end();
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fast_limit_is_asked_for_far_ahead_although_few_are_sent_at_once() {
    let mut bench = Bench::new("5000/s", QUICK);
    bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), QUICK));
    bench.publish_many(0..10_000);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_millis(2020), "10000 slots take 2 s: {took:?}");
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls <= 500, "{calls} calls for 10000 jobs");
}
