//! Counts that an operator resets start again from 0: after the slots that were granted, without a burst, and for good.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Change, MemoryStore, RedisStore, Reserve, Reserved, Scope, Store};
use paced::time::{ManualClock, Micros};

use super::patient;
use crate::support::servers::{Redis, redis};
use crate::support::unique;

const START: Micros = Micros(1_760_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn pace(burst: u32) -> Limit {
    Limit::leaky_bucket("pace", "100/s".parse().unwrap(), burst).unwrap()
}

async fn reserve(store: &dyn Store, name: &str, limits: &[Limit], costs: &[u32]) -> Reserved {
    let limits = LimitSet::new(limits.to_vec()).unwrap();
    let scope = Scope { downstream: name, key: "" };
    let costs = Costs::Each(costs);
    let ahead = Duration::from_secs(10);
    let call = Reserve::new(scope, &limits, costs, ahead);
    store.reserve(call).await.unwrap()
}

async fn reset(store: &dyn Store, name: &str, limits: &[Limit]) -> u64 {
    store.update_record(name, Change::Reset { limits }).await.unwrap().status.reset
}

/// Both stores, on clocks that stand still.
async fn stores() -> [Arc<dyn Store>; 2] {
    let clock = Arc::new(ManualClock::new(START));
    let shared = RedisStore::open(&redis().await.url(), patient()).unwrap().with_test_clock(clock.clone());
    [Arc::new(MemoryStore::with_clock(clock)), Arc::new(shared)]
}

#[tokio::test]
async fn slots_go_on_behind_those_that_were_granted() {
    for store in stores().await {
        for burst in [1, 5] {
            let (name, limits) = (unique("reset"), [pace(burst)]);
            let before = reserve(&*store, &name, &limits, &[1; 20]).await;
            let last = *before.slots.last().unwrap();
            let version = reset(&*store, &name, &limits).await;
            let after = reserve(&*store, &name, &limits, &[1; 3]).await;
            assert_eq!(after.slots, [10, 20, 30].map(|late| last.plus(ms(late))), "burst {burst}");
            assert_eq!(after.stamp.status.reset, version);
            assert!(reset(&*store, &name, &limits).await > version);
            let again = reserve(&*store, &name, &limits, &[1]).await.slots[0];
            assert_eq!(again, last.plus(ms(40)), "resets in a row take nothing");
        }
    }
}

#[tokio::test]
async fn what_was_charged_beyond_the_slots_is_forgotten() {
    for store in stores().await {
        let (name, limits) = (unique("debt"), [pace(1)]);
        let first = reserve(&*store, &name, &limits, &[500]).await.slots[0];
        assert_eq!(reserve(&*store, &name, &limits, &[1]).await.slots, [first.plus(ms(5000))]);
        let name = unique("debt");
        let first = reserve(&*store, &name, &limits, &[500]).await.slots[0];
        reset(&*store, &name, &limits).await;
        assert_eq!(reserve(&*store, &name, &limits, &[1]).await.slots, [first.plus(ms(10))]);
    }
}

#[tokio::test]
async fn a_limit_alone_or_all_of_them() {
    let window = Limit::fixed_window("window", 3, HOUR).unwrap();
    let counter = Limit::sliding_window("counter", 3, HOUR, 6).unwrap();
    let log = Limit::sliding_log("log", 3, HOUR).unwrap();
    for store in stores().await {
        for counting in [&window, &counter, &log] {
            let (name, limits) = (unique("alone"), [pace(1), counting.clone()]);
            let used = reserve(&*store, &name, &limits, &[1; 5]).await;
            assert_eq!(used.slots.len(), 3);
            let last = used.slots[2];
            reset(&*store, &name, &limits[..1]).await;
            assert_eq!(reserve(&*store, &name, &limits, &[1]).await.slots, [], "the other one stands");
            reset(&*store, &name, &limits[1..]).await;
            let after = reserve(&*store, &name, &limits, &[1; 5]).await;
            let even = [10, 20, 30].map(|late| last.plus(ms(late)));
            assert_eq!(after.slots, even, "{}", counting.name());
            reset(&*store, &name, &limits).await;
            let after = reserve(&*store, &name, &limits, &[1; 5]).await;
            assert_eq!(after.slots, [40, 50, 60].map(|late| last.plus(ms(late))), "{}", counting.name());
        }
    }
}

async fn worker(redis: &Redis) -> RedisStore {
    RedisStore::connect(&redis.url(), patient()).await.unwrap()
}

/// Workers restore windows in a store that lost its state, but none from before a reset.
#[tokio::test]
async fn a_loss_brings_nothing_back_from_before_a_reset() {
    let redis = Redis::dedicated().await;
    let limits = [Limit::fixed_window("window", 10, 24 * 30 * HOUR).unwrap()];
    let used = async |store: &RedisStore| 10 - reserve(store, "billing", &limits, &[1; 10]).await.slots.len();
    let (one, two, three) = (worker(&redis).await, worker(&redis).await, worker(&redis).await);
    for store in [&one, &two, &three] {
        reserve(store, "billing", &limits, &[1, 1]).await;
    }
    // Without a reset they do restore them.
    redis.command(&["FLUSHALL"]).await.unwrap();
    assert_eq!(used(&two).await, 4, "the first two, and its own");
    reset(&one, "billing", &limits).await;
    reserve(&one, "billing", &limits, &[1]).await;
    // This worker has seen the reset, and has not reserved since.
    two.read_record("billing").await.unwrap();
    redis.command(&["FLUSHALL"]).await.unwrap();
    assert_eq!(used(&two).await, 0);

    // A reset after the loss also applies to workers that knew more before it.
    redis.command(&["FLUSHALL"]).await.unwrap();
    reset(&one, "billing", &limits).await;
    assert_eq!(used(&three).await, 0);
    // The next loss does not concern windows from before that reset.
    redis.command(&["FLUSHALL"]).await.unwrap();
    assert_eq!(used(&three).await, 10);
}
