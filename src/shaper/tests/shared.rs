//! Tests of several shapers on one downstream: one pace, one set of limits in force, and no slots far ahead.

use super::*;
use crate::store::{Change, Store as _};

/// Returns when each of the calls had its slot, in ms.
async fn run(shaper: Shaper, calls: usize) -> Vec<u128> {
    let (start, mut came) = (Instant::now(), vec![]);
    for _ in 0..calls {
        shaper.acquire("any").await.unwrap();
        came.push(start.elapsed().as_millis());
    }
    came
}

#[tokio::test(start_paused = true)]
async fn two_shapers_share_a_pace_about_evenly() {
    let bench = Bench::new();
    let shapers = [(); 2].map(|()| builder("100/s", &bench).build().unwrap());
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (place, shaper) in shapers.iter().cloned().enumerate() {
        for _ in 0..200 {
            let shaper = shaper.clone();
            tasks.spawn(async move {
                shaper.acquire("any").await.unwrap();
                (place, Instant::now())
            });
        }
    }
    let mut came = tasks.join_all().await;
    came.sort_by_key(|(_, at)| *at);
    assert_eq!(came.len(), 400);
    assert!(came.windows(2).all(|two| two[1].1 - two[0].1 >= ms(10)));
    let last = came[399].1 - start;
    assert!(last <= ms(4100), "{last:?}");
    let half = came[..200].iter().filter(|(place, _)| *place == 0).count();
    assert!((60..=140).contains(&half), "{half} of the first 200");
}

