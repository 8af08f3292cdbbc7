//! ThrottleKit, row by row.

use paced::limit::calendar::Unit;
use paced::limit::{Calendar, Edges};
use paced::{Precision, ReserveError, Shaper};

use super::*;

/// ThrottleKit, "GCRA": T = period/limit, tau = T*burst, allowed on equality, a denial never writes.
#[tokio::test]
async fn gcra() {
    let both = Both::new().await;
    let limits = one(Limit::gcra("l", rate("10/s"), 5).unwrap());
    assert_eq!(both.allowed(&limits, 7).await, 5, "tau = 5 T");
    let full = both.states(&limits);
    let denied = both.at(99).check(&limits, 1).await;
    assert_eq!((denied.allowed, denied.retry_after), (false, ms(1)));
    assert_eq!(both.states(&limits), full, "nothing is written");
    assert!(both.at(100).check(&limits, 1).await.allowed, "on equality");
    assert!(!both.at(599).check(&limits, 5).await.allowed);
    assert!(both.at(600).check(&limits, 5).await.allowed, "the whole cost fits");
}

/// ThrottleKit, "token bucket": capacity, refill per second, and the remaining tokens are reported.
#[tokio::test]
async fn token_bucket() {
    let both = Both::new().await;
    let limits = one(Limit::token_bucket("l", rate("4/s"), 8).unwrap());
    let mut remaining = vec![];
    for (at, cost) in [(0, 3), (0, 4), (249, 0), (250, 0), (1000, 2), (9000, 0)] {
        remaining.push(both.at(at).check(&limits, cost).await.remaining);
    }
    assert_eq!(remaining, [5, 1, 1, 2, 3, 8], "never more than it holds");
    let taken = both.check(&limits, 8).await;
    assert_eq!((taken.limit, taken.remaining, taken.reset_after), (8, 0, ms(2000)));
}

/// ThrottleKit, "fixed window": aligned to the epoch, twice the limit at its edge; and begun by the first hit.
#[tokio::test]
async fn fixed_window() {
    let both = Both::new().await;
    let limits = one(Limit::fixed_window("l", 10, ms(60_000)).unwrap());
    assert_eq!(both.at(59_999).allowed(&limits, 20).await, 10);
    assert_eq!(both.at(60_000).allowed(&limits, 20).await, 10, "20 in 2 ms");
    let denied = both.at(60_500).check(&limits, 1).await;
    assert_eq!((denied.retry_after, denied.reset_after), (ms(59_500), ms(59_500)));

    let limits = one(Limit::first_hit_window("hit", 10, ms(60_000)).unwrap());
    assert_eq!(both.at(70_000).allowed(&limits, 20).await, 10);
    assert_eq!(both.at(129_999).allowed(&limits, 20).await, 0);
    assert_eq!(both.at(130_000).allowed(&limits, 20).await, 10, "a minute after the first");
}

/// ThrottleKit, "sliding window counter": S buckets, ten as usual; one is the classic two-counter.
#[tokio::test]
async fn sliding_window() {
    let both = Both::new().await;
    let limits = one(Limit::sliding_window("ten", 10, ms(1000), 10).unwrap());
    assert_eq!(both.allowed(&limits, 20).await, 10);
    assert_eq!(both.at(1000).allowed(&limits, 20).await, 0, "the first bucket begins to leave");
    assert_eq!(both.at(1050).allowed(&limits, 20).await, 5, "half of it has left");
    assert_eq!(both.at(1100).allowed(&limits, 20).await, 5, "all of it");

    let limits = one(Limit::sliding_window("two", 10, ms(1000), 1).unwrap());
    assert_eq!(both.at(10_500).allowed(&limits, 20).await, 10);
    assert_eq!(both.at(11_300).allowed(&limits, 20).await, 3, "0.7 of the last window count");
}

/// ThrottleKit, "sliding window log": exact, with an exact retry-after; what is kept does not depend on chance.
#[tokio::test]
async fn sliding_log() {
    let both = Both::new().await;
    let limits = one(Limit::sliding_log("l", 3, ms(1000)).unwrap());
    for at in [0, 400, 400] {
        assert!(both.at(at).check(&limits, 1).await.allowed);
    }
    let denied = both.at(700).check(&limits, 2).await;
    assert_eq!((denied.retry_after, denied.remaining), (ms(700), 0), "two must leave");
    assert_eq!(both.at(700).check(&limits, 1).await.retry_after, ms(300));
    assert!(!both.at(999).check(&limits, 1).await.allowed);
    assert!(both.at(1000).check(&limits, 1).await.allowed);
    assert!(both.at(1400).check(&limits, 2).await.allowed);
}

