use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use crate::pace::{Caller, OnLimit, SlotRequest};

/// The samples after `act`, without histograms' buckets, sums and quantiles.
fn samples(act: impl FnOnce(&Meters)) -> Vec<String> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let pace = pace::Meters::new("billing", OnLimit::Wait);
        act(&Meters::new("billing", &pace, Arc::default()));
    });
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
    for outcome in ["delivered", "retried", "parked", "dead", "returned", "cancelled"] {
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
        "cancelled",
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
        let request = Caller::new(0).request;
        let after = |seconds| request.since + Duration::from_secs(seconds);
        meters.pace.granted(&request, after(2), Duration::from_millis(50));
        let quiet = SlotRequest { is_quiet: true, ..request };
        meters.pace.granted(&quiet, after(3), Duration::ZERO);
        meters.release(Duration::from_micros(40));
        meters.abandoned(Abandoned::Expired);
        meters.pace.abandoned(1, Abandoned::Stopped);
        meters.pace.pace_in_force(Some("50/s".parse().unwrap()), false);
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
        ("job_queue_wait_seconds_sum", "", "5"),
        ("quiet_lane_wait_seconds_sum", "", "3"),
        ("quiet_lane_wait_seconds_count", "", "1"),
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
        meters.set_in_flight(5, 3, 2);
        kept.push(meters.settling());
        drop(meters.settling());
    });
    states(&there, ["5", "3", "2", "1"]);
    let gone = samples(|meters| {
        meters.set_in_flight(5, 3, 2);
        meters.set_in_flight(0, 0, 0);
    });
    states(&gone, ["0", "0", "0", "0"]);
}
