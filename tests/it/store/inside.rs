//! The work of one call inside of Redis: it does not grow with what a limit remembers, and a full call is short.
//!
//! Commands, bytes and the rounds of loops are counted, which no other load of the machine changes. `make bench
//! ARGS=limits` measures times.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Calendar, Costs, Edges, calendar};
use paced::store::{
    Asker, Cancel, Check, Granted, Lane, Lanes, MAX_BATCH, RedisStore, Reserve, Reserved, Scope, Store,
};
use paced::time::{Clock as _, ManualClock, Micros};
use paced::{Limit, LimitSet, MemoryStore};

use super::patient;
use crate::support::servers::Redis;
use crate::support::unique;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// The most buckets that a sliding window may have.
const BUCKETS: u32 = 120;
const TODAY: Micros = Micros(1_760_000_000_000_000);

async fn store(redis: &Redis) -> RedisStore {
    RedisStore::connect(&redis.url(), patient()).await.unwrap().counting_rounds()
}

/// The work that a server has done so far, or did in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Work {
    /// The rounds of loops in scripts.
    pub rounds: i64,
    /// The commands that scripts ran.
    pub commands: i64,
    /// The bytes appended to its file.
    pub bytes: i64,
}

impl Work {
    async fn so_far(redis: &Redis) -> Self {
        let (mut rounds, mut commands) = (0, 0);
        let stats = redis.command(&["INFO", "commandstats"]).await.unwrap();
        for (name, fields) in stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'))
        {
            let calls = fields.split(',').find_map(|pair| pair.strip_prefix("calls=")?.parse::<i64>().ok());
            match name {
                "echo" => rounds = calls.unwrap(),
                "get" | "mget" | "set" | "getrange" | "setrange" | "append" | "pexpire" => {
                    commands += calls.unwrap();
                }
                _ if name.starts_with('z') => commands += calls.unwrap(),
                _ => {}
            }
        }
        let file = redis.command(&["INFO", "persistence"]).await.unwrap();
        let field = |name| file.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<i64>().ok());
        let bytes = field("aof_current_size:").unwrap() + field("aof_buffer_length:").unwrap();
        Self { rounds, commands, bytes }
    }

    /// Measures what `call` has the server do.
    pub(super) async fn of<T>(redis: &Redis, call: impl Future<Output = T>) -> (Self, T) {
        let before = Self::so_far(redis).await;
        let answer = call.await;
        let Self { rounds, commands, bytes } = Self::so_far(redis).await;
        let work = Self {
            rounds: rounds - before.rounds,
            commands: commands - before.commands,
            bytes: bytes - before.bytes,
        };
        (work, answer)
    }
}

fn call<'a>(name: &'a str, limits: &'a LimitSet, costs: &'a [u32]) -> Reserve<'a> {
    Reserve::new(Scope { downstream: name, key: "" }, limits, Costs::Each(costs), HOUR)
}

async fn reserve(store: &RedisStore, name: &str, limits: &LimitSet, jobs: usize) -> Reserved {
    store.reserve(call(name, limits, &vec![1; jobs])).await.unwrap()
}

/// Measures what it costs the server to give the last slot back, where a log has this number of entries.
async fn cancel(redis: &Redis, entries: usize) -> Work {
    // Time stands still: no slot is reached.
    let store = store(redis).await.with_test_clock(Arc::new(ManualClock::new(TODAY)));
    let name = unique("cancel");
    // Slots that lie apart have an entry each.
    let pace = Limit::leaky_bucket("pace", "100/s".parse().unwrap(), 1).unwrap();
    let limits = LimitSet::new(vec![pace, Limit::sliding_log("log", 10_000, HOUR).unwrap()]).unwrap();
    let mut missing = entries - 1;
    while missing > 0 {
        let taken = reserve(&store, &name, &limits, missing.min(1000)).await;
        missing -= taken.slots.len();
    }
    let mut most = Work { rounds: 0, commands: 0, bytes: 0 };
    for _ in 0..3 {
        let reserved = reserve(&store, &name, &limits, 1).await;
        let Granted { slot, charged, before, after } = &reserved.granted(&limits, Costs::Each(&[1]))[0];
        let call = Cancel {
            scope: Scope { downstream: &name, key: "" },
            limits: &limits,
            lane: None,
            slot: *slot,
            charged,
            before,
            after,
            is_unused: false,
        };
        let (work, is_given_back) = Work::of(redis, store.cancel(call)).await;
        assert!(is_given_back.unwrap());
        most = Work {
            rounds: most.rounds.max(work.rounds),
            commands: most.commands.max(work.commands),
            bytes: most.bytes.max(work.bytes),
        };
    }
    most
}

#[tokio::test]
async fn giving_a_slot_of_a_log_back_does_not_grow_with_its_entries() {
    let redis = Redis::dedicated().await;
    let (few, many) = (cancel(&redis, 16).await, cancel(&redis, 10_000).await);
    assert!(many.commands == few.commands, "16 entries: {few:?}; 10 000: {many:?}");
    assert!(many.bytes <= 2 * few.bytes + 1000, "16 entries: {few:?}; 10 000: {many:?}");
    assert!(many.rounds <= few.rounds + 4, "16 entries: {few:?}; 10 000: {many:?}");
}

