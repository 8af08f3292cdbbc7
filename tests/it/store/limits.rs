//! Limiters and shapers on a real Redis: batches, sets and costs, shared by processes.

use std::sync::Arc;
use std::time::Duration;

use paced::limit::{Costs, Edges};
use paced::store::{Asker, NextTurn, RedisStore, Reserve, Scope, Store, Turn};
use paced::time::{Clock as _, ManualClock, Micros};
use paced::{
    CheckError, Decision, Limit, LimitSet, Limiter, MemoryStore, Reservation, ReserveError, Shaper,
    StoreError,
};
use tokio::task::JoinSet;

use super::patient;
use crate::support::servers::{self, Redis};
use crate::support::{LONG, real_now, unique};

const SECOND: Duration = Duration::from_secs(1);
/// The start is a full second, at which windows begin.
const START: Micros = Micros(1_000_000_000_000_000);

async fn store(redis: &Redis) -> RedisStore {
    RedisStore::connect(&redis.url(), patient()).await.unwrap()
}

/// One store of each kind, on the same clock.
async fn on_both(clock: &Arc<ManualClock>) -> [Arc<dyn Store>; 2] {
    let redis = servers::redis().await;
    let memory = MemoryStore::with_clock(clock.clone());
    [Arc::new(memory), Arc::new(store(redis).await.with_test_clock(clock.clone()))]
}

/// One limit of each algorithm, of which no unit comes back while a test runs in real time.
fn each_algorithm() -> Vec<Limit> {
    let (rate, hour) = ("4/h".parse().unwrap(), 3600 * SECOND);
    vec![
        Limit::leaky_bucket("leaky-bucket", rate, 40).unwrap(),
        Limit::gcra("gcra", rate, 40).unwrap(),
        Limit::token_bucket("token-bucket", rate, 40).unwrap(),
        Limit::first_hit_window("first-hit", 40, hour).unwrap(),
        Limit::sliding_window("sliding-window", 40, 24 * hour, 4).unwrap(),
        Limit::sliding_log("sliding-log", 40, hour).unwrap(),
        Limit::quota("quota", 40, Edges::first_hit(24 * hour).unwrap()).unwrap(),
    ]
}

/// The number of script calls that the server has answered.
async fn calls(redis: &Redis) -> usize {
    let stats = redis.cli(&["INFO", "commandstats"]).await;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let count = line.split(['=', ',']).nth(1).unwrap_or("0");
    count.parse().unwrap()
}

#[tokio::test]
async fn limiters_of_two_processes_allow_exactly_the_burst_in_few_calls() {
    let redis = Redis::dedicated().await;
    for limit in each_algorithm() {
        let name = limit.name().to_owned();
        let build = async || {
            let builder = Limiter::builder(&name).limit(limit.clone());
            builder.store(store(&redis).await).build().unwrap()
        };
        let limiters = [build().await, build().await];
        let before = calls(&redis).await;
        let mut tasks = JoinSet::new();
        for index in 0..400 {
            let limiter = limiters[index % 2].clone();
            tasks.spawn(async move { limiter.check("tenant-42").await.unwrap() });
        }
        let decisions: Vec<Decision> = tasks.join_all().await;
        let mut remaining: Vec<u64> =
            decisions.iter().filter(|decision| decision.allowed).map(|decision| decision.remaining).collect();
        remaining.sort_unstable();
        assert_eq!(remaining, (0..40).collect::<Vec<u64>>(), "{name}: each has its own decision");
        for denied in decisions.iter().filter(|decision| !decision.allowed) {
            assert!(denied.retry_after > 600 * SECOND, "{name}: {denied:?}");
        }
        let asked = calls(&redis).await - before;
        assert!(asked <= 40, "{name}: {asked} calls for 400 checks");
    }
}

#[tokio::test]
async fn both_stores_police_batches_alike() {
    let gcra = |name: &str, burst| Limit::gcra(name, "10/s".parse().unwrap(), burst).unwrap();
    let window = || Limit::fixed_window("window", 6, SECOND).unwrap();
    let log = || Limit::sliding_log("log", 4, 2 * SECOND).unwrap();
    let limits = || vec![gcra("gcra", 3), window(), log()];
    let sets = [LimitSet::new(limits()), LimitSet::any(limits()), LimitSet::one_of(limits())];
    for set in sets.map(Result::unwrap) {
        let (clock, name) = (Arc::new(ManualClock::new(START)), unique("police"));
        let mut printed: [Vec<String>; 2] = Default::default();
        for (store, printed) in on_both(&clock).await.into_iter().zip(&mut printed) {
            let limiter = Limiter::builder(&name).limits(set.clone()).store(store).build().unwrap();
            for round in 0..6 {
                clock.set(START.plus(Duration::from_millis(300 * round)));
                let mut batch = vec![];
                let checks = [1, 2, 0, 3, 1, 7].map(|cost| ("tenant-42", cost));
                batch.extend(limiter.check_many(&checks).await);
                // A call of both kinds of costs.
                let own = [[1, 1, 0], [0, 0, 2], [3, 0, 0], [0, 0, 0]];
                let (a, b, c, d, e) = tokio::join!(
                    limiter.check_costs("tenant-42", &own[0]),
                    limiter.check_costs("tenant-42", &own[1]),
                    limiter.check("tenant-42"),
                    limiter.check_costs("tenant-42", &own[2]),
                    limiter.check_costs("tenant-42", &own[3]),
                );
                batch.extend([a, b, c, d, e]);
                batch.push(limiter.peek("tenant-43").await);
                printed.push(format!("{batch:#?}"));
                if round == 3 {
                    limiter.reset("tenant-42").await.unwrap();
                }
            }
        }
        let [memory, redis] = printed;
        assert_eq!(memory.len(), 6);
        for (round, (memory, redis)) in memory.iter().zip(&redis).enumerate() {
            assert_eq!(memory, redis, "round {round} of {:?}", set.combine());
        }
    }
}

