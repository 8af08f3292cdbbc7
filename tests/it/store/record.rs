//! The record of a downstream in Redis: all who work on it are notified of changes, and restore it after a loss.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use paced::Shaper;
use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Change, Changes, Check, Recall, RedisStore, Reserve, Reserved, Scope, Store};
use paced::time::{ManualClock, Micros};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::losses::TODAY;
use super::patient;
use crate::support::real_now;
use crate::support::servers::{Redis, redis};
use crate::support::{LONG, poll, unique};

async fn store(redis: &Redis) -> RedisStore {
    RedisStore::connect(&redis.url(), patient()).await.unwrap()
}

/// A worker for which time stands still.
async fn standing(redis: &Redis) -> RedisStore {
    store(redis).await.with_test_clock(Arc::new(ManualClock::new(TODAY)))
}

/// A leaky bucket, with a burst and without.
fn limits(rate: &str, burst: u32) -> LimitSet {
    LimitSet::new(vec![Limit::leaky_bucket("rate", rate.parse().unwrap(), burst).unwrap()]).unwrap()
}

async fn reserve(
    store: &RedisStore,
    downstream: &str,
    limits: &LimitSet,
    jobs: usize,
    generation: u64,
) -> Reserved {
    let scope = Scope { downstream, key: "" };
    let costs = vec![1; jobs];
    let (costs, ahead) = (Costs::Each(&costs), Duration::from_secs(60));
    store.reserve(Reserve { generation, ..Reserve::new(scope, limits, costs, ahead) }).await.unwrap()
}

/// Subscribes to changes, and waits until notifications surely arrive.
pub(super) async fn attentive(store: &RedisStore, other: &RedisStore, downstream: &str) -> Changes {
    let mut changes = store.changes(downstream);
    for _ in 0..200 {
        // A pause of a microsecond is a change. Its notice comes after the subscription.
        let marker = unique("marker");
        let mut marked = store.changes(&marker);
        other.update_record(&marker, Change::Penalize(Duration::from_micros(1))).await.unwrap();
        if timeout(Duration::from_secs(1), marked.next()).await.is_ok() {
            // After a subscription, all are notified, since they may have missed changes.
            let _ = changes.next().now_or_never();
            return changes;
        }
    }
    panic!("no change is notified");
}

#[tokio::test]
async fn who_works_on_a_downstream_hears_of_its_changes() {
    let redis = redis().await;
    let (one, two, name) = (store(redis).await, store(redis).await, unique("notified"));
    let mut changes = attentive(&one, &two, &name).await;
    let mut elsewhere = one.changes(&unique("elsewhere"));
    for change in [
        Change::Penalize(Duration::from_secs(1)),
        Change::Pause { span: None, note: "" },
        Change::Resume,
        Change::Terms { of: 0, text: "terms" },
    ] {
        two.update_record(&name, change).await.unwrap();
        timeout(LONG, changes.next()).await.unwrap_or_else(|_| panic!("{change:?} is not notified"));
    }
    // Reading changes nothing.
    two.read_record(&name).await.unwrap();
    for change in [Change::Terms { of: 0, text: "others" }, Change::Recall(Recall::default())] {
        two.update_record(&name, change).await.unwrap();
    }
    two.update_record(&name, Change::Pause { span: None, note: "" }).await.unwrap();
    timeout(LONG, changes.next()).await.expect("the pause is notified");
    assert!(changes.next().now_or_never().is_none(), "once");
    assert!(elsewhere.next().now_or_never().is_none(), "another downstream's");
}

#[tokio::test]
async fn a_broken_subscription_is_renewed() {
    let redis = Redis::dedicated().await;
    let (one, two) = (store(&redis).await, store(&redis).await);
    let mut changes = attentive(&one, &two, "billing").await;
    redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    timeout(LONG, changes.next()).await.expect("it is notified that something may have been missed");
    two.update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
    timeout(LONG, changes.next()).await.expect("and is notified again");
}

