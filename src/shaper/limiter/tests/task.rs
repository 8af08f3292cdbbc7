//! The task that calls the store, and checks that need none.

use super::*;

#[test]
fn in_this_process_a_check_needs_no_runtime_and_no_task() {
    use std::task::{Context, Waker};

    // In real time: so slow that no unit comes back meanwhile.
    let limit = Limit::gcra("calls", "1/h".parse().unwrap(), 2).unwrap();
    let limiter = Limiter::builder("api").limit(limit).build().unwrap();
    let check = pin!(limiter.check("a"));
    let Poll::Ready(decision) = check.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits")
    };
    let decision = decision.unwrap();
    assert_eq!((decision.allowed, decision.remaining), (true, 1));
    let decision = limiter.try_check("a", 1).expect("decided here").unwrap();
    assert_eq!((decision.allowed, decision.remaining), (true, 0));
    let denied = limiter.try_check("a", 1).unwrap().unwrap();
    assert!(!denied.allowed && denied.retry_after <= ms(3_600_000), "{denied:?}");
    assert!(limiter.try_check("b", 2).unwrap().unwrap().allowed, "each key has its own");
    let error = limiter.try_check("b", 3).unwrap().unwrap_err();
    assert!(matches!(error, CheckError::CostTooLarge { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_must_be_awaited_decides_nothing_at_once() {
    let bench = Bench::new();
    let limiter = limiter(gcra("calls", 2), &bench);
    assert!(limiter.try_check("a", 1).is_none());
    assert_eq!(limiter.check("a").await.unwrap().remaining, 1, "nothing was taken before");
}

/// The last clone is dropped while a call is in flight: its task ends, and does not panic.
#[tokio::test(start_paused = true)]
async fn the_task_ends_with_the_limiter() {
    let bench = Bench::new();
    let limiter = limiter(gcra("calls", 2), &bench);
    bench.close();
    let (sender, inbox) = mpsc::unbounded_channel();
    let task = tokio::spawn(run(Arc::clone(&limiter.core.policy), inbox));
    let (answer, decided) = oneshot::channel();
    sender.send(("any".to_owned(), Request { cost: Cost::Each(1), answer })).unwrap();
    bench.arrival().await;
    drop((decided, sender));
    bench.open(1);
    assert!(task.await.is_ok(), "it panicked");
}
