//! What dispatching counts, through the `metrics` facade. Handles are made once per downstream, and
//! with them every series, at 0: a rate over a series that appears with its first event misses it.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::OnLimit;
use crate::job::Reason;
use crate::metric;
use crate::sink::{Outcome, RETRY_REASONS};

/// Why a replica may take no jobs.
const STOPPED_REASONS: [&str; 2] = ["unreachable", "unauthorized"];

/// The series of one downstream.
#[derive(Clone)]
pub(super) struct Meters {
    downstream: String,
    pub(super) received: Counter,
    /// Messages that the broker delivered malformed.
    pub(super) poison: Counter,
    pub(super) released: Counter,
    pub(super) delivered: Counter,
    pub(super) retried: Counter,
    pub(super) dead: Counter,
    pub(super) returned: Counter,
    pub(super) slots: Counter,
    /// Slots missed by more than the tolerance.
    pub(super) late: Counter,
    /// Slots of jobs whose connection was lost.
    pub(super) stale: Counter,
    /// Slots of jobs for which there was no connection to the downstream.
    pub(super) unreachable: Counter,
    /// Slots of jobs while the downstream refuses the credentials.
    pub(super) unauthorized: Counter,
    /// Slots that lie in a pause.
    pub(super) paused_slots: Counter,
    /// Slots of a pace of one's own, once the store is there again.
    pub(super) own_slots: Counter,
    /// Slots granted before the store's clock stepped.
    pub(super) stepped: Counter,
    pub(super) store_errors: Counter,
    pub(super) tend_errors: Counter,
    pub(super) store_connected: Gauge,
    pub(super) paused: Gauge,
    pub(super) lateness: Histogram,
    pub(super) roundtrip: Histogram,
    /// As `roundtrip`, of calls about the whole downstream.
    pub(super) tending: Histogram,
    pub(super) batch: Histogram,
    outdated: Counter,
    stopped: Counter,
    queue_wait: Histogram,
    shaping_delay: Histogram,
    delivering: Histogram,
    retrying: Histogram,
    dying: Histogram,
    lane: Gauge,
    held: Gauge,
    sending: Gauge,
    settling: Gauge,
}

/// A job whose outcome is known, while reply, copy or ack are under way.
pub(super) struct Settling(Gauge);

impl Meters {
    /// The series of this downstream, all at 0.
    pub(super) fn new(downstream: &str, on_limit: OnLimit) -> Self {
        let series = Series(downstream);
        let op = match on_limit {
            OnLimit::Wait => "reserve",
            OnLimit::Reject => "check",
        };
        let settled = |outcome| series.counter(metric::JOBS_SETTLED.name, "outcome", outcome);
        let abandoned = |reason| series.counter(metric::SLOTS_ABANDONED.name, "reason", reason);
        let duration = |outcome| series.histogram(metric::DISPATCH_DURATION.name, "outcome", outcome);
        let state = |state| series.gauge(metric::JOBS_IN_FLIGHT.name, "state", state);
        let _ = settled("parked");
        for reason in STOPPED_REASONS {
            series.gauge(metric::STOPPED.name, "reason", reason).set(0.0);
        }
        for reason in RETRY_REASONS {
            let _ = series.counter(metric::JOB_RETRIES.name, "reason", reason);
        }
        for reason in Reason::ALL {
            let _ = series.counter(metric::JOBS_REJECTED.name, "reason", reason.as_str());
        }
        Self {
            downstream: downstream.to_owned(),
            received: series.plain_counter(metric::JOBS_RECEIVED.name),
            poison: series.plain_counter(metric::POISON.name),
            released: series.plain_counter(metric::JOBS_RELEASED.name),
            delivered: settled("delivered"),
            retried: settled("retried"),
            dead: settled("dead"),
            returned: settled("returned"),
            slots: series.plain_counter(metric::SLOTS_RESERVED.name),
            late: abandoned("late"),
            stale: abandoned("connection-lost"),
            stepped: abandoned("clock-stepped"),
            paused_slots: abandoned("paused"),
            own_slots: abandoned("store-back"),
            unreachable: abandoned("unreachable"),
            unauthorized: abandoned("unauthorized"),
            store_errors: series.counter(metric::STORE_ERRORS.name, "op", op),
            tend_errors: series.counter(metric::STORE_ERRORS.name, "op", "tend"),
            paused: series.plain_gauge(metric::PAUSED.name),
            store_connected: series.plain_gauge(metric::STORE_CONNECTED.name),
            lateness: series.plain_histogram(metric::LATENESS_OF_RELEASE.name),
            roundtrip: series.histogram(metric::STORE_ROUNDTRIP.name, "op", op),
            tending: series.histogram(metric::STORE_ROUNDTRIP.name, "op", "tend"),
            batch: series.plain_histogram(metric::RESERVATION_BATCH.name),
            outdated: abandoned("expired"),
            stopped: abandoned("stopped"),
            queue_wait: series.plain_histogram(metric::QUEUE_WAIT.name),
            shaping_delay: series.plain_histogram(metric::SHAPING_DELAY.name),
            delivering: duration("delivered"),
            retrying: duration("retried"),
            dying: duration("dead"),
            lane: state("lane"),
            held: state("held"),
            sending: state("sending"),
            settling: state("settling"),
        }
    }

