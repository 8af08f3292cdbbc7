//! Tests of pauses of the whole downstream, asked for by it or made by an operator.

use super::*;
use crate::store::{Change, Pause, Store as _};
use crate::time::Clock as _;

const TWO: Duration = Duration::from_secs(2);

/// Returns when each scheduled job ran, sorted, with a pause by another worker during the run.
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
    other.penalize(TWO).await.unwrap();
    // The later end of two pauses counts.
    other.penalize(ms(100)).await.unwrap();
    other.penalize(Duration::ZERO).await.unwrap();
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
        // Half of the slots lay in the pause. Only those are lost.
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
    shaper.penalize(ms(1500)).await.unwrap();
    second.wait().await;
    assert!(second.is_missed(), "it was reserved before the pause, and lies in it");
    let third = shaper.reserve("any").await.unwrap();
    third.wait().await;
    assert!(!third.is_missed());
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_pause_beyond_the_longest_wait_is_reported() {
    let bench = Bench::new();
    let shaper = builder("1/s", &bench).max_wait(TWO).build().unwrap();
    shaper.penalize(3 * TWO).await.unwrap();
    let Err(ReserveError::Paused { retry_after }) = shaper.reserve("any").await else {
        panic!("it is paused")
    };
    assert_eq!(retry_after, Some(2 * TWO));
    bench.update_record("billing", Change::Pause { span: None, note: "" }).await.unwrap();
    let error = shaper.reserve("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::Paused { retry_after: None }) && error.is_retryable());
    assert_eq!(error.to_string(), "the downstream is paused until somebody resumes it");
    bench.update_record("billing", Change::Resume).await.unwrap();
    assert!(shaper.reserve("any").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_a_program_holds_all_until_one_resumes_or_it_ends() {
    let bench = Bench::new();
    let (one, other) = (builder("10/s", &bench).build().unwrap(), builder("10/s", &bench).build().unwrap());
    one.acquire("any").await.unwrap();
    bench.update_record("billing", Change::Pause { span: None, note: "an operator's" }).await.unwrap();
    other.pause(None).await.unwrap();
    settle().await;
    let record = bench.read_record("billing").await.unwrap();
    let by = crate::terms::Replica::of_this_process().to_string();
    assert_eq!(record.note, Some(serde_json::json!({ "by": by }).to_string()), "who paused last is known");
    let error = one.acquire("any").await.unwrap_err();
    assert!(matches!(error, ReserveError::Paused { retry_after: None }), "{error}");
    other.resume().await.unwrap();
    // Reads after changes are 50 ms apart.
    tokio::time::sleep(ms(60)).await;
    one.acquire("any").await.unwrap();

    let start = Instant::now();
    one.pause(Some(2 * TWO)).await.unwrap();
    one.pause(Some(TWO)).await.unwrap();
    one.acquire("any").await.unwrap();
    let held = start.elapsed();
    assert!((TWO..2 * TWO).contains(&held), "the later pause counts: {held:?}");
    for short in [Duration::ZERO, Duration::from_nanos(999)] {
        let error = one.pause(Some(short)).await.unwrap_err();
        assert!(matches!(error, StoreError::Invalid(_)), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_pauses_nothing() {
    let bench = Bench::new();
    let shaper = builder("1/s", &bench).build().unwrap();
    let away = StoreError::Unreachable { address: "a".to_owned(), detail: "away".to_owned() };
    bench.fail(Some(away));
    assert!(shaper.penalize(TWO).await.is_err());
    bench.fail(None);
    assert!(!shaper.reserve("any").await.unwrap().is_missed());
}

/// Nothing but the shaper keeps the watch alive.
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
    // The watch would keep the store alive.
    assert_eq!(Arc::strong_count(&bench), 1);
}

/// An answer by a clock that stepped back does not count as overtaken, and the slots of before the step keep their
/// instants.
#[tokio::test(start_paused = true)]
async fn a_pause_after_a_step_back_is_kept() {
    for (step, ahead) in [(-1, 1), (-10, 8)] {
        let bench = Bench::new();
        let shaper = builder("1/s", &bench).build().unwrap();
        let mut granted = vec![];
        for _ in 0..=ahead {
            granted.push(shaper.reserve("any").await.unwrap());
        }
        tokio::time::advance(ms(200)).await;
        bench.clock.step(step);
        shaper.penalize(ms(1000 * ahead)).await.unwrap();
        let last = granted.pop().unwrap();
        last.wait().await;
        assert!(last.is_missed(), "a step of {step} s: it lies in the pause");
        let next = shaper.reserve("any").await.unwrap();
        next.wait().await;
        assert!(!next.is_missed(), "a step of {step} s");
    }
}

/// An operator's pause is restored for the rest of its span and no longer, and the call is repeated if it fails.
#[tokio::test(start_paused = true)]
async fn what_the_store_forgot_is_recalled_until_it_knows() {
    let bench = Bench::new();
    let shaper = builder("100/s", &bench).build().unwrap();
    shaper.acquire("any").await.unwrap();
    let status = async || bench.read_record("billing").await.unwrap().status;
    let paused = bench
        .update_record("billing", Change::Pause { span: Some(10 * TWO), note: "" })
        .await
        .unwrap()
        .status
        .pause;
    shaper.peek("any").await.unwrap();
    tokio::time::advance(4 * TWO).await;
    bench.lose();
    let away = StoreError::Unreachable { address: "a".to_owned(), detail: "away".to_owned() };
    bench.fail(Some(away));
    shaper.core.refresh(Instant::now() + TWO).await;
    settle().await;
    assert_eq!(status().await.pause, Pause::default(), "no report reached it");
    bench.fail(None);
    shaper.peek("any").await.unwrap();
    settle().await;
    let Pause { until, version } = status().await.pause;
    assert_eq!((until.since(bench.clock.now()), version), (6 * TWO, paused.version));
    let changes = bench.counts.changes.load(Ordering::SeqCst);
    shaper.peek("any").await.unwrap();
    settle().await;
    assert_eq!(
        bench.counts.changes.load(Ordering::SeqCst),
        changes,
        "a store that knows the pause gets no call"
    );
}

/// Otherwise a server that refuses it would be called in a loop: each refusal opens a connection, which counts as a
/// change.
#[tokio::test(start_paused = true)]
async fn a_look_that_fails_is_tried_again_later() {
    let bench = Bench::new();
    let shaper = builder("1/s", &bench).build().unwrap();
    let _first = shaper.reserve("any").await.unwrap();
    settle().await;
    bench.refuse_looks(true);
    bench.update_record("billing", Change::Penalize(100 * TWO)).await.unwrap();
    let before = bench.counts.pings.load(Ordering::SeqCst);
    tokio::time::sleep(10 * TWO).await;
    let looks = bench.counts.pings.load(Ordering::SeqCst) - before;
    assert!((5..40).contains(&looks), "{looks}");
    bench.refuse_looks(false);
    tokio::time::sleep(3 * TWO).await;
    assert!(shaper.core.paused_for().is_some(), "the store got the pause in the end");
}
