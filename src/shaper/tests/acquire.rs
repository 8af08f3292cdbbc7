//! Tests of waiting in order: dropped callers, refused callers, and slots that are not used.

use super::*;
use crate::pace::{OnUnavailable, Settings};

fn away() -> StoreError {
    StoreError::Unreachable { address: "a:1".to_owned(), detail: "refused".to_owned() }
}

/// Spawns a caller that waits for its slot, and returns the instant at which it had it.
fn acquire(shaper: &Shaper, cost: u32) -> tokio::task::JoinHandle<Instant> {
    let shaper = shaper.clone();
    tokio::spawn(async move {
        shaper.acquire_cost("any", cost).await.unwrap();
        Instant::now()
    })
}

/// Returns when each caller had its slot, in ms since `start`.
async fn all(start: Instant, waiting: Vec<tokio::task::JoinHandle<Instant>>) -> Vec<u128> {
    let mut came = vec![];
    for one in waiting {
        came.push((one.await.unwrap() - start).as_millis());
    }
    came
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_have_their_slots_in_order_and_costs_count() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).build().unwrap();
    let (start, mut waiting) = (Instant::now(), vec![]);
    for cost in [1, 3, 1, 1] {
        waiting.push(acquire(&shaper, cost));
        settle().await;
    }
    assert_eq!(all(start, waiting).await, [0, 100, 400, 500]);
    let error = shaper.acquire_cost("any", 0).await.unwrap_err();
    assert!(matches!(error, ReserveError::Store(StoreError::Invalid(_))));
    assert_eq!(shaper.core.all_units(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_takes_no_slot() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).horizon(ms(250)).build().unwrap();
    let start = Instant::now();
    let mut waiting = vec![];
    for _ in 0..12 {
        waiting.push(acquire(&shaper, 1));
        settle().await;
    }
    tokio::time::sleep(ms(150)).await;
    // The third caller holds a slot by now, and the tenth waits for one.
    for gone in [2, 9] {
        waiting[gone].abort();
    }
    settle().await;
    let left = waiting.into_iter().enumerate().filter(|(place, _)| ![2, 9].contains(place));
    let came = all(start, left.map(|(_, one)| one).collect()).await;
    assert_eq!(came, [0, 100, 200, 300, 400, 500, 600, 700, 800, 900], "all move up");
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_the_last_one_who_leaves_goes_back_to_the_store() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).build().unwrap();
    shaper.acquire("any").await.unwrap();
    let waiting = acquire(&shaper, 1);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(shaper.peek("any").await.unwrap(), ms(150), "it holds the slot 50 ms from now");
    waiting.abort();
    settle().await;
    assert_eq!(shaper.peek("any").await.unwrap(), ms(50));
    assert_eq!(bench.counts.cancelled.load(Ordering::SeqCst), 1);
}

/// The first of three callers in one call is dropped. The second one gets its slot, and not the fourth one, which came
/// later.
#[tokio::test(start_paused = true)]
async fn one_who_leaves_while_the_store_is_asked_has_its_slot_passed_on() {
    let bench = Bench::new();
    let shaper = builder("20/s", &bench).horizon(ms(400)).build().unwrap();
    shaper.acquire("any").await.unwrap();
    bench.delay(ms(10), ms(10));
    let start = Instant::now();
    let mut waiting = vec![];
    for _ in 0..3 {
        waiting.push(acquire(&shaper, 1));
    }
    tokio::time::sleep(ms(15)).await;
    waiting.remove(0).abort();
    waiting.push(acquire(&shaper, 1));
    assert_eq!(all(start, waiting).await, [50, 100, 150]);
}