#[tokio::test]
async fn both_stores_shape_batches_alike() {
    let gcra = |name: &str, burst| Limit::gcra(name, "10/s".parse().unwrap(), burst).unwrap();
    let leaky = || Limit::leaky_bucket("leaky", "5/s".parse().unwrap(), 2).unwrap();
    let log = || Limit::sliding_log("log", 4, 2 * SECOND).unwrap();
    let limits = || vec![gcra("gcra", 3), leaky(), log()];
    let sets = [LimitSet::new(limits()), LimitSet::any(limits()), LimitSet::one_of(limits())];
    for set in sets.map(Result::unwrap) {
        let (clock, name) = (Arc::new(ManualClock::new(START)), unique("shape"));
        let mut outcomes: [Vec<Result<Micros, String>>; 2] = Default::default();
        for (store, outcomes) in on_both(&clock).await.into_iter().zip(&mut outcomes) {
            clock.set(START);
            let builder = Shaper::with_limits(&name, set.clone()).max_wait(3 * SECOND);
            let shaper = builder.store(store).build().unwrap();
            for round in 0..5 {
                clock.set(START.plus(Duration::from_millis(700 * round)));
                let next = shaper.peek("any").await.unwrap();
                let (a, b, c, d, e) = tokio::join!(
                    shaper.reserve("any"),
                    shaper.reserve_costs("any", &[2, 0, 1]),
                    shaper.reserve_cost("any", 3),
                    shaper.reserve_costs("any", &[0, 1, 0]),
                    shaper.reserve("any"),
                );
                if let Ok(first) = &a {
                    assert_eq!(clock.now().plus(next), first.slot());
                }
                outcomes.push(Ok(clock.now().plus(next)));
                for outcome in [a, b, c, d, e] {
                    outcomes.push(outcome.map(Reservation::keep).map_err(|error| error.to_string()));
                }
            }
        }
        assert_eq!(outcomes[0], outcomes[1], "{:?}", set.combine());
        assert_eq!(outcomes[0].len(), 30);
    }
}

#[tokio::test]
async fn a_peek_writes_no_state() {
    let redis = Redis::dedicated().await;
    let set = LimitSet::new(each_algorithm()).unwrap();
    let limiter = Limiter::builder("peeked").limits(set.clone()).store(store(&redis).await).build().unwrap();
    let shaper = Shaper::with_limits("peeked", set).store(store(&redis).await).build().unwrap();
    assert_eq!(limiter.peek("tenant-42").await.unwrap().remaining, 40);
    assert_eq!(shaper.peek("any").await.unwrap(), Duration::ZERO);
    let keys = redis.cli(&["--raw", "KEYS", "*"]).await;
    let mut keys: Vec<&str> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["paced:{limiter:peeked}:record", "paced:{peeked}:record"]);
}

