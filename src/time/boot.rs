//! Time that continues while the machine is suspended.
//!
//! Tokio's clock (`CLOCK_MONOTONIC`) stands still while a laptop sleeps or a virtual machine is suspended; the store's
//! clock does not. Instants that are mapped from one to the other, or held for long, include the suspended time, as
//! `CLOCK_BOOTTIME` does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// An instant in real time, even if the machine is suspended before it: on tokio's clock, each suspend brings it
/// nearer.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use paced::time::Deadline;
/// use std::time::Duration;
/// use tokio::time::Instant;
///
/// let in_an_hour = Instant::now() + Duration::from_secs(3600);
/// let deadline = Deadline::at(in_an_hour);
/// // Unless there is a suspend in between:
/// assert_eq!(deadline.instant(), in_an_hour);
/// assert_eq!(deadline.late(), Duration::ZERO);
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(
    /// Tokio's instant, plus the time for which the machine had been suspended when it was read.
    Instant,
);

impl Deadline {
    /// Returns the deadline at the instant `at` of tokio's clock, as of now: later suspends bring it nearer.
    #[must_use]
    pub fn at(at: Instant) -> Self {
        Self(at + suspended())
    }

    /// Returns the deadline that is now.
    #[must_use]
    pub fn now() -> Self {
        Self::at(Instant::now())
    }

    /// Returns its instant on tokio's clock if there is no further suspend, to set an alarm or a sleep.
    #[must_use]
    pub fn instant(self) -> Instant {
        // An instant that does not fit lies before the start of the machine, so that any past instant will do.
        self.0.checked_sub(suspended()).unwrap_or_else(Instant::now)
    }

    /// Returns how long it has been past; zero if it is still to come. Suspended time counts.
    #[must_use]
    pub fn late(self) -> Duration {
        Self::now().0.saturating_duration_since(self.0)
    }

    /// Returns the time until it comes; zero if it is past.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Self::now().0)
    }

    /// Returns how long after `earlier` it lies; zero if it does not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns [`Deadline::at`], given the time for which the machine had been suspended.
    pub(crate) fn at_suspended(at: Instant, suspended: Duration) -> Self {
        Self(at + suspended)
    }

    /// Returns how far after `earlier` it lies, in ns; negative if it lies before.
    pub(crate) fn ns_since(self, earlier: Self) -> i128 {
        // 584 years of ns at most are far within an i128.
        match self.0.checked_duration_since(earlier.0) {
            Some(since) => since.as_nanos() as i128,
            None => -(earlier.0.duration_since(self.0).as_nanos() as i128),
        }
    }

    /// Returns the deadline `ns` later or, if that is negative, earlier; `None` beyond the range of instants.
    pub(crate) fn plus_ns(self, ns: i128) -> Option<Self> {
        let by = Duration::from_nanos(u64::try_from(ns.unsigned_abs()).ok()?);
        let moved = if ns < 0 { self.0.checked_sub(by) } else { self.0.checked_add(by) };
        moved.map(Self)
    }
}

/// Returns how long the machine was suspended since its start; zero on systems that do not report it.
///
/// It is constant from one suspend to the next, to the nanosecond, so that differences of instants to which it was
/// added are exact.
pub(crate) fn suspended() -> Duration {
    #[cfg(test)]
    if let Some(simulated) = simulated() {
        return simulated;
    }
    suspended_really()
}

fn suspended_really() -> Duration {
    let known = KNOWN.load(Ordering::Relaxed);
    let read = settle(known, clocks);
    if read == known {
        return Duration::from_nanos(known);
    }
    // Other threads may have read another value within the noise; the first one counts.
    let settled = KNOWN.compare_exchange(known, read, Ordering::Relaxed, Ordering::Relaxed);
    Duration::from_nanos(settled.map_or_else(|first| first, |_| read))
}

/// The value of [`suspended`] in ns, as it was first read after the last suspend.
static KNOWN: AtomicU64 = AtomicU64::new(0);

/// Returns how long to sleep at once until an instant that is `left` away. A suspend is noticed when the sleep ends, so
/// it is a minute at most, or a 64th of the whole if that is longer.
pub(crate) fn nap(left: Duration) -> Duration {
    left.min(Duration::from_secs(60).max(left / 64))
}

/// The shortest suspend in ns; no machine sleeps and wakes faster.
const NOISE: u64 = 1_000_000;
/// The longest time in ns that a reading takes unless it was interrupted; an interrupted one is repeated.
const INTERRUPTED: u64 = 50_000;
/// The most readings.
const TRIES: usize = 8;

