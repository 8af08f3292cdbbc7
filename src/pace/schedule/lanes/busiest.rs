//! The lanes in which the most waiters wait, and the reason. It is pure.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tokio::time::Instant;

use super::{Lanes, Phase};
use crate::pace::Waiter;
use crate::pace::backlog::Backlog;

/// The waiters that are ready, by lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LanesView {
    /// The lanes with the most of them, the busiest first.
    pub(crate) busiest: Vec<BusyLane>,
    /// The number of all of them.
    pub(crate) waiting: usize,
    /// The number of those that do not have the part by which lanes share. They share as one.
    pub(crate) unnamed: usize,
}

/// A lane, and its waiters that are ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BusyLane {
    /// The values of its parts, such as `endpoint=x&tenant=acme`.
    pub(crate) name: String,
    /// The number of its waiters.
    pub(crate) waiting: usize,
    /// Their lowest position in the order of arrival.
    pub(crate) oldest: Option<u64>,
    pub(crate) wait: LaneWait,
}

/// What the next waiter of a lane waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LaneWait {
    /// Its turn, or a slot of the downstream.
    Turn,
    /// The limit of this name, and the instant at which that allows more, if it is known.
    Limit(String, Option<Instant>),
    /// A pause of these lanes alone that the downstream caused, and its end.
    Pause(Instant),
    /// A pause of its value by an operator, who has to end it.
    Stop,
}

impl Lanes {
    /// The number of lanes that are known, also those without waiters.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// Returns the number of waiters that are ready, and at most this many of their lanes.
    pub(crate) fn view<W: Waiter>(&self, backlog: &Backlog<W>, now: Instant, most: usize) -> LanesView {
        // The lane with the fewest waiters of those that were kept comes out first.
        let mut busiest = BinaryHeap::with_capacity(most + 1);
        let mut view = LanesView::default();
        for (lane, values) in self.known.iter() {
            let ready = backlog.ready(self.id(lane));
            if ready > 0 {
                view.waiting += ready;
                view.unnamed += if self.rules.fair_value(values).is_empty() { ready } else { 0 };
                busiest.push(Reverse((ready, Reverse(lane), values)));
            }
            if busiest.len() > most {
                busiest.pop();
            }
        }
        let busiest = busiest.into_sorted_vec().into_iter();
        let busiest = busiest.map(|Reverse((waiting, Reverse(lane), values))| BusyLane {
            name: self.rules.name(values),
            waiting,
            oldest: backlog.oldest_of(self.id(lane)),
            wait: self.wait_of(lane, now),
        });
        view.busiest.extend(busiest);
        view
    }

    /// What the next waiter of this lane waits for.
    fn wait_of(&self, lane: usize, now: Instant) -> LaneWait {
        let limit = |state: usize, until| LaneWait::Limit(self.states.name(state).0.to_string(), until);
        let asleep = |state: &usize| Some((self.states.sleeps_until(*state)?, *state));
        let last = self.all[lane].states.iter().filter_map(asleep).max();
        match (last.filter(|(until, _)| *until > now), self.all[lane].phase) {
            (Some((_, state)), _) if self.states.is_stop(state) => LaneWait::Stop,
            (Some((until, state)), _) if self.states.is_pause(state) => LaneWait::Pause(until),
            (Some((until, state)), _) => limit(state, Some(until)),
            // Others of its state go before it.
            (None, Phase::Waiting { state, .. }) if !self.states.is_pause(state) => limit(state, None),
            (None, _) => LaneWait::Turn,
        }
    }
}
