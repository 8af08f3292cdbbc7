//! The GCRA family's state and its arithmetic, in exact integers.

use super::{LimitError, Standing};
use crate::rate::Rate;
use crate::time::Micros;

/// A theoretical arrival time: `at + rem/N` µs with `0 <= rem < N`, N being the rate's count.
///
/// Ordered lexicographically. The remainder keeps rates such as 1/3 s free of drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tat {
    /// The whole µs.
    pub at: Micros,
    /// The fraction of a µs, in parts of N.
    pub rem: u64,
}

impl Tat {
    /// The distant past: nothing was taken yet.
    pub const ZERO: Self = Self { at: Micros(0), rem: 0 };

    /// The TAT that is exactly `at`.
    #[must_use]
    pub const fn whole(at: Micros) -> Self {
        Self { at, rem: 0 }
    }

    /// TAT, rounded up to a whole µs.
    #[must_use]
    #[inline]
    pub const fn ceil(self) -> Micros {
        Micros(self.at.0 + (self.rem > 0) as i64)
    }

    /// The same state on a clock that stepped back by `back` µs.
    #[must_use]
    pub(super) const fn step_back(self, back: i64) -> Self {
        if self.at.0 < back { Self::ZERO } else { Self { at: Micros(self.at.0 - back), rem: self.rem } }
    }
}

/// The numbers that a TAT was written under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Under {
    /// The rate.
    pub rate: Rate,
    /// The burst.
    pub burst: u32,
}

/// One unit per emission interval T = P/N µs, at most `burst` units at once: the numbers that the leaky bucket, the
/// GCRA and the token bucket have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    rate: Rate,
    burst: u32,
    max_cost: u32,
    /// T as `whole + part/count` µs.
    whole: i64,
    part: i64,
    count: i64,
}

/// 2^53, above which doubles, and so Lua, skip integers.
pub(super) const EXACT: u64 = 1 << 53;
/// The longest span that is exact when added to an instant up to 6 years from now.
pub(super) const SPAN: u64 = EXACT - 2_000_000_000_000_000;

impl Pace {
    /// # Errors
    /// [`LimitError`] when the burst is 0, or one more unit would be beyond exact time.
    pub(super) fn new(rate: Rate, burst: u32) -> Result<Self, LimitError> {
        if burst == 0 {
            return Err(LimitError::NoBurst);
        }
        // Spans are (burst + cost) * T, and remainders stay below (burst + cost) * N. Slots later than `latest` are
        // refused, so a batch reaches no further than one job.
        let interval = rate.period_micros().div_ceil(rate.count());
        let units = (SPAN / interval).min(EXACT / rate.count());
        let max_cost = match units.saturating_sub(u64::from(burst)).saturating_sub(2) {
            0 => return Err(LimitError::BeyondExact { burst, rate }),
            left => u32::try_from(left).unwrap_or(u32::MAX),
        };
        let (count, period) = (rate.count() as i64, rate.period_micros() as i64);
        Ok(Self { rate, burst, max_cost, whole: period / count, part: period % count, count })
    }

    /// The numbers that its states are written under.
    #[inline]
    pub(super) const fn under(self) -> Under {
        Under { rate: self.rate, burst: self.burst }
    }

    #[inline]
    pub(super) const fn rate(self) -> Rate {
        self.rate
    }

    pub(super) const fn burst(self) -> u32 {
        self.burst
    }

    pub(super) const fn max_cost(self) -> u32 {
        self.max_cost
    }

    /// TAT less the tolerance for what a cost of `units` leaves of the burst, rounded up to a whole µs.
    #[inline]
    pub(super) fn due(self, tat: Tat, units: u32) -> Micros {
        self.advance(tat, i64::from(units) - i64::from(self.burst)).ceil()
    }

