//! The generator of random timelines: limits of every algorithm, and operations on them.

use std::time::Duration;

use paced::Rate;
use paced::limit::calendar::{Unit, Zone};
use paced::limit::{Calendar, Combine, Edges, Limit, LimitSet};
use paced::store::{Change, CoolDownCall, Recall};
use proptest::prelude::*;

/// The number of operations of a timeline.
pub const OPERATIONS: usize = 60;
/// The keys that a timeline's operations are on.
pub const KEYS: [&str; 2] = ["", "b:c"];
/// The lanes: for each the index of its limits in [`Timeline::lanes`], and their keys, the first one and all others.
pub const LANES: [(usize, [&str; 2]); 4] =
    [(0, ["x", "x"]), (0, ["y:", "y:"]), (0, ["x", "z"]), (1, ["x", "x"])];
pub const REPLICAS: [&str; 3] = ["one", "two", "three"];

#[derive(Clone, Debug)]
pub struct Timeline {
    /// The numbers in force, and those that [`Op::Swap`] puts in their place, under the same names.
    pub sets: [LimitSet; 2],
    /// The limits of lanes.
    pub lanes: [LimitSet; 2],
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// How far the clock moved before the step.
    pub moved: Span,
    pub key: usize,
    /// The generation of the caller's terms.
    pub generation: u64,
    pub op: Op,
}

/// A span of time, in µs or in hundredths of the slowest limit's period.
#[derive(Clone, Copy, Debug)]
pub enum Span {
    Micros(i64),
    Periods(i64),
}

#[derive(Clone, Debug)]
pub enum Op {
    Reserve {
        jobs: Jobs,
        ahead: Span,
        /// The replica that renews its lease, and the duration in ms.
        lease: Option<(usize, u64)>,
        /// The replica without a lease, its shared horizon in ms, and whether others wait where it is.
        shared: Option<(usize, u64, bool)>,
        /// The asker, if the call takes turns.
        asker: Option<Asks>,
        /// Whether leaky buckets are used as meters, which share their states with the buckets.
        policing: bool,
    },
    /// Reserves for jobs of lanes, each of one of [`LANES`] or of none.
    Lanes {
        jobs: Vec<(Option<u16>, u32)>,
        ahead: Span,
        lead: Span,
        most: u32,
        lease: Option<(usize, u64)>,
        asker: Option<Asks>,
    },
    Check {
        jobs: Jobs,
        policing: bool,
    },
    /// Cancels the slot that many places from the last one granted.
    Cancel {
        back: usize,
        is_unused: bool,
    },
    Reset,
    /// [`Change::Reset`] of the limits whose bits are set.
    Restart {
        limits: u8,
    },
    /// Redis forgets its scripts.
    Flush,
    /// Puts the other numbers in force.
    Swap,
    /// Changes the record, or reads it.
    Record(Option<Change<'static>>),
}

/// The asker of a call.
#[derive(Clone, Copy, Debug)]
pub struct Asks {
    /// Whether the call is made at the turn that was booked last, if there was one.
    pub at_turn: bool,
    /// How far ahead it needs turns to be booked, in ms.
    pub reach: u64,
    pub waiting: u64,
    /// The number of limits that turns depend on, if there are as many.
    pub own: usize,
    pub goes_on: bool,
}

/// The costs of a call's jobs: the same for every limit, or one for each.
#[derive(Clone, Debug)]
pub enum Jobs {
    Each(Vec<u32>),
    PerLimit(Vec<[u32; 5]>),
}

pub const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        3 => (0_i64..300_000).prop_map(Span::Micros),
        1 => (-100_050_i64..-99_950).prop_map(Span::Micros),
        1 => (-99_000_i64..0).prop_map(Span::Micros),
        4 => Just(Span::Micros(0)),
        1 => (-30 * SECOND..0).prop_map(Span::Micros),
        1 => (0..200 * SECOND).prop_map(Span::Micros),
        1 => (0..40 * DAY).prop_map(Span::Micros),
        4 => (0_i64..130).prop_map(Span::Periods),
        1 => (-60_i64..0).prop_map(Span::Periods),
        1 => (95_i64..105).prop_map(Span::Periods),
    ]
}

fn ahead() -> impl Strategy<Value = Span> {
    prop_oneof![
        3 => Just(Span::Micros(0)),
        2 => (0_i64..200_000).prop_map(Span::Micros),
        3 => (0_i64..250).prop_map(Span::Periods),
        1 => (0..100 * DAY).prop_map(Span::Micros),
        1 => Just(Span::Micros(i64::MAX / 2)),
    ]
}