/// The record is updated in place, which the fast scripts alone do.
#[tokio::test]
async fn a_pace_beside_a_quota_is_decided_by_a_fast_script() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let (store, name) = (store(&redis).await.with_test_clock(clock.clone()), unique("beside"));
    let pace = Limit::leaky_bucket("pace", "1000/s".parse().unwrap(), 1).unwrap();
    let month = Edges::Calendar(Calendar::new(calendar::Unit::Month, 0).unwrap());
    let quota = Limit::quota("quota", 1000, month).unwrap();
    let limits = LimitSet::new(vec![pace, quota]).unwrap();
    let asker = Asker {
        turn: None,
        reach: SECOND,
        waiting: 1,
        own: 2,
        interval: SECOND / 1000,
        goes_on: false,
        farthest: 300 * SECOND,
    };
    let sets = || redis.info_value(&["INFO", "commandstats"], "cmdstat_set");
    for asker in [None, Some(asker)] {
        reserve(&store, &name, &limits, 1).await;
        let before = sets().await;
        assert!(before.is_some());
        for _ in 0..10 {
            clock.set(clock.now().plus(SECOND / 100));
            let call = Reserve { asker, ..call(&name, &limits, &[1]) };
            assert_eq!(store.reserve(call).await.unwrap().slots, [clock.now()]);
        }
        assert_eq!(sets().await, before, "{asker:?}");
    }
}

/// The rounds that one more job of a call takes in a sliding window, where `held` buckets hold units.
async fn one_more_job(redis: &Redis, buckets: u32, held: u32) -> f64 {
    let clock = Arc::new(ManualClock::new(TODAY));
    let (store, name) = (store(redis).await.with_test_clock(clock.clone()), unique("commit"));
    let window = Limit::sliding_window("window", 1_000_000, buckets * SECOND, buckets).unwrap();
    let limits = LimitSet::new(vec![window]).unwrap();
    for _ in 0..held {
        reserve(&store, &name, &limits, 1).await;
        clock.set(clock.now().plus(SECOND));
    }
    let single = Work::of(redis, reserve(&store, &name, &limits, 1)).await.0;
    let full = Work::of(redis, reserve(&store, &name, &limits, MAX_BATCH)).await.0;
    (full.rounds - single.rounds) as f64 / (MAX_BATCH - 1) as f64
}

#[tokio::test]
async fn a_job_in_a_window_takes_as_long_however_many_buckets_hold_units() {
    let redis = Redis::dedicated().await;
    let (one, all) = (one_more_job(&redis, BUCKETS, 1).await, one_more_job(&redis, BUCKETS, BUCKETS).await);
    assert!(all <= one + 0.5, "{all} rounds a job with {BUCKETS} buckets in use, {one} with one");
}

/// Limits of every algorithm that a full call finds room in, or waits for; `quota` is whole in any case.
fn every(buckets: u32) -> Vec<Vec<Limit>> {
    let pace = || Limit::leaky_bucket("pace", "1000000/s".parse().unwrap(), 1).unwrap();
    let window = |count| Limit::fixed_window("window", count, SECOND).unwrap();
    let buckets = |count| Limit::sliding_window("buckets", count, buckets * SECOND, buckets).unwrap();
    let log = |count| Limit::sliding_log("log", count, 60 * SECOND).unwrap();
    let quota = || {
        let month = Calendar::new(calendar::Unit::Month, 0).unwrap();
        Limit::quota("quota", 1_000_000_000, Edges::Calendar(month)).unwrap()
    };
    let tight = || Limit::sliding_log("tight", 1, SECOND / 100).unwrap();
    vec![
        vec![buckets(1000)],
        vec![buckets(1_000_000)],
        vec![log(10_000)],
        vec![quota()],
        vec![pace(), window(1_000_000), buckets(1_000_000), log(10_000), quota()],
        vec![pace(), window(1000), buckets(1000), log(10_000), quota(), tight()],
    ]
}

/// The rounds that a full call takes once each bucket of a window has held units.
async fn full_call(redis: &Redis, limits: Vec<Limit>, buckets: u32) -> i64 {
    let clock = Arc::new(ManualClock::new(TODAY));
    let (store, name) = (store(redis).await.with_test_clock(clock.clone()), unique("full"));
    let limits = LimitSet::new(limits).unwrap();
    for _ in 0..buckets {
        reserve(&store, &name, &limits, 4).await;
        clock.set(clock.now().plus(SECOND));
    }
    let mut most = 0;
    for _ in 0..3 {
        most = most.max(Work::of(redis, reserve(&store, &name, &limits, MAX_BATCH)).await.0.rounds);
    }
    most
}

