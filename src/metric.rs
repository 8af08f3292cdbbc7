//! What paced measures: the name, kind and meaning of every series.
//!
//! Values go through the `metrics` facade, so that they cost nothing unless a recorder is
//! installed: the daemon's own where `admin.listen` is set, or that of a program that embeds paced.
//! The one label for what a series belongs to is `downstream`, and for certificates `setting`: never a job, a lane or a URL.

use metrics::{describe_counter, describe_gauge, describe_histogram};

pub use metrics::Unit;

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// The name, in Prometheus' manner: with base units, and `_total` for counters.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What one of it is.
    pub unit: Unit,
    /// What it means, for people.
    pub help: &'static str,
}

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A number that only rises.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// Counts of values, by these upper bounds.
    Histogram(&'static [f64]),
}

/// For how late the release clock is: 10 µs apart where it should be, 1 s at the end.
const LATENESS: &[f64] = &[
    0.000_01, 0.000_02, 0.000_03, 0.000_04, 0.000_05, 0.000_06, 0.000_07, 0.000_08, 0.000_09, 0.000_1,
    0.000_125, 0.000_15, 0.000_2, 0.000_25, 0.000_3, 0.000_4, 0.000_5, 0.000_75, 0.001, 0.001_5, 0.002,
    0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0,
];

/// The bounds for round trips over a network, in seconds.
const ROUND_TRIP: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];

/// The bounds for requests, whose time-out may be raised to the half hour after which a broker takes jobs back.
const REQUEST: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
];

/// The bounds for waits of up to six hours, in seconds.
const WAIT: &[f64] = &[
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
    1800.0, 3600.0, 7200.0, 21_600.0,
];

/// The bounds for slots in one call, of which the store grants up to 1024.
const BATCH: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit: Unit::Count, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit: Unit::Count, help }
}

const fn gauge_of_seconds(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit: Unit::Seconds, help }
}

const fn seconds(name: &'static str, bounds: &'static [f64], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram(bounds), unit: Unit::Seconds, help }
}

/// Jobs that came from the broker.
pub const JOBS_RECEIVED: Metric = counter(
    "paced_jobs_received_total",
    "Messages taken from the broker, also those delivered again and bad ones.",
);
/// Messages that no client could parse.
pub const POISON: Metric = counter(
    "paced_poison_total",
    "Messages that the AMQP client could not have parsed; their bodies are in the dead letters.",
);
/// Jobs handed to the sink.
pub const JOBS_RELEASED: Metric =
    counter("paced_jobs_released_total", "Jobs handed to the downstream at their slot; each attempt counts.");
/// How jobs were settled.
pub const JOBS_SETTLED: Metric = counter(
    "paced_jobs_settled_total",
    "Jobs by outcome: delivered, retried (waits for another attempt), parked, dead, returned to the broker, cancelled.",
);
/// Attempts that failed in a way that is worth another one.
pub const JOB_RETRIES: Metric =
    counter("paced_job_retries_total", "Attempts that failed but may be repeated, by reason.");
/// Dead letters.
pub const JOBS_REJECTED: Metric =
    counter("paced_jobs_rejected_total", "Jobs that became dead letters, by reason.");
/// Slots granted by the store.
pub const SLOTS_RESERVED: Metric = counter("paced_slots_reserved_total", "Slots granted by the store.");
/// Slots that no job was released at.
pub const SLOTS_ABANDONED: Metric =
    counter("paced_slots_abandoned_total", "Slots granted but not used, by reason.");
/// Calls to the store that failed.
pub const STORE_ERRORS: Metric =
    counter("paced_store_errors_total", "Calls to the store that failed, by operation.");
/// Connections to the broker that had to be made anew.
pub const AMQP_RECONNECTS: Metric =
    counter("paced_amqp_reconnects_total", "Connections to RabbitMQ opened again after a loss.");
