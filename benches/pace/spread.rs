//! The deviation of many downstreams from their rate.

use std::time::Duration;

use crate::figures::{Bound, Figure, Section, Unit};
use crate::support::count::effective_rate;

const WORST: Figure = Figure::median("farthest from its rate", Unit::Percent(2));
const OUTSIDE: Figure = Figure::median("downstreams more than 1 % off", Unit::Count);
const TOTAL: Figure = Figure::median("released in all", Unit::PerSecond);

/// The results of many downstreams in a period.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The largest deviation of a downstream from its rate, in percent.
    worst: f64,
    /// The number of downstreams that deviate by more than 1 %.
    outside: usize,
    /// The number of requests in the period.
    pub total: f64,
    /// The duration of the period.
    pub seconds: f64,
}

impl Spread {
    /// `stamps` holds those of each downstream; those before `first`, or not before `last`, do not count. Each
    /// downstream has this rate per second.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub fn of(stamps: &[Vec<u64>], rate: u32, first: u64, last: u64) -> Self {
        let counted: Vec<&[u64]> = stamps.iter().map(|stamps| within(stamps, first, last)).collect();
        let offs: Vec<f64> = counted.iter().map(|stamps| off(stamps, rate, first, last)).collect();
        Self {
            worst: offs.iter().copied().fold(0.0, f64::max),
            outside: offs.iter().filter(|off| **off > 1.0).count(),
            total: counted.iter().map(|stamps| stamps.len()).sum::<usize>() as f64,
            seconds: seconds(first, last),
        }
    }

    /// Records the figures; where they are judged, no downstream may deviate by more than 1 %.
    pub fn put(self, section: &mut Section, column: &str, judged: bool) {
        let outside = f64::from(u32::try_from(self.outside).unwrap_or(u32::MAX));
        for (figure, value, most) in [(WORST, self.worst, 1.0), (OUTSIDE, outside, 0.0)] {
            if judged {
                section.judge(column, figure, value, Bound::AtMost(most));
            } else {
                section.note(column, figure, value);
            }
        }
        section.note(column, TOTAL, self.total / self.seconds);
    }

    /// Records that there is no figure to judge: what a machine cannot do is a result too.
    pub fn put_none(section: &mut Section, column: &str) {
        section.judge(column, WORST, None, Bound::AtMost(1.0));
    }
}

/// The part of ascending stamps that lies in a half-open stretch.
fn within(stamps: &[u64], first: u64, last: u64) -> &[u64] {
    let begin = stamps.partition_point(|at| *at < first);
    let end = stamps.partition_point(|at| *at < last);
    &stamps[begin..end.max(begin)]
}

/// The deviation of these stamps from the rate, in percent.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn off(stamps: &[u64], rate: u32, first: u64, last: u64) -> f64 {
    let interval = 1_000_000_000 / u64::from(rate);
    let (begun, done) = (first + interval * 3 / 2, last - interval * 3 / 2);
    let all_along =
        stamps.first().is_some_and(|at| *at <= begun) && stamps.last().is_some_and(|at| *at >= done);
    let reached = if all_along {
        // The rate is taken from the first stamp to the last: a fixed window contains one more or less by chance.
        effective_rate(stamps)
    } else {
        stamps.len() as f64 / seconds(first, last)
    };
    100.0 * (reached / f64::from(rate) - 1.0).abs()
}

fn seconds(first: u64, last: u64) -> f64 {
    Duration::from_nanos(last - first).as_secs_f64()
}
