//! The handover from the clock's thread to the task whose alarm it is.
//!
//! The thread rings a bell, which wakes the task; the system has to wake a thread of the runtime for that, which takes
//! some 20 to 50 µs. So the bell rings earlier than the instant to which the alarm is set, by the *lead*: the median of
//! the times from a bell to the poll of its alarm. A poll that comes before the instant spins until it, so that the alarm
//! itself is never early.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::time::Deadline;

/// The longest lead, and so the longest time for which a poll spins.
pub(super) const MAX_LEAD: Duration = Duration::from_micros(80);
/// The lead follows the median of the handovers in steps of this many ns.
const STEP: u64 = 500;
/// The first lead in ns, which is less than most handovers.
const FIRST_LEAD: u64 = 15_000;
/// A longer handover shows a busy runtime: no lead compensates for that.
const BUSY: Duration = Duration::from_micros(400);

/// The lead of one clock, and the time that polls have spun.
#[derive(Debug)]
pub(super) struct Handover {
    /// The instant from which bells are dated.
    start: Instant,
    /// How much earlier than its alarm a bell rings, in ns.
    lead: AtomicU64,
    /// The time in ns that polls have spun since it was taken last.
    spun: AtomicU64,
}

/// The instant of a bell that nobody has answered yet, in ns after the clock's start; zero if there is none.
#[derive(Debug, Default)]
pub(super) struct Rung(AtomicU64);

impl Handover {
    pub(super) const fn new(start: Instant) -> Self {
        Self { start, lead: AtomicU64::new(FIRST_LEAD), spun: AtomicU64::new(0) }
    }

    /// Returns how much earlier than its alarm a bell should ring.
    pub(super) fn lead(&self) -> Duration {
        Duration::from_nanos(self.lead.load(Ordering::Relaxed))
    }

    /// Records that a bell rings at `now`.
    pub(super) fn ring(&self, rung: &Rung, now: Instant) {
        rung.0.store(nanos(now.saturating_duration_since(self.start)).max(1), Ordering::Relaxed);
    }

    /// Records that the alarm of a bell is polled at `now`, if the bell has rung since the last call.
    pub(super) fn answer(&self, rung: &Rung, now: Instant) {
        let at = rung.take();
        let took = nanos(now.saturating_duration_since(self.start)).saturating_sub(at);
        if at != 0 && took <= nanos(BUSY) {
            let step = |lead: u64| {
                let next = if took > lead { lead + STEP } else { lead.saturating_sub(STEP) };
                Some(next.min(nanos(MAX_LEAD)))
            };
            // The closure always returns a value, so that the update cannot fail.
            let _ = self.lead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        }
    }

    /// Spins until `deadline` if that is at most the longest lead away. Returns whether it has come.
    pub(super) fn spin(&self, deadline: Deadline) -> bool {
        let left = deadline.left();
        // A paused clock would never end the spinning.
        let begin = real_now();
        if left > MAX_LEAD {
            return false;
        }
        while real_now() < begin + left {
            hint::spin_loop();
        }
        self.spun.fetch_add(nanos(left), Ordering::Relaxed);
        deadline <= Deadline::now()
    }

    /// Returns the time that polls have spun since the last call.
    pub(super) fn take_spun(&self) -> Duration {
        Duration::from_nanos(self.spun.swap(0, Ordering::Relaxed))
    }
}

impl Rung {
    /// Returns when the bell rang, and forgets it.
    pub(super) fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// Returns the instant on the clock's thread, also where the runtime's clock is paused.
#[expect(clippy::disallowed_methods, reason = "the thread sleeps in real time")]
pub(super) fn real_now() -> Instant {
    Instant::from_std(std::time::Instant::now())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn the_lead_follows_the_median_of_the_handovers() {
        let start = Instant::now();
        let (handover, rung) = (Handover::new(start), Rung::default());
        let took = |time| {
            handover.ring(&rung, start + us(500));
            handover.answer(&rung, start + us(500) + time);
        };
        // A third takes 10 µs, a third about 40 µs, and a third 300 µs.
        (0..1000).for_each(|count| {
            took(us(10));
            took(us(38 + count % 5));
            took(us(300));
        });
        let lead = handover.lead();
        assert!((us(36)..us(44)).contains(&lead), "{lead:?}");
        handover.answer(&rung, start + us(9000));
        assert_eq!(handover.lead(), lead, "a bell is answered once");
        (0..1000).for_each(|_| took(us(1000)));
        assert_eq!(handover.lead(), lead, "a busy runtime shows nothing");
        (0..1000).for_each(|_| took(us(300)));
        assert_eq!(handover.lead(), MAX_LEAD, "no poll spins for longer");
        (0..1000).for_each(|_| took(Duration::ZERO));
        assert_eq!(handover.lead(), Duration::ZERO);
    }

    #[test]
    fn a_poll_spins_to_its_instant_and_is_charged_for_it() {
        let handover = Handover::new(Instant::now());
        let far = Deadline::at(Instant::now() + Duration::from_secs(3600));
        assert!(!handover.spin(far), "it is too far");
        assert_eq!(handover.take_spun(), Duration::ZERO);
        // A thread that stands still meanwhile finds that the instant has passed: then it does not spin.
        let spun = (0..1000).map(|_| {
            let near = Deadline::at(Instant::now() + us(60));
            assert!(handover.spin(near));
            assert!(near <= Deadline::now(), "early");
            handover.take_spun()
        });
        let longest = spun.max().unwrap();
        assert!(longest > Duration::ZERO && longest <= us(60), "{longest:?}");
        assert_eq!(handover.take_spun(), Duration::ZERO);
    }
}
