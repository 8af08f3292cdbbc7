//! What dispatching counts, through the `metrics` facade. Handles are made once per downstream.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::job::Reason;

/// The series of one downstream.
#[derive(Clone)]
pub(super) struct Meters {
    downstream: String,
    pub(super) received: Counter,
    pub(super) released: Counter,
    pub(super) delivered: Counter,
    pub(super) retried: Counter,
    pub(super) dead: Counter,
    pub(super) returned: Counter,
    pub(super) slots: Counter,
    pub(super) late: Counter,
    pub(super) stale: Counter,
    pub(super) stepped: Counter,
    pub(super) store_errors: Counter,
    pub(super) store_connected: Gauge,
    pub(super) lateness: Histogram,
    pub(super) roundtrip: Histogram,
    pub(super) batch: Histogram,
}

impl Meters {
    pub(super) fn new(downstream: &str) -> Self {
        let name = || downstream.to_owned();
        let settled = |outcome: &'static str| {
            let counter = counter!("paced_jobs_settled_total", "downstream" => name(), "outcome" => outcome);
            counter.increment(0);
            counter
        };
        let abandoned = |reason: &'static str| counter!("paced_slots_abandoned_total", "downstream" => name(), "reason" => reason);
        Self {
            downstream: name(),
            received: counter!("paced_jobs_received_total", "downstream" => name()),
            released: counter!("paced_jobs_released_total", "downstream" => name()),
            delivered: settled("delivered"),
            retried: settled("retried"),
            dead: settled("dead"),
            returned: settled("returned"),
            slots: counter!("paced_slots_reserved_total", "downstream" => name()),
            late: abandoned("late"),
            stale: abandoned("connection-lost"),
            stepped: abandoned("clock-stepped"),
            store_errors: counter!("paced_store_errors_total", "downstream" => name(), "op" => "reserve"),
            store_connected: gauge!("paced_store_connected", "downstream" => name()),
            lateness: histogram!("paced_release_lateness_seconds", "downstream" => name()),
            roundtrip: histogram!("paced_store_roundtrip_seconds", "downstream" => name(), "op" => "reserve"),
            batch: histogram!("paced_reservation_batch_jobs", "downstream" => name()),
        }
    }

    pub(super) fn retry(&self, reason: &'static str) {
        self.retried.increment(1);
        let downstream = self.downstream.clone();
        counter!("paced_job_retries_total", "downstream" => downstream, "reason" => reason).increment(1);
    }

    pub(super) fn rejected(&self, reason: Reason) {
        let downstream = self.downstream.clone();
        let reason = reason.as_str();
        counter!("paced_jobs_rejected_total", "downstream" => downstream, "reason" => reason).increment(1);
    }
}
