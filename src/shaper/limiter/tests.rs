use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::*;
use crate::limit::{Combine, Limit, LimitError};
use crate::shaper::tests::bench::Bench;
use crate::shaper::tests::sets::{combines, limits};
use crate::shaper::{BuildError, Shaper};
use crate::store::MemoryStore;
use crate::time::{ManualClock, Micros};

mod task;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a GCRA limit of 10/s with this burst.
fn gcra(name: &str, burst: u32) -> Limit {
    Limit::gcra(name, "10/s".parse().unwrap(), burst).unwrap()
}

fn limiter(limit: Limit, bench: &Arc<Bench>) -> Limiter {
    Limiter::builder("api").limit(limit).store(Arc::clone(bench)).runtime(Handle::current()).build().unwrap()
}

/// Lets every task that can run do so.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Polls a check once, so that it is submitted.
async fn begin(check: std::pin::Pin<&mut impl Future<Output = Answer>>) {
    let mut check = Some(check);
    poll_fn(|cx| {
        let pending = check.take().is_none_or(|check| check.poll(cx).is_pending());
        assert!(pending, "it waits for the store");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn many_checks_take_few_calls_and_exactly_the_burst_is_allowed() {
    let bench = Bench::new();
    bench.delay(ms(5), ms(5));
    let limiter = limiter(gcra("calls", 500), &bench);
    let mut tasks = JoinSet::new();
    for _ in 0..3000 {
        let limiter = limiter.clone();
        tasks.spawn(async move { limiter.check("any").await.unwrap() });
    }
    let decisions = tasks.join_all().await;
    let (allowed, denied): (Vec<_>, Vec<_>) = decisions.into_iter().partition(|decision| decision.allowed);
    // The second call comes 10 ms after the first, in which no unit returned.
    assert_eq!((allowed.len(), denied.len()), (500, 2500));
    let mut remaining: Vec<u64> = allowed.iter().map(|decision| decision.remaining).collect();
    remaining.sort_unstable();
    assert_eq!(remaining, (0..500).collect::<Vec<u64>>(), "each has its own decision");
    let first = allowed.iter().map(|decision| decision.now).min().unwrap();
    for decision in denied {
        assert_eq!(decision.now.plus(decision.retry_after), first.plus(ms(100)));
    }
    // The first check may be sent alone; the others need three more calls of 1024.
    assert!(bench.count() <= 4, "{} calls", bench.count());
}

#[tokio::test(start_paused = true)]
async fn a_lone_check_waits_for_nobody_and_leaves_nothing_behind() {
    let bench = Bench::new();
    let limiter = limiter(gcra("calls", 2), &bench);
    for allowed in [true, true, false] {
        assert_eq!(limiter.check("any").await.unwrap().allowed, allowed);
    }
    assert_eq!(bench.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_denial_says_when_and_takes_nothing() {
    let limiter = limiter(gcra("calls", 3), &Bench::new());
    assert!(limiter.check_cost("any", 2).await.unwrap().allowed);
    for _ in 0..20 {
        let denied = limiter.check_cost("any", 3).await.unwrap();
        assert!(!denied.allowed);
        assert_eq!((denied.limit, denied.remaining, denied.retry_after), (3, 1, ms(200)));
    }
    tokio::time::advance(ms(199)).await;
    assert!(!limiter.check_cost("any", 3).await.unwrap().allowed);
    tokio::time::advance(ms(1)).await;
    assert!(limiter.check_cost("any", 3).await.unwrap().allowed);
}

#[tokio::test(start_paused = true)]
async fn different_keys_go_side_by_side() {
    let bench = Bench::new();
    let limiter = limiter(gcra("calls", 1), &bench);
    bench.close();
    let (mut a, mut b) = (pin!(limiter.check("a")), pin!(limiter.check("b")));
    begin(a.as_mut()).await;
    begin(b.as_mut()).await;
    bench.arrival().await;
    bench.arrival().await;
    bench.open(2);
    assert!(a.await.unwrap().allowed && b.await.unwrap().allowed);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_dropped_before_its_call_takes_nothing() {
    let bench = Bench::new();
    let limiter = limiter(gcra("calls", 3), &bench);
    bench.close();
    let mut first = Box::pin(limiter.check("any"));
    begin(first.as_mut()).await;
    bench.arrival().await;
    // One check is in flight; two wait for the next call, and one of them is dropped.
    let (mut gone, mut last) = (Box::pin(limiter.check("any")), Box::pin(limiter.check("any")));
    begin(gone.as_mut()).await;
    begin(last.as_mut()).await;
    drop(gone);
    bench.open(2);
    assert_eq!((first.await.unwrap().remaining, last.await.unwrap().remaining), (2, 1));
    assert_eq!(bench.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_dropped_under_way_is_charged_and_disturbs_nobody() {
    let bench = Bench::new();
    let limiter = limiter(gcra("calls", 3), &bench);
    bench.close();
    let (mut gone, mut stays) = (Box::pin(limiter.check("any")), Box::pin(limiter.check("any")));
    begin(gone.as_mut()).await;
    begin(stays.as_mut()).await;
    bench.arrival().await;
    drop(gone);
    bench.open(1);
    assert_eq!(stays.await.unwrap().remaining, 1, "both were in the call");
    settle().await;
    bench.open(1);
    assert_eq!(limiter.peek("any").await.unwrap().remaining, 1);
    assert_eq!(bench.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_fails_those_who_wait_and_no_more() {
    let bench = Bench::new();
    let limiter = limiter(gcra("calls", 1), &bench);
    bench.fail(Some(StoreError::Unauthorized { address: "a:1".into(), detail: "no".into() }));
    let (one, two) = tokio::join!(limiter.check("any"), limiter.check("any"));
    for outcome in [one, two] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CheckError::Store(StoreError::Unauthorized { .. })), "{error:?}");
        assert!(error.is_retryable());
    }
    bench.fail(None);
    assert!(limiter.check("any").await.unwrap().allowed, "nothing was taken");

    bench.faults.panics.store(1, Ordering::SeqCst);
    let error = limiter.check("any").await.unwrap_err();
    assert!(matches!(error, CheckError::Stopped) && error.is_retryable());
    assert!(!limiter.check("any").await.unwrap().allowed, "the key is not stuck");
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_unless_it_is_shared() {
    let allowed = async |limiter: &Limiter, key| limiter.check(key).await.unwrap().allowed;
    let own = limiter(gcra("calls", 1), &Bench::new());
    // The empty key is a key like any other.
    for key in ["a", "b", ""] {
        assert!(allowed(&own, key).await && !allowed(&own, key).await, "{key}");
    }
    own.reset("a").await.unwrap();
    assert!(allowed(&own, "a").await && !allowed(&own, "b").await, "a reset each");

    let shared = Limiter::builder("api").limit(gcra("calls", 2)).shared().build().unwrap();
    assert!(allowed(&shared, "a").await && allowed(&shared, "b").await && !allowed(&shared, "c").await);
    shared.reset("a").await.unwrap();
    assert!(allowed(&shared, "b").await, "one reset");
}

#[tokio::test(start_paused = true)]
async fn nobody_else_of_the_same_name_is_touched() {
    let store = Arc::new(MemoryStore::new());
    let builder = || Limiter::builder("api").limit(gcra("rate", 1)).store(Arc::clone(&store));
    let (own, shared) = (builder().build().unwrap(), builder().shared().build().unwrap());
    let shaper = Shaper::with_limits("api", LimitSet::new(vec![gcra("rate", 1)]).unwrap());
    let shaper = shaper.store(Arc::clone(&store)).runtime(Handle::current()).build().unwrap();
    let set = LimitSet::new(vec![gcra("rate", 1)]).unwrap();
    for _ in 0..2 {
        assert!(own.check("").await.unwrap().allowed);
        assert!(shared.check("").await.unwrap().allowed);
        assert_eq!(shaper.peek("").await.unwrap(), ms(0));
        let daemon = Scope { downstream: "api", key: "" };
        let plain = Check { scope: daemon, limits: &set, costs: crate::Costs::Each(&[1]), generation: 0 };
        assert_eq!(store.check(plain).await.unwrap().verdicts[0].charge.0, 1);
        assert!(!own.check("").await.unwrap().allowed && !shared.check("").await.unwrap().allowed);
        // Only limiters of the same kind share the state.
        assert!(!builder().build().unwrap().check("").await.unwrap().allowed);
        tokio::time::advance(ms(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_is_policed_as_a_meter() {
    let bucket = Limit::leaky_bucket("calls", "10/s".parse().unwrap(), 2).unwrap();
    let limiter = limiter(bucket, &Bench::new());
    assert!(limiter.check_cost("any", 2).await.unwrap().allowed);
    let denied = limiter.check("any").await.unwrap();
    assert_eq!((denied.allowed, denied.retry_after), (false, ms(100)));
    let error = limiter.check_cost("any", 3).await.unwrap_err();
    let CheckError::CostTooLarge { cost: 3, highest: 2, ref limit } = error else { panic!("{error:?}") };
    assert_eq!(limit, "calls");
    assert!(!error.is_retryable());
    assert_eq!(error.to_string(), "a cost of 3 is more than `calls` ever allows at once; use at most 2");
}

#[tokio::test(start_paused = true)]
async fn a_peek_takes_nothing() {
    let bench = Bench::new();
    let limiter = limiter(gcra("calls", 2), &bench);
    for remaining in [2, 1, 0] {
        for _ in 0..3 {
            let peeked = limiter.peek("any").await.unwrap();
            assert_eq!((peeked.allowed, peeked.remaining, peeked.retry_after), (true, remaining, ms(0)));
        }
        assert_eq!(limiter.check("any").await.unwrap().allowed, remaining > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn alternatives_are_charged_as_they_combine() {
    let build = |combine| {
        let set = LimitSet::combined(combine, vec![gcra("small", 1), gcra("large", 3)]).unwrap();
        Limiter::builder("api").limits(set).build().unwrap()
    };
    let standings = async |limiter: &Limiter| {
        let decision = limiter.check("any").await.unwrap();
        let remaining: Vec<u64> = decision.standings.iter().map(|standing| standing.remaining).collect();
        (decision.allowed, remaining)
    };
    let any = build(Combine::Any);
    assert_eq!(any.peek("any").await.unwrap().binding, 1, "the one that allows the most");
    assert_eq!(standings(&any).await, (true, vec![0, 2]), "both allow it, and are charged");
    assert_eq!(standings(&any).await, (true, vec![0, 1]));
    assert_eq!(standings(&any).await, (true, vec![0, 0]));
    assert_eq!(standings(&any).await, (false, vec![0, 0]));

    let one_of = build(Combine::OneOf);
    assert_eq!(standings(&one_of).await, (true, vec![0, 3]), "the first is enough");
    assert_eq!(standings(&one_of).await, (true, vec![0, 2]));
    let decision = one_of.check_cost("any", 3).await.unwrap();
    assert_eq!((decision.allowed, decision.binding, decision.retry_after), (false, 1, ms(100)));

    let all = build(Combine::All);
    assert_eq!(standings(&all).await, (true, vec![0, 2]));
    assert_eq!(standings(&all).await, (false, vec![0, 2]), "a denial takes nothing from either");
}

#[tokio::test(start_paused = true)]
async fn each_limit_has_its_own_cost() {
    let bench = Bench::new();
    let limiter = Limiter::builder("api")
        .limit(gcra("requests", 2))
        .limit(Limit::fixed_window("bytes", 1000, Duration::from_secs(60)).unwrap())
        .store(Arc::clone(&bench))
        .build()
        .unwrap();
    let remaining = |decision: &Decision| (decision.standings[0].remaining, decision.standings[1].remaining);
    let first = limiter.check_costs("any", &[1, 600]).await.unwrap();
    assert_eq!((first.allowed, remaining(&first)), (true, (1, 400)));
    let denied = limiter.check_costs("any", &[1, 600]).await.unwrap();
    assert_eq!((denied.allowed, denied.binding, remaining(&denied)), (false, 1, (1, 400)));
    assert!(limiter.check_costs("any", &[0, 400]).await.unwrap().allowed);
    assert!(limiter.check_costs("any", &[1, 0]).await.unwrap().allowed, "bytes are not asked");

    let error = limiter.check_costs("any", &[1]).await.unwrap_err();
    assert!(matches!(error, CheckError::CostCount { given: 1, limits: 2 }) && !error.is_retryable());
    let error = limiter.check_costs("any", &[1, 1001]).await.unwrap_err();
    assert!(
        matches!(&error, CheckError::CostTooLarge { cost: 1001, highest: 1000, limit } if limit == "bytes")
    );
    assert_eq!(bench.count(), 4, "what never fits is not asked");
}

#[tokio::test(start_paused = true)]
async fn many_are_answered_in_their_order() {
    let bench = Bench::new();
    let limiter = limiter(gcra("calls", 3), &bench);
    let checks = [("a", 2), ("b", 1), ("a", 2), ("a", 1), ("b", 4), ("c", 0)];
    let answers = limiter.check_many(&checks).await;
    let decisions: Vec<Option<(bool, u64)>> = answers
        .iter()
        .map(|answer| answer.as_ref().ok().map(|decision| (decision.allowed, decision.remaining)))
        .collect();
    let expected =
        [Some((true, 1)), Some((true, 2)), Some((false, 1)), Some((true, 0)), None, Some((true, 3))];
    assert_eq!(decisions, expected);
    assert!(matches!(answers[4], Err(CheckError::CostTooLarge { cost: 4, .. })));
    assert_eq!(bench.count(), 3, "one call for each key");
}

#[tokio::test]
async fn limits_and_names_that_cannot_be_are_refused() {
    let build = |name: &str| Limiter::builder(name).limit(gcra("calls", 1)).build();
    assert!(matches!(build(""), Err(BuildError::Name(StoreError::Invalid(_)))));
    assert!(matches!(build("a{b"), Err(BuildError::Name(StoreError::Invalid(_)))));
    let none = Limiter::builder("api").build();
    assert!(matches!(none, Err(BuildError::Limit(LimitError::Empty))));
    let twice = Limiter::builder("api").limit(gcra("calls", 1)).limit(gcra("calls", 2)).build();
    assert!(matches!(twice, Err(BuildError::Limit(LimitError::SameName(name))) if name == "calls"));
    let set = LimitSet::any(vec![gcra("calls", 1)]).unwrap();
    let beside = Limiter::builder("api").limits(set).limit(gcra("more", 1)).build();
    assert!(matches!(beside, Err(BuildError::BesideSet)));
}

/// Generates costs of callers; `width` of them if each limit has its own.
fn costs(width: usize) -> impl Strategy<Value = Cost> {
    prop_oneof![
        3 => (0_u32..5).prop_map(Cost::Each),
        1 => prop::collection::vec(0_u32..5, width).prop_map(|costs| Cost::PerLimit(costs.into())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Each caller gets the decision that it would have got alone, with any other callers in the same call.
    #[test]
    fn a_batch_decides_as_one_by_one(
        (combine, limits, rounds) in (combines(), limits()).prop_flat_map(|(combine, limits)| {
            let batch = (0_i64..400_000, prop::collection::vec(costs(limits.len()), 1..12));
            (Just(combine), Just(limits), prop::collection::vec(batch, 1..6))
        })
    ) {
        let set = LimitSet::combined(combine, limits).unwrap();
        let build = |clock: &Arc<ManualClock>| {
            let store = MemoryStore::with_clock(clock.clone());
            Limiter::builder("api").limits(set.clone()).store(store).build().unwrap()
        };
        let clock = Arc::new(ManualClock::new(Micros(1_000_000_000_000_000)));
        let (together, alone) = (build(&clock), build(&clock));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut now = 1_000_000_000_000_000;
            for (pause, costs) in rounds {
                now += pause;
                clock.set(Micros(now));
                let pending: Vec<Pending> =
                    costs.iter().map(|cost| together.submit("any", cost.clone())).collect();
                for (pending, cost) in pending.into_iter().zip(costs) {
                    let one = alone.submit("any", cost).answer().await;
                    match (pending.answer().await, one) {
                        (Ok(batched), Ok(one)) => prop_assert_eq!(batched, one),
                        (Err(batched), Err(one)) => prop_assert_eq!(batched.to_string(), one.to_string()),
                        (batched, one) => prop_assert!(false, "{batched:?}, {one:?}"),
                    }
                }
            }
            Ok(())
        })?;
    }
}