/// ThrottleKit, "leaky bucket shaper": reserve, a queue that can be full, reset; and cancel, and batches.
#[tokio::test]
async fn leaky_bucket() {
    let both = Both::new().await;
    let limits = one(Limit::leaky_bucket("l", rate("10/s"), 1).unwrap());
    let batch = both.reserve(&limits, &[1; 5], ms(250)).await;
    assert_eq!(slots(&batch), [0, 100, 200], "a batch, as far as the queue goes");
    assert_eq!(batch.refused.unwrap().slot.0 - START, 300_000, "it is full, and says until when");
    let granted = batch.granted(&limits, Costs::Each(&[1; 5]));
    assert!(!both.cancel(&limits, &granted[1]).await, "not the tail");
    assert!(both.cancel(&limits, &granted[2]).await);
    assert_eq!(slots(&both.reserve(&limits, &[1], ms(250)).await), [200], "the slot given back");
    both.reset(&limits).await;
    assert_eq!(slots(&both.reserve(&limits, &[1], Duration::ZERO).await), [0]);
}

/// ThrottleKit, "leaky bucket shaper": schedule, the error of a full queue, and sleeps past the 2^31 ms of timers.
#[tokio::test(start_paused = true)]
async fn leaky_bucket_shaper() {
    let month = Duration::from_secs(30 * 86_400);
    assert!(month.as_millis() > 1 << 31);
    let builder = Shaper::builder("s", Rate::new(1, month).unwrap()).max_wait(month);
    let runtime = tokio::runtime::Handle::current();
    let shaper = builder.precision(Precision::Coarse).runtime(runtime).build().unwrap();
    let start = tokio::time::Instant::now();
    shaper.schedule("", async {}).await.unwrap();
    let last = shaper.reserve("").await.unwrap();
    let full = shaper.reserve("").await;
    assert!(matches!(full, Err(ReserveError::QueueFull { .. })), "{full:?}");
    last.wait().await;
    let elapsed = start.elapsed();
    assert!(elapsed >= month && elapsed < month + Duration::from_secs(1), "{elapsed:?}");
}

/// ThrottleKit, "quota": calendar month, week and day, fixed, rolling; offsets within 840 minutes; leap years.
#[tokio::test]
async fn quota() {
    let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_microsecond();
    let calendar = |unit, offset: i64| Edges::Calendar(Calendar::new(unit, offset).unwrap());
    let week = Duration::from_secs(7 * 86_400);
    let cases = [
        (calendar(Unit::Month, 0), "2028-02-10T12:00:00Z", "2028-03-01T00:00:00Z"),
        (calendar(Unit::Month, 0), "2027-02-28T23:59:59Z", "2027-03-01T00:00:00Z"),
        (calendar(Unit::Month, 840), "2028-02-28T10:00:00Z", "2028-02-29T10:00:00Z"),
        (calendar(Unit::Month, -840), "2028-02-29T13:59:59Z", "2028-03-01T14:00:00Z"),
        (calendar(Unit::Week, 0), "2028-02-29T12:00:00Z", "2028-03-06T00:00:00Z"),
        (calendar(Unit::Day, 330), "2028-02-28T18:30:00Z", "2028-02-29T18:30:00Z"),
        (Edges::aligned(week, 0).unwrap(), "2028-03-01T12:00:00Z", "2028-03-02T00:00:00Z"),
        (Edges::first_hit(week).unwrap(), "2028-03-01T12:00:00Z", "2028-03-08T12:00:00Z"),
    ];
    for (edges, now, end) in cases {
        let both = Both::new().await;
        let limits = one(Limit::quota("l", 3, edges).unwrap());
        let (now, end) = (at(now), at(end));
        both.clock.set(Micros(now));
        assert_eq!(both.allowed(&limits, 5).await, 3, "{edges:?}");
        let last = Duration::from_micros(1);
        both.clock.set(Micros(end - 1));
        let denied = both.check(&limits, 1).await;
        assert_eq!((denied.reset_after, denied.retry_after), (last, last), "{edges:?}");
        both.clock.set(Micros(end));
        assert_eq!(both.allowed(&limits, 5).await, 3, "{edges:?}");
    }
    assert!(Calendar::new(Unit::Day, 841).is_err() && Calendar::new(Unit::Day, -841).is_err());
}

