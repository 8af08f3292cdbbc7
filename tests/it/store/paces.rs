//! The GCRA family in Redis, which has scripts of its own: over random timelines each of them answers as the
//! reference does.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use paced::Rate;
use paced::limit::{Combine, Costs, Limit, LimitSet};
use paced::store::{
    Cancel, Check, Checked, Granted, Lease, MemoryStore, RedisStore, Reserve, Reserved, Scope, Sharing, Store,
};
use paced::time::{ManualClock, Micros};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::patient;
use crate::support::servers::Redis;

const TODAY: i64 = 1_760_000_000_000_000;
const KEYS: [&str; 2] = ["", "a"];

#[derive(Clone, Debug)]
enum Op {
    Reserve { costs: Jobs, ahead: u64, leased: bool },
    Check { costs: Jobs },
    Cancel { back: usize },
    Reset,
    ScriptFlush,
}

/// One cost per job, or one per limit and job; as many as the limits need are used.
#[derive(Clone, Debug)]
enum Jobs {
    Each(Vec<u32>),
    PerLimit(Vec<u32>),
}

impl Jobs {
    fn costs(&self, limits: &LimitSet) -> Costs<'_> {
        match self {
            Self::Each(each) => Costs::Each(each),
            Self::PerLimit(all) => Costs::PerLimit(&all[..all.len() / limits.given() * limits.given()]),
        }
    }
}

type Step = (i64, usize, Op);

fn jobs() -> impl Strategy<Value = Jobs> {
    prop_oneof![
        3 => prop::collection::vec(1_u32..4, 0..12).prop_map(Jobs::Each),
        3 => (0_u32..5, 1_usize..300).prop_map(|(cost, jobs)| Jobs::Each(vec![cost; jobs])),
        2 => ((1_u32..5, 1_usize..40), (1_u32..5, 1_usize..40)).prop_map(|(first, second)| {
            Jobs::Each([first, second].map(|(cost, jobs)| vec![cost; jobs]).concat())
        }),
        1 => prop::collection::vec(1_u32..2_000_000, 1..4).prop_map(Jobs::Each),
        1 => (1_u32..2_000_000, 1_usize..100).prop_map(|(cost, jobs)| Jobs::Each(vec![cost; jobs])),
        2 => prop::collection::vec(0_u32..4, 0..40).prop_map(Jobs::PerLimit),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let ahead = || prop_oneof![Just(0), 0_u64..200_000, 0_u64..50_000_000, Just(u64::MAX / 2)];
    prop_oneof![
        8 => (jobs(), ahead()).prop_map(|(costs, ahead)| Op::Reserve { costs, ahead, leased: false }),
        1 => (jobs(), ahead()).prop_map(|(costs, ahead)| Op::Reserve { costs, ahead, leased: true }),
        4 => jobs().prop_map(|costs| Op::Check { costs }),
        3 => (0_usize..2).prop_map(|back| Op::Cancel { back }),
        1 => Just(Op::Reset),
        1 => Just(Op::ScriptFlush),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let moved = prop_oneof![
        6 => 0_i64..300_000,
        2 => 0_i64..200_000_000,
        1 => -100_050_i64..-99_950,
        1 => -30_000_000_i64..0,
    ];
    (moved, 0..KEYS.len(), op())
}

fn sets() -> impl Strategy<Value = LimitSet> {
    let rate = prop_oneof![
        Just((10, 1_000_000)),
        Just((700_001, 1_000_000)),
        Just((7, 7 * 86_400_000_000)),
        (1_u64..5000, 5000_u64..100_000_000),
    ];
    let burst = prop_oneof![1_u32..20, Just(1000)];
    let combine = prop_oneof![Just(Combine::All), Just(Combine::Any), Just(Combine::OneOf)];
    // Every other set is of one limit.
    let size = prop_oneof![Just(1_usize), 2_usize..5];
    let limits =
        size.prop_flat_map(move |size| prop::collection::vec((rate.clone(), burst.clone(), 0..3), size));
    (limits, combine, any::<bool>()).prop_map(|(numbers, combine, twice)| {
        let limits = numbers.into_iter().enumerate().map(|(index, ((count, period), burst, kind))| {
            let (name, rate) =
                (format!("limit:{index}"), Rate::new(count, Duration::from_micros(period)).unwrap());
            match kind {
                0 => Limit::leaky_bucket(name, rate, burst),
                1 => Limit::gcra(name, rate, burst),
                _ => Limit::token_bucket(name, rate, burst),
            }
            .unwrap()
        });
        let mut limits: Vec<Limit> = limits.collect();
        if twice && limits.len() > 1 {
            limits.push(limits[0].clone());
        }
        LimitSet::combined(combine, limits).unwrap()
    })
}

#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Reserved(Reserved),
    Checked(Checked),
    Invalid,
    Cancelled(bool),
    Done,
}

/// A store, its clock, and the server that forgets its scripts, if there is one.
struct Backend<'a> {
    store: Box<dyn Store>,
    clock: Arc<ManualClock>,
    redis: Option<&'a Redis>,
}

