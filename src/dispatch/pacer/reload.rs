//! Other options while jobs are on their way.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pacer;
use crate::dispatch::cost::max_cost;
use crate::dispatch::flight::Gear;
use crate::dispatch::{Options, RetryPolicy};

impl Pacer {
    /// Other options were given: what of them counts without a restart, counts from now on; the limits from
    /// when all replicas agree on them.
    pub(super) fn reload(&mut self, new: Options) {
        // The jobs were decoded by the old rules: only what a job may cost follows the limits.
        let mut rules = self.rules.clone();
        rules.default_plan = new.rules.default_plan;
        rules.max_cost = new.rules.max_cost.clone();
        rules.plans.clone_from(&new.rules.plans);
        let old = &self.settings;
        if new.plans.len() != old.plans.len() || rules.plans.len() != old.plans.len() {
            tracing::error!(downstream = old.downstream, "other plans need a restart; the old options stay");
            return;
        }
        let (downstream, on_limit) = (old.downstream.clone(), old.on_limit);
        let new = Options { downstream, on_limit, rules, ..new };
        let refusals = new.retry.on_unauthorized != self.gear.retry.on_unauthorized;
        let before = self.window();
        let now = self.slots.store_now().unwrap_or_default();
        let settings = self.terms.agreement.give(new.settings(), now);
        self.terms.calls.postpone(Instant::now());
        self.renew_gear(new.retry, new.max_pause);
        (self.rules, self.prefetch) = (new.rules, new.prefetch);
        self.follow(settings);
        if self.window() != before {
            self.resize = Some(self.window().saturating_add(self.halt.extra()));
        }
        if refusals {
            self.refusals_changed();
        }
    }

    /// Flights go by these from now on, and by the tolerance in force.
    pub(super) fn renew_gear(&mut self, retry: RetryPolicy, max_pause: Duration) {
        let Gear { downstream, sink, gate, meters, letters, sending, .. } = &*self.gear;
        self.gear = Arc::new(Gear {
            downstream: downstream.clone(),
            sink: Arc::clone(sink),
            retry,
            max_pause,
            gate: Arc::clone(gate),
            tolerance: self.release.tolerance(),
            meters: meters.clone(),
            letters: Arc::clone(letters),
            sending: Arc::clone(sending),
        });
    }

    /// What a job may cost follows the limits in force.
    pub(super) fn bound_costs(&mut self) {
        let plans = self.rules.plans.iter_mut().map(|plan| &mut plan.max_cost);
        let bounds = std::iter::once(&mut self.rules.max_cost).chain(plans);
        for (bound, limits) in bounds.zip(self.settings.lanes()) {
            *bound = max_cost(limits, bound.given);
        }
    }
}