    /// An attempt failed in a way that may be repeated.
    pub(super) fn retry(&self, reason: &'static str) {
        let downstream = self.downstream.clone();
        counter!(metric::JOB_RETRIES.name, "downstream" => downstream, "reason" => reason).increment(1);
    }

    /// A job becomes a dead letter.
    pub(super) fn rejected(&self, reason: Reason) {
        let downstream = self.downstream.clone();
        let reason = reason.as_str();
        counter!(metric::JOBS_REJECTED.name, "downstream" => downstream, "reason" => reason).increment(1);
    }
}

impl Meters {
    /// A job was granted a slot: how long it waited for that, and how long the slot is still away.
    pub(super) fn granted(&self, waited: Duration, ahead: Duration) {
        self.queue_wait.record(waited.as_secs_f64());
        self.shaping_delay.record(ahead.as_secs_f64());
    }

    /// A job is handed to the sink, so long after its slot.
    pub(super) fn release(&self, late: Duration) {
        self.released.increment(1);
        self.lateness.record(late.as_secs_f64());
    }

    /// The sink answered, after so long.
    pub(super) fn dispatched(&self, outcome: &Outcome, took: Duration) {
        let duration = match outcome {
            Outcome::Delivered(_) => &self.delivering,
            Outcome::Retry { .. }
            | Outcome::Throttled { .. }
            | Outcome::Unreachable { .. }
            | Outcome::Unreadable { .. } => &self.retrying,
            Outcome::Dead { .. } => &self.dying,
            Outcome::Missed => return,
        };
        duration.record(took.as_secs_f64());
    }

    /// A slot is given up, since the job's deadline passed before it.
    pub(super) fn slot_outdated(&self) {
        self.outdated.increment(1);
    }

    /// Slots are given up, since the process stops before them.
    pub(super) fn slots_stopped(&self, slots: usize) {
        self.stopped.increment(slots as u64);
    }

    /// The rate in force, and whether an operator set it: the series of the other source is 0.
    pub(super) fn rate_from(&self, jobs_per_second: f64, set: bool) {
        let series = Series(&self.downstream);
        for (source, counts) in [("config", !set), ("override", set)] {
            let rate = if counts { jobs_per_second } else { 0.0 };
            series.gauge(metric::RATE_LIMIT.name, "source", source).set(rate);
        }
    }

    /// Whether this replica takes no jobs for this reason.
    pub(super) fn stopped_for(&self, reason: &'static str, stopped: bool) {
        Series(&self.downstream)
            .gauge(metric::STOPPED.name, "reason", reason)
            .set(f64::from(u8::from(stopped)));
    }

    /// How many jobs wait for a slot or for when they are due, hold a slot that is still to come, and
    /// are in the sink's hands.
    #[expect(clippy::cast_precision_loss, reason = "counts of what fits into memory")]
    pub(super) fn hands(&self, lane: usize, held: usize, sending: usize) {
        self.lane.set(lane as f64);
        self.held.set(held as f64);
        self.sending.set(sending as f64);
    }

    /// Counts a job that is being settled, until it is dropped.
    pub(super) fn settling(&self) -> Settling {
        self.settling.increment(1.0);
        Settling(self.settling.clone())
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Makes the series of one downstream.
struct Series<'a>(&'a str);

impl Series<'_> {
    fn name(&self) -> String {
        self.0.to_owned()
    }

    fn plain_counter(&self, name: &'static str) -> Counter {
        let counter = counter!(name, "downstream" => self.name());
        counter.increment(0);
        counter
    }

    fn counter(&self, name: &'static str, label: &'static str, value: &'static str) -> Counter {
        let counter = counter!(name, "downstream" => self.name(), label => value);
        counter.increment(0);
        counter
    }

    fn plain_gauge(&self, name: &'static str) -> Gauge {
        let gauge = gauge!(name, "downstream" => self.name());
        gauge.increment(0.0);
        gauge
    }

    fn gauge(&self, name: &'static str, label: &'static str, value: &'static str) -> Gauge {
        let gauge = gauge!(name, "downstream" => self.name(), label => value);
        gauge.increment(0.0);
        gauge
    }

    fn plain_histogram(&self, name: &'static str) -> Histogram {
        histogram!(name, "downstream" => self.name())
    }

    fn histogram(&self, name: &'static str, label: &'static str, value: &'static str) -> Histogram {
        histogram!(name, "downstream" => self.name(), label => value)
    }
}

