//! `/metrics` against the log of the API.

use super::*;

/// The metrics that there are, and their kinds.
const METRICS: [(&str, &str); 40] = [
    ("paced_amqp_connected", "gauge"),
    ("paced_amqp_reconnects_total", "counter"),
    ("paced_binding_seconds_total", "counter"),
    ("paced_build_info", "gauge"),
    ("paced_dead_letters", "gauge"),
    ("paced_deliveries_cut_total", "counter"),
    ("paced_dispatch_duration_seconds", "histogram"),
    ("paced_job_queue_wait_seconds", "histogram"),
    ("paced_job_retries_total", "counter"),
    ("paced_job_shaping_delay_seconds", "histogram"),
    ("paced_jobs_in_flight", "gauge"),
    ("paced_jobs_ready", "gauge"),
    ("paced_jobs_received_total", "counter"),
    ("paced_jobs_rejected_total", "counter"),
    ("paced_jobs_released_total", "counter"),
    ("paced_jobs_settled_total", "counter"),
    ("paced_log_dropped_total", "counter"),
    ("paced_orphans", "gauge"),
    ("paced_unconfirmed_queues", "gauge"),
    ("paced_stuck_dispatchers", "gauge"),
    ("paced_silent_replicas", "gauge"),
    ("paced_stray_replicas", "gauge"),
    ("paced_config_loaded", "gauge"),
    ("paced_unreadable_files", "gauge"),
    ("paced_oldest_job_seconds", "gauge"),
    ("paced_rate_overridden", "gauge"),
    ("paced_paused", "gauge"),
    ("paced_paused_values", "gauge"),
    ("paced_poison_total", "counter"),
    ("paced_quiet_lane_wait_seconds", "histogram"),
    ("paced_rate_limit_jobs_per_second", "gauge"),
    ("paced_release_lateness_seconds", "histogram"),
    ("paced_reservation_batch_jobs", "histogram"),
    ("paced_slots_abandoned_total", "counter"),
    ("paced_slots_reserved_total", "counter"),
    ("paced_stopped", "gauge"),
    ("paced_store_connected", "gauge"),
    ("paced_store_errors_total", "counter"),
    ("paced_store_roundtrip_seconds", "histogram"),
    ("paced_unroutable_total", "counter"),
];

/// The label of each series of a downstream, and its values.
pub const LABELS: [(&str, &str, &[&str]); 22] = [
    ("paced_jobs_received_total", "", &[]),
    ("paced_poison_total", "", &[]),
    ("paced_jobs_released_total", "", &[]),
    (
        "paced_jobs_settled_total",
        "outcome",
        &["delivered", "retried", "parked", "dead", "returned", "cancelled"],
    ),
    (
        "paced_job_retries_total",
        "reason",
        &["status", "timeout", "connect", "connection", "throttled", "unauthorized", "answer"],
    ),
    (
        "paced_jobs_rejected_total",
        "reason",
        &[
            "malformed-header",
            "unknown-header",
            "header-not-allowed",
            "forbidden-path",
            "body-too-large",
            "bad-id",
            "cost-too-large",
            "expired",
            "queue-full",
            "rejected",
            "status",
            "attempts-exhausted",
        ],
    ),
    ("paced_slots_reserved_total", "", &[]),
    ("paced_deliveries_cut_total", "", &[]),
    (
        "paced_slots_abandoned_total",
        "reason",
        &[
            "late",
            "connection-lost",
            "clock-stepped",
            "unreachable",
            "unauthorized",
            "cooling-down",
            "expired",
            "stopped",
            "paused",
            "store-back",
            "cancelled",
        ],
    ),
    ("paced_store_errors_total", "op", &["reserve", "tend"]),
    ("paced_jobs_in_flight", "state", &["lane", "held", "sending", "settling"]),
    ("paced_paused", "", &[]),
    ("paced_paused_values", "", &[]),
    ("paced_stopped", "reason", &["unreachable", "unauthorized"]),
    ("paced_job_queue_wait_seconds_count", "", &[]),
    ("paced_quiet_lane_wait_seconds_count", "", &[]),
    ("paced_job_shaping_delay_seconds_count", "", &[]),
    ("paced_release_lateness_seconds_count", "", &[]),
    ("paced_release_lateness_seconds_sum", "", &[]),
    ("paced_dispatch_duration_seconds_count", "outcome", &["delivered", "retried", "dead"]),
    ("paced_store_roundtrip_seconds_count", "op", &["reserve", "tend"]),
    ("paced_reservation_batch_jobs_count", "", &[]),
];

