//! The parts that tests, benches and examples share: private servers, an API that keeps a log, the real daemon, and
//! counts.
#![allow(dead_code, unused_imports, reason = "each crate that includes this module uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue panics")]

pub mod api;
pub mod client;
pub mod count;
pub mod daemon;
pub mod guardian;
pub mod prometheus;
pub mod proxy;
pub mod publish;
pub mod raw;
pub mod servers;
pub mod site;
pub mod tls;
#[cfg(test)]
pub mod worker;

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

/// The longest wait for anything before a test counts as hanging.
pub const LONG: Duration = Duration::from_secs(120);

/// Runs tasks in real time, also if the calling test pauses the clock of its own runtime. It is never dropped, so its
/// threads live as long as the process.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("support")
        .enable_all()
        .build()
        .expect("a runtime")
});

/// Runs `future` on the support runtime; its panics are propagated to the caller.
pub async fn apart<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    match RUNTIME.spawn(future).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Runs blocking `work` on a thread of the support runtime.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match RUNTIME.spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The monotonic clock, never paused.
#[expect(clippy::disallowed_methods, reason = "servers and arrivals live in real time")]
pub fn real_now() -> Instant {
    Instant::now()
}

/// Calls `probe` every few milliseconds until it has an answer; `None` once `within` is over.
pub async fn poll<T, P, F>(within: Duration, mut probe: P) -> Option<T>
where
    P: FnMut() -> F,
    F: Future<Output = Option<T>>,
{
    let start = real_now();
    loop {
        if let Some(answer) = probe().await {
            return Some(answer);
        }
        if start.elapsed() >= within {
            return None;
        }
        pause().await;
    }
}

/// The wait between two polls, in real time.
async fn pause() {
    apart(tokio::time::sleep(Duration::from_millis(10))).await;
}

/// Waits until `condition`, which asks a server, holds, in real time; panics with `what` after
/// `within`.
pub async fn until(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let start = real_now();
    while !condition().await {
        assert!(start.elapsed() < within, "not within {within:?}: {what}");
        pause().await;
    }
}

/// Waits until `condition` holds, in real time; panics with `what` after `within`.
pub async fn eventually(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    let held = poll(within, || {
        let now = condition();
        async move { now.then_some(()) }
    });
    assert!(held.await.is_some(), "not within {within:?}: {what}");
}

/// A number that people may raise for the real figures, such as `PACED_OUTAGE_SECONDS=60`.
pub fn scaled(name: &str, default: u32) -> u32 {
    let number =
        |text: String| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number"));
    std::env::var(name).map_or(default, number)
}

/// A name that no other test and no other run has, for `amqp.prefix`, `store.key_prefix` and downstreams, so that tests
/// can share servers.
pub fn unique(topic: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{topic}-{}-{:x}", NEXT.fetch_add(1, Ordering::Relaxed), random() & 0xffff_ffff)
}

/// A random number, which is good enough for names and ports.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