#[cfg(all(test, feature = "daemon"))]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// The samples after `act`, without histograms' buckets, sums and quantiles.
    fn samples(act: impl FnOnce(&Meters)) -> Vec<String> {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || act(&Meters::new("billing", OnLimit::Wait)));
        let text = handle.render();
        let wanted = |line: &&str| !line.is_empty() && !line.starts_with('#') && !line.contains("quantile=");
        text.lines().filter(wanted).map(str::to_owned).collect()
    }

    fn has(samples: &[String], name: &str, label: &str, value: &str) {
        let label = if label.is_empty() { String::new() } else { format!(",{label}") };
        let line = format!("paced_{name}{{downstream=\"billing\"{label}}} {value}");
        assert!(samples.contains(&line), "{line} in\n{}", samples.join("\n"));
    }

    #[test]
    fn every_series_starts_at_0() {
        let samples = samples(|_| ());
        let not_zero: Vec<_> = samples.iter().filter(|line| !line.ends_with(" 0")).collect();
        assert!(not_zero.is_empty(), "{not_zero:?}");
        for reason in Reason::ALL {
            has(&samples, "jobs_rejected_total", &format!("reason=\"{reason}\""), "0");
        }
        for reason in RETRY_REASONS {
            has(&samples, "job_retries_total", &format!("reason=\"{reason}\""), "0");
        }
        for outcome in ["delivered", "retried", "parked", "dead", "returned"] {
            has(&samples, "jobs_settled_total", &format!("outcome=\"{outcome}\""), "0");
        }
        let reasons = [
            "late",
            "connection-lost",
            "clock-stepped",
            "unreachable",
            "unauthorized",
            "expired",
            "stopped",
            "paused",
            "store-back",
        ];
        for reason in reasons {
            has(&samples, "slots_abandoned_total", &format!("reason=\"{reason}\""), "0");
        }
        for state in ["lane", "held", "sending", "settling"] {
            has(&samples, "jobs_in_flight", &format!("state=\"{state}\""), "0");
        }
        for outcome in ["delivered", "retried", "dead"] {
            has(&samples, "dispatch_duration_seconds_count", &format!("outcome=\"{outcome}\""), "0");
        }
    }

    #[test]
    fn what_happens_to_a_job_is_counted_once() {
        let samples = samples(|meters| {
            meters.received.increment(1);
            meters.granted(Duration::from_secs(2), Duration::from_millis(50));
            meters.release(Duration::from_micros(40));
            meters.slot_outdated();
            meters.slots_stopped(1);
            meters.rate_from(50.0, false);
            let retry = Outcome::Retry {
                reason: "timeout",
                detail: String::new(),
                status: None,
                after: None,
                response: None,
            };
            meters.dispatched(&retry, Duration::from_millis(1500));
            meters.retry("timeout");
            meters.rejected(Reason::AttemptsExhausted);
        });
        for (name, label, value) in [
            ("jobs_received_total", "", "1"),
            ("job_queue_wait_seconds_sum", "", "2"),
            ("job_shaping_delay_seconds_sum", "", "0.05"),
            ("jobs_released_total", "", "1"),
            ("release_lateness_seconds_sum", "", "0.00004"),
            ("release_lateness_seconds_count", "", "1"),
            ("slots_abandoned_total", "reason=\"expired\"", "1"),
            ("slots_abandoned_total", "reason=\"stopped\"", "1"),
            ("rate_limit_jobs_per_second", "source=\"config\"", "50"),
            ("rate_limit_jobs_per_second", "source=\"override\"", "0"),
            ("paused", "", "0"),
            ("dispatch_duration_seconds_sum", "outcome=\"retried\"", "1.5"),
            ("dispatch_duration_seconds_count", "outcome=\"delivered\"", "0"),
            ("job_retries_total", "reason=\"timeout\"", "1"),
            ("jobs_settled_total", "outcome=\"retried\"", "0"),
            ("jobs_rejected_total", "reason=\"attempts-exhausted\"", "1"),
        ] {
            has(&samples, name, label, value);
        }
    }

    #[test]
    fn a_job_is_in_one_state_and_in_none_once_it_is_gone() {
        let states = |samples: &[String], expected: [&str; 4]| {
            for (state, value) in ["lane", "held", "sending", "settling"].into_iter().zip(expected) {
                has(samples, "jobs_in_flight", &format!("state=\"{state}\""), value);
            }
        };
        let mut kept = Vec::new();
        let there = samples(|meters| {
            meters.hands(5, 3, 2);
            kept.push(meters.settling());
            drop(meters.settling());
        });
        states(&there, ["5", "3", "2", "1"]);
        let gone = samples(|meters| {
            meters.hands(5, 3, 2);
            meters.hands(0, 0, 0);
        });
        states(&gone, ["0", "0", "0", "0"]);
    }
}
