//! Rates and lateness over the last seconds, from totals that only rise. It has no I/O.

use std::collections::VecDeque;

use paced::api::Millis;
use paced::api::state::Quantiles;
use paced::dispatch::{LATENCY_BOUNDS, LATENESS_BOUNDS};
use tokio::time::Instant;

/// The number of samples that a rate is over, one a second.
const RATE_SAMPLES: usize = 10;

/// The number of samples that quantiles are over, one every [`SPANS_EVERY`] samples.
const SPANS_SAMPLES: usize = 6;
const SPANS_EVERY: u32 = 10;

/// The steps of a history: those of a quarter of an hour.
pub(super) const HISTORY_STEPS: usize = 180;

/// The jobs that one replica released of one downstream.
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// The totals of the last seconds, the oldest first.
    released: VecDeque<(Instant, u64)>,
    /// The counts of each bucket of the lateness and of the latency at the last samples of them, the oldest first.
    spans: VecDeque<[Vec<u64>; 2]>,
    samples: u32,
}

impl Rates {
    /// Records the totals at `now`; it is called once a second. `spans` are the counts of the lateness and of the latency.
    pub(super) fn sample(&mut self, now: Instant, released: u64, spans: impl FnOnce() -> [Vec<u64>; 2]) {
        self.released.push_back((now, released));
        if self.released.len() > RATE_SAMPLES + 1 {
            self.released.pop_front();
        }
        if self.samples.is_multiple_of(SPANS_EVERY) {
            self.spans.push_back(spans());
            if self.spans.len() > SPANS_SAMPLES {
                self.spans.pop_front();
            }
        }
        self.samples = self.samples.wrapping_add(1);
    }

    /// The jobs released a second, of a downstream of this pace. Where slots lie evenly, a span may hold one more than it
    /// has room for, as both of its ends may fall on a slot: that is the pace, and not more.
    #[expect(clippy::cast_precision_loss, reason = "counts of some seconds")]
    pub(super) fn rate(&self, pace: Option<f64>) -> f64 {
        match (self.released.front(), self.released.back()) {
            (Some((from, first)), Some((to, last))) if to > from => {
                let seconds = (*to - *from).as_secs_f64();
                within_noise(last.saturating_sub(*first) as f64 / seconds, pace, 1.0 / seconds)
            }
            _ => 0.0,
        }
    }

    /// The lateness since the oldest sample of it, with the counts as they are now.
    pub(super) fn lateness(&self, now: &[u64]) -> Option<Quantiles> {
        let [before, _] = self.spans.front()?;
        quantiles(before, now, LATENESS_BOUNDS)
    }

    /// The latency since the oldest sample of it, with the counts as they are now.
    pub(super) fn latency(&self, now: &[u64]) -> Option<Quantiles> {
        let [_, before] = self.spans.front()?;
        quantiles(before, now, LATENCY_BOUNDS)
    }
}

/// The quantiles of what was counted since, if anything was. Where nothing was counted before, no counts stand for zeros.
fn quantiles(before: &[u64], now: &[u64], bounds: &[f64]) -> Option<Quantiles> {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    let counts: Vec<u64> = now.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect();
    let all: u64 = counts.iter().sum();
    let of = |share| quantile(&counts, bounds, all, share);
    (all > 0).then(|| Quantiles { p50_us: of(0.5), p99_us: of(0.99) })
}

/// A rate over all replicas, of a downstream of this pace. All replicas share one even sequence of slots, so a span
/// that is common to them may hold one slot more than its length has room for, with any number of replicas.
pub(super) fn fleet_rate(rate: f64, pace: Option<f64>) -> f64 {
    let seconds = f64::from(u32::try_from(RATE_SAMPLES).unwrap_or(u32::MAX));
    within_noise(rate, pace, 1.0 / seconds)
}

/// The pace, where a rate exceeds it by no more than what the measurement may add; and else the rate.
fn within_noise(rate: f64, pace: Option<f64>, noise: f64) -> f64 {
    pace.filter(|pace| rate > *pace && rate <= *pace + noise).unwrap_or(rate)
}

/// A quantile in µs, interpolated within its bucket as Prometheus does.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and microseconds of a minute"
)]
fn quantile(counts: &[u64], bounds: &[f64], all: u64, quantile: f64) -> u64 {
    let rank = quantile * all as f64;
    let (mut below, mut lower) = (0.0, 0.0);
    for (count, upper) in counts.iter().zip(bounds) {
        let count = *count as f64;
        if count > 0.0 && below + count >= rank {
            return ((lower + (upper - lower) * (rank - below) / count) * 1e6).round() as u64;
        }
        (below, lower) = (below + count, *upper);
    }
    (lower * 1e6).round() as u64
}

