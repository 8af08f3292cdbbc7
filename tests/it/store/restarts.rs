//! What a store that was restarted kept, what it lost, and who finds out.

use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Change, Check, RedisOptions, RedisStore, Reserve, Reserved, Scope, Store};

use super::patient;
use crate::support::servers::Redis;

const SCOPE: Scope<'static> = Scope { downstream: "billing", key: "" };
const INTERVAL: Duration = Duration::from_millis(50);
const HORIZON: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_secs(60);
/// Slots that a server has granted and lost without a trace lie no further ahead.
const SHORT: Duration = Duration::from_millis(500);

/// 20/s.
fn limits(burst: u32) -> LimitSet {
    LimitSet::new(vec![Limit::leaky_bucket("rate", "20/s".parse().unwrap(), burst).unwrap()]).unwrap()
}

fn call<'a>(limits: &'a LimitSet, costs: &'a [u32], ahead: Duration) -> Reserve<'a> {
    Reserve {
        scope: SCOPE,
        limits,
        costs: Costs::Each(costs),
        ahead,
        lease: None,
        generation: 0,
        asker: None,
    }
}

async fn store(redis: &Redis) -> RedisStore {
    RedisStore::connect(&redis.url(), patient()).await.unwrap()
}

async fn restart(redis: &Redis) {
    redis.kill().await;
    redis.start().await;
}