fn jobs() -> impl Strategy<Value = Jobs> {
    let small = || prop_oneof![1 => Just(0_u32), 5 => Just(1_u32), 3 => 1_u32..5];
    prop_oneof![
        6 => prop::collection::vec(small(), 0..9).prop_map(Jobs::Each),
        1 => prop::collection::vec(0_u32..2000, 1..4).prop_map(Jobs::Each),
        1 => (1_u32..3, 1_usize..100).prop_map(|(cost, jobs)| Jobs::Each(vec![cost; jobs])),
        4 => prop::collection::vec(prop::array::uniform5(small()), 0..6).prop_map(Jobs::PerLimit),
    ]
}

fn in_lanes() -> impl Strategy<Value = Vec<(Option<u16>, u32)>> {
    let lane = || prop::option::weighted(0.9, 0..LANES.len() as u16);
    let cost = || prop_oneof![1 => Just(0_u32), 8 => Just(1_u32), 4 => 1_u32..5, 1 => 1_u32..2000];
    prop_oneof![
        5 => prop::collection::vec((lane(), cost()), 0..12),
        1 => prop::collection::vec((lane(), Just(1)), 20..60),
    ]
}

fn asks() -> impl Strategy<Value = Asks> {
    let waiting = prop_oneof![1 => Just(0_u64), 4 => 1_u64..200, 1 => Just(1_000_000)];
    let goes_on = prop::bool::weighted(0.2);
    (prop::bool::weighted(0.7), 4_u64..=20, waiting, 1_usize..5, goes_on).prop_map(
        |(at_turn, reach, waiting, own, goes_on)| Asks { at_turn, reach: 25 * reach, waiting, own, goes_on },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let lease = || prop::option::of((0..REPLICAS.len(), prop_oneof![1_u64..2000, Just(60_000)]));
    let shared = prop::option::weighted(0.4, (0..REPLICAS.len(), 0_u64..500, any::<bool>()));
    let lead =
        prop_oneof![Just(Span::Micros(0)), Just(Span::Micros(20_000)), (0_i64..150).prop_map(Span::Periods)];
    let most = prop_oneof![2 => Just(u32::MAX), 1 => 0_u32..12];
    prop_oneof![
        64 => (in_lanes(), ahead(), lead, most, lease(), prop::option::weighted(0.4, asks())).prop_map(
            |(jobs, ahead, lead, most, lease, asker)| Op::Lanes { jobs, ahead, lead, most, lease, asker },
        ),
        80 => (jobs(), ahead(), lease(), shared, prop::option::weighted(0.4, asks()), prop::bool::weighted(0.2)).prop_map(
            |(jobs, ahead, lease, shared, asker, policing)| {
                Op::Reserve { jobs, ahead, lease, shared: shared.filter(|_| lease.is_none()), asker, policing }
            },
        ),
        80 => (jobs(), prop::bool::weighted(0.8)).prop_map(|(jobs, policing)| Op::Check { jobs, policing }),
        88 => (prop::sample::select(vec![0, 0, 0, 1, 2, 5]), prop::bool::weighted(0.3))
            .prop_map(|(back, is_unused)| Op::Cancel { back, is_unused }),
        16 => Just(Op::Reset),
        8 => (0_u8..16).prop_map(|limits| Op::Restart { limits }),
        // Every script is compiled again after it, which takes longer than hundreds of calls.
        1 => Just(Op::Flush),
        8 => Just(Op::Swap),
        24 => change().prop_map(Op::Record),
        24 => cool_down().prop_map(|call| Op::Record(Some(Change::CoolDown(call)))),
    ]
    // A tree of this many kinds is large, and is moved often.
    .boxed()
}

fn change() -> impl Strategy<Value = Option<Change<'static>>> {
    let span = || (1_u64..5_000_000).prop_map(Duration::from_micros);
    let left = || prop_oneof![2 => Just(Duration::ZERO), 1 => span()];
    let recall = (left(), prop::option::weighted(0.7, left()), 0_u64..6, 0_u64..6, any::<bool>()).prop_map(
        |(penalty, pause, version, generation, terms)| {
            let terms = terms.then_some("known");
            Change::Recall(Recall { penalty, pause, version, generation, terms })
        },
    );
    let change = prop_oneof![
        3 => span().prop_map(Change::Penalize),
        2 => (prop::option::weighted(0.7, span()), prop_oneof![Just(""), Just("{}"), Just("ä: note\n")])
            .prop_map(|(span, note)| Change::Pause { span, note }),
        3 => Just(Change::Resume),
        2 => (0_u64..4).prop_map(|of| Change::Terms { of, text: "some {terms}\n" }),
        2 => recall,
        1 => prop_oneof![Just(Duration::ZERO), Just(Duration::MAX)].prop_map(Change::Penalize),
    ];
    prop::option::weighted(0.92, change)
}