#[tokio::test]
async fn states_are_named_after_their_limits_and_expire() {
    let redis = Redis::dedicated().await;
    let limit = || Limit::gcra("rate", "1/h".parse().unwrap(), 1).unwrap();
    let builder = || Limiter::builder("api").limit(limit());
    let own = builder().store(store(&redis).await).build().unwrap();
    let shared = builder().shared().store(store(&redis).await).build().unwrap();
    let shaper = Shaper::builder("api", "1/h".parse().unwrap()).store(store(&redis).await).build().unwrap();
    assert!(own.check("tenant-42").await.unwrap().allowed);
    assert!(shared.check("tenant-42").await.unwrap().allowed);
    let reservation = shaper.reserve("tenant-42").await.unwrap();
    let next = shaper.peek("any").await.unwrap();
    assert!(
        next > 1800 * SECOND && next <= 3600 * SECOND,
        "an interval behind {}: {next:?}",
        reservation.slot()
    );
    let keys = redis.cli(&["--raw", "KEYS", "paced:{*api}:?:*"]).await;
    let mut keys: Vec<&str> = keys.lines().collect();
    keys.sort_unstable();
    let expected = [
        "paced:{api}:l:leaky-bucket-0",
        "paced:{limiter:api}:k:limiter-rate:tenant-42",
        "paced:{limiter:api}:l:shared-limiter-rate",
    ];
    assert_eq!(keys, expected);
    // A pause of the downstream is none of the limiter.
    shaper.penalize(60 * SECOND).await.unwrap();
    assert!(own.check("tenant-43").await.unwrap().allowed);
    for key in keys {
        let ttl: i64 = redis.cli(&["--raw", "PTTL", key]).await.trim().parse().unwrap();
        assert!((3_000_000..=3_725_000).contains(&ttl), "{key}: {ttl} ms");
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_an_error_and_comes_back() {
    let redis = Redis::dedicated().await;
    let store = Arc::new(store(&redis).await);
    let limit = || Limit::gcra("rate", "1/h".parse().unwrap(), 100).unwrap();
    let limiter = Limiter::builder("api").limit(limit()).store(Arc::clone(&store)).build().unwrap();
    let set = LimitSet::new(vec![limit()]).unwrap();
    let shaper = Shaper::with_limits("api", set).store(store).build().unwrap();
    assert!(limiter.check("any").await.unwrap().allowed);
    redis.kill().await;
    for answer in limiter.check_many(&[("any", 1), ("any", 2), ("other", 1)]).await {
        let error = answer.unwrap_err();
        assert!(matches!(error, CheckError::Store(StoreError::Unreachable { .. })), "{error:?}");
        assert!(error.is_retryable());
    }
    let error = shaper.reserve("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::Store(_)) && error.is_retryable());
    redis.start().await;
    let (start, mut decision) = (real_now(), limiter.check("any").await);
    while decision.is_err() {
        assert!(start.elapsed() < LONG, "{decision:?}");
        decision = limiter.check("any").await;
    }
    // The server kept its state.
    let decision = decision.unwrap();
    assert!(decision.allowed && decision.remaining == 98, "{decision:?}");
}

#[tokio::test]
async fn work_is_released_at_the_slots_of_its_limits() {
    let redis = servers::redis().await;
    let (name, store) = (unique("release"), Arc::new(store(redis).await));
    // Three units at once, and three more 300 ms later.
    let set = LimitSet::new(vec![Limit::sliding_log("log", 3, Duration::from_millis(300)).unwrap()]).unwrap();
    let shaper = Shaper::with_limits(&name, set).store(store).build().unwrap();
    let start = real_now();
    let mut tasks = JoinSet::new();
    for _ in 0..9 {
        let shaper = shaper.clone();
        tasks.spawn(async move { shaper.schedule("any", async { real_now() }).await.unwrap() });
    }
    let mut ran = tasks.join_all().await;
    ran.sort_unstable();
    for (index, at) in ran.iter().enumerate() {
        let slot = Duration::from_millis(300) * u32::try_from(index / 3).unwrap();
        assert!(*at - start >= slot, "{index}: {:?}", *at - start);
    }
}

/// The turn of a job of such a cost would end later than the last instant that Redis can distinguish from the next: in both
/// stores it ends there, and its holder keeps it.
#[tokio::test]
async fn a_turn_that_ends_after_the_last_instant_is_kept_by_both_stores() {
    // In the year 2065.
    let start = Micros(3_000_000_000_000_000);
    let clock = Arc::new(ManualClock::new(start));
    let interval = 100 * 24 * 3600 * SECOND;
    let limits =
        LimitSet::new(vec![Limit::leaky_bucket("pace", "1/100d".parse().unwrap(), 1).unwrap()]).unwrap();
    let mut turns = Vec::new();
    for store in on_both(&clock).await {
        let scope = Scope { downstream: "turns", key: "" };
        let ask = async |turn: Option<Turn>| {
            let asker = Asker {
                turn,
                reach: SECOND / 10,
                waiting: 800,
                own: 1,
                interval,
                goes_on: false,
                farthest: interval * 3,
            };
            let call = Reserve::new(scope, &limits, Costs::Each(&[800]), Duration::ZERO);
            let answer = store.reserve(Reserve { asker: Some(asker), ..call }).await.unwrap();
            match answer.booking.unwrap().next {
                NextTurn::At(turn) => turn,
                other => panic!("{other:?}"),
            }
        };
        store.reserve(Reserve::new(scope, &limits, Costs::Each(&[1]), Duration::ZERO)).await.unwrap();
        let booked = ask(None).await;
        assert_eq!(ask(Some(booked)).await, booked);
        turns.push(booked);
    }
    assert_eq!(turns[0], turns[1]);
    assert!(turns[0].begins.plus(interval * turns[0].units) == Micros::MAX, "{turns:?}");
}
