//! One suite for every backend: each answers as the reference does, over random timelines too.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::calendar::Unit;
use paced::limit::{Calendar, Costs, Edges, Limit, LimitSet};
use paced::store::{Cancel, Granted, Lease, MemoryStore, RedisStore, Reserve, Scope, Sharing, Store};
use paced::time::{ManualClock, Micros};
use paced::{Rate, StoreError};

use super::patient;
use crate::support::servers::{self, Redis};
use crate::support::unique;

mod replay;
mod timeline;
mod timelines;

const TODAY: i64 = 1_760_000_000_000_000;

/// A backend, and its clock.
struct Backend {
    name: &'static str,
    store: Box<dyn Store>,
    clock: Arc<ManualClock>,
}

impl Backend {
    fn all(redis: &Redis) -> Vec<Self> {
        let (memory, shared) = (Arc::<ManualClock>::default(), Arc::<ManualClock>::default());
        let store = RedisStore::open(&redis.url(), patient()).unwrap();
        vec![
            Self { name: "memory", store: Box::new(MemoryStore::with_clock(memory.clone())), clock: memory },
            Self { name: "redis", store: Box::new(store.with_test_clock(shared.clone())), clock: shared },
        ]
    }
}

fn leased(replica: &str, millis: u64) -> Sharing<'_> {
    Sharing::Lease(Lease { replica, ttl: Duration::from_millis(millis) })
}

#[tokio::test]
async fn every_backend_refuses_the_same_calls() {
    let redis = servers::redis().await;
    let limits = LimitSet::new(vec![Limit::leaky_bucket("l", "1/d".parse().unwrap(), 1).unwrap()]).unwrap();
    let name = unique("refuses");
    for backend in Backend::all(redis) {
        let scope = Scope { downstream: &name, key: "" };
        let call = Reserve::new(scope, &limits, Costs::Each(&[u32::MAX]), Duration::ZERO);
        let refused = [
            backend.store.reserve(call).await.map(drop),
            backend.store.reserve(Reserve { costs: Costs::Each(&[1; 1025]), ..call }).await.map(drop),
            backend
                .store
                .reserve(Reserve { costs: Costs::Each(&[1]), sharing: leased("", 1000), ..call })
                .await
                .map(drop),
            backend
                .store
                .reserve(Reserve { costs: Costs::Each(&[1]), sharing: leased("r", 0), ..call })
                .await
                .map(drop),
            backend
                .store
                .reserve(Reserve { costs: Costs::Each(&[1]), sharing: leased("r", 60_001), ..call })
                .await
                .map(drop),
            backend.store.reset(Scope { downstream: "a}b", key: "" }, &limits).await,
        ];
        for answer in refused {
            assert!(matches!(answer, Err(StoreError::Invalid(_))), "{}: {answer:?}", backend.name);
        }
    }
}

#[tokio::test]
async fn every_backend_counts_the_replicas_that_live() {
    let redis = servers::redis().await;
    let limits = LimitSet::new(vec![Limit::leaky_bucket("l", "10/s".parse().unwrap(), 1).unwrap()]).unwrap();
    let name = unique("replicas");
    for backend in Backend::all(redis) {
        let at = async |millis: i64, sharing| {
            backend.clock.set(Micros(TODAY + millis * 1000));
            let scope = Scope { downstream: &name, key: "" };
            let ahead = Duration::ZERO;
            let call = Reserve { sharing, ..Reserve::new(scope, &limits, Costs::Each(&[]), ahead) };
            backend.store.reserve(call).await.unwrap().replicas
        };
        let seen = [
            at(0, leased("one", 2000)).await,
            at(500, leased("two", 2000)).await,
            at(500, Sharing::None).await,
            at(1999, leased("two", 2000)).await,
            // The first replica has been silent for 2 s.
            at(2000, leased("two", 2000)).await,
            at(2100, leased("one", 2000)).await,
            // The clock steps back by more than the longest lease.
            at(-600_000, leased("one", 2000)).await,
        ];
        assert_eq!(seen, [Some(1), Some(2), None, Some(2), Some(1), Some(2), Some(1)], "{}", backend.name);
    }
}

/// One a day, and one in nine days: slots so far apart that no call can predict which days it needs.
#[tokio::test]
async fn every_backend_knows_the_days_that_other_limits_lead_to() {
    const DAY: i64 = 86_400_000_000;
    let redis = servers::redis().await;
    let days = Edges::Calendar(Calendar::new(Unit::Day, 0).unwrap());
    let limits = LimitSet::new(vec![
        Limit::quota("daily", 1, days).unwrap(),
        Limit::sliding_log("seldom", 1, Duration::from_micros(9 * DAY as u64)).unwrap(),
    ])
    .unwrap();
    let name = unique("far-days");
    for backend in Backend::all(redis) {
        backend.clock.set(Micros(TODAY));
        let scope = Scope { downstream: &name, key: "" };
        let (costs, ahead) = (Costs::Each(&[1; 40]), Duration::from_secs(400 * 86_400));
        let call = Reserve::new(scope, &limits, costs, ahead);
        let slots = backend.store.reserve(call).await.unwrap().slots;
        let exact: Vec<Micros> = (0..40).map(|k| Micros(TODAY + k * 9 * DAY)).collect();
        assert_eq!(slots, exact, "{}", backend.name);
    }
}

