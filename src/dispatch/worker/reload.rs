//! Applies options that change while jobs are in progress.

use std::sync::Arc;

use super::Worker;
use crate::dispatch::cost::{max_cost_of, max_cost_without};
use crate::dispatch::flight::FlightContext;
use crate::dispatch::preflight::Preflight;
use crate::dispatch::{Options, RetryPolicy};
use crate::pace::LaneId;

impl Worker {
    /// Applies new options: those that need no restart take effect at once, the limits once all replicas agree on them.
    pub(super) fn reload(&mut self, new: Options) {
        // The jobs were decoded by the old rules. Only their costs, and the highest costs that they may have, follow
        // the new limits.
        let mut rules = self.intake.rules.clone();
        rules.lanes.default_plan = new.rules.lanes.default_plan;
        rules.max_cost = new.rules.max_cost.clone();
        rules.plans.clone_from(&new.rules.plans);
        rules.costs.clone_from(&new.rules.costs);
        // Another downstream may consume a queue that replies went to.
        rules.reply.clone_from(&new.rules.reply);
        let old = self.engine.settings();
        if new.plans.len() != old.plans.len() || rules.plans.len() != old.plans.len() {
            let downstream = &old.downstream;
            tracing::error!(downstream, "other plans need a restart; the old options stay");
            return;
        }
        let (downstream, on_limit) = (old.downstream.clone(), old.on_limit);
        let new = Options { downstream, on_limit, rules, ..new };
        let refusals = new.retry.answers.on_unauthorized != self.context.retry.answers.on_unauthorized;
        self.renew_context(new.retry.clone());
        self.engine.follow_cool_downs(new.retry.max_cooldown);
        self.intake.max_wait = new.max_wait;
        let settings = new.settings();
        self.intake.rules = new.rules;
        self.engine.reload(settings);
        self.apply();
        if refusals {
            self.refusals_changed();
        }
    }

    /// Applies the settings in force.
    pub(super) fn follow(&mut self) {
        self.bound_costs();
        self.follow_pauses();
        self.renew_context(self.context.retry.clone());
    }

    /// Applies to the record of successes which jobs wait together in a pause.
    pub(super) fn follow_pauses(&self) {
        let lanes = self.engine.settings().of_jobs.lanes.as_ref();
        self.context.successes.follow(lanes.map_or(&[][..], |lanes| &lanes.pause_per[..]));
    }

    /// Sets the options of flights from now on, with the tolerance in force.
    fn renew_context(&mut self, retry: RetryPolicy) {
        let tolerance = self.engine.release().tolerance();
        let context = FlightContext::clone(&self.context);
        let preflight = Preflight { tolerance, ..context.preflight };
        self.context = Arc::new(FlightContext { retry, preflight, ..context });
    }

    /// Adapts the highest cost of jobs to the limits in force.
    pub(super) fn bound_costs(&mut self) {
        self.intake.limits = self.engine.settings().sets().cloned().collect();
        let rules = &mut self.intake.rules;
        let own: Vec<&str> = rules.costs.iter().map(|rule| &*rule.limit).collect();
        let plans = rules.plans.iter_mut().map(|plan| &mut plan.max_cost);
        let bounds = std::iter::once(&mut rules.max_cost).chain(plans);
        for (bound, limits) in bounds.zip(self.engine.settings().sets()) {
            *bound = max_cost_without(limits, &own, bound.given);
        }
        for rule in &mut rules.costs {
            let limits = self.engine.settings().limits_of(LaneId::of_plan(rule.plan));
            // A limit that is not in force costs nothing.
            if let Some(bound) = max_cost_of(limits, &rule.limit, rule.max_cost.given) {
                rule.max_cost = bound;
            }
        }
    }
}