/// Asks until a call is answered; the server is back, so it must not take long.
async fn answered(store: &RedisStore, call: Reserve<'_>) -> Reserved {
    for _ in 0..20 {
        match store.reserve(call).await {
            Ok(reserved) => return reserved,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    panic!("the store does not find the server again");
}

#[tokio::test]
async fn one_that_kept_its_state_goes_on_behind_what_was_granted() {
    let redis = Redis::dedicated().await;
    let (store, limits) = (store(&redis).await, limits(1));
    store.set_horizon("billing", MINUTE);
    let before = store.reserve(call(&limits, &[1; 40], MINUTE)).await.unwrap();
    restart(&redis).await;
    let after = answered(&store, call(&limits, &[1], MINUTE)).await;
    assert!(after.epoch > before.epoch, "it is found out");
    let expected = before.slots[39].plus(INTERVAL).max(after.now.plus(SHORT));
    assert_eq!(after.slots, [expected], "no minute is waited for");
    let again = store.reserve(call(&limits, &[1], MINUTE)).await.unwrap();
    assert_eq!((again.epoch, again.slots), (after.epoch, vec![expected.plus(INTERVAL)]));
}

#[tokio::test]
async fn one_that_kept_its_state_empties_no_policer() {
    let redis = Redis::dedicated().await;
    let store = store(&redis).await;
    let set = LimitSet::new(vec![Limit::gcra("rate", "1/h".parse().unwrap(), 100).unwrap()]).unwrap();
    let check = |key, costs| {
        let scope = Scope { key, ..SCOPE };
        store.check(Check { scope, limits: &set, costs: Costs::Each(costs), generation: 0 })
    };
    check("used", &[40]).await.unwrap();
    restart(&redis).await;
    for (key, left) in [("used", 60), ("new", 100)] {
        let mut answer = check(key, &[0]).await;
        for _ in 0..20 {
            if answer.is_ok() {
                break;
            }
            answer = check(key, &[0]).await;
        }
        assert_eq!(answer.unwrap().verdicts[0].standings[0].remaining, left, "{key}");
    }
}

/// Redis wrote nothing for a while before it ended: a worker knows of answers that it does not.
#[tokio::test]
async fn one_that_lost_what_it_wrote_last_leaves_no_burst() {
    let redis = Redis::dedicated().await;
    let (old, new, limits) = (store(&redis).await, store(&redis).await, limits(100));
    old.reserve(call(&limits, &[1], HORIZON)).await.unwrap();
    redis.command(&["COPY", "paced:{billing}:record", "older:{billing}"]).await.unwrap();
    redis.command(&["COPY", "paced:{billing}:l:rate", "older:{billing}:rate"]).await.unwrap();
    let mut taken = 1;
    while taken < 101 {
        let granted = old.reserve(call(&limits, &[1; 20], Duration::ZERO)).await.unwrap().slots.len();
        taken += granted;
        if granted < 20 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    redis.command(&["COPY", "older:{billing}", "paced:{billing}:record", "REPLACE"]).await.unwrap();
    redis.command(&["COPY", "older:{billing}:rate", "paced:{billing}:l:rate", "REPLACE"]).await.unwrap();
    restart(&redis).await;
    // It cannot know what is missing.
    answered(&new, call(&limits, &[], HORIZON)).await;
    let after = answered(&old, call(&limits, &[1; 100], Duration::ZERO)).await;
    assert_eq!(after.slots, [], "the burst went before");
    let first = after.refused.unwrap().slot;
    assert!(first >= after.now.plus(INTERVAL / 2), "{first} {}", after.now);
}

/// 100 at once, and once more after a loss that a newcomer found who knew of nothing.
#[tokio::test]
async fn a_loss_that_a_newcomer_found_is_repaired_by_who_knows_of_it() {
    for looks in [false, true] {
        let redis = Redis::dedicated().await;
        let (old, new, limits) = (store(&redis).await, store(&redis).await, limits(100));
        old.set_horizon("billing", HORIZON);
        let burst = old.reserve(call(&limits, &[1; 100], HORIZON)).await.unwrap();
        assert_eq!(burst.slots, [burst.now; 100]);
        redis.command(&["FLUSHALL"]).await.unwrap();
        let blind = new.reserve(call(&limits, &[1], HORIZON)).await.unwrap();
        assert_eq!(blind.slots, [blind.now], "it cannot know that anything was lost");
        if looks {
            old.tend("billing", Change::Look).await.unwrap();
        }
        let after = old.reserve(call(&limits, &[1; 100], HORIZON)).await.unwrap();
        assert!(after.epoch > blind.epoch);
        assert_eq!(after.slots, [], "no burst, and nothing before the fence");
        assert!(after.refused.unwrap().slot >= blind.now.plus(HORIZON));
        // Once is enough: nobody else's memory moves it again.
        let next = new.reserve(call(&limits, &[1; 20], MINUTE)).await.unwrap();
        assert_eq!(next.epoch, after.epoch);
        let apart = |pair: &[paced::time::Micros]| pair[1].since(pair[0]) == INTERVAL;
        assert!(next.slots.windows(2).all(apart), "{:?}", next.slots);
    }
}

/// An idle worker looks at the record when its connection is renewed. Those that it works with hold slots.
#[tokio::test]
async fn the_fence_is_as_long_whoever_finds_the_loss() {
    let redis = Redis::dedicated().await;
    let (idle, busy, limits) = (store(&redis).await, store(&redis).await, limits(1));
    for store in [&idle, &busy] {
        store.set_horizon("billing", Duration::from_secs(1));
        store.tend("billing", Change::Look).await.unwrap();
    }
    let before = busy.reserve(call(&limits, &[1; 20], Duration::from_secs(1))).await.unwrap();
    redis.command(&["FLUSHALL"]).await.unwrap();
    let found = idle.tend("billing", Change::Look).await.unwrap();
    assert!(found.epoch > before.epoch);
    let after = busy.reserve(call(&limits, &[1], Duration::from_secs(2))).await.unwrap();
    assert_eq!(after.epoch, found.epoch);
    assert!(after.slots[0] > before.slots[19], "none is granted twice: {after:?}");
}

#[tokio::test]
async fn fields_of_a_later_version_are_kept_and_another_format_is_refused() {
    let redis = Redis::dedicated().await;
    let (store, limits) = (store(&redis).await, limits(1));
    let before = store.reserve(call(&limits, &[1], HORIZON)).await.unwrap();
    redis.command(&["APPEND", "paced:{billing}:record", "LATER"]).await.unwrap();
    // Calls that write a part of it, and all of it.
    tokio::time::sleep(Duration::from_millis(30)).await;
    let after = store.reserve(call(&limits, &[1], HORIZON)).await.unwrap();
    assert_eq!(after.epoch, before.epoch, "it is no loss");
    store.tend("billing", Change::Pause(None)).await.unwrap();
    store.tend("billing", Change::Resume).await.unwrap();
    let end = redis.command(&["GETRANGE", "paced:{billing}:record", "-5", "-1"]).await.unwrap();
    assert!(end.contains("LATER"), "{end}");

    redis.command(&["SET", "paced:{billing}:record", "of another time"]).await.unwrap();
    let error = store.reserve(call(&limits, &[1], HORIZON)).await.unwrap_err().to_string();
    assert!(error.contains("another version of paced") && error.contains("key_prefix"), "{error}");
}

/// Of keys too: what a worker knows of their windows it tells a store that lost them.
#[tokio::test]
async fn windows_of_keys_are_recalled() {
    let redis = Redis::dedicated().await;
    let store = RedisStore::connect(&redis.url(), RedisOptions { ..patient() }).await.unwrap();
    let hour = Duration::from_secs(3600);
    let set = LimitSet::new(vec![Limit::first_hit_window("window", 20, hour).unwrap()]).unwrap();
    let remaining = async |key: &str, cost: u32| {
        let scope = Scope { key, ..SCOPE };
        let call = Check { scope, limits: &set, costs: Costs::Each(&[cost]), generation: 0 };
        store.check(call).await.unwrap().verdicts[0].standings[0].remaining
    };
    assert_eq!([remaining("one", 15).await, remaining("two", 3).await], [5, 17]);
    redis.command(&["FLUSHALL"]).await.unwrap();
    assert_eq!(
        [remaining("two", 0).await, remaining("one", 0).await, remaining("new", 0).await],
        [17, 5, 20]
    );
}
