//! Time that continues while the machine is suspended.
//!
//! Tokio's clock (`CLOCK_MONOTONIC`) stands still while a laptop sleeps or a virtual machine is suspended; the store's
//! clock does not. Instants that are mapped from one to the other, or held for long, include the suspended time, as
//! `CLOCK_BOOTTIME` does.

#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Uptime;

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
    if let Some(simulated) = tests::simulated() {
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

/// Returns how long the machine has run; `None` on systems that do not say which start it was.
#[cfg(target_os = "linux")]
pub(super) fn uptime() -> Option<Uptime> {
    static BOOT: OnceLock<Option<String>> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let boot = BOOT.get_or_init(|| read().map(|boot| boot.trim().to_owned())).clone()?;
    let [_, since, _] = clocks();
    Some(Uptime { boot, since: Duration::from_nanos(since) })
}

#[cfg(not(target_os = "linux"))]
pub(super) const fn uptime() -> Option<Uptime> {
    None
}

#[cfg(test)]
pub(crate) mod tests;
