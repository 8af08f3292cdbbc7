//! Counts over a log of arrivals, by which the promises of pacing are checked. It has no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use paced::Rate;

/// The most stamps (ns, ascending) in any half-open window of this length.
pub fn busiest(stamps: &[u64], window: Duration) -> usize {
    windows(stamps, window).map(<[u64]>::len).max().unwrap_or(0)
}

/// For each stamp (ns, ascending) the stamps of the half-open window that ends with it.
pub fn windows(stamps: &[u64], window: Duration) -> impl Iterator<Item = &[u64]> {
    let window = nanos(window);
    let mut first = 0;
    stamps.iter().enumerate().map(move |(last, &at)| {
        while at - stamps[first] >= window {
            first += 1;
        }
        &stamps[first..=last]
    })
}

/// The most jobs of cost 1 and burst 1 that any window of this length may contain: the slots in it, and jobs that are
/// late within their tolerance (T, at least 5 ms, at most 50 ms).
pub fn allowed(rate: Rate, window: Duration) -> usize {
    allowed_with(rate, window, tolerance(rate))
}

/// As [`allowed`], with this lateness in place of the tolerance.
pub fn allowed_with(rate: Rate, window: Duration, lateness: Duration) -> usize {
    let units = |span: Duration| {
        let micros = span.as_nanos() * u128::from(rate.count());
        usize::try_from(micros.div_ceil(u128::from(rate.period_micros()) * 1000)).unwrap_or(usize::MAX)
    };
    units(window) + units(lateness)
}

/// Panics where a window of 1 s or of 100 ms contains more than the rate allows, with this lateness.
#[track_caller]
pub fn assert_paced(stamps: &[u64], rate: Rate, lateness: Duration) {
    for window in [Duration::from_secs(1), Duration::from_millis(100)] {
        let (busiest, most) = (busiest(stamps, window), allowed_with(rate, window, lateness));
        assert!(busiest <= most, "{busiest} in {window:?}, at most {most}");
    }
}

/// Panics where jobs came faster than the rate allows, by counts that a slow machine cannot break: the k-th stamp from
/// `since` on may not lie before the instant at which k - `ahead` units of the rate have passed.
///
/// `since` is a [`super::api::stamp`] taken before the first of these jobs could go. `ahead` is what may be under way at
/// that instant (sends in flight, slots that were granted ahead, the burst), at least 1. A job that is late only makes
/// room; windows of arrivals are judged where the machine is quiet (`make chaos`), and slots under paused time.
#[track_caller]
pub fn assert_never_ahead(stamps: &[u64], since: u64, rate: Rate, ahead: usize) {
    let per_unit = u128::from(rate.period_micros()) * 1000;
    for (place, &at) in stamps.iter().filter(|&&at| at >= since).enumerate() {
        let due = (place + 1).saturating_sub(ahead) as u128 * per_unit / u128::from(rate.count());
        let passed = u128::from(at - since);
        assert!(
            passed >= due,
            "job {place} came {} us after the start, not {} us",
            passed / 1000,
            due / 1000
        );
    }
}

/// The longest lateness of a hand-over before its slot is given up.
pub fn tolerance(rate: Rate) -> Duration {
    rate.interval().clamp(Duration::from_millis(5), Duration::from_millis(50))
}

/// The time from the first stamp to the last.
pub fn span(stamps: &[u64]) -> Duration {
    match stamps {
        [first, .., last] => Duration::from_nanos(last - first),
        _ => Duration::ZERO,
    }
}

/// Jobs per second from the first to the last: n - 1 intervals.
#[expect(clippy::cast_precision_loss, reason = "a figure for people and tolerances")]
pub fn effective_rate(stamps: &[u64]) -> f64 {
    let span = span(stamps).as_secs_f64();
    if span == 0.0 { 0.0 } else { (stamps.len() - 1) as f64 / span }
}

/// The intervals between neighbours, in ns.
pub fn gaps(stamps: &[u64]) -> Vec<u64> {
    stamps.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Coefficient of variation of the intervals: 0 is a metronome, 1 is Poisson.
#[expect(clippy::cast_precision_loss, reason = "a figure for people and tolerances")]
pub fn variation(stamps: &[u64]) -> f64 {
    let gaps = gaps(stamps);
    if gaps.is_empty() {
        return 0.0;
    }
    let count = gaps.len() as f64;
    let mean = gaps.iter().map(|&gap| gap as f64).sum::<f64>() / count;
    let variance = gaps.iter().map(|&gap| (gap as f64 - mean).powi(2)).sum::<f64>() / count;
    if mean == 0.0 { 0.0 } else { variance.sqrt() / mean }
}

/// The value at this share (0 to 1) of a list, by nearest rank; 0 for an empty one.
pub fn quantile(values: &[u64], share: f64) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// The comparison of a log with the jobs that were published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Ids that were published, and never seen.
    pub lost: Vec<String>,
    /// Ids that were seen more than once, with how often.
    pub doubled: Vec<(String, usize)>,
    /// Ids that were seen, and never published.
    pub strange: Vec<String>,
}

impl Tally {
    /// Whether nothing is lost, doubled or strange.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

/// Compares the ids that were published with those that were seen.
pub fn tally<'a>(
    published: impl IntoIterator<Item = &'a str>,
    seen: impl IntoIterator<Item = &'a str>,
) -> Tally {
    let mut times: BTreeMap<&str, (bool, usize)> = BTreeMap::new();
    for id in published {
        times.entry(id).or_default().0 = true;
    }
    for id in seen {
        times.entry(id).or_default().1 += 1;
    }
    let mut tally = Tally::default();
    for (id, (published, seen)) in times {
        match (published, seen) {
            (true, 0) => tally.lost.push(id.to_owned()),
            (false, _) => tally.strange.push(id.to_owned()),
            _ => {}
        }
        if seen > 1 {
            tally.doubled.push((id.to_owned(), seen));
        }
    }
    tally
}

/// The number of stamps in each bucket of this length, from the first stamp on.
pub fn histogram(stamps: &[u64], bucket: Duration) -> Vec<usize> {
    let Some(&first) = stamps.first() else { return Vec::new() };
    let mut buckets = Vec::new();
    for at in stamps {
        let index = usize::try_from((at - first) / nanos(bucket)).unwrap_or(usize::MAX);
        if buckets.len() <= index {
            buckets.resize(index + 1, 0);
        }
        buckets[index] += 1;
    }
    buckets
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).max(1)
}
