//! A thread that sleeps until just before the next slot. Its alarms are some 10 to 50 µs late, while tokio's timer is a
//! millisecond late.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::alarm::{Alarm, ReleaseClock};
use super::handover::{Handover, Rung, real_now};
use super::queue::Queue;
use super::spin::Spin;
use crate::time::{Deadline, nap};

/// How soon an alarm is tried again that rang, on the thread's clock, before its instant on the runtime's clock.
const RETRY: Duration = Duration::from_millis(1);

/// A clock with one thread for all alarms of a process. The thread ends with the clock and its last alarm.
#[derive(Debug)]
pub struct ThreadClock {
    handle: Arc<Handle>,
}

/// The handle that the clock and its alarms share: the thread ends with the last of them.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    thread: Thread,
}

/// The state that the thread shares with the alarms.
#[derive(Debug)]
struct Shared {
    alarms: Mutex<Alarms>,
    handover: Handover,
    /// Whether an alarm was set to an earlier instant than the one for which the thread waits.
    rearmed: AtomicBool,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Alarms {
    queue: Queue<Arc<Bell>>,
    /// The instant at which the thread checks the queue again; `None` if only when it is woken.
    sleeps_until: Option<Deadline>,
}

/// The state that an alarm shares with the thread.
#[derive(Debug, Default)]
struct Bell {
    waker: AtomicWaker,
    /// Whether the alarm is still in the queue.
    queued: AtomicBool,
    rung: Rung,
}

impl ThreadClock {
    /// Starts the thread.
    ///
    /// # Errors
    /// The error of the system if it has no thread left.
    pub fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new());
        let theirs = Arc::clone(&shared);
        let handle = thread::Builder::new().name("release-clock".to_owned()).spawn(move || theirs.run())?;
        Ok(Self { handle: Arc::new(Handle { shared, thread: handle.thread().clone() }) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl ReleaseClock for ThreadClock {
    fn alarm(&self) -> Box<dyn Alarm> {
        let bell = Arc::<Bell>::default();
        let number = self.handle.shared.lock().queue.add(Arc::clone(&bell));
        Box::new(ThreadAlarm { handle: Arc::clone(&self.handle), bell, number, set: None })
    }
}

impl Shared {
    fn new() -> Self {
        Self {
            alarms: Mutex::new(Alarms { queue: Queue::new(), sleeps_until: None }),
            handover: Handover::new(real_now()),
            rearmed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Locks the alarms. Nothing panics while it holds the lock, so a poisoned lock is used as it is.
    fn lock(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        tighten_timer();
        let mut wakers = Vec::new();
        let mut spin = Spin::new(real_now());
        let (mut target, mut lead) = (None, Duration::ZERO);
        while !self.closed.load(Ordering::Acquire) {
            let next = self.due(lead, &mut wakers);
            wakers.drain(..).for_each(Waker::wake);
            // The lead is decided once for each instant: the sleep before it ends earlier by that.
            if target != next {
                let now = real_now();
                spin.spun(self.handover.take_spun(), now);
                (target, lead) = (next, spin.lead(self.handover.lead(), now));
            }
            // An earlier instant unparks the thread; a spurious wake-up just loops.
            match next {
                Some(next) => self.approach(next.left().saturating_sub(lead), &mut spin),
                None => thread::park(),
            }
        }
    }

    /// Sleeps and spins for the time `left`, or less: for one nap, or until it is woken.
    fn approach(&self, left: Duration, spin: &mut Spin) {
        if left.is_zero() {
            return;
        }
        let now = Instant::now();
        let end = now + left;
        let margin = spin.margin(now);
        if left > margin {
            let sleep = nap(left - margin);
            thread::park_timeout(sleep);
            let Some(late) = Instant::now().checked_duration_since(now + sleep) else { return };
            spin.overslept(late);
            if now + sleep + margin < end {
                return;
            }
        }
        if margin.is_zero() {
            return;
        }
        let begin = Instant::now();
        let mut now = begin;
        while now < end && !self.rearmed.load(Ordering::Relaxed) {
            hint::spin_loop();
            now = Instant::now();
        }
        spin.spun(now - begin, now);
    }

    /// Takes the wakers that are due within `lead`, and returns the next instant.
    fn due(&self, lead: Duration, wakers: &mut Vec<Waker>) -> Option<Deadline> {
        let mut alarms = self.lock();
        self.rearmed.store(false, Ordering::Relaxed);
        let now = real_now();
        let until = Deadline::at(now + lead);
        while let Some(bell) = alarms.queue.pop(until) {
            self.handover.ring(&bell.rung, now);
            bell.queued.store(false, Ordering::Release);
            wakers.extend(bell.waker.take());
        }
        alarms.sleeps_until = alarms.queue.first();
        alarms.sleeps_until
    }
}

/// Sets the timer slack to the minimum: Linux may delay timers by 50 µs to save wake-ups, but this thread exists to be
/// punctual.
#[cfg(target_os = "linux")]
fn tighten_timer() {
    // A failure only makes the clock slightly later.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
}

#[cfg(not(target_os = "linux"))]
const fn tighten_timer() {}

/// An alarm of the thread, which is removed from the queue when it is dropped.
#[derive(Debug)]
struct ThreadAlarm {
    handle: Arc<Handle>,
    bell: Arc<Bell>,
    number: usize,
    /// The instant as it was set, and as a deadline that accounts for suspends of the machine.
    set: Option<(Instant, Deadline)>,
}

impl ThreadAlarm {
    fn queue(&self, at: Option<Deadline>) {
        let earlier = {
            let mut alarms = self.handle.shared.lock();
            alarms.queue.set(self.number, at);
            self.bell.rung.take();
            self.bell.queued.store(at.is_some(), Ordering::Release);
            let sleeps = alarms.sleeps_until;
            let earlier = at.filter(|at| sleeps.is_none_or(|sleeps| *at < sleeps));
            if earlier.is_some() {
                // No other alarm has to wake the thread for a later instant.
                alarms.sleeps_until = earlier;
                self.handle.shared.rearmed.store(true, Ordering::Relaxed);
            }
            earlier
        };
        if earlier.is_some() {
            self.handle.thread.unpark();
        }
    }
}

impl Alarm for ThreadAlarm {
    fn set(&mut self, at: Option<Instant>) {
        if self.set.map(|(at, _)| at) != at {
            self.set = at.map(|at| (at, Deadline::at(at)));
            self.queue(self.set.map(|(_, deadline)| deadline));
        }
    }

    fn poll_ring(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some((_, deadline)) = self.set else { return Poll::Pending };
        let handover = &self.handle.shared.handover;
        if deadline > Deadline::now() {
            self.bell.waker.register(context.waker());
            // Only now, since the thread may have rung before the waker was registered.
            if self.bell.queued.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            // The bell rang ahead of the instant.
            handover.answer(&self.bell.rung, real_now());
            if !handover.spin(deadline) {
                // The runtime's clock is behind that of the thread, as a paused one may be: check again later.
                self.queue(Some(deadline.max(Deadline::at(real_now() + RETRY))));
                return Poll::Pending;
            }
        }
        handover.answer(&self.bell.rung, real_now());
        self.set = None;
        if self.bell.queued.load(Ordering::Acquire) {
            // The thread has not noticed yet, and does not have to ring.
            self.queue(None);
        }
        Poll::Ready(())
    }
}

impl Drop for ThreadAlarm {
    fn drop(&mut self) {
        self.handle.shared.lock().queue.remove(self.number);
    }
}

#[cfg(test)]
mod tests;
