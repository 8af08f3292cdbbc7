//! One suite, every backend: over random timelines each answers as the reference does.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Limit, LimitSet};
use paced::store::{Cancel, Granted, Lease, MemoryStore, RedisStore, Reserve, Reserved, Scope, Store};
use paced::time::{ManualClock, Micros};
use paced::{Rate, StoreError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::patient;
use crate::support::servers::{self, Redis};
use crate::support::unique;

const TODAY: i64 = 1_760_000_000_000_000;

#[derive(Clone, Debug)]
enum Op {
    Reserve {
        costs: Vec<u32>,
        ahead: Duration,
        /// Which replica renews its lease with it, and for how many ms.
        lease: Option<(usize, u64)>,
    },
    /// The slot so many places from the last one granted.
    Cancel {
        back: usize,
    },
    Reset,
}

/// What happens, how far the clock moved before, and on which of a few keys.
type Step = (i64, usize, Op);

const REPLICAS: [&str; 3] = ["one", "two", "three"];
const KEYS: [&str; 3] = ["", "a", "b:c"];

fn op() -> impl Strategy<Value = Op> {
    let costs = prop_oneof![
        4 => prop::collection::vec(1_u32..4, 0..12),
        1 => prop::collection::vec(1_u32..2000, 1..4),
        1 => (1_u32..3, 1_usize..300).prop_map(|(cost, jobs)| vec![cost; jobs]),
    ];
    let ahead = prop_oneof![Just(0), 0_u64..200_000, 0_u64..50_000_000, Just(u64::MAX / 2)];
    let lease = prop::option::of((0..REPLICAS.len(), prop_oneof![1_u64..2000, Just(60_000)]));
    prop_oneof![
        6 => (costs, ahead, lease).prop_map(|(costs, ahead, lease)| {
            Op::Reserve { costs, ahead: Duration::from_micros(ahead), lease }
        }),
        2 => (0_usize..3).prop_map(|back| Op::Cancel { back }),
        1 => Just(Op::Reset),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let moved = prop_oneof![
        4 => 0_i64..300_000,
        1 => 0_i64..200_000_000,
        1 => -100_050_i64..-99_950,
        1 => -30_000_000_i64..0,
    ];
    (moved, 0..KEYS.len(), op())
}

fn limits() -> impl Strategy<Value = LimitSet> {
    let rate = prop_oneof![
        Just((10, 1_000_000)),
        Just((700_001, 1_000_000)),
        Just((7, 7 * 86_400_000_000)),
        (1_u64..5000, 5000_u64..100_000_000),
    ];
    prop::collection::vec((rate, 1_u32..20), 1..4).prop_map(|numbers| {
        let limits = numbers.into_iter().enumerate().map(|(index, ((count, period), burst))| {
            let rate = Rate::new(count, Duration::from_micros(period)).unwrap();
            Limit::leaky_bucket(format!("limit:{index}"), rate, burst).unwrap()
        });
        LimitSet::new(limits.collect()).unwrap()
    })
}

/// A backend, and the clock that it is told.
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

fn leased(replica: &str, millis: u64) -> Option<Lease<'_>> {
    Some(Lease { replica, ttl: Duration::from_millis(millis) })
}

/// What a step came to.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Reserved(Reserved),
    Cancelled(bool),
    Reset,
    /// There was nothing to cancel yet.
    Nothing,
}

async fn replay(
    backend: &Backend,
    name: &str,
    limits: &LimitSet,
    explicit: bool,
    steps: &[Step],
) -> Vec<Answer> {
    let (mut now, mut granted, mut answers) = (TODAY, Vec::<(&str, Granted)>::new(), vec![]);
    for (moved, key, op) in steps {
        now += moved;
        backend.clock.set(Micros(now));
        let (key, now) = (KEYS[*key], explicit.then_some(Micros(now)));
        let scope = Scope { downstream: name, key };
        let answer = match op {
            Op::Reserve { costs, ahead, lease } => {
                let lease = lease.and_then(|(replica, ttl)| leased(REPLICAS[replica], ttl));
                // What the limits cannot hold is refused by both; here are the others.
                let costs: Vec<u32> = costs.iter().map(|&cost| cost.min(limits.max_cost())).collect();
                let call = Reserve { scope, limits, costs: Costs::Each(&costs), ahead: *ahead, now, lease };
                let reserved = backend.store.reserve(call).await.unwrap();
                granted.extend(reserved.granted(limits, call.costs).into_iter().map(|grant| (key, grant)));
                Answer::Reserved(reserved)
            }
            Op::Cancel { back } => match granted.iter().rev().nth(*back).cloned() {
                None => Answer::Nothing,
                Some((key, Granted { slot, charged, before, after })) => {
                    let scope = Scope { downstream: name, key };
                    let (charged, before, after) = (&charged, &before, &after);
                    let call = Cancel { scope, limits, slot, charged, before, after, now };
                    Answer::Cancelled(backend.store.cancel(call).await.unwrap())
                }
            },
            Op::Reset => {
                backend.store.reset(scope, limits).await.unwrap();
                Answer::Reset
            }
        };
        answers.push(answer);
    }
    answers
}

