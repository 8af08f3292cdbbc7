//! Parses Prometheus' text format, as far as benches and tests need it.

use std::collections::BTreeMap;

/// All samples of one scrape: by name, each with its labels as they were written.
#[derive(Clone, Debug, Default)]
pub struct Scrape(BTreeMap<String, Vec<(String, f64)>>);

/// A histogram: cumulative counts by upper bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Ascending; the last is infinite.
    buckets: Vec<(f64, f64)>,
}

impl Scrape {
    /// Parses a page; lines that are no samples are skipped.
    pub fn read(text: &str) -> Self {
        let mut samples: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // Label values may hold spaces, but no line has a timestamp behind the value here.
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            samples.entry(name.to_owned()).or_default().push((labels.to_owned(), value));
        }
        Self(samples)
    }

    /// The sum of all series of this name; `None` when there is none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.0.get(name).map(|series| series.iter().map(|(_, value)| value).sum())
    }

    /// The histogram of this name over all of its series; `None` when there is none.
    pub fn histogram(&self, name: &str) -> Option<Histogram> {
        let mut buckets: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (labels, count) in self.0.get(&format!("{name}_bucket"))? {
            let le = labels.split("le=\"").nth(1)?.split('"').next()?;
            let bound: f64 = if le == "+Inf" { f64::INFINITY } else { le.parse().ok()? };
            // The bits of non-negative numbers have the same order as the numbers.
            buckets.entry(bound.to_bits()).or_insert((bound, 0.0)).1 += count;
        }
        Some(Histogram { buckets: buckets.into_values().collect() })
    }
}

impl Histogram {
    /// The samples since an earlier scrape.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |bound: f64| earlier.buckets.iter().find(|(b, _)| *b == bound).map_or(0.0, |(_, n)| *n);
        let buckets = self.buckets.iter().map(|&(bound, count)| (bound, count - before(bound)));
        Self { buckets: buckets.collect() }
    }

    /// The same buckets, filled with these samples (s).
    pub fn refilled(&self, samples: &[f64]) -> Self {
        let count = |bound: f64| samples.iter().filter(|sample| **sample <= bound).count();
        #[expect(clippy::cast_precision_loss, reason = "counts of samples")]
        let buckets = self.buckets.iter().map(|&(bound, _)| (bound, count(bound) as f64));
        Self { buckets: buckets.collect() }
    }

    /// The number of samples.
    pub fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// The value at this share (0 to 1), as `histogram_quantile` has it: even within a bucket, and
    /// never above the last finite bound. `None` when it is empty.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.count();
        let index = self.buckets.iter().position(|(_, count)| *count >= rank && *count > 0.0)?;
        let (upper, count) = self.buckets[index];
        let (lower, below) = if index == 0 { (0.0, 0.0) } else { self.buckets[index - 1] };
        if upper.is_infinite() {
            return Some(lower);
        }
        Some(lower + (upper - lower) * (rank - below) / (count - below))
    }
}
