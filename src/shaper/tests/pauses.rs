//! Pauses of the whole downstream: asked for by it, or made by an operator.

use super::*;
use crate::store::{Change, Store as _};

const TWO: Duration = Duration::from_secs(2);

/// When each of so many scheduled jobs ran, sorted, with another worker's pause in mid-run.
async fn run(burst: u32) -> (Instant, Vec<Instant>) {
    let bench = Bench::new();
    let (shaper, other) = (builder("50/s", &bench).burst(burst).build().unwrap(), builder("1/s", &bench));
    let (other, start) = (other.build().unwrap(), Instant::now());
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let shaper = shaper.clone();
        tasks.spawn(async move { shaper.schedule("any", async { Instant::now() }).await.unwrap() });
    }
    tokio::time::sleep(ms(505)).await;
    other.penalize(Instant::now() + TWO).await.unwrap();
    // Of two the later end counts.
    other.penalize(Instant::now() + ms(100)).await.unwrap();
    other.penalize(start).await.unwrap();
    let mut ran = tasks.join_all().await;
    ran.sort_unstable();
    (start, ran)
}

#[tokio::test(start_paused = true)]
async fn another_workers_pause_is_kept_and_ends_without_a_burst() {
    for burst in [1, 10] {
        let (start, ran) = run(burst).await;
        assert_eq!(ran.len(), 100);
        let (before, after) = ran.split_at(ran.partition_point(|at| *at < start + ms(506)));
        assert_eq!(before.len(), 25 + burst as usize, "burst {burst}");
        assert!(after[0] >= start + ms(505) + TWO, "burst {burst}");
        assert!(after.windows(2).all(|two| two[1] - two[0] >= ms(20)), "burst {burst}");
        // Half of the slots lay in the pause. Those are lost, and no others.
        assert!(after[after.len() - 1] <= start + ms(505) + TWO + ms(2000), "burst {burst}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_in_a_pause_is_missed() {
    let bench = Bench::new();
    let shaper = builder("1/s", &bench).build().unwrap();
    let first = shaper.reserve("any").await.unwrap();
    let second = shaper.reserve("any").await.unwrap();
    assert!(!first.is_missed() && !second.is_missed());
    shaper.penalize(Instant::now() + ms(1500)).await.unwrap();
    second.wait().await;
    assert!(second.is_missed(), "it was reserved before the pause, and lies in it");
    let third = shaper.reserve("any").await.unwrap();
    third.wait().await;
    assert!(!third.is_missed());
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_pause_beyond_the_longest_wait_is_told() {
    let bench = Bench::new();
    let shaper = builder("1/s", &bench).max_wait(TWO).build().unwrap();
    shaper.penalize(Instant::now() + 3 * TWO).await.unwrap();
    let Err(ReserveError::Paused { retry_after }) = shaper.reserve("any").await else {
        panic!("it is paused")
    };
    assert_eq!(retry_after, Some(2 * TWO));
    bench.tend("billing", Change::Pause(None)).await.unwrap();
    let error = shaper.reserve("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::Paused { retry_after: None }) && error.is_retryable());
    assert_eq!(error.to_string(), "the downstream is paused until somebody resumes it");
    bench.tend("billing", Change::Resume).await.unwrap();
    assert!(shaper.reserve("any").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_pauses_nothing() {
    let bench = Bench::new();
    let shaper = builder("1/s", &bench).build().unwrap();
    let away = StoreError::Unreachable { address: "a".to_owned(), detail: "away".to_owned() };
    bench.fail(Some(away));
    assert!(shaper.penalize(Instant::now() + TWO).await.is_err());
    bench.fail(None);
    assert!(!shaper.reserve("any").await.unwrap().is_missed());
}

/// Nobody else keeps it alive.
#[tokio::test(start_paused = true)]
async fn the_watch_ends_with_the_shaper() {
    let bench = Bench::new();
    let shaper = builder("1/s", &bench).build().unwrap();
    drop(shaper.reserve("any").await.unwrap());
    let core = Arc::downgrade(&shaper.core);
    settle().await;
    drop(shaper);
    settle().await;
    assert!(core.upgrade().is_none());
    // The watch would keep the store.
    assert_eq!(Arc::strong_count(&bench), 1);
}
