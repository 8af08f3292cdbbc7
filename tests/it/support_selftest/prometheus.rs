//! Tests of the parser of metrics.

use crate::support::prometheus::{Histogram, Scrape};

const TEXT: &str = "\
# HELP lateness_seconds how late\n\
# TYPE lateness_seconds histogram\n\
lateness_seconds_bucket{downstream=\"a b\",le=\"0.001\"} 10\n\
lateness_seconds_bucket{downstream=\"a b\",le=\"0.002\"} 60\n\
lateness_seconds_bucket{downstream=\"a b\",le=\"+Inf\"} 100\n\
lateness_seconds_bucket{downstream=\"c\",le=\"0.001\"} 0\n\
lateness_seconds_bucket{downstream=\"c\",le=\"0.002\"} 0\n\
lateness_seconds_bucket{downstream=\"c\",le=\"+Inf\"} 100\n\
lateness_seconds_count{downstream=\"a b\"} 100\n\
\n\
jobs_total{downstream=\"a b\"} 5\n\
jobs_total{downstream=\"c\"} 7\n\
plain 1.5\n";

fn quantile(histogram: &Histogram, share: f64) -> f64 {
    // To the microsecond.
    (histogram.quantile(share).unwrap() * 1e6).round() / 1e6
}

#[test]
fn sums_are_over_all_series_of_a_name() {
    let scrape = Scrape::read(TEXT);
    assert_eq!(scrape.sum("jobs_total"), Some(12.0));
    assert_eq!(scrape.sum("plain"), Some(1.5));
    assert_eq!(scrape.sum("jobs"), None);
}

#[test]
fn quantiles_are_even_within_a_bucket() {
    let histogram = Scrape::read(TEXT).histogram("lateness_seconds").unwrap();
    assert_eq!(histogram.count(), 200.0);
    assert_eq!(quantile(&histogram, 0.025), 0.000_5);
    assert_eq!(quantile(&histogram, 0.05), 0.001);
    assert_eq!(quantile(&histogram, 0.175), 0.001_5);
    assert_eq!(quantile(&histogram, 0.99), 0.002, "never above the last finite bound");
    assert_eq!(Histogram::default().quantile(0.5), None);
    assert!(Scrape::read(TEXT).histogram("plain").is_none());
}

#[test]
fn samples_go_through_the_buckets_of_another_histogram() {
    let text = TEXT.replace(" 60\n", " 61\n").replace("le=\"+Inf\"} 100", "le=\"+Inf\"} 101");
    let [before, after] = [TEXT, &text].map(|text| Scrape::read(text).histogram("lateness_seconds").unwrap());
    let since = after.since(&before);
    assert_eq!(since.count(), 2.0);
    assert_eq!(after.since(&Histogram::default()), after);
    let refilled = since.refilled(&[0.0005, 0.0015, 0.0015, 0.0015]);
    assert_eq!(refilled.count(), 4.0);
    assert_eq!(quantile(&refilled, 0.25), 0.001);
    assert_eq!(quantile(&refilled, 0.625), 0.001_5);
}