/// A job that takes 300 days of the pace leads the next one to a month that the call has not the edges of.
#[tokio::test]
async fn every_backend_knows_the_months_that_a_pace_leads_to() {
    const DAY: i64 = 86_400_000_000;
    const SEPTEMBER: i64 = 1_788_220_800_000_000;
    let redis = servers::redis().await;
    let months = Edges::Calendar(Calendar::new(Unit::Month, 0).unwrap());
    let pace = Limit::leaky_bucket("pace", "1/d".parse().unwrap(), 1).unwrap();
    let limits = LimitSet::new(vec![pace, Limit::quota("monthly", 1, months).unwrap()]).unwrap();
    let name = unique("far-months");
    for backend in Backend::all(redis) {
        let scope = Scope { downstream: &name, key: "" };
        let reserve = async |now, costs| {
            backend.clock.set(Micros(now));
            let ahead = Duration::from_secs(400 * 86_400);
            let call = Reserve::new(scope, &limits, Costs::PerLimit(costs), ahead);
            backend.store.reserve(call).await.unwrap().slots
        };
        // The first call of all is decided by another script in Redis.
        assert_eq!(reserve(TODAY - 100 * DAY, &[1, 1]).await, [Micros(TODAY - 100 * DAY)]);
        let slots = reserve(TODAY, &[300, 1, 1, 1, 1, 1]).await;
        assert_eq!(slots, [TODAY, TODAY + 300 * DAY, SEPTEMBER].map(Micros), "{}", backend.name);
    }
}

/// A cancelled slot leaves the frontier after the entries that were dropped, ahead of the last one that is left: the
/// log equals absence when that one has left.
#[tokio::test]
async fn every_backend_forgets_a_log_when_its_last_entry_has_left() {
    const SECOND: i64 = 1_000_000;
    let redis = servers::redis().await;
    let limits = LimitSet::new(vec![Limit::sliding_log("l", 2, Duration::from_secs(1000)).unwrap()]).unwrap();
    let name = unique("left");
    for backend in Backend::all(redis) {
        let scope = Scope { downstream: &name, key: "" };
        let reserve = async |second: i64, costs| {
            backend.clock.set(Micros(TODAY + second * SECOND));
            let (ahead, costs) = (Duration::from_secs(1000), Costs::Each(costs));
            let call = Reserve::new(scope, &limits, costs, ahead);
            let reserved = backend.store.reserve(call).await.unwrap();
            (reserved.granted(&limits, costs), reserved.charges.before)
        };
        reserve(0, &[1]).await;
        let (granted, _) = reserve(500, &[1, 1, 1]).await;
        let slots: Vec<i64> = granted.iter().map(|granted| (granted.slot.0 - TODAY) / SECOND).collect();
        assert_eq!(slots, [500, 1000, 1500], "{}", backend.name);
        for Granted { slot, charged, before, after } in granted[1..].iter().rev() {
            let (slot, limits) = (*slot, &limits);
            let cancel = Cancel { scope, limits, lane: None, slot, charged, before, after, is_unused: false };
            assert!(backend.store.cancel(cancel).await.unwrap(), "{}", backend.name);
        }
        // The entry of 500 leaves at 1500, and a minute later the state counts as absent.
        let (_, before) = reserve(1559, &[0]).await;
        assert_eq!(before[0].numbers(), [TODAY + 1000 * SECOND, 0, 0], "{}", backend.name);
        let (_, before) = reserve(1560, &[0]).await;
        assert_eq!(before[0].numbers(), [0; 3], "{}", backend.name);
    }
}

/// 700001/s, on a clock that differs with every call: a hundred batches without drift.
#[tokio::test]
async fn every_backend_keeps_an_odd_rate_exactly() {
    let redis = servers::redis().await;
    let rate: Rate = "700001/s".parse().unwrap();
    let limits = LimitSet::new(vec![Limit::leaky_bucket("l", rate, 1).unwrap()]).unwrap();
    let name = unique("odd");
    for backend in Backend::all(redis) {
        backend.clock.set(Micros(TODAY));
        let scope = Scope { downstream: &name, key: "" };
        let mut slots = vec![];
        for _ in 0..100 {
            let ahead = Duration::from_secs(10);
            let call = Reserve::new(scope, &limits, Costs::Each(&[1; 1024]), ahead);
            slots.extend(backend.store.reserve(call).await.unwrap().slots);
        }
        for (k, slot) in slots.iter().enumerate() {
            let exact = TODAY + (k as i64 * 1_000_000 + 700_000) / 700_001;
            assert_eq!(slot.0, exact, "{} slot {k}", backend.name);
        }
        assert_eq!(slots.len(), 102_400);
    }
}
