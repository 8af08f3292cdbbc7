//! Callers on any runtime, or on none, in real time.

use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;

use super::*;
use crate::home::block_on;

/// So fast that no test waits for it, with slots that nobody misses.
fn fast() -> ShaperBuilder {
    Shaper::builder("billing", "1000/s".parse().unwrap()).burst(1000)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// Calls everything that waits, or calls the store.
async fn use_all(shaper: Shaper) {
    let reservation = shaper.reserve("any").await.unwrap();
    reservation.wait().await;
    reservation.cancel().await.unwrap();
    shaper.acquire("any").await.unwrap();
    shaper.peek("any").await.unwrap();
    shaper.penalize(ms(1)).await.unwrap();
    shaper.acquire("any").await.unwrap();
    shaper.set_rate("2000/s".parse().unwrap(), None).await.unwrap();
    shaper.reset("any").await.unwrap();
    shaper.schedule("any", async {}).await.unwrap();
}

#[test]
fn callers_need_no_runtime_and_no_timers() {
    for precision in [Precision::Fine, Precision::Coarse] {
        for builder in [fast, || fast().per_key()] {
            let shaper = || builder().precision(precision).build().unwrap();
            block_on(use_all(shaper()));
            let ended = shaper();
            runtime().block_on(use_all(ended.clone()));
            block_on(ended.acquire("any")).unwrap();
            thread::scope(|threads| {
                threads.spawn(|| block_on(use_all(shaper())));
            });
        }
    }
}

/// Callers stand still after one poll, and hold their slots. Others wait for nothing else of them.
#[test]
fn a_caller_that_stands_still_holds_up_nobody() {
    let shaper = fast().build().unwrap();
    let idle = runtime();
    let mut waits = pin!(shaper.acquire("any"));
    let mut reserves = pin!(shaper.reserve("any"));
    let mut looks = pin!(shaper.peek("any"));
    for round in 0..3 {
        let context = &mut Context::from_waker(Waker::noop());
        {
            let _entered = idle.enter();
            match round {
                0 => drop(waits.as_mut().poll(context)),
                1 => drop(reserves.as_mut().poll(context)),
                _ => drop(looks.as_mut().poll(context)),
            }
        }
        block_on(async {
            shaper.acquire("any").await.unwrap();
            shaper.peek("any").await.unwrap();
        });
    }
}

#[test]
fn a_thread_without_a_runtime_blocks_until_its_slot_has_come() {
    let shaper = fast().build().unwrap();
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| (0..10).for_each(|_| shaper.acquire_blocking("any").unwrap()));
        }
    });
    assert_eq!(shaper.core.all_units(), 0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(async {
        let error = shaper.acquire_blocking("any").unwrap_err();
        assert!(matches!(error, ReserveError::WouldBlock) && !error.is_retryable(), "{error}");
        shaper.acquire("any").await.unwrap();
        let blocking = shaper.clone();
        tokio::task::spawn_blocking(move || blocking.acquire_blocking("any")).await.unwrap().unwrap();
    });
}

/// A runtime that was given and ended, or stands still: callers get an error, and wait for no longer than they want.
#[test]
fn a_runtime_that_was_given_has_to_run() {
    let given = runtime();
    let shaper = fast().max_wait(ms(20)).runtime(given.handle().clone()).build().unwrap();
    let error = block_on(shaper.acquire("any")).unwrap_err();
    assert!(matches!(error, ReserveError::QueueFull { .. }), "{error}");
    drop(given);
    for outcome in [block_on(shaper.acquire("any")), block_on(shaper.reserve("any")).map(drop)] {
        assert!(matches!(outcome, Err(ReserveError::Stopped)), "{outcome:?}");
    }
    let error = block_on(shaper.peek("any")).unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    assert_eq!(shaper.core.all_units(), 0);
}