/// Returns how long the machine was suspended (ns), given the known value and a function that reads the clocks: the
/// monotonic one, the one that counts suspends, and the monotonic one again.
fn settle(known: u64, mut clocks: impl FnMut() -> [u64; 3]) -> u64 {
    let mut least = 0;
    for _ in 0..TRIES {
        let [before, boot, after] = clocks();
        // Even if the reading was interrupted, the machine was suspended for at least this time.
        least = least.max(boot.saturating_sub(after));
        if after.saturating_sub(before) <= INTERRUPTED {
            break;
        }
    }
    if least > known + NOISE { least } else { known }
}

#[cfg(target_os = "linux")]
fn clocks() -> [u64; 3] {
    use rustix::time::{ClockId, clock_gettime};
    [ClockId::Monotonic, ClockId::Boottime, ClockId::Monotonic].map(|clock| {
        let time = clock_gettime(clock);
        // Neither is negative, and both start with the machine, so that they are far below 584 years.
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
    })
}

#[cfg(not(target_os = "linux"))]
const fn clocks() -> [u64; 3] {
    [0; 3]
}

#[cfg(test)]
thread_local! {
    static SIMULATED: std::cell::Cell<Option<Duration>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
fn simulated() -> Option<Duration> {
    SIMULATED.get()
}

/// Returns the wall clock's instant as this thread sees it: read once, it advances with tokio's clock and with suspends. It
/// begins five minutes after the full hour, so that no test meets the end of an hour by chance.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what all paused clocks are compared with")]
pub(super) fn wall_of_tests() -> super::Micros {
    use std::sync::LazyLock;

    // The clock of the machine: that of the first test may be paused, and hours ahead.
    static FIRST: LazyLock<(super::Micros, Deadline)> = LazyLock::new(|| {
        let now = Instant::from_std(std::time::Instant::now());
        let (wall, hour) = (super::read_wall().0, 3_600_000_000);
        let start = super::Micros(wall - wall.rem_euclid(hour) + hour / 12);
        (start, Deadline::at_suspended(now, suspended_really()))
    });
    let (wall, first) = *FIRST;
    let since = Deadline::now().ns_since(first).div_euclid(1000);
    super::Micros(wall.0 + i64::try_from(since).unwrap_or(0))
}

/// Simulates a suspend of the machine, as seen by this thread.
#[cfg(test)]
pub(crate) fn suspend(by: Duration) {
    SIMULATED.set(Some(suspended() + by));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn it_is_constant_between_suspends() {
        assert_eq!(settle(0, || [10, 20, 30]), 0, "never suspended");
        assert_eq!(settle(5 * SECOND, || [10, 5 * SECOND + 999_000, 30]), 5 * SECOND, "noise");
        assert_eq!(settle(5 * SECOND, || [10, 7 * SECOND + 20, 30]), 7 * SECOND - 10, "a further one");
        assert_eq!(suspended(), suspended());
    }

    #[test]
    fn an_interrupted_reading_fakes_no_suspend() {
        // The thread was stopped for a second between any two of the three reads.
        for interrupted in [[0, SECOND, SECOND], [0, 0, SECOND], [0, SECOND, 2 * SECOND]] {
            assert_eq!(settle(0, || interrupted), 0, "however often");
            let mut readings = vec![[2 * SECOND, 62 * SECOND, 2 * SECOND], interrupted];
            assert_eq!(settle(0, || readings.pop().unwrap()), 60 * SECOND, "it is repeated");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspend_brings_a_deadline_nearer() {
        let (minute, start) = (Duration::from_secs(60), Instant::now());
        let deadline = Deadline::at(start + 10 * minute);
        assert_eq!((deadline.left(), deadline.late()), (10 * minute, Duration::ZERO));
        suspend(4 * minute);
        assert_eq!(deadline.instant(), start + 6 * minute);
        assert_eq!(deadline.left(), 6 * minute);
        tokio::time::advance(5 * minute).await;
        suspend(2 * minute);
        assert_eq!((deadline.left(), deadline.late()), (Duration::ZERO, minute));
        assert_eq!(deadline.instant(), start + 4 * minute);
        assert_eq!(Deadline::at(Instant::now()).late(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    #[cfg(target_os = "linux")]
    async fn the_clocks_of_this_machine_agree() {
        let [before, boot, after] = clocks();
        assert!(before <= after && boot + NOISE > before, "{before} {boot} {after}");
    }
}
