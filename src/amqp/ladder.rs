//! The ladder of delays: queues that keep a message for a fixed time, each for twice as long as the one before. It has
//! no I/O.
//!
//! Nothing consumes these queues. When a message's time there is over, the broker moves it to the home queue of its
//! downstream.
//!
//! A job that waits for the limits of its downstream may be released earlier if these change. It waits on a shorter
//! ladder of queues of its downstream's own, each for four times as long as the one before. These queues can be
//! emptied ([`unpark`](super::unpark)).

use std::time::Duration;

/// The unit of the ladder: the lowest rung keeps a message for this long.
pub const RUNG_UNIT: Duration = Duration::from_secs(1);

/// The highest rung keeps a message for 2^22 s, 48.5 days: RabbitMQ's longest TTL is 49.7 days.
const HIGHEST: u8 = 22;

/// The rungs of a downstream's own, as powers of two. The longest stay there is 4096 s; then paced decides again.
const OWN: [u8; 6] = [2, 4, 6, 8, 10, 12];

/// How many rungs of its own a downstream has.
pub(super) const OWN_RUNGS: usize = OWN.len();

/// The wait divided by this is the margin between the end of a stay and the end of the wait: the broker takes some time
/// to move a message, and more if many come home together.
const MARGIN_DIVISOR: u32 = 8;

/// The longest margin, in units.
const MAX_MARGIN: u32 = 5;

/// One rung: a message stays there for two to the power of this many units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Rung(u8);

impl Rung {
    /// The rung for a message that must wait for this long. The stay ends before the wait does: by an eighth of the
    /// wait, or by five units if that is less. If the wait is a unit or little more, this margin may be shorter:
    /// without a stay the message would come back at once, and be parked again and again. `None` if no stay is short
    /// enough.
    pub(super) fn below(wait: Duration, unit: Duration) -> Option<Self> {
        let margin = (wait / MARGIN_DIVISOR).min(unit * MAX_MARGIN).min(wait.saturating_sub(unit));
        let units = (wait - margin).as_nanos() / unit.as_nanos().max(1);
        let power = units.checked_ilog2()?;
        Some(Self(u8::try_from(power).unwrap_or(HIGHEST).min(HIGHEST)))
    }

    /// As [`Rung::below`], of the rungs of a downstream's own.
    pub(super) fn own_below(wait: Duration, unit: Duration) -> Option<Self> {
        let Self(power) = Self::below(wait, unit)?;
        OWN.into_iter().rev().find(|own| *own <= power).map(Self)
    }

    /// The rungs of a downstream's own, the lowest first.
    pub(super) fn own() -> impl Iterator<Item = Self> {
        OWN.into_iter().map(Self)
    }

    /// All rungs.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..=HIGHEST).map(Self)
    }

    /// How long a message stays, in units.
    pub(super) const fn units(self) -> u32 {
        1 << self.0
    }

    /// How long a message stays.
    pub(super) fn stay(self, unit: Duration) -> Duration {
        unit * self.units()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    fn below(seconds: f64) -> Option<u32> {
        Rung::below(Duration::from_secs_f64(seconds), RUNG_UNIT).map(Rung::units)
    }

    #[test]
    fn a_stay_ends_before_the_wait() {
        for (wait, stay) in [
            (0.0, None),
            (0.99, None),
            (1.0, Some(1)),
            (1.14, Some(1)),
            (1.15, Some(1)),
            (2.0, Some(1)),
            (2.3, Some(2)),
            (36.5, Some(16)),
            (36.6, Some(32)),
            (60.0, Some(32)),
            (75.0, Some(64)),
            (366.0 * DAY as f64, Some(1 << 22)),
            (1e15, Some(1 << 22)),
        ] {
            assert_eq!(below(wait), stay, "{wait}");
        }
    }

    #[test]
    fn a_stay_on_a_rung_of_ones_own_ends_before_the_wait_too() {
        let own = |seconds| Rung::own_below(Duration::from_secs(seconds), RUNG_UNIT).map(Rung::units);
        for (wait, stay) in [
            (0, None),
            (4, None),
            (5, Some(4)),
            (18, Some(4)),
            (19, Some(16)),
            (60, Some(16)),
            (69, Some(64)),
            (3600, Some(1024)),
            (4100, Some(1024)),
            (4101, Some(4096)),
            (366 * DAY, Some(4096)),
        ] {
            assert_eq!(own(wait), stay, "{wait}");
        }
        assert_eq!(Rung::own().map(Rung::units).collect::<Vec<_>>(), [4, 16, 64, 256, 1024, 4096]);
    }

    #[test]
    fn the_longest_stay_fits_a_ttl() {
        let longest = Rung::all().last().unwrap().stay(RUNG_UNIT);
        assert!(longest.as_millis() <= u128::from(u32::MAX), "{longest:?}");
    }

    #[test]
    fn the_longest_wait_goes_round_a_few_times_and_never_too_long() {
        let hold_max = Duration::from_secs(60);
        for days in [1, 7, 48, 366] {
            let (mut left, mut hops) = (Duration::from_secs(days * DAY), 0);
            while left > hold_max {
                let stay = Rung::below(left, RUNG_UNIT).unwrap().stay(RUNG_UNIT);
                assert!(stay < left);
                (left, hops) = (left - stay, hops + 1);
            }
            assert!(hops <= 24, "{days} days: {hops}");
        }
    }

    #[test]
    fn a_shorter_unit_scales_the_ladder() {
        let unit = Duration::from_millis(1);
        assert_eq!(Rung::below(Duration::from_millis(75), unit).map(|rung| rung.stay(unit)), Some(unit * 64));
    }
}
