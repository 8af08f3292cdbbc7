//! A thread that sleeps until the next slot: some 50 to 100 µs late where tokio's timer is a
//! millisecond late.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};

use tokio::time::Instant;

use super::ReleaseClock;
use crate::store::BoxFuture;

/// One thread for all waits of a process; ends with the clock.
#[derive(Debug)]
pub struct ThreadClock {
    waits: Arc<Waits>,
    thread: Thread,
}

/// What the thread and the waits share.
#[derive(Debug, Default)]
struct Waits {
    /// By deadline; the number tells apart those of one instant.
    wakers: Mutex<BTreeMap<(Instant, u64), Waker>>,
    next: AtomicU64,
    closed: AtomicBool,
}

impl ThreadClock {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start() -> std::io::Result<Self> {
        let waits = Arc::new(Waits::default());
        let theirs = Arc::clone(&waits);
        let handle = thread::Builder::new().name("release-clock".to_owned()).spawn(move || theirs.run())?;
        Ok(Self { waits, thread: handle.thread().clone() })
    }
}

impl Drop for ThreadClock {
    fn drop(&mut self) {
        self.waits.closed.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl ReleaseClock for ThreadClock {
    fn until(&self, deadline: Instant) -> BoxFuture<'_, ()> {
        let number = self.waits.next.fetch_add(1, Ordering::Relaxed);
        Box::pin(Wait { clock: self, key: (deadline, number), waiting: false })
    }
}

impl Waits {
    /// Nothing panics while it holds the lock, so a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        tighten_timer();
        while !self.closed.load(Ordering::Acquire) {
            let now = Instant::now();
            let (due, next) = self.due(now);
            for waker in due {
                waker.wake();
            }
            // An earlier deadline unparks the thread; a wake too early just loops.
            match next {
                Some(deadline) => {
                    thread::park_timeout(deadline.saturating_duration_since(Instant::now()));
                }
                None => thread::park(),
            }
        }
    }

    /// Takes the wakers due at `now`, and tells the next deadline.
    fn due(&self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let mut wakers = self.lock();
        let mut due = Vec::new();
        while let Some(first) = wakers.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        (due, wakers.first_key_value().map(|((deadline, _), _)| *deadline))
    }
}

/// Linux may delay timers by 50 µs to save wake-ups; here punctuality is what the thread is for.
#[cfg(target_os = "linux")]
fn tighten_timer() {
    // Without it the clock is a little later, no more.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
}

#[cfg(not(target_os = "linux"))]
const fn tighten_timer() {}

/// One wait; forgotten by the thread when it is dropped.
struct Wait<'a> {
    clock: &'a ThreadClock,
    key: (Instant, u64),
    waiting: bool,
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.key.0 {
            return Poll::Ready(());
        }
        let first = {
            let mut wakers = self.clock.waits.lock();
            wakers.insert(self.key, context.waker().clone());
            wakers.first_key_value().is_some_and(|(key, _)| *key == self.key)
        };
        self.waiting = true;
        if first {
            self.clock.thread.unpark();
        }
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.waiting {
            self.clock.waits.lock().remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn wakes_in_order_and_never_early() {
        let clock = Arc::new(ThreadClock::start().unwrap());
        let start = Instant::now();
        let (tell, mut woken) = tokio::sync::mpsc::unbounded_channel();
        // The latest first: each next one is an earlier deadline than the thread sleeps for.
        for millis in (1..=20).rev() {
            let (clock, tell) = (Arc::clone(&clock), tell.clone());
            tokio::spawn(async move {
                clock.until(start + Duration::from_millis(millis * 5)).await;
                tell.send((millis, start.elapsed())).unwrap();
            });
        }
        drop(tell);
        let mut seen = Vec::new();
        while let Some((millis, elapsed)) = woken.recv().await {
            assert!(elapsed >= Duration::from_millis(millis * 5), "{millis}: {elapsed:?}");
            seen.push(millis);
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_dropped_wait_leaves_nothing() {
        let clock = ThreadClock::start().unwrap();
        let wait = clock.until(Instant::now() + Duration::from_secs(3600));
        assert!(tokio::time::timeout(Duration::from_millis(5), wait).await.is_err());
        assert!(clock.waits.lock().is_empty());
        clock.until(Instant::now()).await;
    }
}
