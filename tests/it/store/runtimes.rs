//! Shapers and limiters on a real Redis, for callers on any runtime.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use paced::{CheckError, Limit, Limiter, LimiterFallback, RedisOptions, RedisStore, Shaper};
use tokio::runtime::{Builder, Runtime};

use super::patient;
use crate::support::proxy::Proxy;
use crate::support::servers;
use crate::support::{LONG, poll, unique};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The runtime in which the store was connected, and used first, stands still; another one has ended.
#[test]
fn a_runtime_that_stands_still_or_ends_holds_up_nobody() {
    let first = runtime();
    let url = first.block_on(servers::redis()).url();
    let (store, name) = (first.block_on(RedisStore::connect(&url, patient())).unwrap(), unique("runtimes"));
    let store = Arc::new(store);
    let shaper = Shaper::builder(&name, "1000/s".parse().unwrap()).store(Arc::clone(&store)).build().unwrap();
    let limit = Limit::gcra("calls", "1/h".parse().unwrap(), 100).unwrap();
    let limiter = Limiter::builder(&name).limit(limit).store(store).build().unwrap();
    let use_all = async || {
        shaper.acquire("any").await.unwrap();
        shaper.peek("any").await.unwrap();
        shaper.penalize(Duration::from_millis(1)).await.unwrap();
        limiter.check("any").await.unwrap().remaining
    };
    assert_eq!(first.block_on(use_all()), 99);
    let ended = runtime();
    assert_eq!(ended.block_on(use_all()), 98);
    drop(ended);
    thread::scope(|threads| {
        threads.spawn(|| shaper.acquire_blocking("any").unwrap());
        threads.spawn(|| runtime().block_on(use_all()));
    });
    assert_eq!(runtime().block_on(use_all()), 96);
}

/// A caller stands still while the connection that it needs is being opened. Others open it.
#[test]
fn a_caller_that_stands_still_while_it_connects_holds_up_nobody() {
    let first = runtime();
    let proxy = Proxy::start(first.block_on(servers::redis()).port(), Duration::ZERO).unwrap();
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let options = RedisOptions::default().with_timeouts(Duration::from_millis(500), Duration::from_secs(60));
    let store = RedisStore::open(&url, options).unwrap();
    let shaper = Shaper::builder(unique("connects"), "1000/s".parse().unwrap()).store(store).build().unwrap();
    proxy.silence();
    let mut looks = std::pin::pin!(shaper.peek("any"));
    {
        let _entered = first.enter();
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(looks.as_mut().poll(context).is_pending());
    }
    proxy.restore();
    thread::scope(|threads| {
        threads.spawn(|| shaper.acquire_blocking("any").unwrap());
    });
    let _ = first.block_on(looks);
}

/// Redis hangs: one check waits for the time-out, and those that follow for nothing.
#[tokio::test]
async fn checks_do_not_wait_for_a_server_that_hangs() {
    let proxy = Proxy::start(servers::redis().await.port(), Duration::ZERO).unwrap();
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    // It hangs before a connection is open. Then answers may be late, and none is lost.
    let options = RedisOptions::default().with_timeouts(Duration::from_millis(200), Duration::from_secs(60));
    let store = Arc::new(RedisStore::open(&url, options).unwrap());
    let name = unique("hangs");
    let build = |fallback| {
        let limit = Limit::gcra("calls", "1/h".parse().unwrap(), 3).unwrap();
        let builder = Limiter::builder(&name).limit(limit).store(Arc::clone(&store));
        builder.on_unavailable(fallback).build().unwrap()
    };
    let [fails, allows, local] =
        [LimiterFallback::Fail, LimiterFallback::Allow, LimiterFallback::Local].map(build);
    proxy.silence();
    for limiter in [&fails, &allows, &local] {
        let _ = limiter.check("any").await;
        // Each of these is answered when it is polled first.
        for check in 1..100 {
            let answer =
                futures_util::FutureExt::now_or_never(limiter.check("any")).expect("it does not wait");
            match answer {
                Ok(decision) => {
                    assert!(decision.is_fallback);
                    let is_local = std::ptr::eq(limiter, &raw const local);
                    assert_eq!(decision.allowed, !is_local || check < 3, "{check}");
                }
                Err(error) => {
                    assert!(std::ptr::eq(limiter, &raw const fails), "{error}");
                    assert!(matches!(&error, CheckError::Store(away) if away.is_away()), "{error}");
                }
            }
        }
    }
    proxy.restore();
    for limiter in [&fails, &allows, &local] {
        let by_store = async || limiter.check("any").await.ok().filter(|decision| !decision.is_fallback);
        let decision = poll(LONG, by_store).await.expect("the store decides again");
        assert!(!decision.is_fallback);
    }
    let decision = fails.peek("any").await.unwrap();
    assert_eq!(
        (decision.remaining, decision.is_fallback),
        (0, false),
        "what one of them took is taken for all"
    );
}
