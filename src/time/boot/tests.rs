use std::sync::LazyLock;

use super::*;
use crate::time::Micros;

thread_local! {
    static SIMULATED: std::cell::Cell<Option<Duration>> = const { std::cell::Cell::new(None) };
}

pub(super) fn simulated() -> Option<Duration> {
    SIMULATED.get()
}

/// Returns the wall clock's instant as this thread sees it: read once, it advances with tokio's clock and with suspends. It
/// begins five minutes after the full hour, so that no test meets the end of an hour by chance.
#[expect(clippy::disallowed_methods, reason = "what all paused clocks are compared with")]
pub(crate) fn wall_of_tests() -> Micros {
    // The clock of the machine: that of the first test may be paused, and hours ahead.
    static FIRST: LazyLock<(Micros, Deadline)> = LazyLock::new(|| {
        let now = Instant::from_std(std::time::Instant::now());
        let (wall, hour) = (crate::time::read_wall().0, 3_600_000_000);
        let start = Micros(wall - wall.rem_euclid(hour) + hour / 12);
        (start, Deadline::at_suspended(now, suspended_really()))
    });
    let (wall, first) = *FIRST;
    let since = Deadline::now().ns_since(first).div_euclid(1000);
    Micros(wall.0 + i64::try_from(since).unwrap_or(0))
}

/// Simulates a suspend of the machine, as seen by this thread.
pub(crate) fn suspend(by: Duration) {
    SIMULATED.set(Some(suspended() + by));
}

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
