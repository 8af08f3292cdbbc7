//! How long before its instant a sleep is to end, so that the rest can be spun: pure.
//!
//! A sleep ends late by some 30 to 70 µs, which the system needs to wake a thread. To be punctual the
//! thread sleeps less by nearly as much as its sleeps have ended late of late, and spins the rest.
//! Spinning burns a core, so it has a budget; while that is used up, sleeps end when they end.

use std::time::Duration;

use tokio::time::Instant;

/// No sleep ends earlier than that before its instant.
const WIDEST: Duration = Duration::from_micros(150);
/// The margin follows the 95th percentile of what sleeps end late: it grows by `UP` when one ended
/// later, and shrinks by a nineteenth of that when it did not.
const UP: Duration = Duration::from_nanos(4750);
const DOWN: Duration = Duration::from_nanos(250);
/// One part in so many of a core may be spun ...
const SHARE: u32 = 32;
/// ... and after a rest so much at once: some hundred slots.
const SAVED: Duration = Duration::from_millis(5);

/// The margin and the budget of one thread that sleeps and spins.
#[derive(Debug)]
pub(super) struct Spin {
    margin: Duration,
    budget: Duration,
    refilled: Instant,
}

impl Spin {
    pub(super) const fn new(now: Instant) -> Self {
        Self { margin: Duration::from_micros(60), budget: SAVED, refilled: now }
    }

    /// How long before an instant the sleep is to end that is about to begin; zero while the budget
    /// is used up.
    pub(super) fn margin(&mut self, now: Instant) -> Duration {
        let since = now.saturating_duration_since(self.refilled);
        self.refilled = now;
        self.budget = (self.budget + since / SHARE).min(SAVED);
        if self.budget >= self.margin { self.margin } else { Duration::ZERO }
    }

    /// Learns how much later a sleep ended than it was to.
    pub(super) fn overslept(&mut self, by: Duration) {
        self.margin =
            if by > self.margin { (self.margin + UP).min(WIDEST) } else { self.margin.saturating_sub(DOWN) };
    }

    /// Charges what was spun.
    pub(super) const fn spun(&mut self, time: Duration) {
        self.budget = self.budget.saturating_sub(time);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn the_margin_covers_nearly_all_of_what_sleeps_end_late() {
        let start = Instant::now();
        let mut spin = Spin::new(start);
        // 30 µs late, each tenth one 45, each hundredth one 2 ms: that one cannot be covered.
        let late = |count: u64| match count % 100 {
            0 => us(2000),
            tenth if tenth % 10 == 0 => us(45),
            _ => us(30),
        };
        (1..2000).for_each(|count| spin.overslept(late(count)));
        let margin = spin.margin(start);
        assert!((us(40)..us(60)).contains(&margin), "{margin:?}");
        // A machine that needs no time, and one that needs too much.
        (0..2000).for_each(|_| spin.overslept(Duration::ZERO));
        assert!(spin.margin(start) < us(5), "{:?}", spin.margin(start));
        (0..2000).for_each(|_| spin.overslept(us(900)));
        assert_eq!(spin.margin(start), WIDEST);
    }

    #[test]
    fn an_empty_budget_ends_the_spinning_and_rest_refills_it() {
        let start = Instant::now();
        let mut spin = Spin::new(start);
        assert!(spin.margin(start) > Duration::ZERO);
        spin.spun(Duration::from_secs(1));
        assert_eq!(spin.margin(start), Duration::ZERO);
        assert_eq!(spin.margin(start + us(1000)), Duration::ZERO, "31 µs are not enough");
        assert!(spin.margin(start + us(3000)) > Duration::ZERO);
        // However long the rest was.
        let later = start + Duration::from_secs(3600);
        assert!(spin.margin(later) > Duration::ZERO);
        spin.spun(SAVED);
        assert_eq!(spin.margin(later), Duration::ZERO);
    }

    proptest! {
        /// Whatever happens, no more than the share of a core is spun.
        #[test]
        fn the_share_is_kept(slots in prop::collection::vec((0_u64..2000, 0_u64..300), 1..500)) {
            let start = Instant::now();
            let (mut spin, mut now, mut spun) = (Spin::new(start), start, Duration::ZERO);
            for (pause, late) in slots {
                now += us(pause);
                let margin = spin.margin(now);
                prop_assert!(margin <= WIDEST);
                spin.overslept(us(late));
                let time = margin.saturating_sub(us(late));
                spin.spun(time);
                now += margin;
                spun += time;
            }
            prop_assert!(spun <= SAVED + (now - start) / SHARE + WIDEST);
        }
    }
}
