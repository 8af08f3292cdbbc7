//! The states of limits behind a pause, and after a reset of their counts.

use super::{Level, Limit, State, Tat};
use crate::time::Micros;

impl Limit {
    /// The state during and after a pause: nothing fits before `until`. After it the GCRA family continues at its pace,
    /// without a burst; a window has what is left of it. A pause that ended long before `now` has no effect.
    #[must_use]
    pub fn pause(&self, state: State, until: Micros, now: Micros) -> State {
        if !self.is_affected_by_pause(until, now) {
            return state;
        }
        let State { last, level } = state;
        match (self.tat(), level) {
            (Some((pace, _)), Level::Tat(tat, under)) => {
                let end = pace.paused(until);
                // The burst is used up at the end of the pause: pending units count from there, under another rate too.
                let last = if tat < end { last.max(until) } else { last };
                State { last, level: Level::Tat(tat.max(end), under) }
            }
            (_, level) => State { last: last.max(until), level },
        }
    }

    /// The state of a limit whose counts start again from 0: nothing fits before `from`, the latest slot there was. The
    /// GCRA family continues at its pace from there, without a burst; a window has all its units.
    #[must_use]
    pub fn restarted(&self, from: Micros) -> State {
        let level = match self.tat() {
            Some((pace, _)) => Level::Tat(pace.advance(Tat::whole(from), pace.burst().into()), pace.under()),
            None => self.fresh().level,
        };
        State { last: from, level }
    }

    /// Whether a pause until then still has an effect at `now`: the burst has not come back completely.
    pub(crate) fn is_affected_by_pause(&self, until: Micros, now: Micros) -> bool {
        self.tat().map_or(until, |(pace, _)| pace.paused(until).ceil()) > now
    }
}
