//! Pauses of some lanes alone, whose jobs the downstream throttles.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Lanes;
use crate::pace::LaneId;

impl Lanes {
    /// Whether lanes wait alone if the downstream throttles one of their jobs.
    pub(crate) fn pause_alone(&self) -> bool {
        !self.rules.pause_per.is_empty()
    }

    /// The states of the limits of a lane, in the order of its set.
    pub(super) fn limit_states(&self, lane: usize) -> &[usize] {
        let super::Lane { set, states, .. } = &self.all[lane];
        &states[..self.sets[*set].len().min(states.len())]
    }

    /// The state of the pauses of lanes with these values.
    fn pause_state(&self, values: &[String]) -> Option<usize> {
        self.states.pause_of(self.rules.pause_key(values)?)
    }

    /// Pauses the lanes with these values from now until then. Returns the values that pause together, if the pause begins.
    pub(crate) fn pause(&mut self, values: &[String], times: (Instant, Instant)) -> Option<Arc<str>> {
        let state = self.pause_state(values)?;
        let begins = self.states.pause(state, times);
        begins.then(|| Arc::clone(self.states.name(state).1))
    }

    /// Begins or continues a cool-down of the lanes with these values, since the downstream throttled one of their
    /// jobs, which was sent at `sent`. The waits of the cool-down grow up to `longest`. Returns the values that wait
    /// together, if the cool-down begins.
    pub(crate) fn cool_down(
        &mut self,
        values: &[String],
        times: (Instant, Instant),
        longest: Duration,
    ) -> Option<Arc<str>> {
        let state = self.pause_state(values)?;
        let begins = self.states.cool_down(state, times, longest);
        begins.then(|| Arc::clone(self.states.name(state).1))
    }

    /// Records that the downstream answered a job with these values, which was sent at `sent`, and did not throttle
    /// it.
    pub(crate) fn answered(&mut self, values: &[String], sent: Instant) {
        if !self.states.are_any_throttled() {
            // The end of each send comes here.
            return;
        }
        let probed = self.pause_state(values).filter(|state| self.states.answered(*state, sent));
        probed.into_iter().for_each(|state| self.top_up(state));
    }

    /// When the latest pause of lanes with these values ends, or the wait before their next probe.
    pub(crate) fn paused_until(&self, values: &[String]) -> Option<Instant> {
        self.states.paused_until(self.pause_state(values)?)
    }

    /// Whether a lane is in a pause at this instant, or waits for the next probe.
    pub(crate) fn is_paused(&self, lane: LaneId, at: Instant) -> bool {
        let states = self.index(lane.row()).map(|lane| &self.all[lane].states);
        states.into_iter().flatten().any(|state| self.states.is_paused(*state, at))
    }

    /// The limit that lanes wait for and that allows something first, and when it does. It is `None` where a pause of some lanes
    /// ends before.
    pub(crate) fn first_limit(&self) -> Option<(Option<String>, Instant)> {
        let state = self.states.first_asleep().filter(|state| !self.states.is_stop(*state))?;
        let name = (!self.states.is_pause(state)).then(|| self.states.name(state).0.to_string());
        Some((name, self.states.sleeps_until(state)?))
    }

    /// Applies a change of the values that operators have paused; `paused` are the values before. Lanes whose values
    /// were paused since then wait, and lanes whose values were resumed continue. All other lanes keep what is known
    /// of their limits.
    pub(super) fn follow_stops(&mut self, paused: &BTreeSet<String>) {
        let rules = Arc::clone(&self.rules);
        let has_changed = |value: &str| paused.contains(value) != rules.paused.contains(value);
        let changed = self.known.iter().filter(|(_, values)| has_changed(rules.fair_value(values)));
        let changed: Vec<(usize, String)> =
            changed.map(|(lane, values)| (lane, rules.fair_value(values).to_owned())).collect();
        for (lane, value) in changed {
            let rank = self.take_out(lane);
            let Self { all, states, .. } = self;
            let own = &mut all[lane].states;
            if rules.paused.contains(&value) {
                own.push(states.join_stop(&value));
            } else if let Some(stop) = own.pop_if(|state| states.is_stop(*state)) {
                states.leave(stop);
            }
            rank.into_iter().for_each(|rank| self.wait(lane, rank));
        }
    }

    /// Whether lanes wait for nothing but an operator.
    pub(crate) fn are_stopped(&self) -> bool {
        self.states.first_asleep().is_some_and(|state| self.states.is_stop(state))
    }
}