/// Deliveries for which there was no room.
pub const DELIVERIES_CUT: Metric = counter(
    "paced_deliveries_cut_total",
    "Deliveries whose body was cut as it arrived, since the downstream held as many bytes as it may; each is given back.",
);
/// Messages that reach no downstream's queue.
pub const UNROUTABLE: Metric = counter(
    "paced_unroutable_total",
    "Growth of the queue of messages for no downstream from poll to poll, four a minute, while this process ran. Replicas see the same queue: take the maximum, not the sum.",
);
/// Downstreams that nobody serves any more.
pub const ORPHANS: Metric = gauge(
    "paced_orphans",
    "Downstreams that no replica has served for 30 s, and whose queues still take jobs. Replicas see the same ones: take the maximum, not the sum.",
);
/// Queues that do not confirm.
pub const UNCONFIRMED_QUEUES: Metric = gauge(
    "paced_unconfirmed_queues",
    "Queues that have not confirmed for some seconds what this process publishes to them; they may be without a leader.",
);
/// Dispatchers that hang.
pub const STUCK_DISPATCHERS: Metric = gauge(
    "paced_stuck_dispatchers",
    "Downstreams whose dispatcher hangs in this process: its loop has not run for 30 s. While there is one, /livez answers 503.",
);
/// Replicas that have ceased to report themselves.
pub const SILENT_REPLICAS: Metric = gauge(
    "paced_silent_replicas",
    "Other replicas that have been silent for 20 s, and that did not end in order; each is counted for a quarter of an hour at most. Each replica counts for itself: take the maximum, not the sum.",
);
/// Replicas whose files differ.
pub const STRAY_REPLICAS: Metric = gauge(
    "paced_stray_replicas",
    "Replicas whose file has had other limits than those in force for 10 s. Replicas see the same ones: take the maximum, not the sum.",
);
/// Whether the configuration could be read.
pub const CONFIG_LOADED: Metric = gauge(
    "paced_config_loaded",
    "1 if the configuration could be read when it was last read; 0 if it was wrong, so the old one stays in effect.",
);
/// Files that cannot be read again.
pub const UNREADABLE_FILES: Metric = gauge(
    "paced_unreadable_files",
    "Settings whose files of secrets, tokens or certificates were changed and cannot be used, so the old contents stay in use.",
);
/// How long the oldest job waits.
pub const OLDEST_JOB: Metric = gauge_of_seconds(
    "paced_oldest_job_seconds",
    "How long ago the oldest of the jobs that wait in this process was first taken from the broker; 0 if none waits.",
);
/// Whether an operator's rate is in force.
pub const RATE_OVERRIDDEN: Metric = gauge(
    "paced_rate_overridden",
    "1 while a rate that an operator set is in force in place of the file's. Replicas see the same: take the maximum, not the sum.",
);
/// How long jobs wait for a slot.
pub const QUEUE_WAIT: Metric = seconds(
    "paced_job_queue_wait_seconds",
    WAIT,
    "From a job's arrival here, or from when it was due, until it was granted a slot.",
);
/// How long jobs of quiet lanes wait for a slot.
pub const QUIET_WAIT: Metric = seconds(
    "paced_quiet_lane_wait_seconds",
    WAIT,
    "From a job's arrival here, or from when it was due, until it was granted a slot, of the jobs whose lane had no other job that waited here when they came; 0 of them without lanes.",
);
/// How long jobs are held until their slot.
pub const SHAPING_DELAY: Metric = seconds(
    "paced_job_shaping_delay_seconds",
    WAIT,
    "From the grant of a slot until that slot: how long a job is held.",
);
/// How exact releases are.
pub const LATENESS_OF_RELEASE: Metric = seconds(
    "paced_release_lateness_seconds",
    LATENESS,
    "How long after its slot a job was handed over; never negative.",
);
/// How long the downstream takes.
pub const DISPATCH_DURATION: Metric = seconds(
    "paced_dispatch_duration_seconds",
    REQUEST,
    "From the hand-over of a job until the downstream's answer, by outcome: delivered, retried, dead.",
);
/// How long the store takes.
pub const STORE_ROUNDTRIP: Metric = seconds(
    "paced_store_roundtrip_seconds",
    ROUND_TRIP,
    "How long the store took to answer, by operation; calls that failed are not in it.",
);
/// How many slots a call brings.
pub const RESERVATION_BATCH: Metric = Metric {
    name: "paced_reservation_batch_jobs",
    kind: Kind::Histogram(BATCH),
    unit: Unit::Count,
    help: "Slots granted by one call to the store.",
};
/// The rate in force.
pub const RATE_LIMIT: Metric = gauge(
    "paced_rate_limit_jobs_per_second",
    "The pace of the downstream: its slowest limit that spaces jobs out, by where it comes from; 0 if none does. Windows and quotas are no pace. Shared by all replicas: take the maximum, not the sum.",
);
/// Where the jobs are that this process holds.
pub const JOBS_IN_FLIGHT: Metric = gauge(
    "paced_jobs_in_flight",
    "Jobs in this process by state: lane (waits for a slot), held (until its slot), sending, settling.",
);
/// What keeps jobs from being released faster.
pub const BINDING_SECONDS: Metric = counter(
    "paced_binding_seconds_total",
    "Seconds for which this replica's jobs were held back, by reason, and by limit if that is the reason; sampled once a second.",
);
/// What is left of a limit.
pub const LIMIT_REMAINING: Metric = gauge(
    "paced_limit_remaining",
    "Units that are left of a window or a quota, by limit; not a number once it is removed, or while nobody knows. Shared by all replicas: take the minimum, not the sum.",
);
/// How much a limit has when nothing is taken.
pub const LIMIT_CAPACITY: Metric = gauge(
    "paced_limit_capacity",
    "Units that a window or a quota has when it is whole, by limit; not a number once it is removed, or while nobody knows. Shared by all replicas: take the maximum, not the sum.",
);
/// When a limit is whole again.
pub const LIMIT_RESET: Metric = gauge_of_seconds(
    "paced_limit_reset_seconds",
    "Seconds until a window or a quota is whole again if nothing more is taken, by limit; not a number once it is removed, or while nobody knows. Shared by all replicas: take the maximum, not the sum.",
);
/// The jobs that no replica has taken yet.
pub const JOBS_READY: Metric = gauge(
    "paced_jobs_ready",
    "Jobs in the downstream's queues that no replica has taken, read once a minute; not a number while that is unknown. Replicas see the same queues: take the maximum, not the sum.",
);
/// The dead letters that lie in their queue.
pub const DEAD_LETTERS: Metric = gauge(
    "paced_dead_letters",
    "Dead letters in the queue of the downstream, read once a minute; not a number while that is unknown. Replicas see the same queue: take the maximum, not the sum.",
);
/// Whether the downstream is paused.
pub const PAUSED: Metric = gauge("paced_paused", "1 while nothing is released to the downstream.");
/// How many values of lanes are paused.
pub const PAUSED_VALUES: Metric = gauge(
    "paced_paused_values",
    "Values of lanes (tenants) whose jobs an operator has paused. Replicas see the same: take the maximum, not the sum.",
);
/// Whether this replica takes jobs.
pub const STOPPED: Metric = gauge(
    "paced_stopped",
    "1 while this replica takes no jobs for the downstream, by reason: it cannot connect (unreachable), or its credentials are refused (unauthorized).",
);
/// When certificates begin to be valid.
pub const CERTIFICATE_START: Metric = gauge_of_seconds(
    "paced_certificate_start_timestamp_seconds",
    "When the certificate that this process shows begins to be valid, in Unix time, by the setting that names its file.",
);
/// When certificates end.
pub const CERTIFICATE_EXPIRY: Metric = gauge_of_seconds(
    "paced_certificate_expiry_timestamp_seconds",
    "When the certificate that this process shows ends, or one that leads to its authority if that ends first, in Unix time, by the setting that names its file.",
);
/// Whether the store answers.
pub const STORE_CONNECTED: Metric =
    gauge("paced_store_connected", "1 if the store answered the last call to it, and did not refuse it.");