/// One scrape.
struct Scrape {
    text: String,
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    async fn of(watched: &Watched) -> Self {
        let (status, text) = watched.get("/metrics").await;
        assert_eq!(status, 200);
        let samples = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = samples.map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        });
        Self { samples: samples.collect(), text }
    }

    /// The value of `name{downstream="billing",LABEL}`.
    #[track_caller]
    fn value(&self, name: &str, label: &str, value: &str) -> f64 {
        let label = if label.is_empty() { String::new() } else { format!(",{label}=\"{value}\"") };
        let series = format!("{name}{{downstream=\"billing\"{label}}}");
        *self.samples.get(&series).unwrap_or_else(|| panic!("no {series} in\n{}", self.text))
    }

    /// The same as a count.
    #[track_caller]
    fn count(&self, name: &str, label: &str, value: &str) -> usize {
        let value = self.value(name, label, value);
        assert!(value >= 0.0 && value.fract() == 0.0, "{name}: {value}");
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number from 0 on"
        )]
        let count = value as usize;
        count
    }

    /// The sum over the label's values.
    fn total(&self, name: &str) -> usize {
        let of = |series: &str| series.starts_with(&format!("{name}{{"));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole numbers from 0 on"
        )]
        let total = self.samples.iter().filter(|(series, _)| of(series)).map(|(_, value)| *value).sum::<f64>()
            as usize;
        total
    }
}

impl Scrape {
    /// Checks, once nothing is in progress, that each slot was used or given up, and that counts of the same things are
    /// equal.
    #[track_caller]
    fn assert_slots_agree(&self, released: usize) {
        let count = |name: &str| self.count(name, "", "");
        let slots = count("paced_slots_reserved_total");
        assert_eq!(count("paced_jobs_released_total"), released);
        assert_eq!(slots, released + self.total("paced_slots_abandoned_total"));
        assert_eq!(count("paced_release_lateness_seconds_count"), released);
        // A slot that comes when a cool-down has begun is given to nobody.
        let most_unused = self.count("paced_slots_abandoned_total", "reason", "cooling-down");
        for name in ["paced_job_queue_wait_seconds_count", "paced_job_shaping_delay_seconds_count"] {
            assert!((slots - most_unused..=slots).contains(&count(name)), "{name}");
        }
        assert_eq!(self.total("paced_dispatch_duration_seconds_count"), released);
        for state in ["lane", "held", "sending", "settling"] {
            assert_eq!(self.count("paced_jobs_in_flight", "state", state), 0, "{state}");
        }
    }
}

/// A scrape once the dispatcher runs, and the store has answered.
async fn first(watched: &Watched) -> Scrape {
    let scraped = poll(LONG, async || {
        let scrape = Scrape::of(watched).await;
        let is_begun = scrape.text.contains("paced_jobs_received_total{")
            && scrape.value("paced_store_connected", "", "") == 1.0
            && scrape.count("paced_store_roundtrip_seconds_count", "op", "tend") > 0;
        is_begun.then_some(scrape)
    });
    scraped.await.unwrap()
}

