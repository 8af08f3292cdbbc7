//! One call for slots: the jobs that it offers, and their results.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::fair::{Charge, Turn};
use super::{Lanes, Phase};
use crate::limit::MAX_BATCH;
use crate::pace::backlog::Backlog;
use crate::pace::{LaneId, Settings, Waiter};
use crate::store::MAX_STATES;

/// The answer to one job of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was granted this slot.
    Granted(Instant),
    /// A limit of its lane, by its index in the set of the lane, allows none before this instant.
    Limited(usize, Instant),
    /// Something else refused it.
    Refused,
}

/// A job that the current call offers.
#[derive(Debug)]
pub(super) struct Offered {
    lane: usize,
    charge: Charge,
    /// The turn that its lane had before. The lane has it again if the job is not granted.
    turn: u64,
}

impl Lanes {
    /// The number of jobs of lanes that wait for their turn; the count ends at `most`.
    pub(crate) fn waiting<W: Waiter>(&self, backlog: &Backlog<W>, most: u64) -> u64 {
        let mut waiting = 0;
        for lane in self.classes.waiting() {
            waiting += backlog.ready(self.id(lane)) as u64;
            if waiting >= most {
                break;
            }
        }
        waiting.min(most)
    }

    /// Returns how many jobs to offer for this number of slots: a few more, since limits of lanes may refuse some.
    pub(crate) fn offers(&self, slots: usize) -> usize {
        if self.sets.iter().all(Vec::is_empty) {
            return slots;
        }
        (slots + slots.div_ceil(4) + 8).saturating_mul(self.asking.growth).min(MAX_BATCH)
    }

    /// Whether the current call offers a job of this lane.
    pub(crate) fn is_offered(&self, lane: LaneId) -> bool {
        self.index(lane.row()).is_some_and(|lane| self.all[lane].offered > 0)
    }

