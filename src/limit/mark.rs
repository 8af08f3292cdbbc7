//! Marks: a summary of a state in three numbers, which distinguishes states and suffices to give a slot back.

use super::{Level, Limit, SlidingLog, State, Tat, Window};
use crate::time::Micros;

/// A summary of a state, as far as giving the latest slot back needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// The complete state of the GCRA family.
    Tat {
        /// The latest slot.
        last: Micros,
        /// The theoretical arrival time.
        tat: Tat,
    },
    /// The complete state of a window.
    Window {
        /// The latest slot.
        last: Micros,
        /// The window.
        window: Window,
    },
    /// The end of a log, or the last bucket of a sliding window.
    Tail {
        /// The latest slot.
        last: Micros,
        /// The units taken at that slot, or in its bucket.
        units: u64,
    },
}

impl Mark {
    /// The mark as the scripts encode it: the latest slot, and two more numbers.
    #[must_use]
    pub const fn numbers(self) -> [i64; 3] {
        match self {
            Self::Tat { last, tat } => [last.0, tat.at.0, tat.rem as i64],
            Self::Window { last, window } => [last.0, window.end.0, window.used as i64],
            Self::Tail { last, units } => [last.0, units as i64, 0],
        }
    }
}

impl Limit {
    /// The mark of a state.
    #[must_use]
    pub fn mark(&self, state: &State) -> Mark {
        let last = state.last;
        match (self.algorithm, &state.level) {
            (_, Level::Tat(tat, _)) => Mark::Tat { last, tat: *tat },
            (_, Level::Window(window)) => Mark::Window { last, window: *window },
            (super::Algorithm::SlidingWindow(sliding), Level::Buckets(buckets)) => {
                Mark::Tail { last, units: sliding.units_at(buckets, last) }
            }
            (_, Level::Buckets(_)) => Mark::Tail { last, units: 0 },
            (_, Level::Log(log)) => Mark::Tail { last, units: SlidingLog::units_at(log, last) },
        }
    }

    /// The mark that these numbers of a script encode; `None` if they are malformed.
    #[must_use]
    pub fn mark_of(&self, numbers: [i64; 3]) -> Option<Mark> {
        let [last, a, b] = numbers;
        let (last, units) = (Micros(last), |n: i64| u64::try_from(n).ok());
        Some(match self.fresh().level {
            Level::Tat(..) => Mark::Tat { last, tat: Tat { at: Micros(a), rem: units(b)? } },
            Level::Window(_) => Mark::Window { last, window: Window { end: Micros(a), used: units(b)? } },
            Level::Buckets(_) | Level::Log(_) => Mark::Tail { last, units: units(a)? },
        })
    }

    /// The mark after `cost` is committed at `at`.
    #[must_use]
    pub fn mark_commit(&self, mark: Mark, at: Micros, cost: u32) -> Mark {
        if cost == 0 {
            return mark;
        }
        match (self.algorithm, mark) {
            (_, Mark::Tat { tat, .. }) => match self.tat() {
                Some((pace, _)) => Mark::Tat { last: at, tat: pace.commit(tat, at, cost) },
                None => mark,
            },
            (super::Algorithm::FixedWindow(c) | super::Algorithm::Quota(c), Mark::Window { window, .. }) => {
                Mark::Window { last: at, window: c.commit(window, at, cost) }
            }
            (algorithm, Mark::Tail { last, units }) => {
                let same = match algorithm {
                    super::Algorithm::SlidingWindow(sliding) => sliding.bucket(last) == sliding.bucket(at),
                    _ => last == at,
                };
                Mark::Tail { last: at, units: u64::from(cost) + if same { units } else { 0 } }
            }
            _ => mark,
        }
    }

    /// The state of a mark that is complete, as those of the GCRA family and of windows are.
    #[must_use]
    pub fn state_of(&self, mark: Mark) -> Option<State> {
        match mark {
            Mark::Tat { last, tat } => Some(State { last, level: Level::Tat(tat, self.under()) }),
            Mark::Window { last, window } => Some(State { last, level: Level::Window(window) }),
            Mark::Tail { .. } => None,
        }
    }

    /// The state with a slot given back, if `after` is its mark, which means that nothing was taken since. `before`
    /// marks the state before the slot was taken.
    #[must_use]
    pub fn undo(
        &self,
        state: &State,
        (before, after): (Mark, Mark),
        slot: Micros,
        cost: u32,
    ) -> Option<State> {
        if self.mark(state) != after {
            return None;
        }
        if let Some(state) = self.state_of(before) {
            return Some(state);
        }
        let Mark::Tail { last, .. } = before else { return None };
        let (level, cleared) = match (self.algorithm, &state.level) {
            (super::Algorithm::SlidingWindow(sliding), Level::Buckets(buckets)) => {
                (Level::Buckets(sliding.undo(buckets, slot, cost)), buckets.cleared)
            }
            (_, Level::Log(log)) => (Level::Log(SlidingLog::undo(log, slot, cost)), log.cleared),
            _ => return None,
        };
        // Later slots that were given back as well have dropped entries that counted before.
        Some(State { last: last.max(cleared), level })
    }
}