#[tokio::test]
async fn every_metric_is_there_at_0_before_the_first_job() {
    let site = Site::shared("zero", "rate = '3/m'").await;
    let watched = Watched::start(&site).await;
    watched.readyz(200).await;
    let scrape = first(&watched).await;
    let of = |line: &str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind.to_owned()))
    };
    let kinds: BTreeSet<(String, String)> = scrape.text.lines().filter_map(of).collect();
    let expected = METRICS.map(|(name, kind)| (name.to_owned(), kind.to_owned()));
    assert_eq!(kinds, BTreeSet::from(expected));
    for (name, _) in METRICS {
        assert!(scrape.text.contains(&format!("# HELP {name} ")), "{name} has no help");
    }
    for (name, label, values) in LABELS {
        for value in if values.is_empty() { &[""] } else { values } {
            // The terms in force were asked for already.
            let asked = (name, *value) == ("paced_store_roundtrip_seconds_count", "tend");
            assert_eq!(scrape.value(name, label, value) > 0.0, asked, "{name} {value}");
        }
        let family = |series: &&String| series.starts_with(&format!("{name}{{"));
        let there = scrape.samples.keys().filter(family).count();
        assert_eq!(there, values.len().max(1), "{name} has other labels too");
    }
    // The seconds of what binds are counted from the start.
    let bound = scrape.samples.keys().filter(|series| series.starts_with("paced_binding_seconds_total{"));
    assert_eq!(bound.count(), 12, "eleven reasons, and the limit");
    assert!((scrape.value("paced_rate_limit_jobs_per_second", "source", "config") - 0.05).abs() < 1e-9);
    assert_eq!(scrape.value("paced_store_connected", "", ""), 1.0, "it was asked for the scrape");
    assert_eq!(scrape.samples["paced_amqp_connected"], 1.0);
    assert_eq!(scrape.samples["paced_amqp_reconnects_total"], 0.0);
    assert_eq!(scrape.samples["paced_unroutable_total"], 0.0);
    assert_eq!(scrape.samples["paced_orphans"], 0.0);
    for name in [
        "paced_silent_replicas",
        "paced_stray_replicas",
        "paced_stuck_dispatchers",
        "paced_unconfirmed_queues",
        "paced_unreadable_files",
    ] {
        assert_eq!(scrape.samples[name], 0.0, "{name}");
    }
    assert_eq!(scrape.samples["paced_config_loaded"], 1.0);
    let build = format!("paced_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(scrape.samples[&build], 1.0);
    let labels = scrape
        .samples
        .keys()
        .flat_map(|series| series.split(['{', ',', '}']))
        .filter_map(|part| part.split_once('=').map(|(label, _)| label));
    let labels: BTreeSet<&str> = labels.collect();
    let known = ["downstream", "le", "limit", "op", "outcome", "reason", "source", "state", "version"];
    assert_eq!(labels, BTreeSet::from(known), "never a job, a lane or a URL");
    assert_eq!(watched.paced.stop().await, 0);
}

#[tokio::test]
async fn the_counters_agree_with_what_the_api_saw() {
    let downstream =
        "rate = '100/s'\nretry = { max_attempts = 3, min_backoff = '10ms', max_backoff = '20ms' }";
    let site = Site::shared("counted", downstream).await;
    site.api.rule(|arrival| match arrival.path.as_str() {
        "/gone" => Answer::status(410),
        "/never" => Answer::status(503),
        "/cut" => Answer::hang_up(),
        _ => Answer::ok(),
    });
    site.api.script("/twice", [Answer::status(503), Answer::status(429), Answer::ok()]);
    let watched = Watched::start(&site).await;
    watched.readyz(200).await;
    let mut jobs = Job::many("job", 40);
    for (id, path) in [("t", "twice"), ("g0", "gone"), ("g1", "gone"), ("n", "never"), ("c", "cut")] {
        jobs.push(Job::new(id).header("paced-path", path));
    }
    jobs.push(Job::new("u").header("paced-nonsense", "1"));
    jobs.push(Job::new("p").header("paced-path", "../up"));
    jobs.push(Job::new("e").header("paced-deadline", "0"));
    let published = jobs.len();
    site.publish(jobs).await;
    // Each job is delivered or dead, exactly once.
    let settled = |scrape: &Scrape| {
        let of = |outcome| scrape.count("paced_jobs_settled_total", "outcome", outcome);
        of("delivered") + of("dead")
    };
    let mut last = first(&watched).await;
    until("every job is settled and none is in flight", LONG, async || {
        last = Scrape::of(&watched).await;
        settled(&last) >= published && last.total("paced_jobs_in_flight") == 0
    })
    .await;
    // A page is not written at one instant: its beginning may be older than its end.
    last = Scrape::of(&watched).await;
    site.depth(&site.dead_queue(), 7, LONG).await;
    let arrivals = site.api.arrivals();
    let released = arrivals.len();
    assert_eq!(released, 40 + 3 + 2 + 3 + 3, "every attempt");

    let count = |name: &str, label: &str, value: &str| last.count(name, label, value);
    assert_eq!(count("paced_jobs_received_total", "", ""), published);
    assert_eq!(count("paced_jobs_released_total", "", ""), released);
    for (outcome, expected) in
        [("delivered", 41), ("retried", 6), ("parked", 0), ("dead", 7), ("returned", 0), ("cancelled", 0)]
    {
        assert_eq!(count("paced_jobs_settled_total", "outcome", outcome), expected, "{outcome}");
    }
    assert_eq!(count("paced_job_retries_total", "reason", "status"), 4);
    assert_eq!(count("paced_job_retries_total", "reason", "throttled"), 1);
    assert_eq!(last.total("paced_job_retries_total"), 8, "and three by broken connections");
    for (reason, expected) in [
        ("status", 2),
        ("attempts-exhausted", 2),
        ("unknown-header", 1),
        ("forbidden-path", 1),
        ("expired", 1),
    ] {
        assert_eq!(count("paced_jobs_rejected_total", "reason", reason), expected, "{reason}");
    }
    assert_eq!(last.total("paced_jobs_rejected_total"), 7);

    last.assert_slots_agree(released);
    for (outcome, expected) in [("delivered", 41), ("retried", 8), ("dead", 2)] {
        assert_eq!(count("paced_dispatch_duration_seconds_count", "outcome", outcome), expected, "{outcome}");
    }
    assert!(last.value("paced_release_lateness_seconds_sum", "", "") > 0.0);
    let slots = last.value("paced_reservation_batch_jobs_sum", "", "");
    assert_eq!(slots, last.value("paced_slots_reserved_total", "", ""));
    let calls = count("paced_store_roundtrip_seconds_count", "op", "reserve");
    assert_eq!(count("paced_reservation_batch_jobs_count", "", ""), calls);
    assert!(calls > 0);
    // A busy store may be too late for a call, and then the log says so.
    if !watched.paced.log().iter().any(|line| line.contains("the store is away")) {
        assert_eq!(last.total("paced_store_errors_total"), 0);
    }
    promtool(&last.text).await;
    assert_eq!(watched.paced.stop().await, 0);
}

