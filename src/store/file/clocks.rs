//! The clocks of a run. With them, the next run distinguishes a clock that was set from time that has passed.

use crate::store::STEP;
use crate::store::memory::Resumed;
use crate::time::{Clock, Micros, Uptime};

/// The store's clock, and how long the machine had run then.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Clocks {
    pub(super) now: Micros,
    pub(super) uptime: Option<Uptime>,
}

impl Clocks {
    /// What the clocks show when a batch is written. The time between the two readings is not part of the uptime at
    /// the next start. So the clock then seems to be ahead by it: states move forward, and never back.
    pub(super) fn at_write(clock: &dyn Clock) -> Self {
        let now = clock.now();
        Self { now, uptime: clock.uptime() }
    }

    /// What the clocks show at a start, read in the other order for the same reason.
    pub(super) fn at_start(clock: &dyn Clock) -> Self {
        let uptime = clock.uptime();
        Self { now: clock.now(), uptime }
    }

    /// How the clock `now` differs from what it showed then. If the machine has not restarted since, a step of its
    /// clock in either direction is distinguished from time that has passed; otherwise a step forward counts as time.
    pub(super) fn resumed(&self, now: &Self) -> Resumed {
        let passed = match (&self.uptime, &now.uptime) {
            (Some(then), Some(now)) if then.boot == now.boot => now.since.checked_sub(then.since),
            _ => None,
        };
        let (expected, is_known) = (self.now.plus(passed.unwrap_or_default()), passed.is_some());
        let back = expected.0 - now.now.0;
        let step = i64::try_from(STEP.as_micros()).unwrap_or(i64::MAX);
        if back > step || (is_known && -back > step) {
            Resumed { high: now.now, back }
        } else {
            Resumed { high: self.now, back: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Micros = Micros(1_760_000_000_000_000);

    #[test]
    fn a_step_of_the_clock_between_two_runs_is_distinguished_from_time_where_possible() {
        const HOUR: i64 = 3_600_000_000;
        const DAY: i64 = 24 * HOUR;
        let clocks = |now: i64, boot: Option<(&str, i64)>| Clocks {
            now: Micros(NOW.0 + now),
            uptime: boot.map(|(boot, since)| Uptime {
                boot: boot.to_owned(),
                since: Duration::from_micros(since.unsigned_abs()),
            }),
        };
        let (here, next) = (|since| Some(("one", since)), |since| Some(("two", since)));
        for (then, now, back) in [
            // The machine has run on for an hour.
            (clocks(0, here(HOUR)), clocks(HOUR, here(2 * HOUR)), None),
            (clocks(0, here(HOUR)), clocks(HOUR + 50_000, here(2 * HOUR)), None),
            (clocks(0, here(HOUR)), clocks(HOUR + DAY, here(2 * HOUR)), Some(-DAY)),
            (clocks(0, here(HOUR)), clocks(HOUR - DAY, here(2 * HOUR)), Some(DAY)),
            // It was started again, or the file is on another one.
            (clocks(0, here(HOUR)), clocks(HOUR, next(60)), None),
            (clocks(0, here(HOUR)), clocks(DAY, next(60)), None),
            (clocks(0, here(HOUR)), clocks(-DAY, next(60)), Some(DAY)),
            (clocks(0, None), clocks(-DAY, here(60)), Some(DAY)),
            (clocks(0, None), clocks(-50_000, None), None),
        ] {
            let expected = match back {
                Some(back) => Resumed { high: now.now, back },
                None => Resumed { high: then.now, back: 0 },
            };
            assert_eq!(then.resumed(&now), expected, "{then:?} {now:?}");
        }
    }
}