/// Each of them looks when it is notified.
#[tokio::test]
async fn downstreams_look_not_all_at_one_instant_after_a_reconnect() {
    const MANY: usize = 1000;
    let redis = Redis::dedicated().await;
    let (one, two) = (store(&redis).await, store(&redis).await);
    let _changes = attentive(&one, &two, "billing").await;
    let watch = |place| {
        let mut changes = one.changes(&format!("downstream-{place}"));
        async move {
            changes.next().await;
            real_now()
        }
    };
    let all: JoinSet<_> = (0..MANY).map(watch).collect();
    redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    let mut instants = timeout(LONG, all.join_all()).await.expect("each gets a notice");
    instants.sort_unstable();
    let took = instants[MANY - 1] - instants[0];
    assert!(took >= Duration::from_millis(300), "{MANY} get notices within {took:?}");
}

#[tokio::test]
async fn a_pause_is_every_workers_and_ends_without_a_burst() {
    let redis = redis().await;
    for burst in [1, 10] {
        let limits = limits("100/s", burst);
        let (one, two, name) = (standing(redis).await, standing(redis).await, unique("paused"));
        let before = reserve(&one, &name, &limits, 1, 0).await;
        let until =
            one.update_record(&name, Change::Penalize(Duration::from_secs(3))).await.unwrap().status.penalty;
        // A shorter one changes nothing.
        two.update_record(&name, Change::Penalize(Duration::from_secs(1))).await.unwrap();
        let reserved = reserve(&two, &name, &limits, 20, 0).await;
        assert_eq!(reserved.stamp.status.paused_until(), until);
        let even: Vec<Micros> = (0..20).map(|k| until.plus(Duration::from_millis(10) * k)).collect();
        assert_eq!(reserved.slots, even, "burst {burst}");
        assert_eq!(until, before.stamp.now.plus(Duration::from_secs(3)));

        let scope = Scope { downstream: &name, key: "" };
        let check =
            Check { scope, limits: &limits.clone().policing(), costs: Costs::Each(&[1]), generation: 0 };
        two.update_record(&name, Change::Pause { span: None, note: "" }).await.unwrap();
        let stopped = reserve(&one, &name, &limits, 1, 0).await;
        assert_eq!((stopped.slots.len(), stopped.next), (0, Micros::MAX));
        assert_eq!(one.check(check).await.unwrap().verdicts[0].earliest, Micros::MAX);
        let resumed = one.update_record(&name, Change::Resume).await.unwrap().status;
        assert_eq!((resumed.penalty, resumed.pause.until), (Micros(0), Micros(0)));
        assert!(resumed.pause.version > stopped.stamp.status.pause.version);
        assert_eq!(reserve(&two, &name, &limits, 1, 0).await.slots.len(), 1);
    }
}

#[tokio::test]
async fn a_worker_recalls_what_the_store_forgot() {
    let redis = Redis::dedicated().await;
    let (one, two, limits) = (store(&redis).await, store(&redis).await, limits("100/s", 1));
    let agreed = one.update_record("billing", Change::Terms { of: 0, text: "first" }).await.unwrap();
    assert_eq!((agreed.status.generation, agreed.terms.as_deref()), (1, Some("first")));
    let lost = two.update_record("billing", Change::Terms { of: 0, text: "second" }).await.unwrap();
    assert_eq!((lost.status.generation, lost.terms.as_deref()), (1, Some("first")), "one was faster");
    two.update_record("billing", Change::Terms { of: 1, text: "second" }).await.unwrap();
    let paused = two.update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
    assert!(reserve(&one, "billing", &limits, 1, 1).await.outdated);
    assert!(!reserve(&one, "billing", &limits, 1, 2).await.outdated);

    redis.command(&["FLUSHALL"]).await.unwrap();
    let forgotten = reserve(&one, "billing", &limits, 1, 2).await;
    assert!(forgotten.outdated && forgotten.slots.is_empty(), "no slot without the pause");
    assert!(forgotten.stamp.epoch > paused.epoch);
    let version = paused.status.pause.version;
    let recall = Recall { version, generation: 2, terms: Some("second"), ..Recall::default() };
    let recalled = one.update_record("billing", Change::Recall(recall)).await.unwrap();
    assert_eq!((recalled.status, recalled.terms), (paused.status, paused.terms));
    // A change after a loss stands, also when a worker recalls the record from before it.
    redis.command(&["FLUSHALL"]).await.unwrap();
    let resumed = two.update_record("billing", Change::Resume).await.unwrap().status;
    let recalled = one.update_record("billing", Change::Recall(recall)).await.unwrap();
    assert_eq!(recalled.status.pause, resumed.pause, "not paused again");
    // A worker that knows less changes nothing.
    let less =
        Recall { version: 0, generation: 1, terms: Some("first"), pause: Some(Duration::ZERO), ..recall };
    assert_eq!(two.update_record("billing", Change::Recall(less)).await.unwrap().status, recalled.status);
    // The record outlives its terms: an eviction.
    redis.command(&["DEL", "paced:{billing}:terms"]).await.unwrap();
    assert_eq!(two.read_record("billing").await.unwrap().terms, None);
    let again = two.update_record("billing", Change::Recall(recall)).await.unwrap();
    assert_eq!((again.status, again.terms.as_deref()), (recalled.status, Some("second")));
}

