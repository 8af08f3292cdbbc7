//! Tests of shapers of every algorithm and combination.

use proptest::prelude::*;

use super::*;
use crate::limit::{Combine, LimitSet};
use crate::store::MemoryStore;
use crate::time::{Clock, ManualClock, Micros};

/// Returns one limit of each algorithm, of 10/s or nearly so.
pub(in crate::shaper) fn each_algorithm() -> Vec<Limit> {
    let (rate, second) = ("10/s".parse().unwrap(), Duration::from_secs(1));
    vec![
        Limit::leaky_bucket("leaky-bucket", rate, 2).unwrap(),
        Limit::gcra("gcra", rate, 4).unwrap(),
        Limit::token_bucket("token-bucket", rate, 6).unwrap(),
        Limit::fixed_window("fixed-window", 5, second / 2).unwrap(),
        Limit::first_hit_window("first-hit", 5, second / 2).unwrap(),
        Limit::sliding_window("sliding-window", 10, second, 4).unwrap(),
        Limit::sliding_log("sliding-log", 10, second).unwrap(),
        Limit::quota("quota", 40, crate::limit::Edges::aligned(4 * second, 0).unwrap()).unwrap(),
    ]
}

/// Generates up to three limits of different algorithms.
pub(in crate::shaper) fn limits() -> impl Strategy<Value = Vec<Limit>> {
    prop::sample::subsequence(each_algorithm(), 1..=3).prop_shuffle()
}

pub(in crate::shaper) fn combines() -> impl Strategy<Value = Combine> {
    prop_oneof![Just(Combine::All), Just(Combine::Any), Just(Combine::OneOf)]
}

fn with(limits: Vec<Limit>, bench: &Arc<Bench>) -> ShaperBuilder {
    Shaper::with_limits("billing", LimitSet::new(limits).unwrap())
        .precision(Precision::Coarse)
        .runtime(Handle::current())
        .store(Arc::clone(bench))
}

