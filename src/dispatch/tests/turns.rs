//! Replicas that take turns in asking for slots.

use super::*;

/// Replicas at these distances in µs from one store, with this many jobs each.
fn replicas<const N: usize>(rate: &str, micros: [u64; N], jobs: usize) -> [Bench; N] {
    let store = Arc::new(MemoryStore::new());
    micros.map(|micros| {
        let mut bench = Bench::new(rate, QUICK);
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(micros)));
        bench.publish_many(0..jobs);
        bench
    })
}

fn sent(benches: &[Bench]) -> usize {
    benches.iter().map(|bench| bench.sink.count()).sum()
}

async fn all_sent(benches: &[Bench], jobs: usize) {
    while sent(benches) < jobs {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_keep_the_whole_pace_however_far_the_store_is() {
    /// The duration of one run: 1 600 slots at 200/s, after the first 400.
    async fn run<const N: usize>(one_way: u64) -> Duration {
        // Each has enough, even if it takes more than its part.
        let mut benches = replicas("200/s", [one_way * 1000; N], 2100 / N + 400);
        let _running = benches.each_mut().map(Bench::start);
        all_sent(&benches, 400).await;
        let start = Instant::now();
        all_sent(&benches, 2000).await;
        start.elapsed()
    }
    for one_way in [0, 1, 15, 40, 100] {
        let (one, three, ten) = (run::<1>(one_way).await, run::<3>(one_way).await, run::<10>(one_way).await);
        let most = Duration::from_millis(8080);
        assert!(one.max(three).max(ten) <= most, "{one_way} ms one way: {one:?} {three:?} {ten:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_replica_gets_its_part_at_any_rate_in_few_calls() {
    for (rate, calls_per_job) in [("1/s", 1.2), ("5/s", 1.1), ("20/s", 1.1), ("200/s", 0.2), ("1000/s", 0.1)]
    {
        for far in [1000, 40_000] {
            // There are enough jobs for several turns of each replica.
            let jobs = match rate {
                "1000/s" => 4000,
                "200/s" => 1000,
                _ => 200,
            };
            let mut benches = replicas(rate, [150, 200, 250, far], jobs);
            let _running = benches.each_mut().map(Bench::start);
            all_sent(&benches, jobs).await;
            let shares = benches.each_ref().map(|bench| bench.sink.count() * 1000 / jobs);
            assert!(shares.iter().all(|share| (230..=270).contains(share)), "{rate}, {far} µs: {shares:?}");
            let calls: usize = benches.iter().map(|bench| bench.store.calls.load(Ordering::SeqCst)).sum();
            let calls = calls as f64 / jobs as f64;
            assert!(calls <= calls_per_job, "{rate}, {far} µs: {calls} calls a job");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_replicas_make_no_more_calls_than_few() {
    for (rate, calls_per_job) in [("5/s", 1.2), ("200/s", 0.2)] {
        let mut benches = replicas(rate, [150; 20], 100);
        let _running = benches.each_mut().map(Bench::start);
        all_sent(&benches, 1000).await;
        let calls: usize = benches.iter().map(|bench| bench.store.calls.load(Ordering::SeqCst)).sum();
        let calls = calls as f64 / 1000.0;
        assert!(calls <= calls_per_job, "{rate}: {calls} calls a job");
    }
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_waits_for_no_round_of_turns() {
    for rate in ["50/s", "200/s"] {
        let mut benches = replicas(rate, [150; 9], 0);
        benches[1..].iter().for_each(|bench| bench.publish_many(0..2000));
        let _running = benches.each_mut().map(Bench::start);
        for job in 0..20 {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(500..1500))).await;
            let published = Instant::now();
            benches[0].publish(message(&format!("new-{job}")));
            benches[0].sink.arrived(job + 1).await;
            let waited = published.elapsed();
            assert!(waited <= Duration::from_millis(200), "{rate}, job {job}: {waited:?}");
        }
    }
}

/// A turn has more slots than the concurrency, but each send is over before the next slot but one.
#[tokio::test(start_paused = true)]
async fn places_do_not_bound_a_call_while_sends_are_short() {
    let mut bench = replicas("1000/s", [150], 4000).into_iter().next().unwrap();
    bench.options.concurrency = 8;
    let _running = bench.start();
    bench.sink.arrived(500).await;
    let (start, before) = (Instant::now(), bench.store.calls.load(Ordering::SeqCst));
    bench.sink.arrived(3500).await;
    assert!(start.elapsed() <= Duration::from_millis(3010), "{:?}", start.elapsed());
    let calls = bench.store.calls.load(Ordering::SeqCst) - before;
    assert!(calls <= 150, "{calls} calls for 3 000 slots");
}

/// The turns of a replica that is gone are void: others take the slots that are left of them.
#[tokio::test(start_paused = true)]
async fn one_that_is_gone_costs_a_turn_at_most() {
    let mut benches = replicas("200/s", [150; 4], 2000);
    let mut running = benches.each_mut().map(Bench::start).into_iter();
    all_sent(&benches, 400).await;
    running.next().unwrap().abort();
    let start = Instant::now();
    let before = sent(&benches);
    all_sent(&benches, before + 800).await;
    // A turn has 8 slots; the replica held at most one turn that it had reserved, and one that it had booked.
    assert!(start.elapsed() <= Duration::from_millis(4000 + 20 * 5), "{:?}", start.elapsed());
}

/// Turns that were booked behind the end of a pause must not delay anybody once it is lifted.
#[tokio::test(start_paused = true)]
async fn turns_behind_a_pause_that_is_lifted_are_void() {
    let mut benches = replicas("200/s", [150; 3], 2000);
    let _running = benches.each_mut().map(Bench::start);
    all_sent(&benches, 200).await;
    let store = Arc::clone(&benches[0].store);
    let update_record =
        async |change| store.update_record(&benches[0].options.downstream, change).await.unwrap();
    update_record(Change::Penalize(Duration::from_secs(200))).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let before = sent(&benches);
    update_record(Change::Resume).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = sent(&benches) - before;
    assert!((170..=201).contains(&after), "{after} in the first second");
}

/// At its turn each replica would need concurrency for the whole pace.
#[tokio::test(start_paused = true)]
async fn few_places_for_long_sends_make_short_turns() {
    let store = Arc::new(MemoryStore::new());
    let mut benches = [150; 4].map(|micros| {
        let mut bench = Bench::new("200/s", Duration::from_millis(20));
        bench.store = Arc::new(FlakyStore::new(Arc::clone(&store), Duration::from_micros(micros)));
        bench.options.concurrency = 4;
        bench.publish_many(0..1000);
        bench
    });
    let _running = benches.each_mut().map(Bench::start);
    all_sent(&benches, 400).await;
    let start = Instant::now();
    all_sent(&benches, 1400).await;
    assert!(start.elapsed() <= Duration::from_millis(5100), "{:?} for 1 000 slots", start.elapsed());
}