    /// TAT after `cost` is committed at `at`: the later of TAT and `at`, plus `cost` emission intervals.
    ///
    /// `at` is a whole µs and TAT need not be: a slot at TAT rounded up is at TAT. If it counted from the slot instead,
    /// the rounding errors would add up, and 700001/s become 500000/s.
    #[inline]
    pub(super) fn commit(self, tat: Tat, at: Micros, cost: u32) -> Tat {
        let start = if tat.ceil() < at { Tat::whole(at) } else { tat };
        self.advance(start, i64::from(cost))
    }

    /// The latest slot at which `cost` can be taken exactly, in doubles too: no store grants a later one. A cost that
    /// never fits counts as the highest that does.
    #[inline]
    pub(super) fn latest(self, cost: u32) -> Micros {
        let cost = cost.min(self.max_cost);
        let reach = self.advance(Tat::ZERO, i64::from(self.burst) + i64::from(cost));
        Micros(Micros::MAX.0 - reach.at.0 - 1)
    }

    /// Adapts a state that was written under other numbers: as many units are pending beyond the latest slot (`last`)
    /// as before. Otherwise a limit that rose from 1/min to 10/s would stand still for a minute, and one that fell
    /// would let a burst through. Where the burst differs, TAT moves by as many units, so that the remaining units stay
    /// the same: a lowered burst causes no wait, and one that is lowered and raised again has gained nothing. TAT moves
    /// back to the latest slot at most, so that never more than the lowered burst remains.
    ///
    /// Under another rate it is computed in doubles, as the scripts do, and rounded up; it is exact again from the next
    /// unit on.
    pub(super) fn retime(self, tat: Tat, under: Under, last: Micros) -> Tat {
        if under == self.under() {
            return tat;
        }
        let more = i64::from(self.burst) - i64::from(under.burst);
        let ahead = tat.at.0 - last.0;
        // Slots beyond exact time are refused either way.
        let latest = Tat::whole(self.latest(1));
        if under.rate == self.rate {
            return if ahead < 0 { tat } else { self.advance(tat, more).max(Tat::whole(last)).min(latest) };
        }
        if ahead < 0 {
            // No units are pending.
            return Tat::whole(tat.ceil()).min(latest);
        }
        let units =
            (ahead as f64 * under.rate.count() as f64 + tat.rem as f64) / under.rate.period_micros() as f64;
        let units = (units + more as f64).max(0.0);
        let span = units * self.rate.period_micros() as f64 / self.rate.count() as f64;
        Tat::whole(Micros(last.0.saturating_add(span.ceil() as i64))).min(latest)
    }

    /// TAT such that no unit fits before `until`, and the following ones fit at the pace: as if the burst had been used
    /// up until then.
    pub(super) fn paused(self, until: Micros) -> Tat {
        self.advance(Tat::whole(until), i64::from(self.burst) - 1)
    }

    /// The standing at `now`: the burst, less the emission intervals that TAT is ahead, rounded up.
    pub(super) fn standing(self, tat: Tat, now: Micros) -> Standing {
        let ahead = i128::from(tat.at.0 - now.0) * i128::from(self.count) + i128::from(tat.rem);
        let period = i128::from(self.rate.period_micros());
        let taken = if ahead <= 0 { 0 } else { (ahead + period - 1) / period };
        let remaining = u64::from(self.burst).saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
        Standing { limit: self.burst.into(), remaining, reset_after: tat.ceil().since(now) }
    }

    /// `units` emission intervals on from `tat` (or back), exactly.
    ///
    /// In range by construction: the spans, and the products of remainders, were checked in `new`.
    #[inline]
    pub(super) const fn advance(self, tat: Tat, units: i64) -> Tat {
        let sum = tat.rem as i64 + units * self.part;
        let (carry, rem) = if self.part == 0 && tat.rem == 0 {
            (0, 0)
        } else {
            (sum.div_euclid(self.count), sum.rem_euclid(self.count))
        };
        Tat { at: Micros(tat.at.0 + units * self.whole + carry), rem: rem as u64 }
    }
}
