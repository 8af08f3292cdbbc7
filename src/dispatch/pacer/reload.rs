//! Other options while jobs are on their way.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Pacer, lateness, prepared};
use crate::dispatch::Options;
use crate::dispatch::flight::Gear;
use crate::dispatch::turns::Turns;

impl Pacer {
    /// Goes by other options from now on. What is held keeps its slot; what is being sent was released
    /// under the old ones.
    pub(super) fn reload(&mut self, new: Options) {
        let old = &self.options;
        // The jobs were decoded by the old rules: only what a job may cost follows the limits.
        let mut rules = old.rules.clone();
        rules.default_plan = new.rules.default_plan;
        rules.max_cost = new.rules.max_cost;
        rules.plans.clone_from(&new.rules.plans);
        if new.plans.len() != old.plans.len() || rules.plans.len() != old.plans.len() {
            tracing::error!(downstream = old.downstream, "other plans need a restart; the old options stay");
            return;
        }
        let options = prepared(Options {
            downstream: old.downstream.clone(),
            on_limit: old.on_limit,
            drain_timeout: old.drain_timeout,
            rules,
            ..new
        });
        let (tolerance, opening) = lateness(&options);
        let Gear { downstream, sink, gate, meters, .. } = &*self.gear;
        meters.rate("config", options.limits.rate().per_second());
        self.gear = Arc::new(Gear {
            downstream: downstream.clone(),
            sink: Arc::clone(sink),
            retry: options.retry,
            max_pause: options.max_pause,
            gate: Arc::clone(gate),
            tolerance,
            opening,
            meters: meters.clone(),
        });
        self.places.resize(options.concurrency);
        self.turns = Turns::new(&options);
        self.options = Arc::new(options);
        // How many replicas there are is asked for again.
        let now = Instant::now();
        (self.lease_at, self.ask_at, self.gather_until) = (now, now, None);
    }
}
