//! What may happen to a store, and the limits that it keeps.

use super::*;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// After `after` µs, `jobs` jobs of this cost ask for slots up to `ahead` ms ahead.
    Take {
        after: i64,
        jobs: usize,
        cost: u32,
        ahead: u64,
    },
    /// After `after` µs, one call of a key is judged.
    Check {
        after: i64,
        key: usize,
        cost: u32,
    },
    /// The last `jobs` slots are given back, the latest first.
    GiveBack {
        jobs: usize,
    },
    /// After `after` µs, `jobs` jobs ask for slots, and their caller goes away if it has to wait.
    GiveUp {
        after: i64,
        jobs: usize,
    },
    /// The downstream is paused for `millis` ms, or resumed.
    Pause {
        millis: u64,
    },
    Resume,
    /// The limits get their other rates.
    Rerate,
    /// The limits of the downstream start again from 0.
    Reset,
    /// The writer writes what nobody waits for.
    Write,
    /// The next write ends with this fault, and so does the process; it starts again after `after` µs.
    Crash {
        fault: Fault,
        after: i64,
    },
    /// The process is killed between two writes.
    Kill {
        after: i64,
    },
    /// An orderly restart.
    Restart {
        after: i64,
    },
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let after = || prop_oneof![4 => 0_i64..50_000, 2 => 50_000_i64..600_000, 1 => 0_i64..2_000_000, 1 => 0_i64..DAY / 3];
    let fault = prop_oneof![
        4 => (0_usize..=1000, 0_usize..=1000).prop_map(|(kept, hole)| Fault::Cut { kept, hole: hole.min(kept) }),
        1 => (0_usize..=1000).prop_map(|kept| Fault::Cut { kept, hole: 0 }),
        1 => Just(Fault::Unconfirmed),
    ];
    prop_oneof![
        16 => (after(), prop_oneof![1_usize..5, 1_usize..120], 1_u32..4, prop_oneof![Just(0), Just(120), 0_u64..1500])
            .prop_map(|(after, jobs, cost, ahead)| Op::Take { after, jobs, cost, ahead }),
        4 => (after(), 1..KEYS.len(), 1_u32..4).prop_map(|(after, key, cost)| Op::Check { after, key, cost }),
        6 => prop_oneof![1_usize..4, Just(usize::MAX)].prop_map(|jobs| Op::GiveBack { jobs }),
        3 => (after(), 1_usize..40).prop_map(|(after, jobs)| Op::GiveUp { after, jobs }),
        1 => (1_u64..2000).prop_map(|millis| Op::Pause { millis }),
        1 => Just(Op::Resume),
        1 => Just(Op::Rerate),
        1 => Just(Op::Reset),
        6 => Just(Op::Write),
        2 => (fault, after()).prop_map(|(fault, after)| Op::Crash { fault, after }),
        2 => after().prop_map(|after| Op::Kill { after }),
        1 => after().prop_map(|after| Op::Restart { after }),
    ]
}

/// Of the downstream, and of two keys.
pub(super) const KEYS: [&str; 3] = ["", "a", "b"];

/// Each algorithm whose promise does not depend on when its windows begin, fast and slow, and two together; each with other
/// numbers that they may get.
pub(super) fn limits() -> impl Strategy<Value = [LimitSet; 2]> {
    let second = Duration::from_secs(1);
    let rate = |text: &str| text.parse().unwrap();
    let gcra = |text: &str, burst| Limit::gcra("g", rate(text), burst).unwrap();
    let (sliding, log) = (
        |count| Limit::sliding_window("s", count, second, 10).unwrap(),
        |count, seconds| Limit::sliding_log("l", count, seconds * second).unwrap(),
    );
    prop::sample::select(vec![
        [set(vec![leaky("200/s")]), set(vec![leaky("20/s")])],
        [set(vec![leaky("700001/s")]), set(vec![leaky("699999/s")])],
        [set(vec![leaky("7/s")]), set(vec![leaky("9/s")])],
        [set(vec![leaky("1/m")]), set(vec![leaky("2/m")])],
        [set(vec![gcra("100/s", 30)]), set(vec![gcra("50/s", 30)])],
        [set(vec![gcra("10/s", 100)]), set(vec![gcra("10/s", 120)])],
        [
            set(vec![Limit::token_bucket("t", rate("3/s"), 8).unwrap()]),
            set(vec![Limit::token_bucket("t", rate("4/s"), 6).unwrap()]),
        ],
        [
            set(vec![Limit::fixed_window("f", 50, second).unwrap()]),
            set(vec![Limit::fixed_window("f", 60, second).unwrap()]),
        ],
        [set(vec![sliding(40)]), set(vec![sliding(30)])],
        [set(vec![log(60, 1)]), set(vec![log(70, 1)])],
        [set(vec![daily(10)]), set(vec![daily(12)])],
        [set(vec![daily(1_000_000)]), set(vec![daily(900_000)])],
        [set(vec![leaky("50/s"), log(100, 5), daily(300)]), set(vec![leaky("60/s"), log(90, 5), daily(300)])],
    ])
}
