use std::sync::Arc;

use tokio::runtime::Handle;

use super::*;
use crate::limit::Limit;
use crate::shaper::tests::bench::Bench;
use crate::shaper::{CheckError, Limiter};

fn away() -> StoreError {
    StoreError::Unreachable { address: "a:1".into(), detail: "refused".into() }
}

/// Returns a limiter of 10/s with a burst of 2.
fn limiter(bench: &Arc<Bench>, fallback: LimiterFallback) -> Limiter {
    let limit = Limit::gcra("calls", "10/s".parse().unwrap(), 2).unwrap();
    let builder = Limiter::builder("api").limit(limit).store(Arc::clone(bench));
    builder.on_unavailable(fallback).runtime(Handle::current()).build().unwrap()
}

/// Returns whether each of some checks was allowed; `None` for an error.
async fn check(limiter: &Limiter, checks: usize) -> Vec<Option<bool>> {
    let mut answers = vec![];
    for _ in 0..checks {
        answers.push(match limiter.check("any").await {
            Ok(decision) => {
                assert!(decision.is_fallback);
                Some(decision.allowed)
            }
            Err(error) => {
                assert!(matches!(error, CheckError::Store(StoreError::Unreachable { .. })), "{error:?}");
                assert!(error.is_retryable());
                None
            }
        });
    }
    answers
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn checks_are_answered_without_a_store_that_is_away() {
    for (fallback, expected) in [
        (LimiterFallback::Fail, [None, None, None, None]),
        (LimiterFallback::Allow, [Some(true), Some(true), Some(true), Some(true)]),
        (LimiterFallback::Local, [Some(true), Some(true), Some(false), Some(false)]),
    ] {
        let bench = Bench::new();
        let limiter = limiter(&bench, fallback);
        bench.fail(Some(away()));
        assert_eq!(check(&limiter, 4).await, expected, "{fallback:?}");
        assert_eq!(bench.count(), 1, "only the first one asked it");
        let limit = limiter.check_cost("any", 3).await.unwrap_err();
        assert!(matches!(limit, CheckError::CostTooLarge { highest: 2, .. }), "{limit:?}");
        // An error that somebody has to correct is returned with every fallback.
        let bench = Bench::new();
        let limiter = self::limiter(&bench, fallback);
        bench.fail(Some(StoreError::Invalid("as the test wants it".to_owned())));
        let error = limiter.check("any").await.unwrap_err();
        assert!(matches!(error, CheckError::Store(StoreError::Invalid(_))), "{error:?}");
        bench.fail(None);
        assert!(!limiter.check("any").await.unwrap().is_fallback);
    }
}

/// Checks that queue behind a call are answered when it fails, and not by calls of their own.
#[tokio::test(start_paused = true)]
async fn those_who_queue_behind_a_call_that_fails_make_no_further_one() {
    let bench = Bench::new();
    let limiter = limiter(&bench, LimiterFallback::Local);
    bench.close();
    let check = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check("any").await.unwrap() })
    };
    let first = check();
    bench.arrival().await;
    let others: Vec<_> = (0..5000).map(|_| check()).collect();
    settle().await;
    bench.fail(Some(away()));
    bench.open(1);
    let mut allowed = usize::from(first.await.unwrap().allowed);
    for other in others {
        let decision = other.await.unwrap();
        assert!(decision.is_fallback);
        allowed += usize::from(decision.allowed);
    }
    assert_eq!((bench.count(), allowed), (1, 2));
}

/// A trial that is lost, with a runtime for example, is made again.
#[tokio::test(start_paused = true)]
async fn a_trial_without_an_outcome_is_made_again() {
    let breaker = Breaker::default();
    breaker.failed(&away());
    let is_due = || matches!(breaker.reachable(), Reachable::No { is_due: true, .. });
    tokio::time::advance(BACKOFF.0).await;
    assert!(is_due() && !is_due());
    tokio::time::advance(LOST).await;
    assert!(is_due());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_decides_again_and_nobody_waits_for_the_trial() {
    let bench = Bench::new();
    let limiter = limiter(&bench, LimiterFallback::Allow);
    bench.fail(Some(away()));
    check(&limiter, 1).await;
    // From now on it answers nothing.
    bench.faults.mute.store(true, std::sync::atomic::Ordering::SeqCst);
    let start = Instant::now();
    tokio::time::advance(BACKOFF.0).await;
    check(&limiter, 3).await;
    settle().await;
    check(&limiter, 3).await;
    assert_eq!((start.elapsed(), bench.count()), (BACKOFF.0, 1), "nobody waits, and nobody asks");
    assert_eq!(bench.counts.pings.load(std::sync::atomic::Ordering::SeqCst), 1, "one trial at a time");

    let bench = Bench::new();
    let limiter = self::limiter(&bench, LimiterFallback::Allow);
    bench.fail(Some(away()));
    check(&limiter, 1).await;
    bench.fail(None);
    check(&limiter, 3).await;
    tokio::time::advance(BACKOFF.0).await;
    check(&limiter, 1).await;
    settle().await;
    for expected in [true, true, false] {
        let decision = limiter.check("any").await.unwrap();
        assert_eq!((decision.allowed, decision.is_fallback), (expected, false), "the fallback took nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_tried_less_and_less_often() {
    let breaker = Breaker::default();
    assert!(matches!(breaker.reachable(), Reachable::Yes));
    assert!(breaker.failed(&away()) && !breaker.failed(&away()), "news once");
    let is_due = || matches!(breaker.reachable(), Reachable::No { is_due: true, .. });
    let mut waits = vec![];
    for _ in 0..10 {
        let start = Instant::now();
        while !is_due() {
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(!is_due(), "one tries");
        waits.push(start.elapsed());
        assert!(!breaker.tried(Err(away())));
    }
    let (mut most, longest) = BACKOFF;
    for wait in waits {
        assert!(wait >= most / 2 && wait <= most + Duration::from_millis(1), "{wait:?} of {most:?}");
        most = (2 * most).min(longest);
    }
    assert!(breaker.tried(Ok(())) && !breaker.tried(Ok(())), "news once");
    assert!(matches!(breaker.reachable(), Reachable::Yes));
}
