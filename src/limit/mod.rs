//! The kernel: every algorithm is two pure functions over a compact state, `earliest` and
//! `commit`. Neither reads a clock nor does I/O. The scripts in `store/redis/lua` compute the same.
//!
//! The windows evaluate at the latest slot taken where that is later than now (the frontier). A cost that fits at one
//! instant therefore fits at every later one until more is taken, and the latest of several limits' `earliest` fits all
//! of them.

mod bounds;
pub mod calendar;
mod decision;
mod error;
mod gcra;
mod kind;
mod lanes;
mod leaky_bucket;
mod lease;
mod margin;
mod mark;
mod new;
mod pause;
mod plan;
mod price;
mod rerate;
mod set;
mod share;
mod sliding_log;
mod sliding_window;
mod slots;
mod spacing;
mod tat;
mod window;

use std::time::Duration;

use crate::time::Micros;

pub use bounds::{LONGEST_LOG, MAX_BATCH, MAX_LIMITS};
pub use calendar::Calendar;
pub use decision::{Decision, Standing};
pub use error::LimitError;
pub use gcra::{Gcra, TokenBucket};
pub(crate) use lanes::{Keyed, Span};
pub use leaky_bucket::LeakyBucket;
pub(crate) use lease::LEASE;
pub use mark::Mark;
pub use plan::{Charge, Costs, Passed, Plan, Refusal, Verdict};
pub(crate) use price::CallCosts;
pub use price::JobCost;
#[cfg(feature = "config")]
pub(crate) use price::MOST_OWN;
#[doc(hidden)]
pub use rerate::{Problem, rate_text};
pub use set::{Combine, LimitSet, Row};
pub(crate) use share::replica_share;
pub use sliding_log::{Log, SlidingLog};
pub use sliding_window::{Buckets, SlidingWindow};
pub(crate) use spacing::HAND_OVER;
pub use tat::{Tat, Under};
pub use window::{Counting, Edges, Window};

/// A named limit. The name is the key of its state, so numbers may change and the state stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    name: String,
    algorithm: Algorithm,
    /// The algorithm as it is written, without the margin.
    without_margin: Algorithm,
    margin: Duration,
}

/// The algorithm of a limit, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// A shaper whose slots are T apart. The cost of a job delays the jobs behind it, not the job itself.
    LeakyBucket(LeakyBucket),
    /// A limit of one unit per T, where the whole cost must fit the burst. The leaky bucket as a meter is one too.
    Gcra(Gcra),
    /// A bucket of tokens that is refilled continuously.
    TokenBucket(TokenBucket),
    /// At most N units in each window.
    FixedWindow(Counting),
    /// At most N units per period, as estimated by buckets.
    SlidingWindow(SlidingWindow),
    /// At most N units in any period, exactly.
    SlidingLog(SlidingLog),
    /// At most N units in each day, week or month, or in each window of a longer period.
    Quota(Counting),
}

/// The state of a limit: a level, and the frontier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The latest slot taken.
    pub last: Micros,
    /// The units taken.
    pub level: Level,
}

/// The units taken, as each family of algorithms counts them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// The GCRA family's theoretical arrival time, and the numbers that it was written under.
    Tat(Tat, Under),
    /// The present window.
    Window(Window),
    /// The buckets of a sliding window.
    Buckets(Buckets),
    /// The entries of a log.
    Log(Log),
}

#[cfg(feature = "redis")]
impl State {
    /// Whether the mark of the level is less than all of it.
    pub(crate) const fn is_partly_marked(&self) -> bool {
        matches!(self.level, Level::Buckets(_) | Level::Log(_))
    }
}

impl Limit {
    fn new(name: impl Into<String>, algorithm: Algorithm) -> Self {
        Self { name: name.into(), algorithm, without_margin: algorithm, margin: Duration::ZERO }
    }

    /// The limit as a policer takes it: a leaky bucket becomes a meter, which refuses what would
    /// overflow it. All others police as they are.
    #[must_use]
    pub fn policing(self) -> Self {
        let meter = |algorithm| match algorithm {
            Algorithm::LeakyBucket(bucket) => Algorithm::Gcra(bucket.meter()),
            other => other,
        };
        let (algorithm, without_margin) = (meter(self.algorithm), meter(self.without_margin));
        Self { algorithm, without_margin, ..self }
    }