/// At 1/min the limit would otherwise stand still for a minute.
#[tokio::test]
async fn what_is_pending_is_timed_again_under_another_rate() {
    let redis = redis().await;
    let (store, name) = (standing(redis).await, unique("retimed"));
    let slow = reserve(&store, &name, &limits("1/m", 1), 2, 0).await.slots;
    assert_eq!(slow[1].since(slow[0]), Duration::from_secs(60));
    let name = unique("retimed");
    let first = reserve(&store, &name, &limits("1/m", 1), 1, 0).await.slots[0];
    let fast = reserve(&store, &name, &limits("2/s", 1), 2, 0).await.slots;
    assert_eq!(fast, [first.plus(Duration::from_millis(500)), first.plus(Duration::from_secs(1))]);
    let slow = reserve(&store, &name, &limits("1/10s", 1), 1, 0).await.slots[0];
    assert_eq!(slow, fast[1].plus(Duration::from_secs(10)));
}

#[tokio::test]
async fn a_burst_that_falls_is_not_waited_off() {
    let redis = redis().await;
    for (rate, apart) in [("1/s", 1000), ("2/s", 500)] {
        let (store, name) = (standing(redis).await, unique("burst"));
        let all = reserve(&store, &name, &limits("1/s", 600), 600, 0).await.slots;
        assert_eq!((all.len(), all[0]), (600, all[599]));
        let next = reserve(&store, &name, &limits(rate, 1), 2, 0).await.slots;
        let apart = Duration::from_millis(apart);
        assert_eq!(next, [all[0].plus(apart), all[0].plus(2 * apart)], "not in 600 s");
    }
}

async fn connections(redis: &Redis) -> usize {
    let info = redis.command(&["INFO", "stats"]).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
    line.trim().parse().unwrap()
}

#[tokio::test]
async fn an_error_that_is_answered_drops_no_connection() {
    let redis = Redis::dedicated().await;
    let store = store(&redis).await;
    reserve(&store, "billing", &limits("1000/s", 1), 1, 0).await;
    redis.command(&["LPUSH", "paced:{billing}:terms", "no text"]).await.unwrap();
    let before = connections(&redis).await;
    for _ in 0..5 {
        let error = store.read_record("billing").await.unwrap_err();
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        reserve(&store, "other", &limits("1000/s", 1), 1, 0).await;
    }
    // Counting the connections needs one itself.
    assert_eq!(connections(&redis).await, before + 1);
}

/// A server that refuses writes accepts connections. None of them must cause the next one at once.
#[tokio::test]
async fn a_server_that_refuses_writes_is_not_connected_to_again_and_again() {
    let redis = Redis::dedicated().await;
    let rate = "1000/s".parse().unwrap();
    let shaper = Shaper::builder("billing", rate).store(store(&redis).await).build().unwrap();
    drop(shaper.reserve("any").await.unwrap());
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await.unwrap();
    let before = connections(&redis).await;
    let other = store(&redis).await;
    // Once there is a later instant to write, reads fail as well.
    while other.read_record("billing").await.is_ok() {}
    for _ in 0..3 {
        assert!(shaper.reserve("any").await.is_err(), "it refuses");
    }
    // Each time they are counted needs one more connection.
    let (mut looks, start) = (0, real_now());
    let storm = poll(Duration::from_secs(2), || {
        looks += 1;
        let (redis, others) = (&redis, before + looks - 1);
        async move { (connections(redis).await - others >= 60).then(|| start.elapsed()) }
    });
    // A look may have been late.
    let storm = storm.await.filter(|took| *took < Duration::from_secs(2));
    assert_eq!(storm, None, "60 connections in 2 s");
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await.unwrap();
    assert!(shaper.reserve("any").await.is_ok());
}
