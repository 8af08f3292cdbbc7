//! Other options while jobs are on their way.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Pacer, lateness};
use crate::dispatch::Options;
use crate::dispatch::flight::Gear;

impl Pacer {
    /// Other options were given: what of them counts without a restart, counts from now on; the limits from
    /// when all replicas agree on them.
    pub(super) fn reload(&mut self, new: Options) {
        // The jobs were decoded by the old rules: only what a job may cost follows the limits.
        let mut rules = self.rules.clone();
        rules.default_plan = new.rules.default_plan;
        rules.max_cost = new.rules.max_cost;
        rules.plans.clone_from(&new.rules.plans);
        let old = &self.settings;
        if new.plans.len() != old.plans.len() || rules.plans.len() != old.plans.len() {
            tracing::error!(downstream = old.downstream, "other plans need a restart; the old options stay");
            return;
        }
        let (downstream, on_limit) = (old.downstream.clone(), old.on_limit);
        self.given(Options { downstream, on_limit, drain_timeout: self.drain_timeout, rules, ..new });
    }

    /// Goes by other options from now on. What is held keeps its slot; what is being sent was released under
    /// the old ones.
    pub(super) fn apply(&mut self, options: Options) {
        let settings = options.settings();
        let (tolerance, opening) = lateness(&settings);
        let Gear { downstream, sink, gate, meters, letters, sending, .. } = &*self.gear;
        let refusals = options.retry.on_unauthorized != self.gear.retry.on_unauthorized;
        self.gear = Arc::new(Gear {
            downstream: downstream.clone(),
            sink: Arc::clone(sink),
            retry: options.retry,
            max_pause: options.max_pause,
            gate: Arc::clone(gate),
            tolerance,
            opening,
            meters: meters.clone(),
            letters: Arc::clone(letters),
            sending: Arc::clone(sending),
        });
        self.concurrency.resize(settings.concurrency);
        self.schedule.follow(&settings);
        self.store.set_horizon(&settings.downstream, self.schedule.turns().farthest());
        let before = self.window();
        (self.settings, self.rules, self.prefetch) = (Arc::new(settings), options.rules, options.prefetch);
        let window = self.window();
        if window != before {
            self.resize = Some(window.saturating_add(self.halt.extra()));
        }
        self.follow_alone();
        if refusals {
            self.refusals_changed();
        }
        // The next slots lie elsewhere now.
        (self.ask_at, self.batch_delay_until) = (Instant::now(), None);
    }
}