#[tokio::test(start_paused = true)]
async fn rates_and_pauses_count_for_all_who_wait() {
    let bench = Bench::new();
    let (one, other) = (builder("10/s", &bench).build().unwrap(), builder("10/s", &bench).build().unwrap());
    one.acquire("any").await.unwrap();
    let waiting = tokio::spawn(run(one.clone(), 40));
    tokio::time::sleep(ms(1050)).await;
    other.set_rate("100/s".parse().unwrap(), None).await.unwrap();
    let came = waiting.await.unwrap();
    assert!(came[9] <= 1000 && came[39] < 1500, "{came:?}");
    assert_eq!(other.limits().rate().to_string(), "10/s", "as they were given");

    let waiting = tokio::spawn(run(one.clone(), 20));
    tokio::time::sleep(ms(55)).await;
    other.penalize(ms(2000)).await.unwrap();
    let came = waiting.await.unwrap();
    assert!(came[4] <= 60 && came[6] >= 2050, "{came:?}");
    assert!(came[6..].windows(2).all(|two| two[1] - two[0] >= 10), "no burst: {came:?}");

    bench.update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
    settle().await;
    let error = one.acquire("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::Paused { retry_after: None }), "{error}");
    bench.update_record("billing", Change::Resume).await.unwrap();
    // Reads after changes are 50 ms apart.
    tokio::time::sleep(ms(60)).await;
    one.acquire("any").await.unwrap();

    let error = other.set_rate("5/month".parse().unwrap(), None).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("leaky-bucket-0"), "{error}");
    let error = other.set_rate_of("none", "5/s".parse().unwrap(), None).await.unwrap_err();
    assert!(error.to_string().contains("no limit is called `none`"), "{error}");
    one.set_rate("20/s".parse().unwrap(), Some(ms(1000))).await.unwrap();
    tokio::time::sleep(ms(1100)).await;
    let came = run(one, 5).await;
    assert!(came[4] - came[3] == 100, "the rate is over: {came:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rate_counts_until_it_is_unset() {
    let bench = Bench::new();
    let (one, other) = (builder("10/s", &bench).build().unwrap(), builder("10/s", &bench).build().unwrap());
    one.acquire("any").await.unwrap();
    other.set_rate("100/s".parse().unwrap(), None).await.unwrap();
    // Reads after changes are 50 ms apart.
    tokio::time::sleep(ms(60)).await;
    let came = run(one.clone(), 5).await;
    assert!((9..=11).contains(&(came[4] - came[3])), "{came:?}");
    for _ in 0..2 {
        other.unset_rate().await.unwrap();
        tokio::time::sleep(ms(60)).await;
        let came = run(one.clone(), 5).await;
        assert_eq!(came[4] - came[3], 100, "also where no rate is set: {came:?}");
    }
    other.set_rate_of("leaky-bucket-0", "100/s".parse().unwrap(), None).await.unwrap();
    other.unset_rate_of("leaky-bucket-0").await.unwrap();
    tokio::time::sleep(ms(60)).await;
    let came = run(one.clone(), 5).await;
    assert_eq!(came[4] - came[3], 100, "{came:?}");
    let error = other.unset_rate_of("none").await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("no limit is called `none`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nobody_reserves_far_ahead_beside_those_who_wait_in_order() {
    let bench = Bench::new();
    let (waits, reserves) =
        (builder("10/s", &bench).build().unwrap(), builder("10/s", &bench).build().unwrap());
    let kept: Vec<_> = {
        let mut kept = vec![];
        for _ in 0..20 {
            kept.push(reserves.reserve("any").await.unwrap().keep());
        }
        kept
    };
    assert_eq!(kept[19].since(kept[0]), ms(1900), "alone, as far as it likes");
    tokio::time::sleep(ms(2000)).await;

    let waiting = tokio::spawn(run(waits.clone(), 20));
    tokio::time::sleep(ms(500)).await;
    let (mut granted, mut refused) = (0, 0);
    let start = Instant::now();
    while start.elapsed() < ms(1000) {
        match reserves.reserve("any").await {
            Ok(reservation) => {
                let ahead = reservation.deadline() - Instant::now();
                assert!(ahead <= ms(100), "{ahead:?}");
                reservation.keep();
                granted += 1;
            }
            Err(ReserveError::NotYet { retry_at }) => {
                assert!(retry_at > Instant::now() && retry_at < Instant::now() + ms(400), "{retry_at:?}");
                tokio::time::sleep_until(retry_at).await;
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(granted > 0 && refused > 0, "{granted}, {refused}");
    let came = waiting.await.unwrap();
    assert!(came[19] <= 2000 + 100 * granted, "{came:?}");
}

/// A process with many waiting callers is killed: the slots that it had taken are over within the horizon.
#[tokio::test(start_paused = true)]
async fn those_who_wait_in_a_process_that_is_killed_hold_nobody_up() {
    let bench = Bench::new();
    let (killed, lives) =
        (builder("100/s", &bench).build().unwrap(), builder("100/s", &bench).build().unwrap());
    let tasks: Vec<_> = (0..3000).map(|_| tokio::spawn(run(killed.clone(), 1))).collect();
    tokio::time::sleep(ms(500)).await;
    // Nothing is given back, as if the machine had failed: from now on the store answers only the other process.
    bench.close();
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    settle().await;
    std::mem::forget(killed);
    bench.open(1_000_000);
    let came = run(lives, 20).await;
    assert!(came[0] <= 200, "two horizons: {came:?}");
    assert!(came[19] - came[0] <= 400, "{came:?}");
}

/// The terms in the store are of a newer program: no caller gets a slot, and every caller gets the reason.
#[tokio::test(start_paused = true)]
async fn limits_that_cannot_be_used_are_reported() {
    let bench = Bench::new();
    let text = r#"{"version":999}"#;
    bench.update_record("billing", Change::Terms { of: 0, text }).await.unwrap();
    let shaper = builder("10/s", &bench).max_wait(ms(500)).build().unwrap();
    let all: Vec<_> = (0..2000).map(|_| shaper.reserve("any")).collect();
    for outcome in futures_util::future::join_all(all).await {
        let error = outcome.unwrap_err();
        assert!(matches!(error, ReserveError::NoLimits) && !error.is_retryable(), "{error}");
    }
    let error = shaper.acquire("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::NoLimits), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_is_longer_than_anybody_waits_is_reported() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).max_wait(ms(2000)).build().unwrap();
    shaper.acquire("any").await.unwrap();
    shaper.penalize(ms(5000)).await.unwrap();
    let start = Instant::now();
    let Err(ReserveError::Paused { retry_after: Some(retry_after) }) = shaper.acquire("any").await else {
        panic!()
    };
    assert!((ms(950)..=ms(1000)).contains(&retry_after), "{retry_after:?}");
    tokio::time::sleep(retry_after).await;
    shaper.acquire("any").await.unwrap();
    assert!(start.elapsed() >= ms(5000), "within what it waits");
}

/// The driver to which a pause became known has ended, and an operator has resumed: the next driver takes that in.
#[tokio::test(start_paused = true)]
async fn a_pause_that_is_over_is_not_remembered_by_the_next_driver() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).max_wait(ms(1000)).build().unwrap();
    shaper.acquire("any").await.unwrap();
    bench.update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
    let error = shaper.acquire("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::Paused { retry_after: None }), "{error}");
    end_driver(&shaper, &bench).await;
    bench.update_record("billing", Change::Resume).await.unwrap();
    shaper.acquire("any").await.unwrap();
}

/// Ends the driver by a panic of the store; the next call starts another one.
async fn end_driver(shaper: &Shaper, bench: &Bench) {
    bench.faults.panics.store(1, Ordering::SeqCst);
    let answered = bench.count();
    // What it is answered does not matter.
    drop(shaper.reserve("any").await);
    assert_eq!(
        (bench.faults.panics.load(Ordering::SeqCst), bench.count() - answered),
        (0, 2),
        "the second driver asked again"
    );
}

/// At a slow rate, a turn that was booked without need would cost others a slot.
#[tokio::test(start_paused = true)]
async fn the_last_one_who_waits_books_no_turn_for_others() {
    let bench = Bench::new();
    let build = || builder("1/m", &bench).max_wait(ms(3_600_000)).build().unwrap();
    let (one, other) = (build(), build());
    one.acquire("any").await.unwrap();
    let start = Instant::now();
    for shaper in [&one, &other, &other] {
        shaper.acquire("any").await.unwrap();
    }
    assert_eq!(start.elapsed(), ms(180_000));
}

/// The limits in force hold less than a cost, or differ in number: only callers with too high a cost are refused.
#[tokio::test(start_paused = true)]
async fn only_its_caller_gets_the_error_of_a_cost_that_the_limits_in_force_do_not_hold() {
    let bench = Bench::new();
    let set = |bursts: &[u32]| {
        let limit = |(place, burst): (usize, &u32)| {
            Limit::gcra(format!("l{place}"), "10/s".parse().unwrap(), *burst).unwrap()
        };
        LimitSet::new(bursts.iter().enumerate().map(limit).collect()).unwrap()
    };
    let shaper = |bursts: &[u32]| {
        let builder = Shaper::with_limits("billing", set(bursts))
            .precision(Precision::Coarse)
            .runtime(Handle::current());
        builder.store(Arc::clone(&bench)).build().unwrap()
    };
    let (old, new) = (shaper(&[10, 10]), shaper(&[2]));
    old.acquire("any").await.unwrap();
    new.acquire("any").await.unwrap();
    settle().await;
    let (large, each, small) = tokio::join!(
        old.reserve_cost("any", 5),
        old.reserve_costs("any", &[1, 1]),
        old.reserve_cost("any", 1),
    );
    assert!(matches!(large, Err(ReserveError::CostTooLarge { highest: 2, .. })), "{large:?}");
    assert!(matches!(each, Err(ReserveError::CostCount { given: 2, limits: 1 })), "{each:?}");
    assert!(small.is_ok(), "{small:?}");
    let error = old.acquire_cost("any", 5).await.unwrap_err();
    assert!(matches!(error, ReserveError::CostTooLarge { highest: 2, .. }), "{error}");
}

/// A second driver in a program is no new start: the limits that were loaded since then stay in force.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_started_again_proposes_nothing() {
    let bench = Bench::new();
    let (old, new) = (builder("100/s", &bench).build().unwrap(), builder("50/s", &bench).build().unwrap());
    let generation = async || bench.read_record("billing").await.unwrap().status.generation;
    old.acquire("any").await.unwrap();
    new.acquire("any").await.unwrap();
    assert_eq!(generation().await, 2);
    end_driver(&old, &bench).await;
    assert_eq!((generation().await, old.core.settings().limits.rate().to_string()), (2, "50/s".to_owned()));
}
