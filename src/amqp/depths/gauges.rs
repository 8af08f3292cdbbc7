//! The lengths of a downstream's queues as metrics.

use metrics::{Gauge, gauge};

use super::Depth;
use crate::metric;

/// The gauges of one downstream. They are not a number until its queues were checked.
#[derive(Debug)]
pub(super) struct Gauges {
    ready: Gauge,
    dead: Gauge,
}

impl Gauges {
    /// Creates the series.
    pub(super) fn new(downstream: &str) -> Self {
        let gauges = Self {
            ready: gauge!(metric::JOBS_READY.name, "downstream" => downstream.to_owned()),
            dead: gauge!(metric::DEAD_LETTERS.name, "downstream" => downstream.to_owned()),
        };
        gauges.show(None);
        gauges
    }

    /// Shows the result of a check; `None` where nothing is known, which must not look like empty queues.
    pub(super) fn show(&self, depth: Option<Depth>) {
        self.ready.set(depth.map_or(f64::NAN, |depth| depth.ready.into()));
        self.dead.set(depth.and_then(|depth| depth.dead).map_or(f64::NAN, f64::from));
    }
}