/// A step of a history, over all replicas.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    /// The time of its end.
    pub(super) until: Millis,
    /// The jobs that were released in it.
    pub(super) released: u64,
    /// The attempts that failed in it.
    pub(super) failed: u64,
}

/// The steps that the rate of a history is made of: the end of the first one, and the last two.
const RATED_STEPS: usize = 3;

/// The last steps of one downstream. As long as nothing has happened in any, only the last few are stored: most of many
/// downstreams may never have a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    /// The number of steps before those that are stored. Nothing happened in them.
    empty: usize,
    stored: VecDeque<Step>,
    /// Whether anything has happened in one of them.
    is_used: bool,
}

impl Steps {
    /// Adds the last step.
    pub(super) fn push(&mut self, step: Step) {
        self.is_used |= step.released > 0 || step.failed > 0;
        self.stored.push_back(step);
        if !self.is_used && self.stored.len() > RATED_STEPS {
            self.stored.pop_front();
            self.empty += 1;
        }
        if self.empty + self.stored.len() > HISTORY_STEPS {
            if self.empty > 0 {
                self.empty -= 1;
            } else {
                self.stored.pop_front();
            }
        }
    }

    /// The jobs released in each step, the oldest first.
    pub(super) fn released(&self) -> Vec<u64> {
        self.each(|step| step.released)
    }

    /// The attempts that failed in each step, the oldest first; nothing if none did.
    pub(super) fn failed(&self) -> Vec<u64> {
        let failed = self.stored.iter().any(|step| step.failed > 0);
        if failed { self.each(|step| step.failed) } else { Vec::new() }
    }

    fn each(&self, number: impl Fn(&Step) -> u64) -> Vec<u64> {
        std::iter::repeat_n(0, self.empty).chain(self.stored.iter().map(number)).collect()
    }