#[tokio::test]
async fn slots_missed_while_the_process_stands_still_are_counted() {
    const JOBS: usize = 300;
    // The horizon is so long that many slots are held at any time.
    let site = Site::shared("missed", "rate = '100/s'\nhorizon = '1s'").await;
    let watched = Watched::start(&site).await;
    watched.readyz(200).await;
    site.publish(Job::many("job", JOBS)).await;
    site.api.wait_for(20, LONG).await;
    watched.paced.freeze();
    // What was on its way may still arrive.
    let before = site.api.count();
    let released = site.api.reaches(before + 15, Duration::from_millis(300)).await;
    watched.paced.thaw();
    assert!(!released, "it stands still");
    site.api.wait_for(JOBS, LONG).await;
    let mut last = first(&watched).await;
    until("every job is settled and none is in flight", LONG, async || {
        last = Scrape::of(&watched).await;
        last.count("paced_jobs_settled_total", "outcome", "delivered") == JOBS
            && last.total("paced_jobs_in_flight") == 0
    })
    .await;
    last = Scrape::of(&watched).await;
    let missed = last.count("paced_slots_abandoned_total", "reason", "late");
    assert!(missed >= 10, "some 30 slots came in 300 ms: {missed}");
    // Nothing is paused, cancelled or stopped, no job has a deadline, and the connections outlast far longer stops. A
    // clock that steps meanwhile is the machine's own, and then the log says so.
    let stepped = last.count("paced_slots_abandoned_total", "reason", "clock-stepped");
    let is_logged = watched.paced.log().iter().any(|line| line.contains("the store's clock stepped"));
    assert!(stepped == 0 || is_logged, "{stepped} slots were given up for no reason");
    assert_eq!(last.total("paced_slots_abandoned_total"), missed + stepped, "and none for another reason");
    last.assert_slots_agree(JOBS);
    assert_eq!(watched.paced.stop().await, 0);
}

/// Lets Prometheus' own tool check the page, where it is installed.
async fn promtool(text: &str) {
    let text = text.to_owned();
    let checked = blocking(move || {
        let mut command = Command::new("promtool");
        command
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        Some(child.wait_with_output().unwrap())
    });
    match checked.await {
        None => eprintln!("promtool is not installed (Debian's prometheus has it): its check is skipped"),
        Some(output) => {
            let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && printed.trim().is_empty(), "promtool: {printed}");
        }
    }
}