fn cool_down() -> impl Strategy<Value = CoolDownCall<'static>> {
    let replica = || prop::sample::select(REPLICAS[..2].to_vec());
    let waits = || {
        // Some are too short, and no store accepts them.
        (prop_oneof![1 => 0_u64..2000, 9 => 1000_u64..500_000], 0_u64..10_000_000)
            .prop_map(|(first, more)| [first, first + more].map(Duration::from_micros))
    };
    let ttl = prop_oneof![1 => 99_990_u64..100_010, 9 => 100_000_u64..5_000_000];
    prop_oneof![
        4 => (replica(), waits())
            .prop_map(|(replica, [first, most])| CoolDownCall::Refused { replica, first, most }),
        6 => (replica(), ttl)
            .prop_map(|(replica, ttl)| CoolDownCall::Probe { replica, ttl: Duration::from_micros(ttl) }),
        1 => (replica(), waits())
            .prop_map(|(replica, [first, most])| CoolDownCall::Again { replica, first, most }),
        1 => replica().prop_map(|replica| CoolDownCall::Over { replica }),
    ]
}

pub fn timeline(sets: impl Strategy<Value = [LimitSet; 2]>) -> impl Strategy<Value = Timeline> {
    let generation = prop_oneof![9 => Just(0_u64), 1 => 1_u64..4];
    let step = (span(), prop::sample::select(vec![0, 0, 0, 1]), generation, op());
    let step = step.prop_map(|(moved, key, generation, op)| match (moved, op) {
        // The slot that was reserved last still lies ahead.
        (Span::Periods(_), op @ Op::Cancel { .. }) => Step { moved: Span::Micros(0), key, generation, op },
        (moved, op) => Step { moved, key, generation, op },
    });
    let steps = prop::collection::vec(step, OPERATIONS);
    (sets, lane_limits("a"), lane_limits("b"), steps).prop_map(|(sets, one, other, steps)| Timeline {
        sets,
        lanes: [one, other],
        steps,
    })
}

/// The limits of a lane, with names of their own.
fn lane_limits(prefix: &'static str) -> impl Strategy<Value = LimitSet> {
    prop::collection::vec(any_limit(), 1..4).prop_map(move |limits| {
        let name = |(place, limit): (usize, Limit)| limit.named(format!("{prefix}:{place}"));
        LimitSet::new(limits.into_iter().enumerate().map(name).collect()).unwrap()
    })
}

/// One limit, and other numbers for it.
pub fn one(limit: impl Fn() -> BoxedStrategy<Limit>) -> impl Strategy<Value = [LimitSet; 2]> {
    let limit = || with_margin(limit());
    (limit(), limit()).prop_map(|(one, other)| [one, other].map(|limit| LimitSet::new(vec![limit]).unwrap()))
}

/// Two to four limits of any algorithms, one of which may be given twice; and other numbers under their names.
pub fn several(combine: Combine) -> impl Strategy<Value = [LimitSet; 2]> {
    let limits = || prop::collection::vec(with_margin(any_limit()), 4);
    (limits(), limits(), 2_usize..=4, prop::option::weighted(0.3, 0_usize..4)).prop_map(
        move |(one, other, count, twice)| {
            [one, other].map(|limits| {
                let name = |(place, limit): (usize, Limit)| limit.named(format!("limit:{place}"));
                let mut limits: Vec<Limit> = limits.into_iter().take(count).enumerate().map(name).collect();
                limits.extend(twice.and_then(|place| limits.get(place).cloned()));
                LimitSet::combined(combine, limits).unwrap()
            })
        },
    )
}

/// The limit, or the same with a margin that it may have.
fn with_margin(limit: BoxedStrategy<Limit>) -> impl Strategy<Value = Limit> {
    let margin = prop_oneof![2 => Just(0), 1 => 1_u64..5000, 1 => 1_u64..5_000_000];
    (limit, margin)
        .prop_map(|(limit, margin)| limit.clone().with_margin(Duration::from_micros(margin)).unwrap_or(limit))
}

