//! Plans the slots for the jobs of one call, in the order of the call.

use std::time::Duration;

use super::plan::{Charge, Costs, Passed, Plan, Refusal, Verdict};
use super::{Combine, LimitSet, MAX_BATCH, Row, State};
use crate::time::Micros;

/// The slot at which a job fits, with the binding limit and the charge.
pub(super) struct Choice {
    pub(super) slot: Micros,
    pub(super) limit: usize,
    pub(super) charge: Charge,
}

impl LimitSet {
    /// Plans slots for jobs of `costs`, up to `until`. `states` are left as they are after the last slot.
    ///
    /// The first job that does not fit ends the plan, unless it waits for the end of a window: the rest of that window
    /// is of no use to it, and jobs that cost less may take it. Where `until` reaches that end, the job is granted a
    /// slot there, and as no slot lies before one that was granted, nothing is released in between.
    pub fn plan(&self, states: &mut [State], now: Micros, costs: Costs<'_>, until: Micros) -> Plan {
        let mut plan = Plan::default();
        let mut last_passed: Option<(Row, Refusal)> = None;
        for (job, row) in self.rows(costs).take(MAX_BATCH).enumerate() {
            // A job that costs as much as one that was passed over waits at least as long.
            if let Some((_, refusal)) = last_passed.filter(|(least, _)| costs_as_much(&row, least)) {
                plan.passed.push(Passed { job, refusal });
                continue;
            }
            let Choice { slot, limit, charge } = self.choose(states, now, &row);
            if slot <= until {
                self.charge(states, slot, &row, charge);
                plan.slots.push(slot);
                plan.charges.push(charge);
                continue;
            }
            let refusal = Refusal { slot, limit };
            if !self.is_passed(&row, limit) {
                plan.refused = Some(refusal);
                break;
            }
            last_passed = Some((row, refusal));
            plan.passed.push(Passed { job, refusal });
        }
        plan.end();
        plan
    }

    /// Whether a job of these costs, which this limit refuses, is passed over in favour of jobs that cost less.
    fn is_passed(&self, row: &Row, limit: usize) -> bool {
        self.waits_for_window(limit) && !costs_as_much(&self.unit(), row)
    }

    /// Whether a job that this limit refuses waits for the end of a window, which is the same for all jobs.
    pub(crate) fn waits_for_window(&self, limit: usize) -> bool {
        self.combine() == Combine::All && self.get(limit).is_some_and(super::Limit::is_window)
    }

    /// The next slot of the first `own` limits for a job of cost 1, and the distance to the one after it. `states` are
    /// modified.
    pub(crate) fn next_two(&self, states: &mut [State], now: Micros, own: usize) -> (Micros, Duration) {
        let mut row = self.unit();
        row.iter_mut().skip(own).for_each(|cost| *cost = 0);
        let Choice { slot, charge, .. } = self.choose(states, now, &row);
        self.charge(states, slot, &row, charge);
        (slot, self.choose(states, now, &row).slot.since(slot))
    }

    /// Decides for each job of `costs` whether it fits now. A job that does not fit is charged nothing, and does not
    /// affect the others.
    pub fn police(&self, states: &mut [State], now: Micros, costs: Costs<'_>) -> Vec<Verdict> {
        let decide = |row: Row| {
            let Choice { slot, limit, charge } = self.choose(states, now, &row);
            let charge = if slot > now { Charge::default() } else { charge };
            self.charge(states, now, &row, charge);
            let standings = self.iter().zip(&*states).map(|(limit, state)| limit.standing(state, now));
            Verdict { earliest: slot, charge, limit, standings: standings.collect() }
        };
        self.rows(costs).take(MAX_BATCH).map(decide).collect()
    }

    pub(super) fn choose(&self, states: &[State], now: Micros, row: &Row) -> Choice {
        let mut chosen: Option<Choice> = None;
        for place in self.asked(row) {
            let slot = self.limits[place].earliest(&states[place], now, row[place]);
            let charge = Charge(1 << place);
            match &mut chosen {
                None => chosen = Some(Choice { slot, limit: place, charge }),
                Some(choice) => choice.add(self.combine, slot, place),
            }
        }
        // A set is never empty.
        let choice = chosen.unwrap_or(Choice { slot: now, limit: 0, charge: Charge::default() });
        let peek = row.iter().all(|&cost| cost == 0);
        if peek { Choice { charge: Charge::default(), ..choice } } else { choice }
    }

    pub(super) fn charge(&self, states: &mut [State], at: Micros, row: &Row, charge: Charge) {
        for (place, (limit, state)) in self.iter().zip(states).enumerate() {
            if charge.has(place) {
                *state = limit.commit(state, at, row[place]);
            }
        }
    }
}

/// Whether a job of the costs `row` costs every limit at least as much as one of the costs `other`.
fn costs_as_much(row: &Row, other: &Row) -> bool {
    row.iter().zip(other).all(|(cost, other)| cost >= other)
}

impl Choice {
    /// Combines the choice with one more limit, which allows the job at `slot`.
    fn add(&mut self, combine: Combine, slot: Micros, place: usize) {
        let own = 1 << place;
        match combine {
            Combine::All => {
                self.charge.0 |= own;
                if slot > self.slot {
                    (self.slot, self.limit) = (slot, place);
                }
            }
            Combine::Any if slot == self.slot => self.charge.0 |= own,
            Combine::Any | Combine::OneOf if slot < self.slot => {
                *self = Self { slot, limit: place, charge: Charge(own) };
            }
            Combine::Any | Combine::OneOf => {}
        }
    }
}