/// The slot has come, and its caller is dropped before it was polled: the next caller gets the slot.
#[tokio::test(start_paused = true)]
async fn a_slot_that_came_and_was_not_taken_is_passed_on() {
    let bench = Bench::new();
    let shaper = builder("1/s", &bench).build().unwrap();
    shaper.acquire("any").await.unwrap();
    let start = Instant::now();
    let mut dropped = Box::pin(shaper.acquire("any"));
    assert!(futures_util::poll!(&mut dropped).is_pending());
    settle().await;
    let next = acquire(&shaper, 1);
    // The caller is not polled when its slot comes.
    tokio::time::sleep(ms(1010)).await;
    drop(dropped);
    let came = next.await.unwrap() - start;
    assert!(came < ms(1100), "{came:?}: not a second later");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_full_turns_away_at_once_and_a_wait_that_is_too_long_in_the_end() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).max_wait(ms(500)).build().unwrap();
    let start = Instant::now();
    let mut waiting = vec![];
    for _ in 0..6 {
        waiting.push(acquire(&shaper, 1));
        settle().await;
    }
    // The first caller had its slot at once, so that this one may get the last.
    let hopes = tokio::spawn({
        let shaper = shaper.clone();
        async move { (shaper.acquire("any").await, Instant::now()) }
    });
    settle().await;
    let Err(ReserveError::QueueFull { retry_after, limit }) = shaper.acquire("any").await else { panic!() };
    assert_eq!((retry_after, limit.as_str(), start.elapsed()), (ms(100), RATE_LIMIT, ms(0)), "at once");
    assert_eq!(all(start, waiting).await, [0, 100, 200, 300, 400, 500]);
    let (outcome, at) = hopes.await.unwrap();
    assert!(matches!(outcome, Err(ReserveError::QueueFull { .. })) && at - start <= ms(510), "{outcome:?}");

    // Another caller takes every slot, so that the refusal comes only after `max_wait`.
    let other = builder("10/s", &bench).max_wait(Duration::from_secs(60)).build().unwrap();
    let far = other.reserve_cost("any", 50).await.unwrap();
    let start = Instant::now();
    let error = shaper.acquire("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::QueueFull { .. }) && error.is_retryable(), "{error}");
    assert!((ms(500)..=ms(510)).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(shaper.core.all_units(), 0);
    drop(far);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_waited_for_and_one_that_refuses_is_not() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).max_wait(ms(5000)).build().unwrap();
    shaper.acquire("any").await.unwrap();
    bench.fail(Some(away()));
    let start = Instant::now();
    let waiting = acquire(&shaper, 1);
    tokio::time::sleep(ms(2000)).await;
    bench.fail(None);
    let came = waiting.await.unwrap() - start;
    assert!((ms(2000)..ms(3500)).contains(&came), "{came:?}");

    bench.fail(Some(away()));
    let error = shaper.acquire("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::Store(StoreError::Unreachable { .. })), "{error}");

    let start = Instant::now();
    bench.fail(Some(StoreError::Invalid("a wrong password".to_owned())));
    let error = shaper.acquire("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::Store(StoreError::Invalid(_))), "{error}");
    assert!(start.elapsed() <= ms(1100), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_the_store_it_goes_on_alone_where_that_is_wanted() {
    for (on_unavailable, expected) in [(OnUnavailable::Local, 100), (OnUnavailable::Open, 0)] {
        let bench = Bench::new();
        let shaper = builder("10/s", &bench).on_unavailable(on_unavailable).build().unwrap();
        shaper.acquire("any").await.unwrap();
        bench.fail(Some(away()));
        shaper.acquire("any").await.unwrap();
        let start = Instant::now();
        for _ in 0..5 {
            shaper.acquire("any").await.unwrap();
        }
        assert_eq!(start.elapsed().as_millis(), 5 * expected, "{on_unavailable:?}");
    }
}

/// The process was stopped for longer than the tolerance while a caller held a slot: the caller gets another one, and
/// does not wait for a whole interval if slots lie far apart.
#[tokio::test(start_paused = true)]
async fn a_missed_slot_of_a_slow_limit_costs_no_interval() {
    let bench = Bench::new();
    let shaper = builder("1/m", &bench).max_wait(ms(600_000)).build().unwrap();
    shaper.acquire("any").await.unwrap();
    let start = Instant::now();
    let waiting = acquire(&shaper, 1);
    tokio::time::sleep(ms(59_950)).await;
    tokio::time::advance(ms(20_000)).await;
    let came = waiting.await.unwrap() - start;
    assert!((ms(79_950)..ms(80_100)).contains(&came), "{came:?}");
    assert!(shaper.peek("any").await.unwrap() >= ms(59_000), "strict behind it");
}

/// The only caller in a process leaves while others wait for the same pace: its turn is theirs again.
#[tokio::test(start_paused = true)]
async fn the_turn_of_the_only_one_who_waits_and_leaves_is_used_by_others() {
    for (rate, apart) in [("5/s", 200), ("1/s", 1000), ("30/m", 2000), ("6/m", 10_000), ("1/m", 60_000)] {
        let bench = Bench::new();
        let build = || builder(rate, &bench).max_wait(ms(u64::from(u32::MAX))).build().unwrap();
        let (one, other) = (build(), build());
        let start = Instant::now();
        let waiting: Vec<_> = (0..20).map(|_| acquire(&one, 1)).collect();
        for turn in 1..5 {
            tokio::time::sleep_until(start + ms(4 * turn * apart)).await;
            let leaves = acquire(&other, 1);
            tokio::time::sleep(ms(fastrand::u64(..apart))).await;
            leaves.abort();
        }
        let came = all(start, waiting).await;
        let taken = u128::from(apart) * 19 / 10 + 1000;
        assert!(came.windows(2).all(|pair| pair[1] - pair[0] <= taken), "{rate}: {came:?}");
        // A caller that left before its slot came took none.
        let lost = came[19] / u128::from(apart) - 19;
        assert!(lost <= 4, "{rate}: {lost} slots: {came:?}");
        println!("{rate}: {lost} slots of four who left");
    }
}

/// The slot came, and its caller was not polled before the tolerance was over.
#[tokio::test(start_paused = true)]
async fn a_caller_that_is_run_too_late_waits_for_another_slot() {
    let bench = Bench::new();
    let shaper = builder("50/s", &bench).build().unwrap();
    shaper.acquire("any").await.unwrap();
    let start = Instant::now();
    let mut waiting = Box::pin(shaper.acquire("any"));
    // The caller is not polled when the slot comes.
    assert!(futures_util::poll!(&mut waiting).is_pending());
    tokio::time::sleep(ms(200)).await;
    let ahead = acquire(&shaper, 1);
    waiting.await.unwrap();
    let next = ahead.await.unwrap();
    assert!(next - start >= ms(200) && start.elapsed() >= ms(220), "{:?}: one slot each", next - start);
}

/// Tests the lanes of two plans: the callers that wait in one do not cause refusals in the other.
#[cfg(feature = "config")]
#[tokio::test(start_paused = true)]
async fn a_queue_is_full_for_its_own_plan_only() {
    use crate::pace::PlanLimits;
    let bench = Bench::new();
    let plan = |name: &str, rate: &str| {
        let own = Limit::leaky_bucket(name, rate.parse().unwrap(), 1).unwrap();
        let base = crate::pace::tests::settings("100/s").limits;
        let limits = base.iter().cloned().chain([own]).collect();
        PlanLimits { name: name.to_owned(), limits: LimitSet::new(limits).unwrap() }
    };
    let given = Settings {
        plans: vec![plan("free", "1/s"), plan("paid", "50/s")],
        of_jobs: crate::pace::JobSettings::default(),
        ..crate::pace::tests::settings("100/s")
    };
    let builder = ShaperBuilder::of_settings(given, LaneId::of_plan(Some(1)), Precision::Coarse);
    let paid =
        builder.runtime(Handle::current()).max_wait(ms(1500)).store(Arc::clone(&bench)).build().unwrap();
    let (free, start) = (paid.of_plan("free").unwrap(), Instant::now());
    assert!(paid.of_plan("none").is_none());
    let waiting: Vec<_> = (0..20).map(|_| acquire(&paid, 1)).collect();
    settle().await;
    let own = [acquire(&free, 1), acquire(&free, 1)];
    settle().await;
    let error = free.acquire("any").await.unwrap_err();
    assert!(matches!(&error, ReserveError::QueueFull { limit, .. } if limit == "free"), "{error}");
    let came = all(start, own.into()).await;
    assert!(came[0] < 100 && came[1] >= 1000, "{came:?}");
    let came = all(start, waiting).await;
    assert!(came[19] >= 380 && came[19] < 600, "50/s: {came:?}");
}
