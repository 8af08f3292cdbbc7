//! The state that a restarted store kept, the state that it lost, and how the loss is detected.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Asker, Change, Check, NextTurn, Reserve, Scope, Store};
use paced::time::{Clock as _, ManualClock, Micros};

use super::losses::{HORIZON, INTERVAL, SCOPE, TODAY, answered, call, limits, store, worker};
use crate::support::servers::Redis;

const MINUTE: Duration = Duration::from_secs(60);
/// Slots that a server has granted and lost without a trace lie no further ahead than this.
const SHORT: Duration = Duration::from_millis(500);
/// The advance of the clock is stored in steps of this length.
const TICK: Duration = Duration::from_millis(25);

async fn restart(redis: &Redis) {
    redis.kill().await;
    redis.start().await;
}

#[tokio::test]
async fn one_that_kept_its_state_goes_on_behind_what_was_granted() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let (store, limits) = (worker(&redis, &clock).await, limits(1));
    store.set_horizon("billing", MINUTE);
    let before = store.reserve(call(&limits, &[1; 40], MINUTE)).await.unwrap();
    restart(&redis).await;
    let after = answered(&store, call(&limits, &[1], MINUTE)).await;
    assert!(after.stamp.epoch > before.stamp.epoch, "it is found out");
    let expected = before.slots[39].plus(INTERVAL).max(after.stamp.now.plus(SHORT));
    assert_eq!(after.slots, [expected], "no minute is waited for");
    let again = store.reserve(call(&limits, &[1], MINUTE)).await.unwrap();
    assert_eq!((again.stamp.epoch, again.slots), (after.stamp.epoch, vec![expected.plus(INTERVAL)]));
}

/// Those who wait in order are granted slots so far ahead: any of them may have been granted just before the end, and lost.
#[tokio::test]
async fn one_that_kept_its_state_goes_on_behind_a_long_horizon() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let (store, limits, horizon) = (worker(&redis, &clock).await, limits(1), Duration::from_secs(2));
    store.set_horizon("billing", MINUTE);
    let asker = Asker {
        turn: None,
        reach: horizon,
        waiting: 1,
        own: 1,
        interval: INTERVAL,
        goes_on: false,
        farthest: MINUTE,
    };
    store.reserve(Reserve { asker: Some(asker), ..call(&limits, &[1], horizon) }).await.unwrap();
    restart(&redis).await;
    let after = answered(&store, call(&limits, &[1], MINUTE)).await;
    assert_eq!(after.slots, [after.stamp.now.plus(horizon * 5 / 4)]);
}

/// A downstream at rest had no state that could be lost.
#[tokio::test]
async fn one_that_kept_its_state_takes_no_burst_from_who_was_at_rest() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let (store, limits) = (worker(&redis, &clock).await, limits(100));
    let before = store.reserve(call(&limits, &[], HORIZON)).await.unwrap();
    restart(&redis).await;
    let after = answered(&store, call(&limits, &[1], Duration::ZERO)).await;
    assert!(after.stamp.epoch > before.stamp.epoch, "it is found out");
    assert_eq!(after.slots, [], "slots may have been granted and lost");
    clock.set(after.stamp.now.plus(SHORT));
    let burst = store.reserve(call(&limits, &[1; 101], Duration::ZERO)).await.unwrap();
    assert_eq!(burst.slots.len(), 100);
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

