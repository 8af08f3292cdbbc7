//! What a dispatcher counts, for readers in this process. The metrics go to a recorder, which nobody reads back.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::source::ParkReason;
use crate::lock::lock;
use crate::metric::{DISPATCH_DURATION, Kind, LATENESS_OF_RELEASE, Metric};
use crate::store::{MAX_PARKED_GROUPS, ParkedGroup};
use crate::time::Micros;

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

/// The milliseconds in an hour.
const HOUR: i64 = 3_600_000;

/// The totals of one downstream since its dispatcher was made. All but those of parked jobs are counted without a lock.
#[derive(Debug, Default)]
pub struct Totals {
    released: AtomicU64,
    delivered: AtomicU64,
    failed: AtomicU64,
    settling: AtomicUsize,
    parked: Mutex<Parked>,
    /// How late releases were, and how long the downstream took.
    lateness: Spans<BOUNDS>,
    latency: Spans<LATENCIES>,
}

/// The jobs that were parked, less those that came home, since this was last taken.
#[derive(Debug, Default)]
struct Parked {
    jobs: i64,
    /// By the hour until which they wait, and the kind of [`ParkReason`].
    groups: BTreeMap<(i64, u8), i64>,
}

/// What has changed among the parked jobs of a downstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParkedChange {
    /// The jobs that were parked, less those that came home.
    pub jobs: i64,
    /// The same by what they wait for and until which hour, as far as there is room for: at most [`MAX_PARKED_GROUPS`].
    pub groups: Vec<ParkedGroup>,
}

impl ParkedChange {
    /// Whether nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs == 0 && self.groups.is_empty()
    }
}

impl Parked {
    fn add(&mut self, ParkedGroup { hour, kind, jobs }: ParkedGroup) {
        let place = (hour, kind);
        if self.groups.len() < MAX_PARKED_GROUPS || self.groups.contains_key(&place) {
            let group = self.groups.entry(place).or_default();
            *group = group.saturating_add(jobs);
            if *group == 0 {
                self.groups.remove(&place);
            }
        }
    }
}

/// A histogram: how many spans were at most each bound and more than the one before. Spans beyond the last bound
/// count with it.
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

    /// The attempts that failed: the downstream refused the job, failed, throttled or did not answer.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The jobs whose outcome is known while their reply, copy or ack is in progress.
    pub fn settling(&self) -> usize {
        self.settling.load(Ordering::Relaxed)
    }

    /// Takes what has changed among parked jobs since the last call.
    pub fn take_parked(&self) -> ParkedChange {
        let Parked { jobs, groups } = std::mem::take(&mut *lock(&self.parked));
        let groups = groups.into_iter().map(|((hour, kind), jobs)| ParkedGroup { hour, kind, jobs });
        ParkedChange { jobs, groups: groups.collect() }
    }

    /// Puts back what was taken, since it could not be passed on.
    pub fn put_back_parked(&self, change: &ParkedChange) {
        let mut parked = lock(&self.parked);
        parked.jobs = parked.jobs.saturating_add(change.jobs);
        change.groups.iter().for_each(|group| parked.add(*group));
    }

    /// How many releases were late by at most each of [`LATENESS_BOUNDS`] and more than the one before. Those beyond
    /// the last bound count with it.
    pub fn lateness(&self) -> Vec<u64> {
        self.lateness.counts()
    }

    /// As [`Totals::lateness`], by [`LATENCY_BOUNDS`]: how long the downstream took to answer, or until nobody waited
    /// for it any more.
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

    pub(super) fn on_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a job that was parked (1) or came home (-1), by what it waits or waited for, and until which time of
    /// the wall clock.
    pub(super) fn on_parked(&self, jobs: i64, reason: ParkReason, until: Micros) {
        let mut parked = lock(&self.parked);
        parked.jobs = parked.jobs.saturating_add(jobs);
        // Brokers keep the time in ms, and a header may have any value.
        let hour = until.0.saturating_add(999) / 1000 / HOUR;
        if hour >= 0 {
            parked.add(ParkedGroup { hour, kind: reason.kind(), jobs });
        }
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
        let at = |hour: i64, micros: i64| Micros(hour * HOUR * 1000 + micros);
        let group = |hour, reason: ParkReason, jobs| ParkedGroup { hour, kind: reason.kind(), jobs };
        for (jobs, reason, until) in [
            (1, ParkReason::Retry, at(7, 0)),
            (1, ParkReason::Limit, at(7, 5)),
            (1, ParkReason::Limit, at(8, -999)),
            (-1, ParkReason::Limit, at(9, -2000)),
            (-1, ParkReason::Retry, at(7, 1)),
            (1, ParkReason::NotBefore, Micros(i64::MIN)),
        ] {
            totals.on_parked(jobs, reason, until);
        }
        let taken = totals.take_parked();
        // The stays of a job have whole milliseconds; the last one has no hour.
        assert_eq!(taken, ParkedChange { jobs: 2, groups: vec![group(7, ParkReason::Limit, 1)] });
        totals.put_back_parked(&taken);
        assert_eq!((totals.take_parked(), totals.take_parked()), (taken, ParkedChange::default()));
        assert!(totals.take_parked().is_empty());
    }

    #[test]
    fn a_job_that_moves_between_hours_is_a_change_although_their_number_is_not() {
        let totals = Totals::default();
        let hour = |hour: i64| Micros(hour * HOUR * 1000);
        totals.on_parked(-1, ParkReason::Limit, hour(7));
        totals.on_parked(1, ParkReason::Limit, hour(8));
        let taken = totals.take_parked();
        assert_eq!((taken.jobs, taken.groups.len(), taken.is_empty()), (0, 2, false));
    }

    #[test]
    fn the_hours_of_parked_jobs_are_bounded() {
        let totals = Totals::default();
        let most = i64::try_from(MAX_PARKED_GROUPS).unwrap();
        for hour in 0..most + 5 {
            totals.on_parked(1, ParkReason::NotBefore, Micros(hour * HOUR * 1000));
        }
        totals.on_parked(1, ParkReason::NotBefore, Micros(0));
        let ParkedChange { jobs, groups } = totals.take_parked();
        assert_eq!((jobs, groups.len(), groups[0].jobs), (most + 6, MAX_PARKED_GROUPS, 2));
    }
}
