//! Prometheus metrics: collects what goes to the `metrics` facade, and renders it on request.

use std::collections::BTreeSet;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use paced::metric::{self, Kind};

/// How often the values of histograms are gathered into their buckets while nobody scrapes: until then each value takes
/// memory.
const UPKEEP: Duration = Duration::from_secs(5);

/// The values of every metric.
#[derive(Clone)]
pub(crate) struct Exporter(PrometheusHandle);

/// The reason why metrics cannot be exported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExporterError {
    /// The crate rejects the buckets; a test checks the bounds.
    #[error("the buckets of {0} are wrong: {1}; please report this")]
    Buckets(&'static str, metrics_exporter_prometheus::BuildError),
    /// Another recorder is installed already: a process has only one.
    #[error("something else records the metrics of this process; leave admin.listen out")]
    Taken,
}

impl Exporter {
    /// Installs the recorder; before that the facade is a no-op that costs nothing. It must be called on a tokio
    /// runtime, and before the parts that record are built.
    pub(crate) fn install() -> Result<Self, ExporterError> {
        let recorder = builder()?.build_recorder();
        let exporter = Self(recorder.handle());
        metrics::set_global_recorder(recorder).map_err(|_| ExporterError::Taken)?;
        metric::describe();
        metrics::gauge!(metric::BUILD_INFO.name, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        tokio::spawn(upkeep(exporter.0.clone()));
        Ok(exporter)
    }

    /// Renders every series in Prometheus' text format, but for those of downstreams that are `gone`: the recorder keeps each
    /// series until the process ends. It takes a while where there are many.
    pub(crate) fn render(&self, gone: &BTreeSet<String>) -> String {
        metrics::counter!(metric::LOG_DROPPED.name).absolute(super::dropped());
        without(self.0.render(), gone)
    }
}

/// The text without the series of these downstreams.
fn without(text: String, gone: &BTreeSet<String>) -> String {
    if gone.is_empty() {
        return text;
    }
    let is_there = |line: &&str| downstream_of(line).is_none_or(|name| !gone.contains(name));
    text.split_inclusive('\n').filter(is_there).collect()
}

/// The downstream that a series belongs to: by its label, or by the setting of its certificate.
fn downstream_of(line: &str) -> Option<&str> {
    if line.starts_with('#') {
        return None;
    }
    let of_label = |start: &str, end: char| Some(line.split_once(start)?.1.split_once(end)?.0);
    of_label("downstream=\"", '"').or_else(|| of_label("setting=\"downstreams.", '.'))
}

fn builder() -> Result<PrometheusBuilder, ExporterError> {
    let mut builder = PrometheusBuilder::new();
    for metric in metric::ALL {
        if let Kind::Histogram(bounds) = metric.kind {
            builder = builder
                .set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)
                .map_err(|error| ExporterError::Buckets(metric.name, error))?;
        }
    }
    Ok(builder)
}

async fn upkeep(handle: PrometheusHandle) {
    let mut ticks = tokio::time::interval(UPKEEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let handle = handle.clone();
        // The upkeep runs on another thread: with many series it would delay releases on this one.
        let _ = tokio::task::spawn_blocking(move || handle.run_upkeep()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_downstreams_that_are_gone_are_left_out() {
        let text = "# HELP a downstream=\"old\"\na{downstream=\"old\"} 1\na{downstream=\"older\"} 2\n\
                    b_bucket{downstream=\"old\",le=\"1\"} 3\nc{setting=\"downstreams.old.tls\"} 4\n\
                    c{setting=\"amqp.tls\"} 5\nd 6\n";
        let left = "# HELP a downstream=\"old\"\na{downstream=\"older\"} 2\nc{setting=\"amqp.tls\"} 5\nd 6\n";
        assert_eq!(without(text.to_owned(), &["old".to_owned()].into()), left);
        assert_eq!(without(text.to_owned(), &BTreeSet::new()), text);
    }

    #[test]
    fn every_histogram_has_its_own_buckets() {
        let recorder = builder().unwrap().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            metric::describe();
            for metric in metric::ALL {
                match metric.kind {
                    Kind::Counter => metrics::counter!(metric.name).increment(0),
                    Kind::Gauge => metrics::gauge!(metric.name).set(0.0),
                    Kind::Histogram(_) => metrics::histogram!(metric.name).record(0.000_015),
                }
            }
        });
        let text = handle.render();
        for metric in metric::ALL {
            let name = metric.name;
            assert!(text.contains(&format!("# HELP {name} ")), "{name} in {text}");
            let Kind::Histogram(bounds) = metric.kind else { continue };
            assert!(text.contains(&format!("# TYPE {name} histogram")), "{name} in {text}");
            let bucket = format!("{name}_bucket{{le=\"");
            assert_eq!(text.matches(&bucket).count(), bounds.len() + 1, "{name}");
        }
        assert!(text.contains("paced_release_lateness_seconds_bucket{le=\"0.00001\"} 0"), "{text}");
        assert!(text.contains("paced_release_lateness_seconds_bucket{le=\"0.00002\"} 1"), "{text}");
    }
}