    /// The name: the key of its state.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same limit under another name, and so with a state of its own.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The algorithm and its numbers.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The state of a limit that was never used, or whose state equals absence.
    #[must_use]
    pub const fn fresh(&self) -> State {
        let level = match self.algorithm {
            Algorithm::LeakyBucket(_) | Algorithm::Gcra(_) | Algorithm::TokenBucket(_) => {
                Level::Tat(Tat::ZERO, self.under())
            }
            Algorithm::FixedWindow(_) | Algorithm::Quota(_) => {
                Level::Window(Window { end: Micros(0), used: 0 })
            }
            Algorithm::SlidingWindow(window) => {
                Level::Buckets(Buckets { width: window.width(), counts: Vec::new(), cleared: Micros(0) })
            }
            Algorithm::SlidingLog(_) => Level::Log(Log { entries: Vec::new(), cleared: Micros(0) }),
        };
        State { last: Micros(0), level }
    }

    /// The numbers that states of the GCRA family are written under.
    const fn under(&self) -> Under {
        match self.tat() {
            Some((pace, _)) => pace.under(),
            None => Under { rate: self.rate(), burst: 1 },
        }
    }

    /// The highest cost of one job that can ever fit and is exact.
    #[must_use]
    #[inline]
    pub fn max_cost(&self) -> u32 {
        match self.algorithm {
            Algorithm::LeakyBucket(bucket) => bucket.max_cost(),
            Algorithm::Gcra(gcra) => gcra.max_cost(),
            Algorithm::TokenBucket(bucket) => bucket.gcra().max_cost(),
            // More than N never fits.
            _ => u32::try_from(self.burst()).unwrap_or(u32::MAX),
        }
    }

    /// The first instant, `now` or later, at which `cost` fits; [`Micros::MAX`] for a cost that never
    /// does.
    #[must_use]
    #[inline]
    pub fn earliest(&self, state: &State, now: Micros, cost: u32) -> Micros {
        if cost > self.max_cost() {
            return Micros::MAX;
        }
        let last = state.last;
        match (self.algorithm, &state.level) {
            (Algorithm::LeakyBucket(bucket), Level::Tat(tat, _)) => bucket.earliest(*tat, now, cost),
            (Algorithm::Gcra(gcra), Level::Tat(tat, _)) => gcra.earliest(*tat, now, cost),
            (Algorithm::TokenBucket(bucket), Level::Tat(tat, _)) => bucket.gcra().earliest(*tat, now, cost),
            (Algorithm::FixedWindow(counting) | Algorithm::Quota(counting), Level::Window(window)) => {
                counting.earliest(*window, last, now, cost)
            }
            (Algorithm::SlidingWindow(window), Level::Buckets(buckets)) => {
                window.earliest(buckets, last, now, cost)
            }
            (Algorithm::SlidingLog(log), Level::Log(entries)) => log.earliest(entries, last, now, cost),
            // A state of another algorithm has no meaning here: `adopt` replaces it.
            _ => now.max(last),
        }
    }

    /// The state after `cost` is committed at `at`. A cost of 0 changes nothing.
    #[must_use]
    pub fn commit(&self, state: &State, at: Micros, cost: u32) -> State {
        if cost == 0 {
            return state.clone();
        }
        let last = state.last;
        let level = match (self.algorithm, &state.level) {
            (Algorithm::LeakyBucket(bucket), Level::Tat(tat, under)) => {
                Level::Tat(bucket.commit(*tat, at, cost), *under)
            }
            (Algorithm::Gcra(gcra), Level::Tat(tat, under)) => {
                Level::Tat(gcra.commit(*tat, at, cost), *under)
            }
            (Algorithm::TokenBucket(bucket), Level::Tat(tat, under)) => {
                Level::Tat(bucket.gcra().commit(*tat, at, cost), *under)
            }
            (Algorithm::FixedWindow(counting) | Algorithm::Quota(counting), Level::Window(window)) => {
                Level::Window(counting.commit(*window, at, cost))
            }
            (Algorithm::SlidingWindow(window), Level::Buckets(buckets)) => {
                Level::Buckets(window.commit(buckets, last, at, cost))
            }
            (Algorithm::SlidingLog(log), Level::Log(entries)) => {
                Level::Log(log.commit(entries, last, at, cost))
            }
            _ => return self.commit(&self.adopt(state.clone()), at, cost),
        };
        State { last: at, level }
    }

    /// Commits `cost` at the first instant at which it fits, if that is not after `until`, by adopt, earliest and
    /// commit in place. Otherwise returns when it would fit.
    #[inline]
    pub(crate) fn take(
        &self,
        state: &mut State,
        (now, until): (Micros, Micros),
        cost: u32,
    ) -> Result<Micros, Micros> {
        if let (Some((pace, behind)), Level::Tat(tat, under)) = (self.tat(), &mut state.level) {
            // A state that was written under other numbers is rewritten only if something is committed.
            let level = if *under == pace.under() { *tat } else { pace.retime(*tat, *under, state.last) };
            if cost > pace.max_cost() || (!behind && cost > pace.burst()) {
                return Err(Micros::MAX);
            }
            let slot = pace.due(level, if behind { 1 } else { cost }).max(now);
            if slot > until {
                return Err(slot);
            }
            if cost > 0 {
                (*tat, *under) = (pace.commit(level, slot, cost), pace.under());
                state.last = slot;
            }
            return Ok(slot);
        }
        *state = self.adopt(state.clone());
        let slot = self.earliest(state, now, cost);
        if slot > until {
            return Err(slot);
        }
        *state = self.commit(state, slot, cost);
        Ok(slot)
    }

