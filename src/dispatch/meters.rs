//! The metrics of dispatching, recorded through the `metrics` facade. Handles are created once per downstream, and with
//! them every series, at 0: a rate over a series that appears with its first event would miss that event.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::source::{ParkReason, Stay};
use super::totals::Totals;
use crate::job::Reason;
use crate::metric;
use crate::pace::meters::{self as pace, Abandoned};
use crate::sink::{Outcome, RETRY_REASONS};
use crate::time::Micros;

/// The reasons why a replica may take no jobs.
const STOPPED_REASONS: [&str; 2] = ["unreachable", "unauthorized"];

/// The series of one downstream.
#[derive(Clone)]
pub(super) struct Meters {
    downstream: String,
    /// The engine's series, for slots that are given up on the way to the sink.
    pace: pace::Meters,
    pub(super) received: Counter,
    /// Messages that the broker delivered malformed.
    pub(super) poison: Counter,
    releases: Releases,
    pub(super) settled: Settled,
    durations: Durations,
    in_flight: InFlight,
    totals: Arc<Totals>,
}

/// The jobs that were handed over to the sink, and how long after their slots.
#[derive(Clone)]
struct Releases {
    count: Counter,
    lateness: Histogram,
}

/// The jobs that are settled, by their outcome.
#[derive(Clone)]
pub(super) struct Settled {
    delivered: Counter,
    pub(super) retried: Counter,
    dead: Counter,
    pub(super) returned: Counter,
    parked: Counter,
    pub(super) cancelled: Counter,
}

/// How long the sink takes to answer, by the outcome.
#[derive(Clone)]
struct Durations {
    delivered: Histogram,
    retried: Histogram,
    dead: Histogram,
}

/// The jobs that are in each state.
#[derive(Clone)]
struct InFlight {
    lane: Gauge,
    held: Gauge,
    sending: Gauge,
    settling: Gauge,
}

/// Counts a job whose outcome is known while its reply, copy or ack is in progress.
pub(super) struct Settling(Gauge, Arc<Totals>);

impl Meters {
    /// Creates the series of this downstream, all at 0. What is read in this process goes to `totals` too.
    pub(super) fn new(downstream: &str, pace: &pace::Meters, totals: Arc<Totals>) -> Self {
        let series = Series(downstream);
        let settled = |outcome| series.counter(metric::JOBS_SETTLED.name, "outcome", outcome);
        let duration = |outcome| series.histogram(metric::DISPATCH_DURATION.name, "outcome", outcome);
        let state = |state| series.gauge(metric::JOBS_IN_FLIGHT.name, "state", state);
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
            pace: pace.clone(),
            received: series.plain_counter(metric::JOBS_RECEIVED.name),
            poison: series.plain_counter(metric::POISON.name),
            releases: Releases {
                count: series.plain_counter(metric::JOBS_RELEASED.name),
                lateness: series.plain_histogram(metric::LATENESS_OF_RELEASE.name),
            },
            settled: Settled {
                delivered: settled("delivered"),
                retried: settled("retried"),
                dead: settled("dead"),
                returned: settled("returned"),
                parked: settled("parked"),
                cancelled: settled("cancelled"),
            },
            durations: Durations {
                delivered: duration("delivered"),
                retried: duration("retried"),
                dead: duration("dead"),
            },
            in_flight: InFlight {
                lane: state("lane"),
                held: state("held"),
                sending: state("sending"),
                settling: state("settling"),
            },
            totals,
        }
    }

    /// Counts an attempt that failed in a way that may be repeated.
    pub(super) fn retry(&self, reason: &'static str) {
        let downstream = self.downstream.clone();
        counter!(metric::JOB_RETRIES.name, "downstream" => downstream, "reason" => reason).increment(1);
    }

    /// Counts a job that becomes a dead letter.
    fn rejected(&self, reason: Reason) {
        let downstream = self.downstream.clone();
        let reason = reason.as_str();
        counter!(metric::JOBS_REJECTED.name, "downstream" => downstream, "reason" => reason).increment(1);
    }
}

impl Meters {
    /// Counts a slot that is given up on the way to the sink.
    pub(super) fn abandoned(&self, reason: Abandoned) {
        self.pace.abandoned(1, reason);
    }

    /// Records the hand-over of a job, this long after its slot.
    pub(super) fn release(&self, late: Duration) {
        self.releases.count.increment(1);
        self.releases.lateness.record(late.as_secs_f64());
        self.totals.on_released(late);
    }

    /// Counts a job that was delivered.
    pub(super) fn delivered(&self) {
        self.settled.delivered.increment(1);
        self.totals.on_delivered();
    }

    /// Counts a job that becomes a dead letter for this reason.
    pub(super) fn dead(&self, reason: Reason) {
        self.settled.dead.increment(1);
        self.rejected(reason);
    }

    /// Counts a job that was parked for this reason, until this time of the wall clock.
    pub(super) fn parked(&self, reason: ParkReason, until: Micros) {
        self.settled.parked.increment(1);
        self.totals.on_parked(1, reason, until);
    }

    /// Counts a job that has come home.
    pub(super) fn home(&self, stay: &Stay) {
        self.totals.on_parked(-1, stay.reason, stay.until);
    }

    /// Records an answer of the sink, after this time.
    pub(super) fn dispatched(&self, outcome: &Outcome, took: Duration) {
        let duration = match outcome {
            Outcome::Delivered(_) => &self.durations.delivered,
            Outcome::Retry { .. }
            | Outcome::Throttled { .. }
            | Outcome::Unreachable { .. }
            | Outcome::Unauthorized { .. }
            | Outcome::Outdated { .. }
            | Outcome::Unreadable { .. } => &self.durations.retried,
            Outcome::Dead { .. } => &self.durations.dead,
            Outcome::Missed => return,
        };
        duration.record(took.as_secs_f64());
        // Where there was no request, the downstream took no time.
        if !matches!(outcome, Outcome::Unreachable { .. } | Outcome::Dead { status: None, .. }) {
            self.totals.on_answered(took);
        }
    }

    /// Sets whether this replica takes no jobs for this reason.
    pub(super) fn stopped_for(&self, reason: &'static str, stopped: bool) {
        Series(&self.downstream)
            .gauge(metric::STOPPED.name, "reason", reason)
            .set(f64::from(u8::from(stopped)));
    }

    /// Sets the number of jobs that wait, that hold a future slot, and that the sink is sending.
    #[expect(clippy::cast_precision_loss, reason = "counts of what fits into memory")]
    pub(super) fn set_in_flight(&self, lane: usize, held: usize, sending: usize) {
        self.in_flight.lane.set(lane as f64);
        self.in_flight.held.set(held as f64);
        self.in_flight.sending.set(sending as f64);
    }

    /// Counts a job that is being settled, until it is dropped.
    pub(super) fn settling(&self) -> Settling {
        self.in_flight.settling.increment(1.0);
        self.totals.begin_settling();
        Settling(self.in_flight.settling.clone(), Arc::clone(&self.totals))
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.decrement(1.0);
        self.1.end_settling();
    }
}

/// Creates the series of one downstream.
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
mod tests;