async fn replay(backend: &Backend<'_>, name: &str, limits: &LimitSet, steps: &[Step]) -> Vec<Answer> {
    let (mut now, mut granted, mut answers) = (TODAY, Vec::<(&str, Granted)>::new(), vec![]);
    for (moved, key, op) in steps {
        now += moved;
        backend.clock.set(Micros(now));
        let key = KEYS[*key];
        let scope = Scope { downstream: name, key };
        answers.push(match op {
            Op::Reserve { costs: jobs, ahead, leased } => {
                let lease = Sharing::Lease(Lease { replica: "one", ttl: Duration::from_secs(1) });
                let sharing = if *leased { lease } else { Sharing::None };
                let (costs, ahead) = (jobs.costs(limits), Duration::from_micros(*ahead));
                match backend
                    .store
                    .reserve(Reserve { sharing, ..Reserve::new(scope, limits, costs, ahead) })
                    .await
                {
                    Ok(reserved) => {
                        let grants = reserved.granted(limits, costs);
                        granted.extend(grants.into_iter().map(|grant| (key, grant)));
                        Answer::Reserved(reserved)
                    }
                    Err(paced::StoreError::Invalid(_)) => Answer::Invalid,
                    Err(error) => panic!("{error}"),
                }
            }
            Op::Check { costs: jobs } => {
                match backend
                    .store
                    .check(Check { scope, limits, costs: jobs.costs(limits), generation: 0 })
                    .await
                {
                    Ok(checked) => Answer::Checked(checked),
                    Err(paced::StoreError::Invalid(_)) => Answer::Invalid,
                    Err(error) => panic!("{error}"),
                }
            }
            Op::Cancel { back } => match granted.iter().rev().nth(*back).cloned() {
                None => Answer::Done,
                Some((key, Granted { slot, charged, before, after })) => {
                    let scope = Scope { downstream: name, key };
                    let (charged, before, after) = (&charged, &before, &after);
                    let call =
                        Cancel { scope, limits, lane: None, slot, charged, before, after, is_unused: false };
                    Answer::Cancelled(backend.store.cancel(call).await.unwrap())
                }
            },
            Op::Reset => {
                backend.store.reset(scope, limits).await.unwrap();
                Answer::Done
            }
            Op::ScriptFlush => {
                if let Some(redis) = backend.redis {
                    redis.command(&["SCRIPT", "FLUSH"]).await.unwrap();
                }
                Answer::Done
            }
        });
    }
    answers
}

/// How often scripts were called.
async fn calls(redis: &Redis) -> usize {
    let stats = redis.command(&["INFO", "commandstats"]).await.unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    line.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn whichever_script_decides_it_answers_as_the_memory_store_does() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // The server is dedicated: it forgets its scripts, and its calls are counted.
    let redis = runtime.block_on(Redis::dedicated());
    let (here, there) = (Arc::<ManualClock>::default(), Arc::<ManualClock>::default());
    let shared = RedisStore::open(&redis.url(), patient()).unwrap().with_test_clock(there.clone());
    let memory = Backend { store: Box::new(MemoryStore::with_clock(here.clone())), clock: here, redis: None };
    let shared = Backend { store: Box::new(shared), clock: there, redis: Some(&redis) };
    let (cases, asked, kinds) = (Cell::new(0), Cell::new(0), Cell::new([0; 4]));
    let mut runner = TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&(sets(), prop::collection::vec(step(), 1..40)), |(limits, steps)| {
        cases.set(cases.get() + 1);
        let name = format!("pace-{}", cases.get());
        let expected = runtime.block_on(replay(&memory, &name, &limits, &steps));
        let answers = runtime.block_on(replay(&shared, &name, &limits, &steps));
        for (index, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
            prop_assert_eq!(answer, expected, "at step {}", index);
            let [mut granted, mut refused, mut denied, mut cancelled] = kinds.get();
            match answer {
                Answer::Reserved(reserved) => {
                    asked.set(asked.get() + 1);
                    granted += reserved.slots.len();
                    refused += usize::from(reserved.refused.is_some());
                }
                Answer::Checked(checked) => {
                    asked.set(asked.get() + 1);
                    denied += checked
                        .verdicts
                        .iter()
                        .filter(|verdict| verdict.earliest > checked.stamp.now)
                        .count();
                }
                Answer::Cancelled(given) => cancelled += usize::from(*given),
                Answer::Invalid | Answer::Done => {}
            }
            kinds.set([granted, refused, denied, cancelled]);
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let kinds = kinds.get();
    assert!(kinds.iter().all(|&count| count > 20), "the timelines reach all answers: {kinds:?}");
    let (calls, asked) = (runtime.block_on(calls(&redis)), asked.get());
    assert!(calls > asked && calls < 2 * asked, "{calls} scripts for {asked} calls: most took one");
}