/// Redis wrote nothing for a while before it ended: a worker knows of answers that Redis has lost.
#[tokio::test]
async fn one_that_lost_what_it_wrote_last_leaves_no_burst() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let (old, new, limits) = (worker(&redis, &clock).await, worker(&redis, &clock).await, limits(100));
    old.reserve(call(&limits, &[1], HORIZON)).await.unwrap();
    redis.command(&["COPY", "paced:{billing}:record", "older:{billing}"]).await.unwrap();
    redis.command(&["COPY", "paced:{billing}:l:rate", "older:{billing}:rate"]).await.unwrap();
    clock.set(TODAY.plus(2 * TICK));
    let burst = old.reserve(call(&limits, &[1; 100], Duration::ZERO)).await.unwrap();
    assert_eq!(burst.slots.len(), 100, "50 ms are one unit");
    redis.command(&["COPY", "older:{billing}", "paced:{billing}:record", "REPLACE"]).await.unwrap();
    redis.command(&["COPY", "older:{billing}:rate", "paced:{billing}:l:rate", "REPLACE"]).await.unwrap();
    restart(&redis).await;
    // This worker cannot know what is missing.
    answered(&new, call(&limits, &[], HORIZON)).await;
    let after = answered(&old, call(&limits, &[1; 100], Duration::ZERO)).await;
    assert_eq!(after.slots, [], "the burst went before");
    assert!(after.refused.unwrap().slot >= after.stamp.now.plus(INTERVAL), "{after:?}");
}

/// A burst of 100 was granted, and would be once more after a loss that a worker without memory found first.
#[tokio::test]
async fn a_loss_that_a_newcomer_found_is_repaired_by_who_knows_of_it() {
    for looks in [false, true] {
        let redis = Redis::dedicated().await;
        let clock = Arc::new(ManualClock::new(TODAY));
        let (old, new, limits) = (worker(&redis, &clock).await, worker(&redis, &clock).await, limits(100));
        old.set_horizon("billing", HORIZON);
        let burst = old.reserve(call(&limits, &[1; 100], HORIZON)).await.unwrap();
        assert_eq!(burst.slots, [burst.stamp.now; 100]);
        redis.command(&["FLUSHALL"]).await.unwrap();
        clock.set(TODAY.plus(2 * TICK));
        let blind = new.reserve(call(&limits, &[1], HORIZON)).await.unwrap();
        assert_eq!(blind.slots, [blind.stamp.now], "it cannot know that anything was lost");
        if looks {
            old.read_record("billing").await.unwrap();
        }
        let after = old.reserve(call(&limits, &[1; 100], HORIZON)).await.unwrap();
        assert!(after.stamp.epoch > blind.stamp.epoch);
        assert_eq!(after.slots, [], "no burst, and nothing before the fence");
        assert!(after.refused.unwrap().slot >= blind.stamp.now.plus(HORIZON));
        // The fence moves once: no other worker's memory moves it again.
        let next = new.reserve(call(&limits, &[1; 20], MINUTE)).await.unwrap();
        assert_eq!(next.stamp.epoch, after.stamp.epoch);
        let apart = |pair: &[Micros]| pair[1].since(pair[0]) == INTERVAL;
        assert!(next.slots.windows(2).all(apart), "{:?}", next.slots);
    }
}

/// An idle worker reads the record when its connection is renewed, while its peers hold slots.
#[tokio::test]
async fn the_fence_is_as_long_for_every_finder_of_the_loss() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let (idle, busy, limits) = (worker(&redis, &clock).await, worker(&redis, &clock).await, limits(1));
    for store in [&idle, &busy] {
        store.set_horizon("billing", Duration::from_secs(1));
        store.read_record("billing").await.unwrap();
    }
    let before = busy.reserve(call(&limits, &[1; 20], Duration::from_secs(1))).await.unwrap();
    redis.command(&["FLUSHALL"]).await.unwrap();
    let found = idle.read_record("billing").await.unwrap();
    assert!(found.epoch > before.stamp.epoch);
    let after = busy.reserve(call(&limits, &[1], Duration::from_secs(2))).await.unwrap();
    assert_eq!(after.stamp.epoch, found.epoch);
    assert!(after.slots[0] > before.slots[19], "none is granted twice: {after:?}");
}