    /// The jobs released a second in the last two steps, which span ten seconds; `None` if there are not as many.
    #[expect(clippy::cast_precision_loss, reason = "counts and milliseconds of some seconds")]
    pub(super) fn rate(&self) -> Option<f64> {
        let mut last = self.stored.iter().rev();
        let (two, one, before) = (last.next()?, last.next()?, last.next()?);
        let (jobs, span) = (one.released.saturating_add(two.released), two.until - before.until);
        // The clock may have been set meanwhile.
        (span > 0).then(|| jobs as f64 * 1000.0 / span as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rate_is_over_ten_seconds() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let at = |second: u32| start + second * Duration::from_secs(1);
        assert!(rates.rate(None).abs() < f64::EPSILON);
        for second in 0..5 {
            rates.sample(at(second), u64::from(second) * 20, Default::default);
        }
        assert!((rates.rate(None) - 20.0).abs() < 1e-9, "as far as is known");
        for second in 5..15 {
            rates.sample(at(second), 100 + u64::from(second - 5) * 50, Default::default);
        }
        assert!((rates.rate(None) - 47.0).abs() < 1e-9, "{}", rates.rate(None));
        rates.sample(at(20), 550, Default::default);
        assert!((rates.rate(None) - 30.0).abs() < 1e-9, "samples may be late: {}", rates.rate(None));
    }

    #[test]
    fn an_even_pace_is_never_shown_as_more_than_it_is() {
        // 100 a minute, from each phase between two samples.
        let pace = 100.0 / 60.0;
        for phase in 0..60_u64 {
            let (mut rates, start) = (Rates::default(), Instant::now());
            for second in 0..30_u64 {
                let at = start + Duration::from_secs(second);
                // One goes every 600 ms.
                rates.sample(at, (second * 1000 + phase * 10).div_ceil(600), Default::default);
                let rate = rates.rate(Some(pace));
                assert!(rate <= pace, "{rate} of {pace} after {second} s");
                assert!(second < 10 || rate > pace - 0.11, "{rate} of {pace} after {second} s");
            }
        }
        let (mut rates, start) = (Rates::default(), Instant::now());
        rates.sample(start, 0, Default::default);
        rates.sample(start + Duration::from_secs(10), 18, Default::default);
        assert!((rates.rate(Some(pace)) - 1.8).abs() < 1e-6, "two more than there is room for are too many");
    }

    #[test]
    fn a_rate_over_all_replicas_is_of_one_span_and_hides_no_breach() {
        let mut steps = Steps::default();
        assert_eq!(steps.rate(), None);
        let mut rate = |until, released| {
            steps.push(Step { until, released, failed: 0 });
            steps.rate()
        };
        // A thread that is held up makes a step longer.
        assert_eq!([rate(5_000, 500), rate(10_000, 250), rate(15_500, 275)], [None, None, Some(50.0)]);
        assert_eq!(rate(15_500, 1), Some(276.0 * 1000.0 / 5_500.0));
        assert_eq!(rate(10_000, 1), None, "the clock was set");
        for (pace, rate, shown) in [
            (50.0, 50.1, 50.0),
            (50.0, 50.2, 50.2),
            (50.0, 49.0, 49.0),
            (0.1, 0.2, 0.1),
            // Two replicas that share no store.
            (0.1, 0.3, 0.3),
            (500.0, 545.0, 545.0),
        ] {
            let reported = fleet_rate(rate, Some(pace));
            assert!((reported - shown).abs() < 1e-9, "{rate} of {pace} is shown as {reported}");
        }
        assert!((fleet_rate(70.0, None) - 70.0).abs() < 1e-9, "no limit spaces jobs out");
    }

    #[test]
    fn the_lateness_is_over_a_minute_and_interpolated() {
        let mut rates = Rates::default();
        let counts = |first: u64, second: u64| {
            let mut counts = vec![0; LATENESS_BOUNDS.len()];
            (counts[0], counts[1]) = (first, second);
            counts
        };
        assert_eq!(rates.lateness(&counts(1, 1)), None);
        let now = Instant::now();
        for second in 0..60 {
            rates.sample(now, 0, || [counts(1000 * second, 0), vec![0; LATENCY_BOUNDS.len()]]);
        }
        assert_eq!(rates.lateness(&counts(0, 0)), None, "nothing was released");
        // The first of seven samples is forgotten.
        rates.sample(now, 0, || [counts(60_000, 0), vec![0; LATENCY_BOUNDS.len()]]);
        let late = rates.lateness(&counts(60_000, 50_000)).unwrap();
        assert_eq!(late, Quantiles { p50_us: 10, p99_us: 20 });
        let mut took = vec![0; LATENCY_BOUNDS.len()];
        assert_eq!(rates.latency(&took), None);
        took[0] = 4;
        assert_eq!(rates.latency(&took), Some(Quantiles { p50_us: 50, p99_us: 99 }));
    }

    #[test]
    fn a_history_has_a_quarter_of_an_hour() {
        let mut steps = Steps::default();
        let step = |released| Step { released, ..Step::default() };
        (0..200).for_each(|released| steps.push(step(released)));
        assert_eq!(steps.released(), (20..200).collect::<Vec<u64>>());
        assert!(steps.failed().is_empty(), "none failed");
        steps.push(Step { failed: 3, ..step(200) });
        assert_eq!((steps.failed().len(), steps.failed().last()), (180, Some(&3)));
    }

    #[test]
    fn the_steps_of_an_idle_downstream_are_all_there_and_take_no_room() {
        let mut steps = Steps::default();
        let step = |number: Millis, released| Step { until: number * 5_000, released, failed: 0 };
        for number in 0..200 {
            steps.push(step(number, 0));
        }
        assert_eq!((steps.released(), steps.failed()), (vec![0; 180], Vec::new()));
        assert_eq!((steps.rate(), steps.stored.len()), (Some(0.0), RATED_STEPS));
        for number in 200..210 {
            steps.push(step(number, 5));
        }
        assert_eq!(steps.released(), [vec![0; 170], vec![5; 10]].concat());
        assert_eq!(steps.rate(), Some(1.0));
        for number in 210..400 {
            steps.push(step(number, 0));
        }
        assert_eq!((steps.released(), steps.empty), (vec![0; 180], 0));
    }

    #[test]
    fn what_is_counted_first_counts_as_more_than_nothing() {
        let mut rates = Rates::default();
        rates.sample(Instant::now(), 0, Default::default);
        let mut counts = vec![0; LATENESS_BOUNDS.len()];
        counts[1] = 4;
        assert_eq!(rates.lateness(&counts), Some(Quantiles { p50_us: 15, p99_us: 20 }));
        assert_eq!(rates.latency(&[]), None);
    }
}