/// ThrottleKit, "`all` / `any`": atomic, nothing is taken by halves, the binding limit in the answer, a cost per
/// limit; of any algorithms.
#[tokio::test]
async fn all_and_any() {
    let both = Both::new().await;
    let parts = || {
        vec![
            Limit::sliding_log("requests", 5, ms(1000)).unwrap(),
            Limit::token_bucket("bytes", rate("1000/s"), 2000).unwrap(),
            Limit::quota("monthly", 8, Edges::Calendar(Calendar::new(Unit::Month, 0).unwrap())).unwrap(),
        ]
    };
    let limits = LimitSet::new(parts()).unwrap();
    let cost = Costs::PerLimit(&[1, 1500, 1]);
    let first = both.checks(&limits, "", cost).await.remove(0);
    assert!(first.allowed);
    let remaining: Vec<u64> = first.standings.iter().map(|standing| standing.remaining).collect();
    assert_eq!(remaining, [4, 500, 7], "each is charged its own");
    let kept = both.states(&limits);
    let denied = both.checks(&limits, "", cost).await.remove(0);
    assert_eq!((denied.allowed, denied.binding, denied.limit), (false, 1, 2000), "by the bytes");
    assert_eq!(denied.retry_after, ms(1000));
    assert_eq!(both.states(&limits), kept, "the two others are not charged either");
    assert!(both.checks(&limits, "", Costs::PerLimit(&[1, 0, 1])).await[0].allowed, "without bytes");

    let any = LimitSet::any(parts()).unwrap();
    assert_eq!(both.checks(&any, "", Costs::PerLimit(&[2, 2000, 1])).await[0].standings[1].remaining, 500);
    assert_eq!(both.allowed(&any, 10).await, 10, "while one allows it");
    // The same limit twice is one, at twice the cost.
    let twice = Limit::sliding_log("twice", 5, ms(1000)).unwrap();
    let limits = LimitSet::new(vec![twice.clone(), twice]).unwrap();
    assert_eq!(both.allowed(&limits, 5).await, 2);
}

/// ThrottleKit, "bit-identical results in memory and in Redis": the shaper and the combinations too. The random
/// timelines are those of `store::parity`.
#[tokio::test]
async fn identical_in_memory_and_in_redis() {
    let both = Both::new().await;
    let limits = LimitSet::new(vec![
        Limit::leaky_bucket("shaper", rate("700001/s"), 3).unwrap(),
        Limit::sliding_window("counter", 40, ms(1000), 8).unwrap(),
        Limit::gcra("meter", rate("7/7d"), 9).unwrap(),
    ])
    .unwrap();
    let policers = limits.clone().policing();
    let mut taken = 0;
    for step in 0..60_i64 {
        both.at(step * 40_000_000 + step % 7 * 13);
        taken += both.reserve(&limits, &[1, 2], Duration::from_secs(86_400)).await.slots.len();
        taken += both.allowed(&policers, 2).await;
    }
    assert!(taken > 20, "{taken}");
}

/// ThrottleKit, "its tests": exactly the burst, then denied; the pace is 1/T; twice at the edge (above); a clock
/// that steps back never lets more through.
#[tokio::test]
async fn burst_then_pace_and_a_clock_that_steps_back() {
    for limit in [
        Limit::gcra("l", rate("10/s"), 3).unwrap(),
        Limit::token_bucket("l", rate("10/s"), 3).unwrap(),
        Limit::leaky_bucket("l", rate("10/s"), 3).unwrap().policing(),
    ] {
        let (both, limits) = (Both::new().await, one(limit));
        assert_eq!(both.allowed(&limits, 10).await, 3);
        let mut allowed = vec![];
        for at in (0..1000).step_by(10) {
            if both.at(at).check(&limits, 1).await.allowed {
                allowed.push(at);
            }
        }
        assert_eq!(allowed, [100, 200, 300, 400, 500, 600, 700, 800, 900]);
        for back in [1, 50, 90] {
            assert_eq!(both.at(990 - back).allowed(&limits, 5).await, 0, "{back} ms back");
        }
        // Further back it is another clock, on which as much is taken as was.
        assert_eq!(both.at(-5000).allowed(&limits, 5).await, 0);
    }
}

/// ThrottleKit, "its tests": a calendar that goes through 550 years and comes back.
#[test]
fn a_calendar_of_550_years() {
    let at = |text: &str| Micros(text.parse::<jiff::Timestamp>().unwrap().as_microsecond());
    for offset in [-840_i64, 0, 840] {
        let months = Calendar::new(Unit::Month, offset).unwrap();
        let (mut edge, mut edges) = (months.next(at("1700-01-15T00:00:00Z")), vec![]);
        let end = at("2250-01-15T00:00:00Z");
        while edge < end {
            assert_eq!(months.current(edge), edge);
            assert_eq!(months.current(Micros(months.next(edge).0 - 1)), edge, "and back");
            edges.push(edge);
            edge = months.next(edge);
        }
        assert_eq!(edges.len(), 550 * 12);
        let leap =
            |days: i64| edges.windows(2).filter(move |pair| pair[1].0 - pair[0].0 == days * 86_400_000_000);
        assert_eq!((leap(29).count(), leap(28).count()), (133, 417), "of 550 Februaries");
    }
}