#[tokio::test(start_paused = true)]
async fn every_algorithm_shapes_a_batch() {
    // The spans of 60 slots, in ms. They depend on when a window of the clock ends, and the sliding window's estimate
    // holds back up to a bucket more.
    let spans =
        [5800..=5800, 5600..=5600, 5400..=5400, 5000..=5500, 5500..=5500, 5000..=6250, 5000..=5000, 0..=4000];
    for (limit, spans) in each_algorithm().into_iter().zip(spans) {
        let name = limit.name().to_owned();
        let (bench, burst) = (Bench::new(), limit.burst());
        let shaper = with(vec![limit], &bench).build().unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..60 {
            let shaper = shaper.clone();
            tasks.spawn(async move { shaper.reserve("any").await.unwrap().keep() });
        }
        let mut slots = tasks.join_all().await;
        slots.sort_unstable();
        assert!(bench.count() <= 2, "{name}: {} calls", bench.count());
        let at_once = slots.iter().filter(|slot| **slot == slots[0]).count();
        assert_eq!(at_once as u64, burst, "{name}: {slots:?}");
        let span = slots[59].since(slots[0]);
        assert!(spans.contains(&span.as_millis()), "{name}: {span:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_binding_limit_is_named() {
    let gcra = |name: &str, burst| Limit::gcra(name, "10/s".parse().unwrap(), burst).unwrap();
    let shaper =
        with(vec![gcra("wide", 5), gcra("tight", 2)], &Bench::new()).max_wait(ms(0)).build().unwrap();
    for _ in 0..2 {
        shaper.reserve("any").await.unwrap().wait().await;
    }
    let error = shaper.reserve("any").await.unwrap_err();
    assert_eq!(error.to_string(), "the queue is full for `tight`; try again in 100ms");
    assert!(error.is_retryable());
    let error = shaper.reserve_cost("any", 6).await.unwrap_err();
    assert_eq!(error.to_string(), "a cost of 6 is more than `wide` holds; use at most 5");
    assert!(!error.is_retryable());
}

#[tokio::test(start_paused = true)]
async fn each_limit_has_its_own_cost() {
    let calls = Limit::leaky_bucket("calls", "10/s".parse().unwrap(), 1).unwrap();
    let rows = Limit::sliding_log("rows", 100, Duration::from_secs(1)).unwrap();
    let shaper = with(vec![calls, rows], &Bench::new()).build().unwrap();
    let mut slots = vec![];
    for costs in [[1, 60], [1, 60], [1, 0], [0, 40]] {
        slots.push(shaper.reserve_costs("any", &costs).await.unwrap().keep());
    }
    let since: Vec<Duration> = slots.iter().map(|slot| slot.since(slots[0])).collect();
    // The third request costs only the calls, which have been taken at 0 and 1000 ms.
    assert_eq!(since, [ms(0), ms(1000), ms(1100), ms(1000)]);
    let error = shaper.reserve_costs("any", &[1]).await.unwrap_err();
    assert!(matches!(error, ReserveError::CostCount { given: 1, limits: 2 }) && !error.is_retryable());
    let error = shaper.reserve_costs("any", &[0, 0]).await.unwrap_err();
    assert!(matches!(error, ReserveError::Store(StoreError::Invalid(_))));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_refused_because_of_others_in_the_same_call() {
    let bench = Bench::new();
    let gcra = |name: &str| Limit::gcra(name, "1/s".parse().unwrap(), 3).unwrap();
    let shaper = with(vec![gcra("a"), gcra("b")], &bench).max_wait(ms(0)).build().unwrap();
    let (first, large, alike, small, other) = tokio::join!(
        shaper.reserve_costs("any", &[2, 0]),
        shaper.reserve_costs("any", &[3, 0]),
        shaper.reserve_costs("any", &[3, 0]),
        shaper.reserve_costs("any", &[1, 0]),
        shaper.reserve_costs("any", &[0, 3]),
    );
    assert!(first.is_ok() && small.is_ok() && other.is_ok(), "{small:?}, {other:?}");
    for refused in [large, alike] {
        let Err(ReserveError::QueueFull { retry_after, limit }) = refused else { panic!("{refused:?}") };
        assert_eq!((retry_after, limit.as_str()), (ms(2000), "a"));
    }
    assert_eq!(bench.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn alternatives_take_the_earliest() {
    let gcra = |name: &str, rate: &str| Limit::gcra(name, rate.parse().unwrap(), 1).unwrap();
    let limits = || vec![gcra("slow", "1/s"), gcra("fast", "10/s")];
    let slots = async |set: LimitSet| {
        let shaper = Shaper::with_limits("billing", set)
            .precision(Precision::Coarse)
            .runtime(Handle::current())
            .build()
            .unwrap();
        let mut slots = vec![];
        for _ in 0..4 {
            slots.push(shaper.reserve("any").await.unwrap().keep());
        }
        slots.iter().map(|slot| slot.since(slots[0]).as_millis()).collect::<Vec<_>>()
    };
    assert_eq!(slots(LimitSet::any(limits()).unwrap()).await, [0, 100, 200, 300], "both at first");
    assert_eq!(slots(LimitSet::one_of(limits()).unwrap()).await, [0, 0, 100, 200], "one after the other");
}

#[tokio::test(start_paused = true)]
async fn a_peek_takes_nothing() {
    for limit in each_algorithm() {
        let (name, bench) = (limit.name().to_owned(), Bench::new());
        let shaper = with(vec![limit], &bench).build().unwrap();
        for _ in 0..15 {
            let next = shaper.peek("any").await.unwrap();
            assert_eq!(shaper.peek("any").await.unwrap(), next, "{name}");
            assert_eq!(shaper.reserve("any").await.unwrap().keep(), bench.clock.now().plus(next), "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_ahead_is_given_back() {
    for limit in each_algorithm() {
        let (name, bench, burst) = (limit.name().to_owned(), Bench::new(), limit.burst());
        let shaper = with(vec![limit], &bench).build().unwrap();
        for _ in 0..burst {
            let _at_once = shaper.reserve("any").await.unwrap();
        }
        let ahead = shaper.reserve("any").await.unwrap();
        let slot = ahead.slot();
        assert!(ahead.cancel().await.unwrap(), "{name}");
        // A dropped reservation is given back too.
        assert_eq!(shaper.reserve("any").await.unwrap().slot(), slot, "{name}");
        settle().await;
        assert_eq!(shaper.reserve("any").await.unwrap().keep(), slot, "{name}");
        assert_eq!(bench.counts.cancelled.load(Ordering::SeqCst), 2, "{name}");
    }
}

#[tokio::test]
async fn a_burst_or_a_limit_beside_a_set_is_refused() {
    let set = || LimitSet::new(vec![each_algorithm().remove(0)]).unwrap();
    let burst = Shaper::with_limits("billing", set()).burst(2).build();
    assert!(matches!(burst, Err(BuildError::BesideSet)));
    let further = Shaper::with_limits("billing", set()).limit(each_algorithm().remove(1)).build();
    assert!(matches!(further, Err(BuildError::BesideSet)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Each caller gets the slot, or the refusal, that it would have got alone, with any other callers in the same call.
    #[test]
    fn a_batch_reserves_as_one_by_one(
        (combine, limits, batches) in (combines(), limits()).prop_flat_map(|(combine, limits)| {
            let each = (1_u32..5).prop_map(|cost| (cost, None));
            let own = prop::collection::vec(0_u32..5, limits.len()).prop_map(|costs| (0, Some(costs)));
            let batch = (0_i64..400_000, prop::collection::vec(prop_oneof![3 => each, 1 => own], 1..12));
            (Just(combine), Just(limits), prop::collection::vec(batch, 1..6))
        })
    ) {
        let set = LimitSet::combined(combine, limits).unwrap();
        let build = |clock: &Arc<ManualClock>| {
            let store = MemoryStore::with_clock(clock.clone());
            Shaper::with_limits("billing", set.clone()).max_wait(ms(600)).precision(Precision::Coarse).runtime(Handle::current()).store(store).build().unwrap()
        };
        let clock = Arc::new(ManualClock::new(Micros(1_000_000_000_000_000)));
        let reserve = async |shaper: Shaper, (cost, own): (u32, Option<Vec<u32>>)| {
            let reserved = match own {
                None => shaper.reserve_cost("any", cost).await,
                Some(costs) => shaper.reserve_costs("any", &costs).await,
            };
            reserved.map(Reservation::keep)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (together, alone) = (build(&clock), build(&clock));
            let mut now = 1_000_000_000_000_000;
            for (pause, costs) in batches {
                now += pause;
                clock.set(Micros(now));
                let batch: Vec<_> = costs
                    .iter()
                    .map(|costs| tokio::spawn(reserve(together.clone(), costs.clone())))
                    .collect();
                for (batched, costs) in batch.into_iter().zip(costs) {
                    let one = reserve(alone.clone(), costs).await;
                    match (batched.await.unwrap(), one) {
                        (Ok(batched), Ok(one)) => prop_assert_eq!(batched, one),
                        (
                            Err(ReserveError::QueueFull { retry_after: batched, .. }),
                            Err(ReserveError::QueueFull { retry_after: one, .. }),
                        ) => prop_assert!(batched <= one, "{batched:?}, {one:?}"),
                        (Err(batched), Err(one)) => prop_assert_eq!(batched.to_string(), one.to_string()),
                        (batched, one) => prop_assert!(false, "{batched:?}, {one:?}"),
                    }
                }
            }
            Ok(())
        })?;
    }
}
