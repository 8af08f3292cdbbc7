//! How the algorithms differ: what each lets through when jobs wait, and at the worst moment.
//!
//!     cargo run --example algorithms
//!
//! All are set to 100 per 10 s. docs/algorithms.md shows what this prints.

use std::time::Duration;

use paced::Limit;
use paced::limit::{Calendar, Edges, calendar};
use paced::time::Micros;

type Failure = Box<dyn std::error::Error>;

const COUNT: u64 = 100;
const PERIOD: Duration = Duration::from_secs(10);
/// A midnight: windows that are aligned begin here.
const START: i64 = 1_760_054_400_000_000;
const SECOND: i64 = 1_000_000;

fn main() -> Result<(), Failure> {
    let rate = "100/10s".parse()?;
    let limits = [
        ("leaky-bucket", Limit::leaky_bucket("a", rate, 1)?),
        ("gcra, burst 20", Limit::gcra("b", rate, 20)?),
        ("token-bucket, 100", Limit::token_bucket("c", rate, 100)?),
        ("fixed-window", Limit::fixed_window("d", COUNT, PERIOD)?),
        ("  from first hit", Limit::first_hit_window("e", COUNT, PERIOD)?),
        ("sliding-window", Limit::sliding_window("f", COUNT, PERIOD, 10)?),
        ("  with 1 bucket", Limit::sliding_window("g", COUNT, PERIOD, 1)?),
        ("sliding-log", Limit::sliding_log("h", COUNT, PERIOD)?),
        ("quota, fixed", Limit::quota("i", COUNT, Edges::aligned(PERIOD, 0)?)?),
    ];
    println!("Shaping: 400 jobs wait from second 4 on. Releases in each half second:\n");
    println!("{:19}4 s       9 s       14 s      19 s      24 s      29 s      34 s", "");
    for (name, limit) in &limits {
        println!("{name:18} {}", bars(&released(limit, 400), 61));
    }
    println!("\nPolicing: the most units in any 10 s, of 100.\n");
    println!("{:20}{:>14}{:>14}", "", "steady demand", "worst moment");
    for (name, limit) in &limits {
        let steady: Vec<i64> = (0..30_000).map(|ms| START + ms * 1000).collect();
        println!("{name:20}{:>14}{:>14}", busiest(&allowed(limit, &steady)), worst(limit));
    }
    let monthly = Calendar::new(calendar::Unit::Month, 120)?;
    let quota = Limit::quota("j", 1, Edges::Calendar(monthly))?;
    println!("\nA quota of 1/month at +02:00 resets at these instants (UTC, days after 2025-10-10):\n");
    let (mut state, mut days) = (quota.fresh(), vec![]);
    for _ in 0..6 {
        let slot = quota.earliest(&state, Micros(START), 1);
        state = quota.commit(&state, slot, 1);
        let since = slot.0 - START;
        days.push(format!(
            "{}.{:02}",
            since / (86_400 * SECOND),
            since % (86_400 * SECOND) * 100 / (86_400 * SECOND)
        ));
    }
    println!("{}", days.join("  "));
    Ok(())
}

/// The slots of this many jobs that wait from second 4 on, µs after the start.
fn released(limit: &Limit, jobs: usize) -> Vec<i64> {
    let (mut state, now) = (limit.fresh(), Micros(START + 4 * SECOND));
    let mut slots = vec![];
    for _ in 0..jobs {
        let slot = limit.earliest(&state, now, 1);
        state = limit.commit(&state, slot, 1);
        slots.push(slot.0 - START);
    }
    slots
}

/// A bar for each half second from second 4 on: how many of the slots lie in it.
fn bars(slots: &[i64], columns: usize) -> String {
    const BARS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |column: usize| {
        let from = 4 * SECOND + column as i64 * SECOND / 2;
        let count = slots.iter().filter(|&&slot| (from..from + SECOND / 2).contains(&slot)).count();
        // 5 in half a second is the pace; a full bar is 20 times that.
        match count {
            0 => BARS[0],
            1..=5 => BARS[1],
            6..=10 => BARS[2],
            11..=20 => BARS[3],
            21..=40 => BARS[5],
            41..=80 => BARS[7],
            _ => BARS[8],
        }
    };
    (0..columns).map(bar).collect()
}

/// Which of these requests, of cost 1 each, are allowed.
fn allowed(limit: &Limit, requests: &[i64]) -> Vec<i64> {
    let mut state = limit.fresh();
    let mut taken = vec![];
    for &at in requests {
        if limit.earliest(&state, Micros(at), 1) == Micros(at) {
            state = limit.commit(&state, Micros(at), 1);
            taken.push(at);
        }
    }
    taken
}

/// The most of these instants in any period.
fn busiest(taken: &[i64]) -> usize {
    let period = 10 * SECOND;
    let within = |first: &i64| taken.iter().filter(|&at| (*first..*first + period).contains(at)).count();
    taken.iter().map(within).max().unwrap_or(0)
}

/// As [`busiest`], for a client that asks at the worst moments: for all at the end of a window or of a
/// bucket, and again for all somewhere in the period after it, and steadily in between or not.
fn worst(limit: &Limit) -> usize {
    let period = 10 * SECOND;
    let mut most = 0;
    for (first, began) in [period - 1, SECOND - 1].into_iter().flat_map(|first| [(first, 0), (first, 1)]) {
        for later in [1, SECOND, period / 2, period - SECOND, period - 1] {
            for step in [period / 100, 2 * period] {
                // One unit long before: a window that begins with the first hit has begun.
                let mut requests = vec![START + first - period + 1; began];
                for at in [first, first + later] {
                    requests.extend(std::iter::repeat_n(START + at, COUNT as usize));
                }
                let steady = (1..).map(|n| START + first + n * step);
                requests.extend(steady.take_while(|at| *at < START + first + period));
                requests.sort_unstable();
                most = most.max(busiest(&allowed(limit, &requests)));
            }
        }
    }
    most
}
