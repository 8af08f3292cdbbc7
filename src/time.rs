//! Instants on the store's clock, and the clocks that read them.

mod boot;

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::lock::lock;

pub use boot::Deadline;
#[cfg(test)]
pub(crate) use boot::tests::suspend;
pub(crate) use boot::{nap, suspended};

/// An instant on the store's clock: microseconds since the Unix epoch.
///
/// Values stay below 2^53, so that they are exact in Lua's doubles too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub i64);

impl Micros {
    /// The latest instant that both stores represent exactly (2^53 - 1 µs, in the year 2255).
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Returns this instant, `by` later, and [`Micros::MAX`] at most.
    #[must_use]
    #[inline]
    pub fn plus(self, by: Duration) -> Self {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(by)).min(Self::MAX)
    }

    /// Returns this instant, `by` earlier, and the Unix epoch at least.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(by).max(0))
    }

    /// Returns how long after `earlier` this instant lies; zero if it does not.
    #[must_use]
    #[inline]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A source of instants. The store owns the clock; a worker's own clock only measures spans.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Returns the current instant.
    fn now(&self) -> Micros;

    /// Returns how long the machine has run, if the clock is the machine's. By this a store that outlives its process
    /// distinguishes a step of the clock from time that has passed.
    fn uptime(&self) -> Option<Uptime> {
        None
    }
}

/// How long a machine has run, on a clock that is never set and counts suspends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uptime {
    /// Which start of which machine it is.
    pub boot: String,
    /// The time since that start.
    pub since: Duration,
}

/// A clock that reads the wall time once, and then advances with tokio's monotonic clock and with suspends of the
/// machine.
///
/// It never steps back, and it stands still where tokio's time is paused.
#[derive(Debug)]
pub struct SystemClock {
    anchor: std::time::Instant,
    /// The wall clock's instant at the anchor, plus the time for which the machine was suspended since then.
    wall: AtomicI64,
    /// The suspended time that is included in `wall`.
    known: Mutex<Duration>,
    /// The last refresh of the suspended time, in µs after the anchor. It is refreshed rarely, because that takes
    /// longer than all the rest.
    asked: AtomicU64,
}

impl SystemClock {
    /// Reads the wall clock.
    #[must_use]
    pub fn new() -> Self {
        let (suspended, wall) = (suspended(), AtomicI64::new(wall_now().0));
        Self {
            anchor: Instant::now().into_std(),
            wall,
            known: Mutex::new(suspended),
            asked: AtomicU64::new(0),
        }
    }
}

impl SystemClock {
    /// Includes the time for which the machine was suspended.
    #[cold]
    fn follow(&self, micros: u64) {
        self.asked.store(micros, Ordering::Relaxed);
        let total = suspended();
        let mut known = lock(&self.known);
        let more = total.saturating_sub(*known);
        if !more.is_zero() {
            *known = total;
            self.wall.fetch_add(i64::try_from(more.as_micros()).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        let since = Instant::now().into_std().duration_since(self.anchor);
        let micros = since.as_secs() * 1_000_000 + u64::from(since.subsec_micros());
        // After a suspend the clock is behind for a millisecond at most, which releases nothing early.
        if cfg!(test) || micros.wrapping_sub(self.asked.load(Ordering::Relaxed)) >= 1000 {
            self.follow(micros);
        }
        Micros(self.wall.load(Ordering::Relaxed).saturating_add_unsigned(micros)).min(Micros::MAX)
    }

    fn uptime(&self) -> Option<Uptime> {
        boot::uptime()
    }
}

/// Returns the wall clock's instant. It may step; use it only for instants that people set (`paced-deadline`).
///
/// In unit tests of this crate it advances with tokio's clock: where that is paused, a slow machine changes nothing.
#[must_use]
pub fn wall_now() -> Micros {
    #[cfg(test)]
    return boot::tests::wall_of_tests();
    #[cfg(not(test))]
    read_wall()
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
fn read_wall() -> Micros {
    // A wall clock before 1970 is treated as the Unix epoch.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros(i64::try_from(since.as_micros()).unwrap_or(0)).min(Micros::MAX)
}

/// A clock that stands still until it is set, for tests and replays.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// Creates a clock that shows `at`.
    #[must_use]
    pub fn new(at: Micros) -> Self {
        Self(AtomicI64::new(at.0))
    }

    /// Sets the clock to `at`, forward or back.
    pub fn set(&self, at: Micros) {
        self.0.store(at.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::SeqCst))
    }
}