fn any_limit() -> BoxedStrategy<Limit> {
    prop_oneof![
        leaky_bucket(),
        gcra(),
        token_bucket(),
        fixed_window(),
        sliding_window(),
        sliding_log(),
        quota(),
        leaky_bucket().prop_map(Limit::policing)
    ]
    .boxed()
}

fn rate() -> impl Strategy<Value = Rate> {
    let rate = prop_oneof![
        Just((10, 1_000_000)),
        Just((700_001, 1_000_000)),
        Just((7, 7 * 86_400_000_000)),
        Just((1, 3_000_000)),
        (1_u64..5000, 5000_u64..100_000_000),
    ];
    rate.prop_map(|(count, period)| Rate::new(count, Duration::from_micros(period)).unwrap())
}

pub fn leaky_bucket() -> BoxedStrategy<Limit> {
    (rate(), 1_u32..20).prop_map(|(rate, burst)| Limit::leaky_bucket("l", rate, burst).unwrap()).boxed()
}

pub fn gcra() -> BoxedStrategy<Limit> {
    (rate(), 1_u32..20).prop_map(|(rate, burst)| Limit::gcra("l", rate, burst).unwrap()).boxed()
}

pub fn token_bucket() -> BoxedStrategy<Limit> {
    (rate(), 1_u32..20).prop_map(|(rate, burst)| Limit::token_bucket("l", rate, burst).unwrap()).boxed()
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![5 => 1_u64..12, 2 => 12_u64..40, 1 => 1000_u64..5000]
}

/// A period in µs, which is at least the highest count.
fn period() -> impl Strategy<Value = i64> {
    prop_oneof![
        2 => Just(SECOND),
        1 => Just(DAY),
        1 => Just(366 * DAY),
        4 => 5000_i64..100 * SECOND,
        2 => 100 * SECOND..60 * DAY,
    ]
}

fn micros(period: i64) -> Duration {
    Duration::from_micros(period.unsigned_abs())
}

/// A fixed window, aligned to the epoch or begun by the first unit.
pub fn fixed_window() -> BoxedStrategy<Limit> {
    let limit = |(count, period, first_hit): (u64, i64, bool)| {
        let new = if first_hit { Limit::first_hit_window } else { Limit::fixed_window };
        new("l", count, micros(period)).unwrap()
    };
    (count(), period(), any::<bool>()).prop_map(limit).boxed()
}

pub fn sliding_window() -> BoxedStrategy<Limit> {
    let limit = |(count, period, buckets): (u64, i64, u32)| {
        let even = (period / i64::from(buckets)).max(1) * i64::from(buckets);
        // 5000 in 366 days with one bucket are beyond exact numbers.
        let (count, even) =
            (count.min(even.unsigned_abs()), even.min(1_000_000 * SECOND * i64::from(buckets)));
        Limit::sliding_window("l", count, micros(even), buckets).unwrap()
    };
    (count(), period(), prop_oneof![3 => 1_u32..=20, 1 => 21_u32..=120]).prop_map(limit).boxed()
}

pub fn sliding_log() -> BoxedStrategy<Limit> {
    (count(), period())
        .prop_map(|(count, period)| Limit::sliding_log("l", count, micros(period)).unwrap())
        .boxed()
}

/// A quota of a month, a week or a day at any offset, or with fixed or rolling windows.
pub fn quota() -> BoxedStrategy<Limit> {
    let calendar = (prop::sample::select(vec![Unit::Month, Unit::Week, Unit::Day]), -840_i64..=840)
        .prop_map(|(unit, offset)| Edges::Calendar(Calendar::new(unit, offset).unwrap()));
    let names =
        ["America/Los_Angeles", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kolkata"];
    let zoned = (
        prop::sample::select(vec![Unit::Month, Unit::Week, Unit::Day]),
        prop::sample::select(names.to_vec()),
    )
        .prop_map(|(unit, name)| Edges::Calendar(Calendar::zoned(unit, Zone::named(name).unwrap())));
    let fixed = (period(), any::<u64>()).prop_map(|(period, offset)| {
        let offset = offset % period.unsigned_abs();
        Edges::aligned(micros(period), i64::try_from(offset).unwrap()).unwrap()
    });
    let rolling = period().prop_map(|period| Edges::first_hit(micros(period)).unwrap());
    (count(), prop_oneof![4 => calendar, 2 => zoned, 1 => fixed, 1 => rolling])
        .prop_map(|(count, edges)| Limit::quota("l", count, edges).unwrap())
        .boxed()
}