/// Whether the broker is there.
pub const AMQP_CONNECTED: Metric =
    gauge("paced_amqp_connected", "1 while every connection to RabbitMQ is up.");
/// The lines of the log that were lost.
pub const LOG_DROPPED: Metric = counter(
    "paced_log_dropped_total",
    "Log lines that were dropped because stderr was full, closed or not read.",
);
/// The version that runs.
pub const BUILD_INFO: Metric = gauge("paced_build_info", "1, with the version as a label.");

/// Every metric.
pub const ALL: [Metric; 45] = [
    JOBS_RECEIVED,
    POISON,
    JOBS_RELEASED,
    JOBS_SETTLED,
    JOB_RETRIES,
    JOBS_REJECTED,
    SLOTS_RESERVED,
    SLOTS_ABANDONED,
    STORE_ERRORS,
    AMQP_RECONNECTS,
    DELIVERIES_CUT,
    UNROUTABLE,
    ORPHANS,
    UNCONFIRMED_QUEUES,
    STUCK_DISPATCHERS,
    SILENT_REPLICAS,
    STRAY_REPLICAS,
    CONFIG_LOADED,
    UNREADABLE_FILES,
    OLDEST_JOB,
    RATE_OVERRIDDEN,
    QUEUE_WAIT,
    QUIET_WAIT,
    SHAPING_DELAY,
    LATENESS_OF_RELEASE,
    DISPATCH_DURATION,
    STORE_ROUNDTRIP,
    RESERVATION_BATCH,
    RATE_LIMIT,
    JOBS_IN_FLIGHT,
    BINDING_SECONDS,
    LIMIT_REMAINING,
    LIMIT_CAPACITY,
    LIMIT_RESET,
    JOBS_READY,
    DEAD_LETTERS,
    PAUSED,
    PAUSED_VALUES,
    STOPPED,
    CERTIFICATE_START,
    CERTIFICATE_EXPIRY,
    STORE_CONNECTED,
    AMQP_CONNECTED,
    LOG_DROPPED,
    BUILD_INFO,
];

/// Describes each metric to the installed recorder.
pub fn describe() {
    for Metric { name, kind, unit, help } in ALL {
        match kind {
            Kind::Counter => describe_counter!(name, unit, help),
            Kind::Gauge => describe_gauge!(name, unit, help),
            Kind::Histogram(_) => describe_histogram!(name, unit, help),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_bounds_are_as_prometheus_wants_them() {
        let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len(), "no name twice");
        for Metric { name, kind, unit, .. } in ALL {
            assert!(name.starts_with("paced_"), "{name}");
            assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
            assert_eq!(name.ends_with("_seconds"), unit == Unit::Seconds, "{name}");
            if let Kind::Histogram(bounds) = kind {
                assert!(bounds.is_sorted_by(|one, other| one < other), "{name}");
            }
        }
    }
}
