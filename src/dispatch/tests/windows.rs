//! Windows that shape: the units of a window are released at once, and no more until the next.

use super::*;
use crate::dispatch::OnLimit;
use crate::limit::{Edges, Limit, LimitSet};
use crate::pace::release::Tolerance;

const SECOND: Duration = Duration::from_secs(1);

fn bench(limits: Vec<Limit>) -> Bench {
    let mut bench = Bench::new("1/s", QUICK);
    bench.options.limits = LimitSet::new(limits).unwrap();
    bench
}

/// The most of these instants (ascending, in ms) in any half-open window.
fn busiest(millis: &[u128], window: u128) -> usize {
    let within = |first: usize| millis[first..].partition_point(|other| *other < millis[first] + window);
    (0..millis.len()).map(within).max().unwrap_or(0)
}

#[test]
fn how_late_a_job_may_be_is_a_matter_of_what_spaces_slots_out() {
    const MS: Duration = Duration::from_millis(1);
    let leaky = |rate: &str, burst| {
        Limit::leaky_bucket(format!("{rate}-{burst}"), rate.parse().unwrap(), burst).unwrap()
    };
    let month = Limit::quota("q", 1_000_000, Edges::aligned(30 * 86_400 * SECOND, 0).unwrap()).unwrap();
    let minute = Limit::fixed_window("w", 1000, 60 * SECOND).unwrap();
    for (limits, tolerance, opening) in [
        (vec![leaky("100/s", 1)], 10 * MS, 10 * MS),
        (vec![leaky("1000/s", 1)], 5 * MS, 5 * MS),
        (vec![leaky("1/h", 1)], 360 * SECOND, 3600 * SECOND),
        // A monthly quota or a burst does not determine the spacing of slots.
        (vec![leaky("100/s", 1), month.clone()], 10 * MS, 10 * MS),
        (vec![leaky("100/s", 1), leaky("1/s", 60)], 10 * MS, 10 * MS),
        (vec![leaky("100/s", 1), leaky("1/s", 1)], 100 * MS, SECOND),
        (vec![leaky("100/s", 5)], 10 * MS, 10 * MS),
        (vec![minute], 50 * MS, 60 * MS),
    ] {
        let mut bench = bench(limits.clone());
        let [tolerance, opening] = [tolerance, opening].map(|before| before - MS);
        let expected = Tolerance { at_handover: tolerance, while_connecting: opening };
        assert_eq!(Tolerance::of(&bench.options.settings()), expected, "{limits:?}");
        // The tightest plan determines it.
        let plan = limits.into_iter().chain([leaky("200/s", 1)]).collect();
        bench.options.plans.push(LimitSet::new(plan).unwrap());
        assert!(Tolerance::of(&bench.options.settings()).at_handover <= tolerance);
        bench.options.on_limit = OnLimit::Reject;
        let police = Tolerance { at_handover: 2 * SECOND, while_connecting: Duration::MAX };
        assert_eq!(Tolerance::of(&bench.options.settings()), police);
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_releases_its_count_at_once_for_few_calls() {
    let mut bench = bench(vec![Limit::first_hit_window("w", 1000, 60 * SECOND).unwrap()]);
    bench.options.concurrency = 500;
    bench.publish_many(0..2500);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert!(released[999] < 100, "{} ms", released[999]);
    assert!(released[1000] >= 60_000 && released[1999] < 60_200, "{} {}", released[1000], released[1999]);
    assert!(released[2000] >= 120_000 && released[2499] < 120_200);
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls <= 100, "{calls} calls for 2500 jobs");
}

#[tokio::test(start_paused = true)]
async fn a_log_holds_in_any_window_and_a_shaper_beside_it() {
    let limits = vec![
        Limit::leaky_bucket("l", "30/s".parse().unwrap(), 1).unwrap(),
        Limit::sliding_log("s", 50, 5 * SECOND).unwrap(),
    ];
    let mut bench = bench(limits);
    bench.publish_many(0..200);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let released = bench.sink.millis(start);
    assert_eq!((busiest(&released, 1000), busiest(&released, 5000)), (30, 50));
    // The slots are at 0, 33, ...: the 50th at 1633; from then on there are 50 every 5 s.
    assert!((1633..=1640).contains(&released[49]), "{}", released[49]);
    assert!((5000..=5010).contains(&released[50]) && (16_633..=16_700).contains(&released[199]));
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_used_up_lets_nothing_through_until_it_is_whole() {
    let edges = Edges::first_hit(3600 * SECOND).unwrap();
    let mut bench = bench(vec![Limit::quota("q", 5, edges).unwrap()]);
    bench.publish_many(0..12);
    let start = Instant::now();
    let done = bench.start();
    bench.end();
    done.await.unwrap();
    let hours: Vec<u128> = bench.sink.millis(start).iter().map(|at| (at + 100) / 3_600_000).collect();
    assert_eq!(hours, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]);
    let calls = bench.store.calls.load(Ordering::SeqCst);
    assert!(calls <= 20, "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn replicas_share_a_window() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [0, 1].map(|_| {
        let mut bench = bench(vec![Limit::first_hit_window("w", 100, 10 * SECOND).unwrap()]);
        bench.options.concurrency = 8;
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
        bench.publish_many(0..500);
        bench
    });
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    let sent = |bench: &Bench| bench.sink.count();
    while benches.iter().map(sent).sum::<usize>() < 500 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(start.elapsed() < 42 * SECOND, "500 at 100 per 10 s: {:?}", start.elapsed());
    let mut all: Vec<u128> = benches.iter().flat_map(|bench| bench.sink.millis(start)).collect();
    all.sort_unstable();
    for window in 1..5 {
        let in_time = all[window * 100] >= 10_000 * window as u128;
        assert!(in_time, "{} in window {window}", all[window * 100]);
    }
    for bench in &benches {
        assert!((150..=350).contains(&sent(bench)), "{} of 500", sent(bench));
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_units_left_costs_no_calls_and_no_slots() {
    let leaky =
        |name: &str, rate: &str, burst| Limit::leaky_bucket(name, rate.parse().unwrap(), burst).unwrap();
    // These are slower than the pace in the long run, and far from used up.
    for beside in [
        Limit::quota("q", 1_000_000, Edges::aligned(86_400 * SECOND, 0).unwrap()).unwrap(),
        Limit::sliding_log("s", 10_000, 60 * SECOND).unwrap(),
        leaky("l", "1000/m", 5000),
    ] {
        let mut bench = bench(vec![leaky("pace", "1000/s", 1), beside.clone()]);
        bench.store = Arc::new(FlakyStore::new(Arc::new(MemoryStore::new()), 2 * QUICK));
        bench.publish_many(0..2000);
        let start = Instant::now();
        let done = bench.start();
        bench.end();
        done.await.unwrap();
        let (took, calls) = (start.elapsed(), bench.store.calls.load(Ordering::SeqCst));
        assert!(took < Duration::from_millis(2100), "2000 at 1000/s took {took:?} beside {beside:?}");
        assert!(calls <= 100, "{calls} calls for 2000 jobs beside {beside:?}");
    }
}

/// A job that the rest of a window cannot hold waits for the next window, and leaves the rest to others.
#[tokio::test(start_paused = true)]
async fn a_costly_job_leaves_the_rest_of_a_window_to_cheap_ones() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [0, 1].map(|_| {
        let mut bench = bench(vec![Limit::first_hit_window("w", 10, 3600 * SECOND).unwrap()]);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
        bench
    });
    let [cheap, costly] = &mut benches;
    let start = Instant::now();
    let (_cheap, _costly) = (cheap.start(), costly.start());
    cheap.publish_many(0..6);
    cheap.sink.arrived(6).await;
    tokio::time::advance(2400 * SECOND).await;
    let headers = vec![("paced-cost".to_owned(), Value::Integer(5))];
    costly.publish(Message { headers, ..message("costly") });
    tokio::time::sleep(SECOND).await;
    cheap.publish_many(6..9);
    cheap.sink.arrived(9).await;
    assert!(start.elapsed() < 2405 * SECOND, "{:?}", start.elapsed());
    costly.sink.arrived(1).await;
    assert!((3600..3602).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    let calls = costly.store.calls.load(Ordering::SeqCst);
    assert!(calls <= 20, "{calls} calls for one job that has to wait");
}

/// Units are left that the job cannot use: no calls are repeated for it, nor after the end of the next window.
#[tokio::test(start_paused = true)]
async fn costly_jobs_use_every_window_in_few_calls() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [0, 1].map(|_| {
        let mut bench = bench(vec![Limit::first_hit_window("w", 11, 60 * SECOND).unwrap()]);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
        bench
    });
    for bench in &benches {
        for job in 0..30 {
            let headers = vec![("paced-cost".to_owned(), Value::Integer(3))];
            bench.publish(Message { headers, ..message(&format!("job-{job}")) });
        }
    }
    let _running = benches.each_mut().map(Bench::start);
    tokio::time::sleep(59 * SECOND + 9 * 61 * SECOND).await;
    let sent: usize = benches.iter().map(|bench| bench.sink.count()).sum();
    assert!((30..=33).contains(&sent), "{sent}, three in each window");
    let calls: usize = benches.iter().map(|bench| bench.store.calls.load(Ordering::SeqCst)).sum();
    assert!(calls <= 120, "{calls} calls for {sent} jobs");
}