    /// The latest slot at which `cost` can be taken exactly.
    #[must_use]
    #[inline]
    pub fn latest(&self, cost: u32) -> Micros {
        let window = |period: i64| Micros(Micros::MAX.0 - 2 * period - 1);
        match self.algorithm {
            Algorithm::LeakyBucket(bucket) => bucket.latest(cost),
            Algorithm::Gcra(gcra) => gcra.pace().latest(cost),
            Algorithm::TokenBucket(bucket) => bucket.gcra().pace().latest(cost),
            Algorithm::FixedWindow(counting) | Algorithm::Quota(counting) => {
                window(counting.edges().longest())
            }
            Algorithm::SlidingWindow(sliding) => window(sliding.width() * (1 + i64::from(sliding.buckets()))),
            Algorithm::SlidingLog(log) => window(log.period()),
        }
    }

    /// A stored state under the present numbers. It may have been written under others, or by another algorithm, of
    /// which only the frontier is kept.
    #[must_use]
    pub fn adopt(&self, state: State) -> State {
        let State { last, level } = state;
        let level = match (self.algorithm, level) {
            (Algorithm::FixedWindow(counting) | Algorithm::Quota(counting), Level::Window(window)) => {
                Level::Window(counting.adopt(window, last))
            }
            (Algorithm::SlidingWindow(window), Level::Buckets(buckets)) => {
                Level::Buckets(window.adopt(buckets, last))
            }
            (Algorithm::SlidingLog(_), level @ Level::Log(_)) => level,
            (_, Level::Tat(tat, under)) => match self.tat() {
                Some((pace, _)) => Level::Tat(pace.retime(tat, under, last), pace.under()),
                None => self.fresh().level,
            },
            _ => self.fresh().level,
        };
        State { last, level }
    }

    /// The state on a clock that stepped back by `back` µs since it was written; forward where that is negative.
    #[must_use]
    pub fn step_back(&self, state: State, back: i64) -> State {
        let State { last, level } = state;
        let level = match (self.algorithm, level) {
            (_, Level::Tat(tat, under)) => Level::Tat(tat.step_back(back), under),
            (Algorithm::FixedWindow(counting) | Algorithm::Quota(counting), Level::Window(window)) => {
                Level::Window(counting.step_back(window, last, back))
            }
            (_, Level::Buckets(buckets)) => Level::Buckets(SlidingWindow::step_back(buckets, back)),
            (_, Level::Log(log)) => Level::Log(SlidingLog::step_back(log, back)),
            (_, level @ Level::Window(_)) => level,
        };
        self.adopt(State { last: Micros((last.0 - back).max(0)), level })
    }

    /// The instant from which the state equals absence: all units have come back.
    #[must_use]
    #[inline]
    pub fn whole_at(&self, state: &State) -> Micros {
        match (self.algorithm, &state.level) {
            (_, Level::Tat(tat, _)) => tat.at,
            (_, Level::Window(window)) => window.end.max(state.last),
            (Algorithm::SlidingWindow(window), Level::Buckets(buckets)) => {
                window.whole_at(buckets).max(state.last)
            }
            (Algorithm::SlidingLog(log), Level::Log(entries)) => entries
                .entries
                .last()
                .map_or(state.last, |(taken, _)| Micros(taken.0 + log.period()))
                .max(state.last),
            _ => state.last,
        }
    }

    /// The standing of the limit at `now`: the remaining units, and when all have come back.
    #[must_use]
    pub fn standing(&self, state: &State, now: Micros) -> Standing {
        let last = state.last;
        match (self.algorithm, &state.level) {
            (Algorithm::FixedWindow(counting) | Algorithm::Quota(counting), Level::Window(window)) => {
                counting.standing(*window, last, now)
            }
            (Algorithm::SlidingWindow(window), Level::Buckets(buckets)) => {
                window.standing(buckets, last, now)
            }
            (Algorithm::SlidingLog(log), Level::Log(entries)) => log.standing(entries, last, now),
            (_, Level::Tat(tat, _)) => match self.tat() {
                Some((pace, _)) => pace.standing(*tat, now),
                None => self.standing(&self.fresh(), now),
            },
            _ => self.standing(&self.fresh(), now),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
