//! Memory and Redis over random timelines, for each algorithm and each way to combine them: identical
//! answers, and identical states.
//!
//! A failure is shrunk, and prints the seed that it was made from: run it again with
//! `PACED_PARITY_SEED=SEED`.

use futures_util::future::join_all;
use paced::limit::{Combine, LimitSet};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tokio::sync::RwLock;

use super::replay::{Pair, Tally};
use super::timeline::{self, Timeline};
use crate::support::servers::Redis;
use crate::support::{scaled, unique};

/// The number of timelines of each test, unless `PACED_PARITY_TIMELINES` says another. They differ with every run.
const TIMELINES: u32 = 220;
/// How often as many are drawn, at most, until all answers have come.
const ROUNDS: usize = 5;
/// How many of them run in parallel, each on connections of its own.
const WORKERS: usize = 4;

/// A generator of cases that depends only on the seed and the number.
fn runner(seed: u64, case: usize) -> TestRunner {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..].copy_from_slice(&(case as u64 + 1).to_le_bytes());
    // The default generator would take as long as everything else, unoptimized.
    let rng = TestRng::from_seed(RngAlgorithm::XorShift, &bytes);
    TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng)
}

fn seed() -> u64 {
    let given = std::env::var("PACED_PARITY_SEED").ok();
    given.map_or_else(rand_seed, |text| text.parse().expect("PACED_PARITY_SEED is a number"))
}

fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Replays the timeline of a case; if the stores differ, returns the simplest timeline found for which they do.
async fn case(pair: &Pair<'_>, name: &str, mut tree: impl ValueTree<Value = Timeline>) -> Result<(), String> {
    let Err(mut difference) = pair.replay(name, &tree.current()).await else { return Ok(()) };
    let mut least = tree.current();
    let mut tried = 0;
    let mut simpler = tree.simplify();
    while simpler && tried < 400 {
        tried += 1;
        let again = tree.current();
        simpler = match pair.replay(&format!("{name}-{tried}"), &again).await {
            Err(now) => {
                (difference, least) = (now, again);
                tree.simplify()
            }
            Ok(()) => tree.complicate(),
        };
    }
    Err(format!("{difference}\nof {least:#?}"))
}

/// An answer that is too rare for this number of timelines.
fn rare(tally: &Tally, timelines: usize, is_all: bool, has_windows: bool) -> Option<&'static str> {
    let often = [
        "granted",
        "granted ahead",
        "refused",
        "allowed",
        "denied",
        "given back",
        "not given back",
        "states",
        "booked",
        "turns over or given back",
    ];
    let in_lanes = ["granted in lanes", "lanes that wait"].iter().filter(|_| is_all);
    let seldom = ["outdated", "paused", "with terms", "yields", "cools down"];
    // Some jobs wait for the end of a window, and scripts are forgotten and loaded again.
    let windows = ["passed over"].iter().filter(|_| is_all && has_windows);
    let all = often.iter().chain(in_lanes).map(|what| (*what, timelines / 2));
    let all = all.chain(seldom.map(|what| (what, timelines / 8)));
    let mut all = all
        .chain(windows.map(|what| (*what, timelines / 20)))
        .chain([("flushed", timelines / 40), ("kept turns", timelines / 40)]);
    all.find(|(what, least)| tally.get(what) <= *least).map(|(what, _)| what)
}

async fn agree<S: Strategy<Value = [LimitSet; 2]>>(topic: &str, sets: impl Fn() -> S) {
    let redis = Redis::dedicated().await;
    redis.command(&["CONFIG", "SET", "appendonly", "no"]).await.unwrap();
    let (tally, scripts) = (Tally::default(), RwLock::new(()));
    let (topic, seed) = (unique(topic), seed());
    let timelines = scaled("PACED_PARITY_TIMELINES", TIMELINES) as usize;
    let strategy = &timeline::timeline(sets());
    // Limits of lanes can join only sets in which all limits must allow a job.
    let is_all = strategy.new_tree(&mut runner(seed, 0)).unwrap().current().sets[0].combine() == Combine::All;
    let has_windows = ["fixed_windows", "quotas", "all_of_several"].iter().any(|name| topic.contains(name));
    let worker = async |numbers: std::ops::Range<usize>, worker: usize| {
        let pair = Pair::new(&redis, &scripts, &tally);
        for number in numbers.skip(worker).step_by(WORKERS) {
            let tree = strategy.new_tree(&mut runner(seed, number)).unwrap();
            if let Err(difference) = case(&pair, &format!("{topic}-{number}"), tree).await {
                panic!("PACED_PARITY_SEED={seed}, timeline {number}: {difference}");
            }
        }
    };
    // Some answers come in few timelines, many times there: where they are missing, more are drawn.
    let mut missing = None;
    for round in 0..ROUNDS {
        let numbers = round * timelines..(round + 1) * timelines;
        join_all((0..WORKERS).map(|number| worker(numbers.clone(), number))).await;
        missing = rare(&tally, timelines, is_all, has_windows);
        if missing.is_none() {
            break;
        }
    }
    assert_eq!(missing, None, "the timelines reach all answers: {tally:?}");
    println!("{topic}: {tally:?}");
}

macro_rules! agree {
    ($($(#[$meta:meta])* $name:ident: $sets:expr,)*) => {
        $($(#[$meta])* #[tokio::test] async fn $name() { agree(stringify!($name), $sets).await; })*
    };
}

agree! {
    leaky_buckets: || timeline::one(timeline::leaky_bucket),
    gcras: || timeline::one(timeline::gcra),
    token_buckets: || timeline::one(timeline::token_bucket),
    fixed_windows: || timeline::one(timeline::fixed_window),
    sliding_windows: || timeline::one(timeline::sliding_window),
    sliding_logs: || timeline::one(timeline::sliding_log),
    quotas: || timeline::one(timeline::quota),
    all_of_several: || timeline::several(Combine::All),
    any_of_several: || timeline::several(Combine::Any),
    one_of_several: || timeline::several(Combine::OneOf),
}
