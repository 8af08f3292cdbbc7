//! Those who reserve leave slots to those who wait in order.

use super::*;
use crate::store::{Change, Store as _};

/// Reserves slot after slot until `end`, and asks again when the error says so. Returns the number of slots.
async fn reserves(shaper: Shaper, end: Instant) -> usize {
    let mut slots = 0;
    while Instant::now() < end {
        match shaper.reserve("any").await {
            Ok(reservation) => {
                reservation.wait().await;
                slots += 1;
            }
            Err(ReserveError::NotYet { retry_at }) => {
                assert!(retry_at > Instant::now(), "not at once");
                tokio::time::sleep_until(retry_at).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    slots
}

/// Waits for slot after slot until `end`. Returns the number of slots.
async fn waits(shaper: Shaper, end: Instant) -> usize {
    let mut slots = 0;
    while Instant::now() < end {
        shaper.acquire("any").await.unwrap();
        slots += 1;
    }
    slots
}

/// The parts of 400 slots that callers have who wait in order, and 20 who reserve: in the same process, or in another one.
async fn parts(rate: &str, callers: usize, is_same: bool) -> (usize, usize) {
    let bench = Bench::new();
    bench.delay(Duration::from_micros(150), Duration::from_micros(150));
    let shaper = || builder(rate, &bench).max_wait(Duration::from_secs(3600)).build().unwrap();
    let (one, other) = (shaper(), shaper());
    let who_reserves = if is_same { one.clone() } else { other };
    let apart = one.limits().rate().interval();
    // From now on somebody waits in order, so that the others yield.
    one.acquire("any").await.unwrap();
    let (start, end) = (Instant::now(), Instant::now() + apart * 400);
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        tasks.spawn(waits(one.clone(), end));
    }
    tokio::time::sleep(ms(1)).await;
    let mut reserving = JoinSet::new();
    for _ in 0..20 {
        reserving.spawn(reserves(who_reserves.clone(), end));
    }
    let (waited, reserved) = tokio::join!(tasks.join_all(), reserving.join_all());
    assert!(start.elapsed() < apart * 520);
    let calls = bench.counts.calls.load(Ordering::SeqCst);
    let most = (3 * (waited.iter().sum::<usize>() + reserved.iter().sum::<usize>())).max(100);
    assert!(calls <= most, "{rate}, {callers}, {is_same}: {calls} calls");
    println!(
        "{rate}, {callers}, {is_same}: {} {} {calls}",
        waited.iter().sum::<usize>(),
        reserved.iter().sum::<usize>()
    );
    (waited.into_iter().sum(), reserved.into_iter().sum())
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_in_order_have_half_of_the_slots_beside_many_who_reserve() {
    for rate in ["200/s", "50/s", "5/s", "1/s", "6/m"] {
        for callers in [1, 20] {
            for is_same in [true, false] {
                let (waited, reserved) = parts(rate, callers, is_same).await;
                // The first call of those who reserve in another process takes what lies in the horizon.
                let first = if is_same { 2 } else { 20 };
                assert!(waited + first >= reserved, "{rate}, {callers}, {is_same}: {waited} and {reserved}");
                assert!(waited + reserved >= 390, "{rate}, {callers}, {is_same}: {waited} and {reserved}");
            }
        }
    }
}

/// Who was refused because others wait is served soon after they have left, however far away its turn was.
#[tokio::test(start_paused = true)]
async fn nobody_yields_to_those_who_have_left() {
    let bench = Bench::new();
    let shaper = builder("1/h", &bench).max_wait(Duration::from_secs(7200)).build().unwrap();
    shaper.acquire("any").await.unwrap();
    let waiting = tokio::spawn(waits(shaper.clone(), Instant::now() + Duration::from_secs(36_000)));
    settle().await;
    let error = shaper.reserve("any").await.unwrap_err();
    let ReserveError::NotYet { retry_at } = error else { panic!("{error}") };
    assert!(retry_at > Instant::now() + Duration::from_secs(3000), "after the one that waits");
    waiting.abort();
    tokio::time::sleep(ms(1100)).await;
    let reservation = shaper.reserve("any").await.unwrap();
    assert!(reservation.deadline() > Instant::now() + Duration::from_secs(3000), "far ahead: nobody waits");
}

/// Callers that give up soon leave their slots to others.
#[tokio::test(start_paused = true)]
async fn impatient_callers_lose_hardly_any_slot() {
    for (rate, apart) in [("100/s", ms(10)), ("50/s", ms(20)), ("1000/s", ms(1))] {
        let bench = Bench::new();
        bench.delay(Duration::from_micros(150), Duration::from_micros(150));
        let shaper = builder(rate, &bench).build().unwrap();
        let end = Instant::now() + apart * 1000;
        let mut tasks = JoinSet::new();
        for _ in 0..5 {
            let shaper = shaper.clone();
            tasks.spawn(async move {
                let mut slots = 0;
                while Instant::now() < end {
                    let patience = ms(fastrand::u64(..=60));
                    let outcome = tokio::time::timeout(patience, shaper.acquire("any")).await;
                    slots += usize::from(outcome.is_ok());
                }
                slots
            });
        }
        let slots: usize = tasks.join_all().await.into_iter().sum();
        println!("{rate}: {slots} of 1000, {} calls", bench.counts.calls.load(Ordering::SeqCst));
        assert!(slots >= 970, "{rate}: {slots} of 1000");
    }
}

/// In a pause the error names the pause, not a turn.
#[tokio::test(start_paused = true)]
async fn those_who_yield_learn_of_a_pause() {
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).build().unwrap();
    let waiting = tokio::spawn(waits(shaper.clone(), Instant::now() + ms(800)));
    tokio::time::sleep(ms(500)).await;
    bench.update_record("billing", Change::Penalize(Duration::from_secs(3600))).await.unwrap();
    tokio::time::sleep(ms(500)).await;
    for _ in 0..3 {
        let error = shaper.reserve("any").await.unwrap_err();
        assert!(matches!(error, ReserveError::Paused { .. }), "{error}");
    }
    bench.update_record("billing", Change::Resume).await.unwrap();
    waiting.await.unwrap();
    tokio::time::sleep(ms(1100)).await;
    drop(shaper.reserve("any").await.unwrap());
}

/// The turn of those who reserve goes back with the last clone of their shaper.
#[tokio::test(start_paused = true)]
async fn a_turn_that_nobody_comes_for_goes_back_at_the_end() {
    let bench = Bench::new();
    let shaper = || builder("1/m", &bench).max_wait(Duration::from_secs(3600)).build().unwrap();
    let (one, other) = (shaper(), shaper());
    one.acquire("any").await.unwrap();
    let start = Instant::now();
    let waiting = tokio::spawn(waits(one.clone(), start + Duration::from_secs(50)));
    settle().await;
    // Its turn is the one behind that of the caller that waits.
    let error = other.reserve("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::NotYet { .. }), "{error}");
    drop(other);
    settle().await;
    waiting.await.unwrap();
    one.acquire("any").await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 120, "nobody else has the slot at 120 s");
}
