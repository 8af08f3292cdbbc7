//! Properties of the kernel, each checked for every algorithm that it holds for, over random numbers and random
//! timelines.

use std::time::Duration;

use proptest::prelude::*;

use super::calendar::Unit;
use super::*;
use crate::rate::Rate;

mod adopt;
mod bounds;
mod exact;
mod frontier;
mod leases;
mod refused;
pub(crate) mod sets;

const TODAY: i64 = 1_760_000_000_000_000;
const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

fn micros(n: i64) -> Duration {
    Duration::from_micros(n.unsigned_abs())
}

fn rate() -> impl Strategy<Value = Rate> {
    prop_oneof![
        Just((10, SECOND)),
        Just((700_001, SECOND)),
        Just((7, 7 * DAY)),
        Just((1, 3 * SECOND)),
        Just((1, 1)),
        (1_u64..50, 50_i64..5000),
        (1_u64..5000, 5000_i64..100 * SECOND),
    ]
    .prop_map(|(count, period)| Rate::new(count, micros(period)).unwrap())
}

fn leaky_bucket() -> BoxedStrategy<Limit> {
    (rate(), 1_u32..20).prop_map(|(rate, burst)| Limit::leaky_bucket("l", rate, burst).unwrap()).boxed()
}

fn gcra() -> BoxedStrategy<Limit> {
    let of = |(rate, burst, bucket): (Rate, u32, bool)| {
        let new = if bucket { Limit::token_bucket } else { Limit::gcra };
        new("l", rate, burst).unwrap()
    };
    (rate(), 1_u32..20, any::<bool>()).prop_map(of).boxed()
}

/// Counts are small, so that limits are often full and the periods are short enough for slow oracles.
fn count() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1_u64..8, 1 => 8_u64..40]
}

fn period() -> impl Strategy<Value = i64> {
    prop_oneof![2 => 40_i64..2000, 1 => Just(SECOND), 1 => 2000_i64..100 * SECOND, 1 => Just(DAY)]
}

fn edges() -> impl Strategy<Value = Edges> {
    let calendar = (prop::sample::select(vec![Unit::Day, Unit::Week, Unit::Month]), -840_i64..=840)
        .prop_map(|(unit, offset)| Edges::Calendar(Calendar::new(unit, offset).unwrap()));
    let aligned = (period(), any::<u32>())
        .prop_map(|(period, offset)| Edges::aligned(micros(period), i64::from(offset) % period).unwrap());
    let first_hit = period().prop_map(|period| Edges::first_hit(micros(period)).unwrap());
    prop_oneof![calendar, aligned, first_hit]
}

fn counting() -> BoxedStrategy<Limit> {
    (count(), edges()).prop_map(|(count, edges)| Limit::quota("l", count, edges).unwrap()).boxed()
}

fn sliding_window() -> BoxedStrategy<Limit> {
    let of = |(count, period, buckets): (u64, i64, u32)| {
        let period = (period / i64::from(buckets)).max(1) * i64::from(buckets);
        Limit::sliding_window("l", count, micros(period), buckets).unwrap()
    };
    (count(), period(), 1_u32..=20)
        .prop_filter("a unit a µs at most", |(count, period, _)| {
            i64::try_from(*count).unwrap() <= *period / 20
        })
        .prop_map(of)
        .boxed()
}

fn sliding_log() -> BoxedStrategy<Limit> {
    (count(), period())
        .prop_map(|(count, period)| Limit::sliding_log("l", count, micros(period)).unwrap())
        .boxed()
}

/// Every algorithm that counts.
fn window() -> BoxedStrategy<Limit> {
    prop_oneof![counting(), sliding_window(), sliding_log()].boxed()
}

pub(crate) fn any_limit() -> BoxedStrategy<Limit> {
    prop_oneof![leaky_bucket(), gcra(), counting(), sliding_window(), sliding_log()].boxed()
}

/// The time in which the limit allows N units, in µs.
pub(crate) fn span(limit: &Limit) -> i64 {
    match limit.algorithm() {
        Algorithm::FixedWindow(counting) | Algorithm::Quota(counting) => counting.edges().longest(),
        Algorithm::SlidingWindow(window) => window.width() * i64::from(window.buckets()),
        Algorithm::SlidingLog(log) => log.period(),
        _ => i64::try_from(limit.rate().period_micros()).unwrap(),
    }
}

/// Moves of the clock in hundredths of a limit's span: mostly forward, now and then back.
fn moves() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(0_i64), 6 => 0_i64..60, 1 => 90_i64..130, 1 => 130_i64..500, 2 => -80_i64..0]
}

/// A cost that the limit can hold.
fn clamp(limit: &Limit, cost: u32) -> u32 {
    cost.clamp(1, limit.max_cost())
}

/// The units taken, each with its instant.
type Taken = Vec<(i64, u32)>;

/// Takes slots on a clock that makes these moves: each as soon as it fits, or, when it polices, those that fit at once.
/// Returns the state, and the units taken in order.
fn run(limit: &Limit, police: bool, steps: &[(i64, u32)]) -> (State, Taken) {
    let (mut state, mut now, mut taken) = (limit.fresh(), TODAY, vec![]);
    for &(moved, cost) in steps {
        now += moved * (span(limit) / 100).max(1);
        let cost = clamp(limit, cost);
        let slot = limit.earliest(&state, Micros(now), cost);
        if !police || slot.0 == now {
            state = limit.commit(&state, slot, cost);
            taken.push((slot.0, cost));
        }
    }
    (state, taken)
}

fn steps() -> impl Strategy<Value = Vec<(i64, u32)>> {
    prop::collection::vec((moves(), prop_oneof![3 => Just(1_u32), 1 => 1_u32..6]), 1..60)
}

/// A policer of 5 units a second by each algorithm; those of the quota are for a day.
fn five_of_each() -> [Limit; 8] {
    let second = Duration::from_secs(1);
    let rate: Rate = "5/s".parse().unwrap();
    let days = Edges::Calendar(Calendar::new(Unit::Day, 0).unwrap());
    [
        Limit::leaky_bucket("l", rate, 5).unwrap().policing(),
        Limit::gcra("l", rate, 5).unwrap(),
        Limit::token_bucket("l", rate, 5).unwrap(),
        Limit::fixed_window("l", 5, second).unwrap(),
        Limit::first_hit_window("l", 5, second).unwrap(),
        Limit::sliding_window("l", 5, second, 10).unwrap(),
        Limit::sliding_log("l", 5, second).unwrap(),
        Limit::quota("l", 5, days).unwrap(),
    ]
}
