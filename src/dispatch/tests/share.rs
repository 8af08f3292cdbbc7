//! Replicas that share one pace.

use super::*;

#[tokio::test(start_paused = true)]
async fn replicas_far_from_the_store_get_their_share() {
    for (rate, jobs) in [("2/s", 100), ("200/s", 1000)] {
        let store = Arc::new(MemoryStore::new());
        let mut benches = [1, 15].map(|millis| {
            let mut bench = Bench::new(rate, QUICK);
            bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_millis(millis)));
            bench.publish_many(0..jobs);
            bench
        });
        let _running = benches.each_mut().map(Bench::start);
        let [near, far] = &benches;
        // The shares are compared as long as both have jobs.
        let done = || near.sink.count() + far.sink.count();
        while done() < jobs {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let share = far.sink.count() * 100 / done();
        assert!((30..=70).contains(&share), "{share} % of {rate} for the far one");
    }
}

#[tokio::test(start_paused = true)]
async fn four_replicas_take_a_quarter_each_for_less_than_half_a_call_a_job() {
    // Replicas of unequal distance to the store; the last one is distant.
    let store = Arc::new(MemoryStore::new());
    let mut benches = [200, 250, 300, 2200].map(|micros| {
        let mut bench = Bench::new("200/s", QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(micros / 2)));
        bench.publish_many(0..2000);
        bench
    });
    let start = Instant::now();
    let _running = benches.each_mut().map(Bench::start);
    let sent = |bench: &Bench| bench.sink.count();
    while benches.iter().map(sent).sum::<usize>() < 2000 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(start.elapsed() < Duration::from_millis(10_200), "no slot is lost: {:?}", start.elapsed());
    for bench in &benches {
        assert!((400..=600).contains(&sent(bench)), "{}", sent(bench));
    }
    let calls: usize = benches.iter().map(|bench| bench.store.calls.load(Ordering::SeqCst)).sum();
    assert!(calls < 1000, "{calls} calls for 2000 jobs");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_left_alone_takes_all_slots() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [0, 1].map(|_| {
        let mut bench = Bench::new("200/s", QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), QUICK));
        bench
    });
    benches[0].publish_many(0..1000);
    benches[1].publish_many(0..100);
    let start = Instant::now();
    let [alone, other] = benches.each_mut().map(|bench| {
        let done = bench.start();
        bench.end();
        done
    });
    let (_, _) = (alone.await.unwrap(), other.await.unwrap());
    assert!(start.elapsed() < Duration::from_millis(5600), "1100 slots take 5.5 s: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_limit_is_shared_too() {
    // Although the slots are far apart, each replica knows of the other.
    for rate in ["10/m", "1/m"] {
        let store = Arc::new(MemoryStore::new());
        let mut benches = [1, 1].map(|millis| {
            let mut bench = Bench::new(rate, QUICK);
            bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_millis(millis)));
            bench.publish_many(0..200);
            bench
        });
        let _running = benches.each_mut().map(Bench::start);
        let sent = |bench: &Bench| bench.sink.count();
        while benches.iter().map(sent).sum::<usize>() < 200 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        for bench in &benches {
            assert!((50..=150).contains(&sent(bench)), "{} of 200 at {rate}", sent(bench));
        }
    }
}

/// Units that come back are taken by the cheapest jobs: a job that costs the whole burst waits until the burst is
/// whole, so it reaches further ahead than the others.
#[tokio::test(start_paused = true)]
async fn a_job_of_a_high_cost_is_not_starved_by_cheap_ones() {
    let second = Duration::from_secs(1);
    for limit in [
        Limit::gcra("l", "20/s".parse().unwrap(), 20).unwrap(),
        Limit::token_bucket("l", "20/s".parse().unwrap(), 20).unwrap(),
        Limit::sliding_log("l", 20, second).unwrap(),
    ] {
        let store = Arc::new(MemoryStore::new());
        let mut benches = [1, 1].map(|millis| {
            let mut bench = Bench::new("20/s", QUICK);
            bench.options.limits = LimitSet::new(vec![limit.clone()]).unwrap();
            bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_millis(millis)));
            bench
        });
        let [cheap, costly] = &mut benches;
        cheap.publish_many(0..600);
        let _cheap = cheap.start();
        cheap.sink.arrived(100).await;
        let headers = vec![("paced-cost".to_owned(), Value::Integer(20))];
        costly.publish(Message { headers, ..message("costly") });
        let start = Instant::now();
        let _costly = costly.start();
        costly.sink.arrived(1).await;
        assert!(start.elapsed() < 3 * second, "{:?} with {limit:?}", start.elapsed());
    }
}