#[tokio::test]
async fn fields_of_a_later_version_are_kept_and_another_format_is_refused() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let (store, limits) = (worker(&redis, &clock).await, limits(1));
    let before = store.reserve(call(&limits, &[1], HORIZON)).await.unwrap();
    redis.command(&["APPEND", "paced:{billing}:record", "LATER"]).await.unwrap();
    // Some calls write a part of the record, and some all of it.
    clock.set(TODAY.plus(2 * TICK));
    let after = store.reserve(call(&limits, &[1], HORIZON)).await.unwrap();
    assert_eq!(after.stamp.epoch, before.stamp.epoch, "it is no loss");
    store.update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
    store.update_record("billing", Change::Resume).await.unwrap();
    let end = redis.command(&["GETRANGE", "paced:{billing}:record", "-5", "-1"]).await.unwrap();
    assert!(end.contains("LATER"), "{end}");

    redis.command(&["SET", "paced:{billing}:record", "of another time"]).await.unwrap();
    let error = store.reserve(call(&limits, &[1], HORIZON)).await.unwrap_err().to_string();
    assert!(error.contains("another version of paced") && error.contains("key_prefix"), "{error}");
}

/// A worker also restores the windows of keys in a store that lost its state.
#[tokio::test]
async fn windows_of_keys_are_recalled() {
    let redis = Redis::dedicated().await;
    let store = store(&redis).await;
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

/// A worker also restores a window of which another call of its own has found the loss, when its fence is over.
#[tokio::test]
async fn windows_are_recalled_after_the_fence() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let store = worker(&redis, &clock).await;
    let pace = Limit::leaky_bucket("pace", "200/s".parse().unwrap(), 1).unwrap();
    let window = Limit::first_hit_window("window", 20, Duration::from_secs(3600)).unwrap();
    let set = LimitSet::new(vec![pace, window]).unwrap();
    store.reserve(call(&set, &[1; 15], MINUTE)).await.unwrap();
    redis.command(&["FLUSHALL"]).await.unwrap();
    store.read_record("billing").await.unwrap();
    clock.set(TODAY.plus(2 * MINUTE));
    let after = store.reserve(call(&set, &[1; 20], MINUTE)).await.unwrap();
    assert_eq!((after.slots.len(), after.slots[0]), (5, clock.now()), "15 of 20 are used");
}

/// A replica that is far from the store extends the reach of the queue for all: a near one is granted slots as far
/// ahead, and must fence as far although it needs less itself.
#[tokio::test]
async fn a_loss_is_fenced_as_far_as_turns_were_booked() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let (near, far) = (worker(&redis, &clock).await, worker(&redis, &clock).await);
    let limits =
        LimitSet::new(vec![Limit::leaky_bucket("rate", "200/s".parse().unwrap(), 1).unwrap()]).unwrap();
    near.set_horizon("billing", HORIZON);
    let asker = |turn, reach| {
        let interval = Duration::from_millis(5);
        Some(Asker {
            turn,
            reach,
            waiting: 1000,
            own: 1,
            interval,
            goes_on: false,
            farthest: Duration::from_secs(300),
        })
    };
    let ask = |asker, ahead| Reserve { asker, ..call(&limits, &[1; 100], ahead) };
    far.reserve(ask(asker(None, 5 * HORIZON), HORIZON)).await.unwrap();
    let booked = near.reserve(ask(asker(None, HORIZON), HORIZON)).await.unwrap().booking.unwrap();
    let NextTurn::At(turn) = booked.next else { panic!("{booked:?}") };
    clock.set(turn.ask_at().max(TODAY));
    let before = near.reserve(ask(asker(Some(turn), HORIZON), MINUTE)).await.unwrap();
    let last = before.slots.last().unwrap();
    assert!(last.since(before.stamp.now) > 4 * HORIZON, "{before:?}");
    redis.command(&["FLUSHALL"]).await.unwrap();
    near.read_record("billing").await.unwrap();
    let after = near.reserve(call(&limits, &[1], MINUTE)).await.unwrap();
    assert!(after.slots[0] > *last, "none is granted twice: {:?} after {last}", after.slots);
}
