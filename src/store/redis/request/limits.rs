//! The numbers of limits, as each script reads them.

use super::{KnownWindow, Request};
use crate::limit::{Algorithm, Counting, Edges, Limit};
use crate::rate::Rate;
use crate::store::redis::packed::Packed;

/// The window of a limit, if it is one.
pub(super) fn window(limit: &Limit) -> Option<Counting> {
    match limit.algorithm() {
        Algorithm::FixedWindow(counting) | Algorithm::Quota(counting) => Some(counting),
        _ => None,
    }
}

/// N, P div N, P mod N, and a and b: a cost is due a*cost + b emission intervals after TAT.
pub(super) fn derived(limit: &Limit) -> [i64; 5] {
    let (rate, burst, whole) = match limit.algorithm() {
        Algorithm::LeakyBucket(bucket) => (bucket.rate(), bucket.burst(), false),
        Algorithm::Gcra(gcra) => (gcra.rate(), gcra.burst(), true),
        Algorithm::TokenBucket(bucket) => (bucket.refill(), bucket.capacity(), true),
        // No other algorithm is sent to a fast script.
        _ => (limit.rate(), 1, false),
    };
    let [count, period] = counted(rate);
    let (a, b) = if whole { (1, -i64::from(burst)) } else { (0, 1 - i64::from(burst)) };
    [count, period / count, period % count, a, b]
}

/// The count N and the period P of a rate.
fn counted(rate: Rate) -> [i64; 2] {
    [rate.count(), rate.period_micros()].map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

/// Encodes the number of limits, and each limit with its last known window.
pub(in crate::store::redis) fn encode_limits<'a>(
    numbers: &mut Packed,
    limits: impl Iterator<Item = (&'a Limit, Option<&'a KnownWindow>)> + Clone,
    request: Option<&Request<'_>>,
) {
    numbers.put_count(limits.clone().count() as u64);
    for (limit, known) in limits {
        match limit.algorithm() {
            Algorithm::LeakyBucket(bucket) => encode_pace(numbers, b't', bucket.rate(), bucket.burst()),
            Algorithm::Gcra(gcra) => encode_pace(numbers, b'g', gcra.rate(), gcra.burst()),
            Algorithm::TokenBucket(bucket) => encode_pace(numbers, b'g', bucket.refill(), bucket.capacity()),
            Algorithm::FixedWindow(counting) | Algorithm::Quota(counting) => {
                encode_window(numbers, counting, request, known);
            }
            Algorithm::SlidingWindow(window) => {
                numbers.put([b'c'.into()]);
                numbers.put_count(window.count());
                numbers.put([window.width(), window.buckets().into()]);
            }
            Algorithm::SlidingLog(log) => {
                numbers.put([b'l'.into()]);
                numbers.put_count(log.count());
                numbers.put([log.period()]);
            }
        }
    }
}

fn encode_pace(numbers: &mut Packed, letter: u8, rate: Rate, burst: u32) {
    numbers.put([letter.into()]);
    numbers.put(counted(rate));
    numbers.put([burst.into()]);
}

pub(super) fn encode_window(
    numbers: &mut Packed,
    counting: Counting,
    request: Option<&Request<'_>>,
    known: Option<&KnownWindow>,
) {
    let (epoch, known) = known.copied().unwrap_or_default();
    let mut encode = |letter: u8| {
        numbers.put([letter.into()]);
        numbers.put_count(counting.count());
        numbers.put([epoch.0, known.end.0]);
        numbers.put_count(known.used);
    };
    match counting.edges() {
        Edges::Aligned { period, offset } => {
            encode(b'w');
            numbers.put([period, offset]);
        }
        Edges::FirstHit { period } => {
            encode(b'f');
            numbers.put([period]);
        }
        Edges::Calendar(calendar) => {
            let edges = request.map(|request| request.edges(calendar)).unwrap_or_default();
            encode(b'q');
            numbers.put([calendar.longest()]);
            numbers.put_count(edges.len() as u64);
            edges.iter().for_each(|edge| numbers.put([edge.0]));
        }
    }
}