/// Redis is busy with one call at a time.
#[tokio::test]
async fn a_full_call_is_not_much_longer_than_one_in_a_fixed_window() {
    let redis = Redis::dedicated().await;
    let window = vec![Limit::fixed_window("window", 1_000_000, SECOND).unwrap()];
    let least = full_call(&redis, window, BUCKETS).await;
    for limits in every(BUCKETS) {
        let count = i64::try_from(limits.len()).unwrap();
        let names: Vec<&str> = limits.iter().map(Limit::name).collect();
        let names = names.join(", ");
        let took = full_call(&redis, limits, BUCKETS).await;
        assert!(
            took <= 2 * count * least,
            "{took} rounds for {MAX_BATCH} jobs in {names}; {least} in a window"
        );
    }
}

/// Jobs of different costs, in a log that has no room for them.
#[tokio::test]
async fn a_full_call_that_finds_no_room_is_not_much_longer_than_one_in_a_fixed_window() {
    let redis = Redis::dedicated().await;
    let window = vec![Limit::fixed_window("window", 1_000_000, SECOND).unwrap()];
    let least = full_call(&redis, window, BUCKETS).await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let (store, name) = (store(&redis).await.with_test_clock(clock), unique("costly"));
    let scope = Scope { downstream: &name, key: "" };
    let pace = || Limit::leaky_bucket("pace", "100/s".parse().unwrap(), 1).unwrap();
    let lane =
        LimitSet::new(vec![Limit::leaky_bucket("lane", "1000000/s".parse().unwrap(), 1).unwrap()]).unwrap();
    let keys: Vec<[String; 1]> = (0..MAX_BATCH).map(|lane| [format!("lane-{lane}")]).collect();
    let keys: Vec<[&str; 1]> = keys.iter().map(|keys| keys.each_ref().map(String::as_str)).collect();
    let all: Vec<Lane<'_>> = keys.iter().map(|keys| Lane { limits: &lane, keys }).collect();
    let of: Vec<Option<u16>> = (0..1024_u16).map(Some).collect();
    let lanes = Some(Lanes { all: &all, of: &of, lead: HOUR, most: u32::MAX });
    let rising: Vec<u32> = (0..1024).map(|job| 5000 + job).collect();
    let mut measured = vec![];
    for (count, limit) in [
        (10_000, Limit::sliding_log("log", 10_000, HOUR).unwrap()),
        (10_000, Limit::sliding_window("buckets", 10_000, 120 * SECOND, BUCKETS).unwrap()),
    ] {
        let limits = LimitSet::new(vec![pace(), limit.clone()]).unwrap();
        for _ in 0..count / 1000 {
            reserve(&store, &name, &limits, 1000).await;
        }
        let only = LimitSet::new(vec![limit.clone()]).unwrap();
        let check = Check { scope, limits: &only, costs: Costs::Each(&rising), generation: 0 };
        let (work, answer) = Work::of(&redis, store.check(check)).await;
        assert!(answer.unwrap().verdicts.iter().all(|verdict| verdict.earliest > TODAY));
        measured.push((work, format!("check_many of rising costs, {}", limit.name())));
        for cost in [1, 5000] {
            let costs = vec![cost; MAX_BATCH];
            let call = Reserve { lanes, ahead: Duration::ZERO, ..call(&name, &limits, &costs) };
            let (work, answer) = Work::of(&redis, store.reserve(call)).await;
            assert!(answer.unwrap().slots.is_empty(), "nothing is taken");
            measured.push((work, format!("1024 lanes, cost {cost}, {}", limit.name())));
        }
    }
    for (took, what) in measured {
        assert!(took.rounds <= 30 * least, "{took:?}: {what}; {least} rounds in a window");
    }
}

/// A log sums its entries up once for all jobs of a call; one of these jobs raises the last entry meanwhile.
#[tokio::test]
async fn an_entry_that_a_job_of_the_call_raises_counts_for_the_jobs_behind_it() {
    let redis = Redis::dedicated().await;
    let clock = Arc::new(ManualClock::new(TODAY));
    let limits = LimitSet::new(vec![Limit::sliding_log("log", 10, HOUR).unwrap()]).unwrap();
    let memory = Arc::new(MemoryStore::with_clock(clock.clone())) as Arc<dyn Store>;
    let mut answers = vec![];
    for store in [memory, Arc::new(store(&redis).await.with_test_clock(clock.clone()))] {
        let name = unique("raised");
        let scope = Scope { downstream: &name, key: "" };
        let mut earliest = vec![];
        // The last entry is new in the call, is stored, and comes behind entries that have left meanwhile.
        let calls = [(0, &[5, 10, 2, 10, 7][..]), (0, &[10, 2, 10, 1]), (60, &[4, 10, 3, 10, 9, 10])];
        for (minutes, costs) in calls {
            clock.set(TODAY.plus(minutes * SECOND * 60));
            let check = Check { scope, limits: &limits, costs: Costs::Each(costs), generation: 0 };
            let checked = store.check(check).await.unwrap();
            earliest.extend(checked.verdicts.iter().map(|verdict| verdict.earliest.since(TODAY)));
        }
        answers.push(earliest);
    }
    let hours = [0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 2, 1, 2, 2, 2];
    assert_eq!(answers[0], hours.map(|hours| hours * HOUR));
    assert_eq!(answers[0], answers[1]);
}