fn all_agree(explicit: bool) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = runtime.block_on(servers::redis());
    let backends = Backend::all(redis);
    let timelines = (limits(), prop::collection::vec(step(), 1..40));
    let (topic, count) = (unique("timeline"), Cell::new(0));
    let (cancelled, refused) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&timelines, |(limits, steps)| {
        count.set(count.get() + 1);
        let name = format!("{topic}-{}", count.get());
        let mut expected: Option<Vec<Answer>> = None;
        for backend in &backends {
            let answers = runtime.block_on(replay(backend, &name, &limits, explicit, &steps));
            let reference = expected.get_or_insert_with(|| answers.clone());
            for (index, (answer, reference)) in answers.iter().zip(reference.iter()).enumerate() {
                prop_assert_eq!(answer, reference, "{} at step {}", backend.name, index);
            }
            let given = answers.iter().filter(|answer| **answer == Answer::Cancelled(true)).count();
            cancelled.set(cancelled.get() + given);
            let refusal =
                |answer: &&Answer| matches!(answer, Answer::Reserved(reserved) if reserved.refused.is_some());
            refused.set(refused.get() + answers.iter().filter(refusal).count());
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let (cancelled, refused) = (cancelled.get(), refused.get());
    assert!(cancelled > 50 && refused > 200, "the timelines reach all answers: {cancelled}, {refused}");
}

#[test]
fn every_backend_answers_alike_on_clocks_that_step() {
    all_agree(false);
}

#[test]
fn every_backend_answers_alike_at_explicit_instants() {
    all_agree(true);
}

#[tokio::test]
async fn every_backend_refuses_the_same_calls() {
    let redis = servers::redis().await;
    let limits = LimitSet::new(vec![Limit::leaky_bucket("l", "1/d".parse().unwrap(), 1).unwrap()]).unwrap();
    let name = unique("refuses");
    for backend in Backend::all(redis) {
        let scope = Scope { downstream: &name, key: "" };
        let call = Reserve {
            scope,
            limits: &limits,
            costs: Costs::Each(&[u32::MAX]),
            ahead: Duration::ZERO,
            now: None,
            lease: None,
        };
        let refused = [
            backend.store.reserve(call).await.map(drop),
            backend.store.reserve(Reserve { costs: Costs::Each(&[1; 1025]), ..call }).await.map(drop),
            backend
                .store
                .reserve(Reserve { costs: Costs::Each(&[1]), lease: leased("", 1000), ..call })
                .await
                .map(drop),
            backend
                .store
                .reserve(Reserve { costs: Costs::Each(&[1]), lease: leased("r", 0), ..call })
                .await
                .map(drop),
            backend
                .store
                .reserve(Reserve { costs: Costs::Each(&[1]), lease: leased("r", 60_001), ..call })
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
        let at = async |millis: i64, lease| {
            backend.clock.set(Micros(TODAY + millis * 1000));
            let scope = Scope { downstream: &name, key: "" };
            let ahead = Duration::ZERO;
            let call = Reserve { scope, limits: &limits, costs: Costs::Each(&[]), ahead, now: None, lease };
            backend.store.reserve(call).await.unwrap().replicas
        };
        let seen = [
            at(0, leased("one", 2000)).await,
            at(500, leased("two", 2000)).await,
            at(500, None).await,
            at(1999, leased("two", 2000)).await,
            // The first has been silent for 2 s.
            at(2000, leased("two", 2000)).await,
            at(2100, leased("one", 2000)).await,
            // The clock steps back by more than a lease lasts at most.
            at(-60_000, leased("one", 2000)).await,
        ];
        assert_eq!(seen, [Some(1), Some(2), None, Some(2), Some(1), Some(2), Some(1)], "{}", backend.name);
    }
}

/// 700001/s, from a store that never says what time it is: a hundred batches without drift.
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
            let call = Reserve {
                scope,
                limits: &limits,
                costs: Costs::Each(&[1; 1024]),
                ahead,
                now: None,
                lease: None,
            };
            slots.extend(backend.store.reserve(call).await.unwrap().slots);
        }
        for (k, slot) in slots.iter().enumerate() {
            let exact = TODAY + (k as i64 * 1_000_000 + 700_000) / 700_001;
            assert_eq!(slot.0, exact, "{} slot {k}", backend.name);
        }
        assert_eq!(slots.len(), 102_400);
    }
}