    /// Begins the choice of jobs for a call.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.end();
        (self.asking.spare, self.asking.weight, self.asking.asked) = (None, 0, Some(now));
    }

    /// Takes the lane whose turn it is. [`Lanes::offer`] or [`Lanes::skip`] must report the result.
    pub(crate) fn next<W: Waiter>(&mut self, backlog: &Backlog<W>) -> Option<(LaneId, Turn)> {
        while let Some(turn) = self.classes.pop(&mut self.asking.spare) {
            let lane = turn.lane;
            self.all[lane].phase = Phase::Idle;
            self.all[lane].states.iter().for_each(|state| self.states.remove_ready(*state));
            // Other lanes that came to wait since it became ready may precede it.
            let is_held_up = |rank| self.held_up_by(lane, rank).is_some();
            match self.rank(lane, backlog) {
                None => {
                    self.top_up_all_of(lane);
                    continue;
                }
                Some(rank) if rank != turn.rank || is_held_up(rank) => {
                    self.wait(lane, rank);
                    continue;
                }
                Some(_) => {}
            }
            let more: usize = self.all[lane].states.iter().map(|state| self.states.more_weight(*state)).sum();
            if self.asking.weight + more > MAX_STATES {
                self.make_ready(lane, turn.rank);
                return None;
            }
            self.asking.weight += more;
            return Some((self.id(lane), turn));
        }
        None
    }

    /// Records that a job of this lane and cost is part of the current call.
    pub(crate) fn offer<W: Waiter>(&mut self, turn: &Turn, cost: u32, backlog: &Backlog<W>) {
        let charge = self.classes.charge(turn, cost, &mut self.asking.spare);
        self.turn += 1;
        let offered = &mut self.all[turn.lane];
        let before = std::mem::replace(&mut offered.turn, self.turn);
        offered.offered += 1;
        self.asking.offered.push(Offered { lane: turn.lane, charge, turn: before });
        for state in &offered.states {
            self.states.offer(*state, turn.lane, cost);
        }
        self.skip(turn, backlog);
    }

    /// Records that the first job of this lane is not part of the call. Other lanes of its states may continue.
    pub(crate) fn skip<W: Waiter>(&mut self, turn: &Turn, backlog: &Backlog<W>) {
        match self.rank(turn.lane, backlog) {
            Some(rank) => self.wait(turn.lane, rank),
            None => self.top_up_all_of(turn.lane),
        }
    }

    /// Accepts the answers to the jobs of a call under these settings, with their lanes and costs. `has_room` says
    /// that the downstream had more slots. What the answers report about limits counts unless the lanes have other
    /// limits by now.
    pub(crate) fn settle(&mut self, settings: &Settings, answers: &[(LaneId, u32, Answer)], has_room: bool) {
        let limited = if self.has_limits_of(settings) { self.learn(answers) } else { 0 };
        if self.asking.offered.len() != answers.len() {
            // The call was for a trial, or its jobs were chosen under other limits: there are no charges to settle.
            return self.end();
        }
        let grows = has_room && limited > answers.len() / 4;
        self.asking.growth = if grows { (self.asking.growth * 4).min(MAX_BATCH) } else { 1 };
        self.end_with(|index| matches!(answers.get(index), Some((.., Answer::Granted(_)))));
    }

    /// Whether the lanes have the limits of these settings.
    fn has_limits_of(&self, settings: &Settings) -> bool {
        let own = |set: usize| settings.own_limits(LaneId::at(set));
        self.sets.len() == settings.plans.len() + 1
            && self.sets.iter().enumerate().all(|(set, limits)| own(set).eq(limits))
    }

    /// Learns from the answers to a call about the limits of lanes. Returns how many jobs these limits refused.
    fn learn(&mut self, answers: &[(LaneId, u32, Answer)]) -> usize {
        self.keep_order(answers);
        let mut limited = 0;
        for (id, cost, answer) in answers {
            let Some(lane) = self.index(id.row()) else { continue };
            match *answer {
                Answer::Granted(slot) => {
                    for index in 0..self.all[lane].states.len() {
                        let state = self.all[lane].states[index];
                        let next = self.states.next_after(state, slot, *cost);
                        next.into_iter().for_each(|next| self.sleep(state, next));
                    }
                }
                Answer::Limited(index, until) => {
                    limited += 1;
                    let state = self.all[lane].states.get(index).copied();
                    state.into_iter().for_each(|state| self.sleep(state, until));
                }
                Answer::Refused => {}
            }
        }
        limited
    }

    /// Finds the limits that refused a job of a cost above 1 and allowed one behind it. Each job that costs less
    /// would use up what the first one waits for, so the first one would never be released.
    fn keep_order(&mut self, answers: &[(LaneId, u32, Answer)]) {
        let mut short = BTreeMap::new();
        for (id, cost, answer) in answers {
            let Some(lane) = self.index(id.row()) else { continue };
            let states = &self.all[lane].states;
            match *answer {
                Answer::Limited(index, _) if *cost > 1 => {
                    if let Some(state) = states.get(index) {
                        short.entry(*state).or_insert(lane);
                    }
                }
                Answer::Granted(_) => {
                    for state in states {
                        self.states.end_order(*state, lane, *cost);
                        let passed = short.get(state).copied();
                        passed.into_iter().for_each(|passed| self.states.keep_order(*state, passed));
                    }
                }
                _ => {}
            }
        }
    }

    /// Records that all jobs of the current call are granted, since nothing limits them.
    pub(crate) fn grant_all(&mut self) {
        self.end_with(|_| true);
    }

    /// Ends the current call, of which nothing more is granted.
    pub(crate) fn end(&mut self) {
        self.end_with(|_| false);
    }

    /// Ends the current call. It grants the jobs whose indices `is_granted` selects; lanes that wait for its states
    /// take turns.
    fn end_with(&mut self, is_granted: impl Fn(usize) -> bool) {
        let offered = std::mem::take(&mut self.asking.offered);
        let charges = offered.iter().enumerate().map(|(index, job)| (&job.charge, is_granted(index)));
        self.classes.settle(charges);
        // Of one lane the first jobs are granted. The others give their turns back, the last one first.
        for (index, Offered { lane, turn, .. }) in offered.iter().enumerate().rev() {
            self.all[*lane].offered -= 1;
            if !is_granted(index) {
                self.set_turn(*lane, *turn);
            }
        }
        for state in self.states.end_call() {
            self.top_up(state);
        }
    }

    fn sleep(&mut self, state: usize, until: Instant) {
        let lead = self.asking.lead;
        // Replicas at different distances from the store get equal shares of a slow lane.
        let jitter = (lead / 2).mul_f64(fastrand::f64());
        let ask_at = until.checked_sub(lead).unwrap_or(until) + jitter;
        self.states.sleep(state, until, if self.states.is_pause(state) { until } else { ask_at });
    }
}
