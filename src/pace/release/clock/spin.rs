//! The margin by which a sleep ends before its instant, so that the rest can be spun. It is pure.
//!
//! A sleep ends some 30 to 70 µs late, the time that the system needs to wake a thread. To be punctual, the thread
//! sleeps less by nearly the recent lateness of its sleeps, and spins the rest. Spinning burns a core, so it has a
//! budget; while little of it is left, half of the sleeps end late, and while nothing is, all do.

use std::time::Duration;

use tokio::time::Instant;

/// The longest margin.
const MAX_MARGIN: Duration = Duration::from_micros(150);
/// The margin follows the 95th percentile of the lateness of sleeps: it grows by `MARGIN_UP` when a sleep ended later
/// than the margin, and shrinks by `MARGIN_DOWN`, a nineteenth of that, when it did not.
const MARGIN_UP: Duration = Duration::from_nanos(4750);
const MARGIN_DOWN: Duration = Duration::from_nanos(250);
/// The smaller margin follows the median in steps of this much: the sleeps that end in time leave little to spin.
const MEDIAN_STEP: Duration = Duration::from_nanos(500);
/// The share of a core that may be spun, as its divisor.
const CORE_DIVISOR: u32 = 32;
/// The largest budget in ns, after an idle period; it is enough for some hundred slots.
const MAX_BUDGET: i64 = 5_000_000;
/// The largest debt in ns, so that a thread that is not run while it spins is punctual again after some seconds.
const MAX_DEBT: i64 = -100_000_000;

/// The margin of one thread that sleeps and spins, and the budget of all that spin for its alarms.
#[derive(Debug)]
pub(super) struct Spin {
    /// The margin while there is enough budget.
    margin: Duration,
    /// The margin while little budget is left.
    median: Duration,
    /// In ns; negative if more was spun than there was. Several may spin at a time, and are charged afterwards.
    budget: i64,
    refilled: Instant,
}

impl Spin {
    pub(super) const fn new(now: Instant) -> Self {
        let (margin, median) = (Duration::from_micros(60), Duration::from_micros(40));
        Self { margin, median, budget: MAX_BUDGET, refilled: now }
    }

    /// Returns how long before its instant the next sleep is to end; zero while the budget is used up.
    ///
    /// Where the 95th percentile of the lateness is far from its median, the full margin would use up the budget, and
    /// then no sleep would end in time. The smaller margin leaves little to spin.
    pub(super) fn margin(&mut self, now: Instant) -> Duration {
        self.refill(now);
        let margin = if self.budget > MAX_BUDGET / 2 { self.margin } else { self.median };
        if self.budget >= nanos(margin) { margin } else { Duration::ZERO }
    }

