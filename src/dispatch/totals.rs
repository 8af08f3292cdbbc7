//! What a dispatcher counts, for readers in this process. The metrics go to a recorder, which nobody reads back.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::metric::{DISPATCH_DURATION, Kind, LATENESS_OF_RELEASE, Metric};

/// The numbers of upper bounds of the lateness and of the latency.
const BOUNDS: usize = LATENESS_BOUNDS.len();
const LATENCIES: usize = LATENCY_BOUNDS.len();

/// The upper bounds of the lateness, in seconds: those of its metric.
pub const LATENESS_BOUNDS: &[f64] = bounds(LATENESS_OF_RELEASE);
/// The upper bounds of the latency, in seconds: those of its metric.
pub const LATENCY_BOUNDS: &[f64] = bounds(DISPATCH_DURATION);

const fn bounds(metric: Metric) -> &'static [f64] {
    match metric.kind {
        Kind::Histogram(bounds) => bounds,
        Kind::Counter | Kind::Gauge => &[],
    }
}

/// The totals of one downstream since its dispatcher was made. All of them are counted without a lock.
#[derive(Debug, Default)]
pub struct Totals {
    released: AtomicU64,
    delivered: AtomicU64,
    settling: AtomicUsize,
    /// The jobs that were parked, less those that came home, since this was last taken.
    parked: AtomicI64,
    /// How late releases were, and how long the downstream took.
    lateness: Spans<BOUNDS>,
    latency: Spans<LATENCIES>,
}

/// How many spans were at most each of some bounds and more than the one before; those beyond the last count as it.
#[derive(Debug)]
struct Spans<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Spans<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Spans<N> {
    fn add(&self, span: Duration, bounds: &[f64]) {
        let seconds = span.as_secs_f64();
        let bucket = bounds.iter().position(|bound| seconds <= *bound).unwrap_or(N - 1);
        self.0[bucket].fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> Vec<u64> {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl Totals {
    /// The jobs handed to the sink; each attempt counts.
    pub fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// The jobs that the downstream accepted.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// The jobs whose outcome is known while their reply, copy or ack is in progress.
    pub fn settling(&self) -> usize {
        self.settling.load(Ordering::Relaxed)
    }

    /// Takes the number of jobs that were parked since the last call, less those that came home.
    pub fn take_parked(&self) -> i64 {
        self.parked.swap(0, Ordering::Relaxed)
    }

    /// Puts back what was taken, since it could not be passed on.
    pub fn put_back_parked(&self, jobs: i64) {
        self.parked.fetch_add(jobs, Ordering::Relaxed);
    }

    /// How many releases were late by at most each of [`LATENESS_BOUNDS`] and more than the one before; those beyond the
    /// last count as it.
    pub fn lateness(&self) -> Vec<u64> {
        self.lateness.counts()
    }

    /// The same of [`LATENCY_BOUNDS`] and of how long the downstream took for an answer, or until it was waited for no more.
    pub fn latency(&self) -> Vec<u64> {
        self.latency.counts()
    }

    pub(super) fn on_released(&self, late: Duration) {
        self.released.fetch_add(1, Ordering::Relaxed);
        self.lateness.add(late, LATENESS_BOUNDS);
    }

    pub(super) fn on_answered(&self, took: Duration) {
        self.latency.add(took, LATENCY_BOUNDS);
    }

    pub(super) fn on_delivered(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a job that was parked (1), or came home (-1).
    pub(super) fn on_parked(&self, jobs: i64) {
        self.parked.fetch_add(jobs, Ordering::Relaxed);
    }

    pub(super) fn begin_settling(&self) {
        self.settling.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_settling(&self) {
        self.settling.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_in_the_bucket_of_its_lateness() {
        let totals = Totals::default();
        let micros = [0, 10, 11, 1_000_000, 5_000_000];
        micros.into_iter().for_each(|micros| totals.on_released(Duration::from_micros(micros)));
        let lateness = totals.lateness();
        assert_eq!((lateness[0], lateness[1], lateness[BOUNDS - 1]), (2, 1, 2));
        assert_eq!((lateness.iter().sum::<u64>(), totals.released()), (5, 5));
        totals.on_answered(Duration::from_millis(2));
        let at = LATENCY_BOUNDS.iter().position(|bound| *bound == 0.002_5).unwrap();
        assert_eq!((totals.latency()[at], totals.latency().iter().sum::<u64>()), (1, 1));
    }

    #[test]
    fn what_was_parked_is_taken_once_and_may_be_put_back() {
        let totals = Totals::default();
        [1, 1, -1].into_iter().for_each(|jobs| totals.on_parked(jobs));
        assert_eq!(totals.take_parked(), 1);
        totals.put_back_parked(1);
        assert_eq!((totals.take_parked(), totals.take_parked()), (1, 0));
    }
}