    /// Returns `lead`, or zero while the budget does not suffice for a task to spin.
    pub(super) fn lead(&mut self, lead: Duration, now: Instant) -> Duration {
        self.refill(now);
        if self.budget >= nanos(lead) { lead } else { Duration::ZERO }
    }

    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.refilled);
        self.refilled = now;
        self.budget = self.budget.saturating_add(nanos(since / CORE_DIVISOR)).min(MAX_BUDGET);
    }

    /// Records how late a sleep ended.
    pub(super) fn overslept(&mut self, by: Duration) {
        self.margin = if by > self.margin {
            (self.margin + MARGIN_UP).min(MAX_MARGIN)
        } else {
            self.margin.saturating_sub(MARGIN_DOWN)
        };
        self.median = if by > self.median {
            (self.median + MEDIAN_STEP).min(MAX_MARGIN)
        } else {
            self.median.saturating_sub(MEDIAN_STEP)
        };
    }

    /// Charges time that was spun until `now` to the budget.
    pub(super) fn spun(&mut self, time: Duration, now: Instant) {
        self.refill(now);
        self.budget = self.budget.saturating_sub(nanos(time)).max(MAX_DEBT);
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
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
        // Sleeps end 30 µs late, each tenth one 45 µs, and each hundredth one 2 ms, which no margin covers.
        let late = |count: u64| match count % 100 {
            0 => us(2000),
            tenth if tenth % 10 == 0 => us(45),
            _ => us(30),
        };
        (1..2000).for_each(|count| spin.overslept(late(count)));
        let margin = spin.margin(start);
        assert!((us(40)..us(60)).contains(&margin), "{margin:?}");
        // One machine wakes threads at once, and the other one takes too long.
        (0..2000).for_each(|_| spin.overslept(Duration::ZERO));
        assert!(spin.margin(start) < us(5), "{:?}", spin.margin(start));
        (0..2000).for_each(|_| spin.overslept(us(900)));
        assert_eq!(spin.margin(start), MAX_MARGIN);
    }

    #[test]
    fn a_low_budget_covers_half_of_what_sleeps_end_late() {
        let start = Instant::now();
        let mut spin = Spin::new(start);
        // Each tenth sleep ends 140 µs late, and the others about 40 µs.
        let late = |count: u64| if count.is_multiple_of(10) { us(140) } else { us(35 + count % 10) };
        (1..2000).for_each(|count| spin.overslept(late(count)));
        assert!(spin.margin(start) > us(100), "{:?}", spin.margin(start));
        spin.spun(us(2500), start);
        let margin = spin.margin(start);
        assert!((us(36)..us(44)).contains(&margin), "{margin:?}");
    }

    #[test]
    fn the_smaller_margin_is_what_a_thousand_slots_a_second_can_have() {
        let start = Instant::now();
        let (mut spin, mut now, mut in_time) = (Spin::new(start), start, 0);
        for count in 0..20_000_u64 {
            now += us(1000);
            let late = if count.is_multiple_of(10) { us(140) } else { us(35 + count % 10) };
            let margin = spin.margin(now);
            spin.overslept(late);
            spin.spun(margin.saturating_sub(late), now);
            in_time += u32::from(margin >= late);
        }
        assert!(in_time > 12_000, "{in_time} of 20 000");
    }

    #[test]
    fn an_empty_budget_ends_the_spinning_and_rest_refills_it() {
        let start = Instant::now();
        let mut spin = Spin::new(start);
        assert!(spin.margin(start) > Duration::ZERO);
        assert_eq!(spin.lead(us(30), start), us(30));
        spin.spun(us(5100), start);
        assert_eq!(spin.lead(us(30), start), Duration::ZERO);
        assert_eq!(spin.margin(start), Duration::ZERO);
        assert_eq!(
            spin.margin(start + us(4000)),
            Duration::ZERO,
            "125 µs are not enough beside a debt of 100 µs"
        );
        assert!(spin.margin(start + us(8000)) > Duration::ZERO);
        // The budget is the same however long the idle period was, and so is the debt.
        let later = start + Duration::from_secs(3600);
        assert!(spin.margin(later) > Duration::ZERO);
        spin.spun(Duration::from_secs(60), later);
        assert_eq!(spin.margin(later + Duration::from_secs(3)), Duration::ZERO);
        assert!(spin.margin(later + Duration::from_secs(4)) > Duration::ZERO);
    }

    proptest! {
        /// In any case at most the share of a core is spun, also where several tasks spin after one check of the
        /// budget.
        #[test]
        fn the_share_is_kept(slots in prop::collection::vec((0_u64..2000, 0_u64..300, 0_u32..5), 1..500)) {
            let start = Instant::now();
            let (mut spin, mut now, mut spun) = (Spin::new(start), start, Duration::ZERO);
            let mut overdraft = Duration::ZERO;
            for (pause, late, tasks) in slots {
                now += us(pause);
                let (lead, margin) = (spin.lead(us(80), now), spin.margin(now));
                prop_assert!(margin <= MAX_MARGIN);
                spin.overslept(us(late));
                let time = margin.saturating_sub(us(late)) + lead * tasks;
                now += margin + lead;
                spin.spun(time, now);
                spun += time;
                overdraft = overdraft.max(time);
            }
            let budget = Duration::from_nanos(MAX_BUDGET.unsigned_abs());
            prop_assert!(spun <= budget + (now - start) / CORE_DIVISOR + overdraft);
        }
    }
}
